"""Floors and caps of groups hold over all shards of real runs, or are refused before embedding."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamask.errors import SettingsError
from tests.selection.runs import learn


def test_impossible_limits_are_refused_before_embedding(tmp_path: Path, source: Path) -> None:
    """A floor above what is left, a column that the source lacks."""
    limits = [{"column": "language", "value": "fi", "floor": 0.1}]
    with pytest.raises(SettingsError, match="floor of language fi asks for 3 documents, only 0"):
        learn(tmp_path / "run", source, selection={"limits": limits})
    assert not (tmp_path / "run" / "embeddings").exists()
    lacking = {"columns": {"language": "tongue"}}
    with pytest.raises(SettingsError, match=r"no column `tongue`; set source\.columns\.language"):
        learn(tmp_path / "other", source, source=lacking, selection={"limits": limits})

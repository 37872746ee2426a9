"""Floors and caps of groups hold over all shards of real runs, or are refused before embedding."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution.pipeline import run_stage
from tests.finished import corpus
from tests.selection.runs import kept, learn


def test_impossible_limits_are_refused_before_embedding(tmp_path: Path, source: Path) -> None:
    """A floor above what is left, a column that the source lacks."""
    limits = [{"column": "language", "value": "fi", "floor": 0.1}]
    with pytest.raises(SettingsError, match="floor of language fi asks for 3 documents, only 0"):
        learn(tmp_path / "run", source, selection={"limits": limits})
    assert not (tmp_path / "run" / "embeddings").exists()
    lacking = {"columns": {"language": "tongue"}}
    with pytest.raises(SettingsError, match=r"no column `tongue`; set source\.columns\.language"):
        learn(tmp_path / "other", source, source=lacking, selection={"limits": limits})


def test_documents_without_a_group_are_a_group(tmp_path: Path) -> None:
    """Null, empty and blank are "(none)": capped as every group, shown in every table."""
    folder = corpus(tmp_path / "source")
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        given = [[None, "", " \t", "de"][row % 4] for row in range(len(table))]
        place = table.schema.get_field_index("language")
        pq.write_table(table.set_column(place, "language", pa.array(given)), path)
    limits = [{"column": "language", "cap": 0.5}]
    run = learn(tmp_path / "run", folder, selection={"limits": limits})
    languages = [row["language"] for row in kept(run)]
    assert languages.count(None) == languages.count("de") == 15
    for stage in ("documents", "composition"):
        run_stage(run, stage, Compute())
    rows = query(run, "SELECT * FROM groups WHERE kind = 'language'")
    assert {row["name"]: row["documents_after"] for row in rows} == {"(none)": 15, "de": 15}
    assert sum(row["documents_before"] for row in rows) == 120
    assert sum(row["share_after"] for row in rows) == pytest.approx(1)
    count = "SELECT count(*) AS n FROM selection WHERE language = '(none)'"
    assert query(run, count) == [{"n": 15}]

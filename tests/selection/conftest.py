"""The learner's shards, a corpus, and scales that are measured quickly."""

from pathlib import Path

import pytest

from tests.finished import corpus
from tests.learning.conftest import make_shard

__all__ = ["make_shard"]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of thirty documents; a test that changes files makes its own."""
    return corpus(tmp_path_factory.mktemp("corpus") / "source")


@pytest.fixture(autouse=True, scope="module")
def _roughly(roughly: None) -> None:
    """In every module of this folder."""

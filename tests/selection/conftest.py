"""The learner's shards, a corpus, and scales that are measured quickly."""

import pytest

from tests.learning.conftest import make_shard

__all__ = ["make_shard"]


@pytest.fixture(autouse=True, scope="module")
def _roughly(roughly: None) -> None:
    """In every module of this folder."""

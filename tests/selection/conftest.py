"""The shards of the learner's tests, and scales that are measured quickly."""

import pytest

from datamask.learning import scales
from tests.learning.conftest import make_shard

__all__ = ["make_shard"]


@pytest.fixture(autouse=True)
def _roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From hundreds of subsets in place of thousands, which is most of the time of a small run."""
    monkeypatch.setattr(scales, "PRECISION", 0.05)

"""The shards of the learner's tests."""

from tests.learning.conftest import make_shard

__all__ = ["make_shard"]

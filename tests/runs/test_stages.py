"""Every stage belongs to the work of one flow."""

import pytest

from datamask.config.loading import parse_settings
from datamask.runs.stages import evaluation_stages, learning_stages, merging_stages, stages_of

REPEATS = {"max_repeat": 2, "training_documents": 5, "documents": 3}


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"evaluation": {"arms": ["ours", "random"]}},
        {"selection": REPEATS, "evaluation": {"arms": ["ours", "random"]}},
        {"topics": {}},
        {"tokens": {"tokenizer": "gpt2"}, "evaluation": {"arms": ["ours", "random"]}},
        {"selection": {"scope": "corpus"}, "evaluation": {"arms": ["ours", "random"]}},
    ],
)
def test_the_parts_are_the_whole(groups):
    """From embeddings to the report, in order, no stage is left out or done by two flows."""
    settings = parse_settings({"source": {"path": "texts"}, **groups})
    stages = stages_of(settings)
    parts = [learning_stages(settings), merging_stages(settings), evaluation_stages(settings)]
    whole = [stage for part in parts for stage in part]
    assert whole == stages[stages.index("embeddings") + 1 : stages.index("report")]
    assert bool(parts[2]) == ("evaluation" in groups)

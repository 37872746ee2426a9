"""Bytes are the same whatever the number of workers and the order of the shards."""

import random

import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.stages import SHARD_STAGES
from tests import finished
from tests.faults.comparison import contents

SELECTIONS = (
    pytest.param({"metric": "pairwise", "estimator": "policy_gradient"}, marks=pytest.mark.slow),
    {"metric": "disf", "estimator": "expected"},
    pytest.param({"metric": "facility_location", "quality_weight": 0.3}, marks=pytest.mark.slow),
    pytest.param({"method": "random"}, marks=pytest.mark.slow),
)

EDU = {"name": "edu", "kind": "column", "column": "edu"}

pytestmark = pytest.mark.usefixtures("roughly")


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda values: "-".join(map(str, values.values()))
)
def test_workers_and_order_change_no_byte(source, tmp_path, selection):
    """One worker, four, and every shard by itself in no order and small batches."""
    (known := tmp_path / "known.txt").write_text(" ".join(finished.WORDS))
    chosen = finished.settings(
        source,
        selection={**selection, "steps": 10},
        plan={"rows_per_shard": 24},
        topics={"number": 3},
        quality={
            "scores": [{**EDU, "normalise_within": "language"}, {"name": "form"}],
            "near_duplicates": {},
            "contamination": {"sets": [str(known)], "ngram": 3, "action": "flag"},
        },
    )
    made = [
        finished.finish(tmp_path / f"{workers}", chosen, "composition", Compute(workers=workers))
        for workers in (1, 4)
    ]
    made.append(plan_run(tmp_path / "shuffled", chosen))
    for stage in finished.up_to(made[2], "composition"):
        units = list(range(made[2].num_units(stage)))
        random.Random(stage).shuffle(units)
        for unit in units:
            shards = [unit] if stage in SHARD_STAGES else None
            run_stage(made[2], stage, Compute(embedding_batch=3), shards=shards)
    assert made[0].num_shards > 4
    first, *others = (contents(run.root) for run in made)
    assert others == [first, first]

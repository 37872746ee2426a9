"""The same bytes whatever the number of workers and the order of the shards."""

import random
from collections.abc import Callable

import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
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


def in_order(run: Run, stage: str) -> None:
    """One worker, shard after shard."""
    run_stage(run, stage, Compute())


def four_workers(run: Run, stage: str) -> None:
    """Four shards at once, and DuckDB with as many threads."""
    run_stage(run, stage, Compute(workers=4))


def shuffled(run: Run, stage: str) -> None:
    """Every shard by itself, in no order, in small batches."""
    units = list(range(run.num_units(stage)))
    random.Random(stage).shuffle(units)
    for unit in units:
        shards = [unit] if stage in SHARD_STAGES else None
        run_stage(run, stage, Compute(embedding_batch=3), shards=shards)


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda values: "-".join(map(str, values.values()))
)
def test_workers_and_order_change_no_byte(source, tmp_path, selection):
    """Three ways through the same plan leave the same files."""
    ways: tuple[Callable[[Run, str], None], ...] = (in_order, four_workers, shuffled)
    made, known = [], tmp_path / "known.txt"
    known.write_text(" ".join(finished.WORDS))
    for way in ways:
        chosen = finished.settings(
            source,
            selection={**selection, "steps": 10},
            plan={"rows_per_shard": 24},
            topics={"number": 3},
            quality={
                "scores": [{**EDU, "normalise_within": "topic"}, {"name": "form"}],
                "near_duplicates": {},
                "contamination": {"sets": [str(known)], "ngram": 3, "action": "flag"},
            },
        )
        run = plan_run(tmp_path / way.__name__, chosen)
        for stage in finished.up_to(run, "composition"):
            way(run, stage)
        assert run.num_shards > 4
        made.append(contents(run.root))
    assert made[0] == made[1]
    assert made[0] == made[2]

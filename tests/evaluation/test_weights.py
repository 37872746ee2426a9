"""`sweep.by: evaluation`: models are trained for every lambda, and the best lambda is named."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datamask.config.evaluation import Arm, Evaluation
from datamask.errors import RunError
from datamask.evaluation.weights import trained_weights, with_weights
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from tests.cli.commands import here
from tests.evaluation import small
from tests.evaluation.test_command import SETTINGS

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SWEEP = ("sweep.by=evaluation", "sweep.quality_weights=[0,0.5,1]", "sweep.seeds=[0]")
SHORT = (*SWEEP, "sweep.shards=1")


def bits_by_arm(root: Path) -> dict[str, float]:
    """Bits per byte of every arm, from the files of its models."""
    found: dict[str, list[float]] = {}
    for name, value in small.bits_per_byte(root).items():
        found.setdefault(name.partition("-seed")[0], []).append(value)
    return {arm: sum(some) / len(some) for arm, some in found.items()}


def test_without_held_out_texts_a_sweep_starts_no_work(tmp_path, source, capsys):
    """It would train for hours before the stage that scores; the line names what to set."""
    plan_run(tmp_path / "run", small.settings(source, arms=[], hold_out=0))
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert here("sweep", tmp_path / "run", *(part for item in SHORT for part in ("--set", item)))
    told = capsys.readouterr().err
    assert "evaluation.hold_out: nothing is held out; set it to a share such as 0.01" in told
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


@pytest.mark.slow
def test_the_lambda_whose_models_are_best_is_recommended(root, capsys):
    """An arm per lambda beside those of the run; page and command line name the best one."""
    assert here("evaluate", root, *SETTINGS, "--set", "evaluation.arms=[ours, random]") == 0
    before = small.contents(open_run(root))
    capsys.readouterr()
    assert here("sweep", root, *(part for item in SHORT for part in ("--set", item))) == 0
    printed = capsys.readouterr().out
    run = open_run(root)
    after = small.contents(run)
    assert len(after) == len(before) + 3 * 2
    assert {name: after[name] for name in before} == before
    bits = bits_by_arm(root)
    assert set(bits) == {"ours", "random", "lambda-0", "lambda-0.5", "lambda-1"}
    tried = {arm: value for arm, value in bits.items() if arm.startswith("lambda-")}
    best = min(tried, key=lambda arm: tried[arm])
    weight = best.removeprefix("lambda-")
    assert f"Recommended: `selection.quality_weight={weight}` (models trained on it" in printed
    page = (root / "sweep" / "sweep.html").read_text()
    assert f"Recommended: selection.quality_weight={weight} (models trained on it" in page
    found = trained_weights(run, (0, 0.5, 1))
    assert [one.bits_per_byte for one in found] == pytest.approx(sorted(tried.values()))
    rows = pq.read_table(root / "evaluation.parquet").to_pylist()
    worse = {r["arm"] for r in rows if r["other"] == best and r["verdict"] == "worse"}
    worse |= {r["other"] for r in rows if r["arm"] == best and r["verdict"] == "better"}
    undecided = {f"lambda-{one.quality_weight:g}" for one in found if one.verdict == "undecided"}
    assert undecided == set(tried) - worse - {best}
    assert found[0].verdict == "best"


def test_arms_that_try_a_lambda_are_not_added_again():
    """Whatever their names; an arm that changes more than lambda is another one."""
    mine = Arm(name="mine", change={"quality_weight": 0.5})
    both = Arm(name="both", change={"quality_weight": 0.2, "metric": "pairwise"})
    found = with_weights(Evaluation(arms=(mine, both)), (0.5, 0.2, 0.2, 1))
    assert [arm.name for arm in found.arms] == ["mine", "both", "lambda-0.2", "lambda-1"]
    assert with_weights(found, (0.2, 1)) == found


def test_a_sweep_without_trained_models_says_what_is_missing(root):
    """From Python, where the models are not trained first."""
    with pytest.raises(RunError, match="no models are trained for lambda"):
        trained_weights(open_run(root), (0.3, 0.7))

"""Learning of shards: kept by the run, in table `curves`, in charts of one run and of several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamask.analysis.compare import compare
from datamask.analysis.summary import query
from datamask.report import chart_data
from datamask.report.chart_data import curve_charts, read_curves
from datamask.report.compare_page import compare_page
from datamask.runs.run import Run
from datamask.selection.per_shard import MOST_POINTS
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SAMPLED = {"estimator": "policy_gradient", "steps": 120, "rollouts": 8, "tolerance": 0}
SAMPLED["swap_refinement"] = 0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents."""
    return corpus(tmp_path_factory.mktemp("curves") / "source")


@pytest.fixture(scope="module")
def runs(source: Path) -> dict[str, Run]:
    """One that follows expected sums, one that draws masks, and one with a budget of tokens."""
    cases: dict[str, dict[str, Any]] = {"expected": {}, "sampled": SAMPLED}
    cases["tokens"] = {"tokens": 600}
    return {
        name: finish(source.parent / name, settings(source, selection=selection), "composition")
        for name, selection in cases.items()
    }


def learned_by(name: str) -> str:
    """The stage in which a run of this name learned."""
    return "learning" if name == "tokens" else "selection"


@pytest.mark.parametrize("name", ["expected", "sampled", "tokens"])
def test_the_curve_of_each_shard_is_kept(runs, name):
    """A point has the weighted sum of its terms; the last one is the mask; no clock is in it."""
    run = runs[name]
    rows = query(run, "SELECT * FROM curves")
    for shard in range(run.num_shards):
        kept = run.receipt(learned_by(name), shard).metrics["curve"]
        assert set(kept) == {"step", "objective", "quality", "disf"}
        assert len(kept["step"]) <= MOST_POINTS and kept["step"] == sorted(set(kept["step"]))
        for term in ("objective", "quality", "disf"):
            ours = [
                (r["step"], r["value"]) for r in rows if (r["shard"], r["term"]) == (shard, term)
            ]
            assert sorted(ours) == list(zip(kept["step"], kept[term], strict=True))
        if name == "tokens":
            continue  # limits of all shards decide: the receipt judges another mask
        metrics = run.receipt("selection", shard).metrics
        scales = metrics["scales"]
        joint = 0.5 * np.array(kept["quality"]) / scales["quality"]
        joint -= 0.5 * np.array(kept["disf"]) / scales["disf"]
        assert kept["objective"] == pytest.approx(joint.tolist(), rel=1e-5, abs=1e-6)
        last = {term: kept[term][-1] for term in ("quality", "disf")}
        selected = {term: metrics["terms"][term]["selected"] for term in last}
        assert last == pytest.approx(selected, rel=1e-5)
        assert kept["step"][-1] >= metrics["steps"]
    if name == "sampled":
        assert len(kept["step"]) == MOST_POINTS and kept["step"][0] == 1
        assert kept["step"][-1] == 120, "the mask that is learned is what the curve shows"


def test_shards_that_learn_together_have_rounds_and_no_curve(source, tmp_path):
    """Neither has a method that does not learn."""
    for name, selection in (("corpus", {"scope": "corpus"}), ("greedy", {"method": "greedy"})):
        run = finish(tmp_path / name, settings(source, selection=selection), "composition")
        assert query(run, "SELECT * FROM curves") == [] and curve_charts({"": run}) == []
        assert bool(query(run, "SELECT * FROM rounds")) == (name == "corpus")


def test_a_run_has_a_line_for_each_shard_or_quantiles(runs, monkeypatch):
    """The quantiles are over shards at each step; a shard that has ended keeps its last value."""
    run = runs["expected"]
    objective, terms = curve_charts({"": run})
    assert [one.name for one in objective.series] == ["shard 0", "shard 1", "shard 2"]
    for shard, line in enumerate(objective.series):
        kept = run.receipt("selection", shard).metrics["curve"]
        assert list(line.x) == kept["step"]
        assert list(line.y) == pytest.approx(kept["objective"], rel=1e-5)
    assert [one.name for one in terms.series] == ["disf", "quality"]
    for line in terms.series:  # They end at the gains that the report shows.
        [row] = query(run, f"SELECT * FROM terms WHERE term = '{line.name}'")
        gain = (row["selected"] - row["random"]) / (row["best"] - row["random"])
        assert line.y[-1] == pytest.approx(gain, rel=1e-4)
    monkeypatch.setattr(chart_data, "MOST_LINES", 2)
    low, middle, high = curve_charts({"": run})[0].series
    values = [run.receipt("selection", n).metrics["curve"]["objective"][-1] for n in range(3)]
    assert middle.y[-1] == pytest.approx(np.median(values), rel=1e-5)
    assert high.y[-1] == pytest.approx(np.quantile(values, 0.9), rel=1e-5)
    assert all(a <= b <= c for a, b, c in zip(low.y, middle.y, high.y, strict=True))


def test_runs_are_laid_over_each_other(runs):
    """A line per run, named; in the comparison too."""
    both = {name: runs[name] for name in ("expected", "sampled")}
    objective, terms = curve_charts(both)
    assert [one.name for one in objective.series] == ["expected", "sampled"]
    assert {one.name for one in terms.series} == {
        f"{run}: {term}" for run in both for term in ("quality", "disf")
    }
    page = compare_page(compare([*both.values()]))
    assert 'id="curve-objective"' in page and 'id="curve-terms"' in page


def test_some_shards_have_the_curves_of_the_whole(runs):
    """From receipts, as a sweep of some shards reads them, and from the composition."""
    run = runs["expected"]
    whole, some = read_curves(run, None), read_curves(run, [0, 2])
    assert set(some) == set(whole) == {"objective", "quality", "disf"}
    for term, lines in some.items():
        assert [shard for shard, *_ in lines] == [0, 2]
        for (_, steps, values), (_, expected, known) in zip(
            lines, (whole[term][0], whole[term][2]), strict=True
        ):
            assert (steps == expected).all() and (values == known).all()

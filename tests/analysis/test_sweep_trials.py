"""The sweep: what it reuses, what it measures, the knee, and that it does only what is missing."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamask.analysis import sweep_trials
from datamask.analysis.frontier import Point, frontier, knee, knee_by_seed
from datamask.analysis.sweep_trials import trial_metrics, trial_path, trials
from datamask.config.compute import Compute
from datamask.config.loading import load_sweep
from datamask.config.outputs import Sweep
from datamask.config.selection import Selection
from datamask.errors import RunError, SettingsError
from datamask.planning.plan import plan_run
from datamask.report.sweep_page import run_sweep
from datamask.runs.opening import open_run, run_storage
from tests.finished import corpus, finish, settings
from tests.report.conftest import SWEEP

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def test_nothing_is_embedded_or_scored_and_little_is_needed(tmp_path):
    """A run without masks, its source gone, is enough; its own files are not touched."""
    source = corpus(tmp_path / "source")
    run = finish(tmp_path / "run", settings(source), "embeddings")
    shutil.rmtree(source)
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*") if path.is_file()}
    sweep = Sweep(quality_weights=(0.2, 0.8), seeds=(5,), shards=1)
    page = run_sweep(run, sweep, Compute())
    assert page.is_file() and (page.parent / "pictures" / "frontier.png").is_file()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    shutil.rmtree(run.root / "quality")
    with pytest.raises(RunError, match="run stage `quality` first"):
        run_sweep(open_run(run.root), sweep, Compute())


def test_gains_are_those_of_the_chosen_documents(made):
    """Quality of what a trial keeps, against the expectation of a random subset, in Python."""
    run = made.run
    for trial in trials(run, SWEEP):
        record = trial_metrics(run, trial)
        quality = pq.read_table(run.path("quality", trial.shard)).to_pylist()
        left = [row["quality"] for row in quality if row["dropped"] is None]
        assert record["candidates"] == len(left)
        # A random subset without replacement has this mean and this deviation.
        count, size = record["selected"], len(left)
        deviation = np.std(left) * np.sqrt((size - count) / (count * (size - 1)))
        term = record["terms"]["quality"]
        assert abs(term["random"] - np.mean(left)) < 4 * deviation / np.sqrt(16)
        assert term["random_std"] == pytest.approx(deviation, rel=0.8)
        best = sorted(left)[-count:]
        if trial.choice.quality_weight == 1:
            assert term["selected"] == pytest.approx(np.mean(best), rel=1e-5)
        assert term["selected"] <= np.mean(best) + 1e-6
    points = {(p.variant, p.quality_weight): p for p in frontier(run, SWEEP)}
    ends = points[sweep_trials.BASE, 0.0], points[sweep_trials.BASE, 1.0]
    assert ends[0].diversity > ends[1].diversity and ends[0].quality < ends[1].quality


def test_points_are_means_over_shards_by_what_they_keep(made):
    """One point worked out from the trials' files."""
    run = made.run
    point = next(p for p in frontier(run, SWEEP) if p.quality_weight == 0.4)
    gains, characters, documents = {}, 0, 0
    for trial in trials(run, SWEEP):
        if (trial.choice.variant, trial.choice.quality_weight) == (point.variant, 0.4):
            record = trial_metrics(run, trial)
            term = record["terms"]["disf"]
            gain = (term["random"] - term["selected"]) / term["random_std"]
            gains.setdefault(trial.seed, []).append((record["selected"], gain))
            characters += record["kept"]["characters"]
            documents += record["kept"]["documents"]
    means = [sum(n * g for n, g in part) / sum(n for n, _ in part) for part in gains.values()]
    assert point.diversity == pytest.approx(np.mean(means))
    assert point.diversity_range == pytest.approx((min(means), max(means)))
    assert point.mean_characters == pytest.approx(characters / documents)
    assert len(point.seeds) == len(SWEEP.seeds)


def test_only_what_is_missing_is_done(made, tmp_path):
    """A wider sweep keeps the trials of a narrower one; a lost or damaged one is made again."""
    run = open_run(shutil.copytree(made.run.root, tmp_path / "run"))
    paths = [trial_path(run, trial) for trial in trials(run, SWEEP)]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}
    assert len(before) == len(paths) == 2 * 3 * 2 * 2
    paths[3].unlink()
    paths[5].write_text("{}")
    with pytest.raises(RunError, match="missing; run `datamask sweep"):
        frontier(run, SWEEP)
    wider = SWEEP.model_copy(update={"quality_weights": (0.0, 0.4, 0.7, 1.0)})
    run_sweep(run, wider, Compute(workers=2))
    for path in paths:
        written, content = before[path]
        assert path.read_bytes() == content
        assert (path.stat().st_mtime_ns == written) == (path not in (paths[3], paths[5]))


def test_other_content_of_a_file_makes_other_trials(tmp_path):
    """New vectors at the path of a further term: every trial is made again, with other values."""
    vectors = tmp_path / "target.npy"
    np.save(vectors, np.eye(32)[:2])
    term = {"name": "target", "weight": 2.0, "path": str(vectors)}
    planned = settings(corpus(tmp_path / "source"), selection={"more_terms": [term]})
    finish(tmp_path / "run", planned, "embeddings")
    sweep = Sweep(quality_weights=(0.5,), seeds=(5,), shards=1)
    found = []
    for rows in (slice(0, 2), slice(2, 4)):
        np.save(vectors, np.eye(32)[rows])
        run = plan_run(tmp_path / "run", None)
        run_sweep(run, sweep, Compute())
        [trial] = trials(run, sweep)
        found.append((trial_path(run, trial), trial_metrics(run, trial)["terms"]))
    assert found[0][0] != found[1][0] and found[0][1]["target"] != found[1][1]["target"]


def test_each_change_is_tried_alone():
    """Variants times lambdas; a value out of range is refused with its key."""
    sampled = {"estimator": "policy_gradient", "rollouts": 8}
    sweep = Sweep(quality_weights=(1, 0), changes=({"ratio": 0.2}, {"init": "quality"}, sampled))
    run = sweep_trials.Run(run_storage("nowhere"), settings(Path("nowhere")), {})
    found = sweep_trials.choices(run, sweep)
    names = [sweep_trials.BASE, "ratio=0.2", "init=quality"]
    names += ["estimator=policy_gradient, rollouts=8"]
    assert [(c.variant, c.quality_weight) for c in found] == [
        (name, weight) for name in names for weight in (0.0, 1.0)
    ]
    assert found[2].selection.ratio == 0.2 and found[2].selection.init == "uniform"
    assert found[6].selection.estimator == "policy_gradient"
    with pytest.raises(SettingsError, match=r"sweep\.changes ratio=1\.5: ratio"):
        sweep_trials.choices(run, Sweep(changes=({"ratio": 1.5},)))
    with pytest.raises(SettingsError, match="quality_weights"):
        load_sweep(("sweep.quality_weights=[2]",))


@pytest.mark.parametrize("own", [{"documents": 9}, {"tokens": 900}])
def test_a_budget_replaces_the_one_of_the_run(own):
    """Number and tokens override `ratio`, so a share would have no effect next to them."""
    selection = Selection.model_validate(own)
    for change in ({"ratio": 0.3}, {"documents": 5}, {"tokens": 50}):
        changed = Selection.model_validate(selection.changed(change))
        expected = Selection.model_validate(change)
        for budget in ("ratio", "documents", "tokens"):
            assert getattr(changed, budget) == getattr(expected, budget)
    kept = Selection.model_validate(selection.changed({"metric": "pairwise"}))
    assert kept == selection.model_copy(update={"metric": "pairwise"})


@pytest.mark.parametrize("key", ["quality_weight", "method", "limits", "max_repeat"])
def test_what_a_trial_does_not_use_is_refused(key):
    """A trial would be named after a setting that changes nothing."""
    with pytest.raises(SettingsError, match=f"`changes` has {key}"):
        load_sweep((f"sweep.changes=[{{{key}: 1}}]",))


def points(gains: list[tuple[float, float, float]]) -> list[Point]:
    """Points of lambda, quality and diversity; the second seed mirrors the gains."""
    return [
        Point("x", w, q, d, (q, q), (d, d), ((q, d), (d, q)), (q, d), None, None)
        for w, q, d in gains
    ]


def test_the_knee_is_farthest_from_the_line_between_the_ends():
    """Against the distance by the cross product; a straight frontier gives the larger lambda."""
    bent = [(0.0, 0.0, 10.0), (0.3, 30.0, 9.0), (0.6, 38.0, 5.0), (1.0, 40.0, 0.0)]

    def distance(point: tuple[float, float, float]) -> float:
        (_, qa, da), (_, qb, db) = bent[0], bent[-1]
        x, y = (point[1] - qa) / (qb - qa), (point[2] - db) / (da - db)
        return x * 1 + (y - 1) * 1  # the line runs from (0, 1) to (1, 0)

    assert knee(points(bent)).quality_weight == max(bent, key=distance)[0] == 0.3
    straight = [(0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (1.0, 1.0, 0.0)]
    assert knee(points(straight)).quality_weight == 1.0
    assert knee(points([(0.5, 1.0, 1.0)])).quality_weight == 0.5
    assert knee_by_seed(points(bent)) == [0.3, 0.3]


def test_the_sample_of_documents_is_seeded(made, monkeypatch):
    """A shard larger than allowed is drawn from, always the same, and the budget shrinks too."""
    run = made.run
    monkeypatch.setattr(sweep_trials, "DOCUMENTS", 12)
    sweep_trials._documents.cache_clear()
    sweep = SWEEP.model_copy(update={"quality_weights": (1.0,)})
    trial = trials(run, sweep)[0]
    sweep_trials.try_choice(run, trial, Compute())
    record = trial_metrics(run, trial)
    counts = run.receipt("quality", trial.shard).metrics
    masks = run.receipt("selection", trial.shard).metrics
    share = masks["num_selected"] / counts["kept"]
    assert record["candidates"] == 12
    assert record["selected"] == max(1, round(12 * share))
    whole = trial_path(run, trial)
    monkeypatch.undo()
    sweep_trials._documents.cache_clear()
    assert trial_path(run, trial) != whole

"""Probes on embeddings, against scikit-learn and the definitions."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, cross_val_predict

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import InputError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.planning.preview import preview
from datamask.publishing.card import recipe
from datamask.quality.fitting import LEAST_LABELS, calibrated, isotonic_curve
from datamask.quality.probe import STRENGTHS, fit_probe
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from tests.finished import embedded, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

generator = np.random.default_rng(0)


@pytest.fixture(scope="module")
def labels(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A label for every document: how often one word occurs, which embeddings can tell."""
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    rows = [row for file in sorted(source.iterdir()) for row in pq.read_table(file).to_pylist()]
    lines = [f"{row['id']},{row['text'].count('river') / (len(row['text']) + 9)}" for row in rows]
    path.write_text("\n".join(["id,grade", *lines]))
    return path


def with_probe(source: Path, labels: Path, **more: Any) -> Any:
    """Settings of a column's score and a probe."""
    edu = {"name": "edu", "kind": "column", "column": "edu"}
    probe = {"name": "taste", "kind": "probe", "path": str(labels), "column": "grade", **more}
    return settings(source, quality={"scores": [edu, probe], "prune_fraction": 0.1})


def rows_of(run: Run, stage: str) -> list[dict[str, Any]]:
    """The rows of all shards."""
    paths = [run.path(stage, shard) for shard in range(run.num_shards)]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


@pytest.mark.slow
def test_the_learner_reads_the_probed_quality(source, labels, tmp_path):
    """Quality is edu's plus the weight times the probe's z-score, as scikit-learn fits it."""
    chosen = with_probe(source, labels, weight=3.0, least_correlation=-1)
    run = finish(tmp_path / "run", chosen)
    order = stages_of(run.settings)
    assert order[order.index("embeddings") + 1 :][:3] == ["probe", "probe_scores", "probed_quality"]
    known = dict(line.split(",") for line in labels.read_text().splitlines()[1:])
    parts = [embedded(run.path("embeddings", shard), 32) for shard in range(run.num_shards)]
    ids = np.concatenate([part[0] for part in parts])
    features = np.concatenate([part[1] for part in parts]).astype(np.float64)
    targets = np.asarray([float(known[name]) for name in ids])
    figures = run.receipt("probe").metrics["taste"]
    folds = KFold(5, shuffle=True, random_state=0)
    found, predicted = [], []
    for strength in STRENGTHS:
        made = cross_val_predict(Ridge(alpha=1 / strength), features, targets, cv=folds)
        found.append(spearmanr(made, targets).statistic)
        predicted.append(made)
    assert figures["correlation"] == pytest.approx(max(found), abs=1e-6)
    assert figures["strength"] == STRENGTHS[int(np.argmax(found))]
    assert figures["kind"] == "ridge" and figures["labels"] == len(ids)
    values = Ridge(alpha=1 / figures["strength"]).fit(features, targets).predict(features)
    values = calibrated(values, isotonic_curve(predicted[int(np.argmax(found))], targets))
    z_score = dict(zip(ids, (values - values.mean()) / values.std(), strict=True))
    before, after = rows_of(run, "quality"), rows_of(run, "probed_quality")
    for one, two in zip(before, after, strict=True):
        more = 3 * z_score[one["id"]] if one["dropped"] is None else 0
        assert two["quality"] == (
            None if one["quality"] is None else pytest.approx(one["quality"] + more, abs=1e-6)
        )
        assert {**two, "quality": 0} == {**one, "quality": 0}
    final = {row["id"]: row["quality"] for row in after}
    for row in query(run, "SELECT id, quality FROM documents"):
        assert row["quality"] == final[row["id"]]
    shown = f"{figures['correlation']:.3f}"
    assert f"ridge probe on the embeddings, fitted to {len(ids)} labels" in recipe(run)
    assert shown in recipe(run)
    assert "<td>taste</td><td>ridge</td>" in run.path("report").read_text(encoding="utf-8")
    other = plan_run(tmp_path / "other", chosen)
    for stage in order[: order.index("selection") + 1]:
        run_stage(other, stage, Compute(workers=2))
    for stage in ("probe", "probe_scores", "probed_quality", "selection"):
        for unit in range(run.num_units(stage)):
            assert run.path(stage, unit).read_bytes() == other.path(stage, unit).read_bytes()
    whole = run.path("probed_quality", 1).read_bytes()
    run.path("probed_quality", 1).write_bytes(whole[:99] + b"?" + whole[100:])
    assert [name for name, _ in verify(run).corrupt] == ["probed_quality/00001.parquet"]
    run_stage(run, "probed_quality", Compute())
    assert run.path("probed_quality", 1).read_bytes() == whole


def test_two_classes_are_told_apart_by_logistic_regression():
    """The weights are scikit-learn's, and the correlation is of labels and log-odds."""
    features = generator.normal(size=(300, 6))
    labels = np.where(features[:, 0] + generator.normal(size=300) > 0, 5.0, 2.0)
    weights, figures, _ = fit_probe(features, labels)
    expected = LogisticRegression(C=figures["strength"], max_iter=1000).fit(features, labels)
    assert weights == pytest.approx([*expected.coef_[0], expected.intercept_[0]], abs=1e-6)
    assert figures["kind"] == "logistic" and 0.4 < figures["correlation"] < 0.9


def test_labels_that_embeddings_cannot_tell_are_refused(source, tmp_path):
    """Random labels rank nothing: the run stops with the number, before anything is learnt."""
    ids = [f"{file}-{row:02d}" for file in range(4) for row in range(30)]
    table = pa.table({"id": ids, "grade": generator.normal(size=len(ids))})
    pq.write_table(table, tmp_path / "labels.parquet")
    with pytest.raises(InputError, match=r"rank correlation .* below least_correlation 0\.3"):
        finish(tmp_path / "run", with_probe(source, tmp_path / "labels.parquet"))


def test_what_is_wrong_with_labels_is_said_before_any_work(source, tmp_path):
    """An id twice, an absent column and a normalisation that is not served."""
    path = tmp_path / "labels.csv"
    lines = [*range(LEAST_LABELS), 7]
    path.write_text("\n".join(["id,grade", *(f"{name},1" for name in lines)]))
    with pytest.raises(InputError, match="an id occurs more than once"):
        preview(with_probe(source, path))
    with pytest.raises(InputError, match="column other"):
        preview(with_probe(source, path, column="other"))
    with pytest.raises(SettingsError, match="normalise_within"):
        with_probe(source, path, normalisation="rank")
    only = {"name": "taste", "kind": "probe", "path": str(path)}
    with pytest.raises(SettingsError, match="add a score to prune by"):
        parse_settings({"quality": {"scores": [only]}})

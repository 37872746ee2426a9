"""Scores learned from labels: linear probes on the embeddings, in three stages after `embeddings`.

`probe` fits each probe to the labelled documents that were embedded: ridge regression, or logistic
regression if the labels have two values. Cross-validation evaluates it, and a probe whose
predictions correlate too little with the labels is refused. `probe_scores` applies it to every
embedding, and `probed_quality` adds the normalised values to the quality that the learner reads. A
probe cannot prune, because documents are pruned before they are embedded.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.embedding.vectors import read_vectors, row_groups
from datamask.errors import CorruptFileError, InputError
from datamask.quality import fitting
from datamask.quality.importing import moments
from datamask.quality.moments import merged_moments
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

logger = logging.getLogger(__name__)

# See docs/log.md#probes.
FOLDS = 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Inverse regularisation strengths, from which cross-validation chooses."""


def fit_probes(run: Run, compute: Compute) -> None:
    """Write `probe.parquet`: the weights of every probe.

    Metrics of the receipt, by probe: `kind`, `labels` (number used), `strength`, `correlation`
    (Spearman's, of labels and cross-validated predictions), and their `auc` (`concordance`).

    Raises:
        InputError: too few labelled documents were embedded, a correlation is too low, or the files
            of labels are not the planned ones.
    """
    rows, metrics = [], {}
    for probe in run.settings.probes:
        planned = run.pinned_revisions[f"probe:{probe.name}"]
        by_id, _ = fitting.read_labels(probe, planned)
        features, labels = _labelled(run, probe, by_id)
        fitted, figures, curve = fit_probe(features, labels)
        least = probe.least_correlation
        if figures["correlation"] is None or figures["correlation"] < least:
            problem = "rank correlation of the labels with cross-validated predictions is "
            problem += f"{figures['correlation'] or 0:.3f} on {len(labels)} documents, below "
            problem += f"least_correlation {least:g}; give more or better labels, or lower it"
            raise InputError(problem, path=probe.path, column=probe.column)
        logger.info("probe %s: %s", probe.name, figures)
        metrics[probe.name] = figures
        rows.append({"probe": probe.name, "weights": fitted[:-1], "intercept": fitted[-1]})
        rows[-1] |= {"predicted": curve[0], "expected": curve[1]}
    table = pa.Table.from_pylist(rows, schema=schemas.PROBE)
    write_output(run, "probe", 0, schemas.PROBE, [table], metrics)


def _labelled(run: Run, probe: Score, labels: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (float64, N x D) and labels (float64, N) of the embedded documents with a label."""
    dimension = run.settings.embedding.dimension
    vectors, values = [], []
    wanted = pa.array(labels, pa.string())
    for shard in range(run.num_shards):
        run.receipt("embeddings", shard)
        path = run.path("embeddings", shard)
        ids = read_columns(path, ["chunk_id"])["chunk_id"].combine_chunks()
        rows = np.flatnonzero(pa.compute.is_in(ids, wanted).to_numpy(zero_copy_only=False))
        values += [labels[name] for name in ids.take(pa.array(rows)).to_pylist()]
        vectors.append(read_vectors(path, dimension, rows, np.float64))
    if len(values) < fitting.LEAST_LABELS:
        problem = f"{len(values)} of {len(labels)} labelled documents were embedded, and a probe "
        problem += f"needs {fitting.LEAST_LABELS}; label more, or lower quality.prune_fraction"
        raise InputError(problem, path=probe.path, column=probe.id_column)
    return np.concatenate(vectors), np.asarray(values)


def fit_probe(
    features: np.ndarray, labels: np.ndarray
) -> tuple[list[float], dict[str, Any], np.ndarray]:
    """Fit ridge regression, or logistic regression if the labels have two values.

    The strength is the one whose cross-validated predictions rank the documents best. *features*
    are N x D. Returns D weights and the intercept, metrics (see `fit_probes`) and the curve that
    calibrates a ridge regression (`isotonic_curve`; without points for a logistic one).
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import KFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    classes = np.unique(labels)
    two = len(classes) == 2
    targets = (labels == classes[1]).astype(np.float64) if two else labels

    def model(strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=1000) if two else Ridge(alpha=1 / strength)

    folds = KFold(FOLDS, shuffle=True, random_state=0)
    method = "decision_function" if two else "predict"
    correlation: float | None = None
    strength, predicted, curve = 1.0, targets, np.zeros((2, 0))
    # One thread gives sums a fixed order.
    with threadpool_limits(1):
        for tried in STRENGTHS:
            made = cross_val_predict(model(tried), features, targets, cv=folds, method=method)
            reached = fitting.rank_correlation(made, targets)
            if reached is not None and (correlation is None or reached > correlation):
                correlation, strength, predicted = reached, tried, made
        figures = {
            "kind": "logistic" if two else "ridge",
            "labels": len(labels),
            "strength": strength,
            "correlation": correlation,
            "auc": None if correlation is None else fitting.concordance(predicted, targets),
        }
        if correlation is None:
            return [], figures, curve
        fitted = model(strength).fit(features, targets)
        if not two:
            curve = fitting.isotonic_curve(predicted, targets)
    return [*fitted.coef_.ravel().tolist(), float(np.ravel(fitted.intercept_)[0])], figures, curve


def apply_probes(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `probe_scores/NNNNN.parquet`: each probe's value for every embedded document.

    Values are labels expected by ridge regression or log-odds of logistic regression; the receipt
    has their moments.
    """
    run.receipt("embeddings", shard)
    weights = read_columns(run.path("probe")).to_pylist()
    path, dimension = run.path("embeddings", shard), run.settings.embedding.dimension
    matrix = np.asarray([row["weights"] for row in weights])
    made = [np.zeros((0, len(weights)))]
    for block in row_groups(path, dimension):
        # Row by row, so that the order of sums does not depend on a library's threads or blocks.
        made.append(np.einsum("nd,pd->np", block.astype(np.float64), matrix))
    values = np.concatenate(made) + [row["intercept"] for row in weights]
    for number, row in enumerate(weights):
        curve = np.array([row["predicted"], row["expected"]])
        values[:, number] = fitting.calibrated(values[:, number], curve)
    columns = {row["probe"]: pa.array(values[:, index]) for index, row in enumerate(weights)}
    schema = schemas.probe_scores(columns)
    ids = read_columns(path, ["chunk_id"])["chunk_id"]
    metrics = {"scores": {name: moments(column) for name, column in columns.items()}}
    table = pa.Table.from_arrays([ids, *columns.values()], schema=schema)
    return write_output(run, "probe_scores", shard, schema, [table], metrics)


def add_probes(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `probed_quality/NNNNN.parquet`: `quality/` with the weighted probes added."""
    before = run.receipt("quality", shard)
    receipts = [run.receipt("probe_scores", number) for number in range(run.num_shards)]
    table = read_columns(run.path("quality", shard))
    scores = read_columns(run.path("probe_scores", shard))
    goes_on = table["dropped"].is_null()
    if not table["id"].filter(goes_on).equals(scores["chunk_id"]):
        path = run.path("probe_scores", shard)
        raise CorruptFileError(f"{path}: other ids than in quality/; delete it and relaunch")
    rows = np.flatnonzero(goes_on.to_numpy())
    quality, centre = table["quality"].to_numpy().copy(), before.metrics["centre"]
    for probe in run.settings.probes:
        merged = merged_moments(run, receipts, probe)
        offset, divisor = merged.scale(probe.normalisation)
        quality[rows] += probe.weight * ((scores[probe.name].to_numpy() - offset) / divisor)
        centre += probe.weight * (merged.mean - offset) / divisor
    field = table.schema.field("quality")
    column = pa.array(quality, from_pandas=True)  # NaN as null
    table = table.set_column(table.column_names.index(field.name), field, column)
    table = table.replace_schema_metadata()
    metrics = before.metrics | {"centre": centre}
    return write_output(run, "probed_quality", shard, table.schema, [table], metrics)

"""Labels that a score is fitted to, how well predictions rank them, and its calibration.

Labels are numbers by id, in files of the user. The curve is a centred isotonic regression (Oron and
Flournoy 2017) of labels on cross-validated predictions: each block of the isotonic regression is
one point, at the mean prediction of its texts. Straight lines join the points and go on at both
ends, so that the calibrated score is the expected label, and no two different predictions become
equal.
"""

from __future__ import annotations

import math

import numpy as np

from datamask.config.inputs import Score
from datamask.errors import InputError
from datamask.source.columns import usable
from datamask.source.pinned import PlannedFiles
from datamask.source.rows import read_scores

LEAST_LABELS = 100
"""Fewest labels, or examples of a kind, that a score is fitted to (docs/log.md#examples)."""


def read_labels(score: Score, planned: str | None = None) -> tuple[dict[str, float], str]:
    """A score's labels by id, without those that are missing or not finite; and the files' digest.

    Raises:
        InputError: a file is unreadable, an id occurs twice, there are too few labels, or the files
            have not the digest *planned*.
    """
    labels: dict[str, float] = {}
    files = PlannedFiles(score.labels or score.path)
    with files.compared(planned):
        for path in files.names:
            for keys, values in read_scores(path, score, files):
                present = usable(values)
                ids = keys.filter(present).to_pylist()
                before = len(labels)
                labels |= zip(ids, values.filter(present).to_pylist(), strict=True)
                if len(labels) != before + len(ids):
                    problem = "an id occurs more than once; keep one label per id"
                    raise InputError(problem, path=path, column=score.id_column)
        if len(labels) < LEAST_LABELS:
            problem = f"only {len(labels)} labels; a fitted score needs at least {LEAST_LABELS}"
            raise InputError(problem, path=files.path, column=score.column)
        if len(kinds := {*labels.values()}) == 1:
            problem = f"all labels are {kinds.pop():g}; a fitted score needs two different ones"
            raise InputError(problem, path=files.path, column=score.column)
    return labels, files.digest()


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's correlation with average ranks for ties; None if one is constant or empty.

    *x* and *y* are finite, of shape N.
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (x, y)]
    squares = [float(rank @ rank) for rank in ranks]
    if not all(squares):
        return None
    return round(float(ranks[0] @ ranks[1]) / float(np.sqrt(squares[0] * squares[1])), 6)


def isotonic_curve(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Predictions and expected labels, both ascending: float64, 2 x number of blocks.

    *predicted* and *labels* have the shape N.
    """
    from sklearn.isotonic import IsotonicRegression

    levels = IsotonicRegression().fit(predicted, labels).predict(predicted)
    expected, block, sizes = np.unique(levels, return_inverse=True, return_counts=True)
    return np.stack([np.bincount(block, predicted) / sizes, expected])


def calibrated(predicted: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """The expected labels at predictions; these themselves if the curve has no two points."""
    if curve.shape[1] < 2:
        return predicted
    (first, *_, last), (lowest, *_, highest) = curve
    slope = (highest - lowest) / (last - first)
    beyond = predicted - np.clip(predicted, first, last)
    return np.asarray(np.interp(predicted, *curve) + slope * beyond)


def concordance(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The share of pairs of texts with different labels that predictions order as labels do.

    Equal predictions count half. With two values of the labels, this is the AUC.
    """
    from scipy.stats import kendalltau

    def pairs_apart(values: np.ndarray) -> float:
        counts = np.unique(values, return_counts=True)[1].astype(np.float64)
        return float(len(values) * (len(values) - 1) - counts @ (counts - 1)) / 2

    apart = pairs_apart(predicted)
    tau = kendalltau(predicted, labels).statistic if apart else 0.0
    return round(0.5 + 0.5 * float(tau) * math.sqrt(apart / pairs_apart(labels)), 6)

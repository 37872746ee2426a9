"""Measure how well predictions rank labels, and calibrate predictions by a curve.

The curve is a centred isotonic regression (Oron and Flournoy 2017) of labels on cross-validated
predictions: each block of the isotonic regression is one point, at the mean prediction of its
texts. Straight lines join the points and go on at both ends, so that the calibrated score is the
expected label, and no two different predictions become equal.
"""

from __future__ import annotations

import numpy as np

MOST_LABELS = 2000
"""Maximum number of different labels that an interval is computed from: the work is this times the
number of texts (docs/log.md#examples)."""


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Compute Spearman's correlation with average ranks for ties; None if one is constant or empty.

    *x* and *y* are finite, of shape N.
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (x, y)]
    squares = [float(rank @ rank) for rank in ranks]
    if not all(squares):
        return None
    return round(float(ranks[0] @ ranks[1]) / float(np.sqrt(squares[0] * squares[1])), 6)


def isotonic_curve(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return predictions and expected labels, both ascending: float64, 2 x number of blocks.

    *predicted* and *labels* have the shape N.
    """
    from sklearn.isotonic import IsotonicRegression

    levels = IsotonicRegression().fit(predicted, labels).predict(predicted)
    expected, block, sizes = np.unique(levels, return_inverse=True, return_counts=True)
    return np.stack([np.bincount(block, predicted) / sizes, expected])


def calibrated(predicted: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Return the expected labels at predictions; predictions if the curve has no two points."""
    if curve.shape[1] < 2:
        return predicted
    (first, *_, last), (lowest, *_, highest) = curve
    slope = (highest - lowest) / (last - first)
    beyond = predicted - np.clip(predicted, first, last)
    return np.asarray(np.interp(predicted, *curve) + slope * beyond)


def concordance(predicted: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Return the fraction of pairs with different labels that predictions order as labels do.

    Equal predictions count half. With two values of the labels, this is the AUC. The last two are
    the ends of its 95 % interval for independent texts: the variance is DeLong's (1988), from each
    text's own fraction of pairs. If labels have more than `MOST_LABELS` values, that many texts are
    compared.
    """
    levels = np.unique(labels)
    if len(levels) > MOST_LABELS:
        some = np.random.default_rng(0).permutation(len(labels))[:MOST_LABELS]
        predicted, labels = predicted[some], labels[some]
        levels = np.unique(labels)
    ordered, pairs = np.zeros(len(labels)), np.zeros(len(labels))
    for level in levels:
        those = np.sort(predicted[labels == level])
        below = np.searchsorted(those, predicted) / 2
        below += np.searchsorted(those, predicted, "right") / 2  # an equal prediction counts half
        is_other = labels != level
        ordered += is_other * np.where(labels > level, below, len(those) - below)
        pairs += is_other * len(those)
    auc = float(ordered.sum() / pairs.sum())
    error = 2 * float(np.linalg.norm(ordered - auc * pairs)) / float(pairs.sum())
    low, high = max(0.0, auc - 1.96 * error), min(1.0, auc + 1.96 * error)
    return round(auc, 6), round(low, 6), round(high, 6)

"""Measure how well predictions rank labels, and calibrate predictions by a curve.

The curve is a centred isotonic regression (Oron and Flournoy 2017) of labels on cross-validated
predictions: each block of the isotonic regression is one point, at the mean prediction of its
texts. Straight lines join the points and go on at both ends, so that the calibrated score is the
expected label, and no two different predictions become equal.
"""

from __future__ import annotations

import math

import numpy as np


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


def concordance(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of pairs with different labels that predictions order as labels do.

    Equal predictions count half. With two values of the labels, this is the AUC.
    """
    from scipy.stats import kendalltau

    def pairs_apart(values: np.ndarray) -> float:
        counts = np.unique(values, return_counts=True)[1].astype(np.float64)
        return float(len(values) * (len(values) - 1) - counts @ (counts - 1)) / 2

    apart = pairs_apart(predicted)
    tau = kendalltau(predicted, labels).statistic if apart else 0.0
    return round(0.5 + 0.5 * float(tau) * math.sqrt(apart / pairs_apart(labels)), 6)

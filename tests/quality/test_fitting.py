"""Calibration of fitted scores: expected labels in the order of the predictions."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from datamask.quality.fitting import calibrated, concordance, isotonic_curve


def test_a_calibrated_score_is_the_expected_label_in_the_same_order():
    """Of texts that the curve has not seen, whose labels follow a curved law; no ties are made."""
    generator = np.random.default_rng(0)
    predicted = generator.uniform(-1, 1, 8000)
    expected = 5 / (1 + np.exp(-4 * predicted))
    labels = generator.binomial(5, expected / 5).astype(float)
    curve = isotonic_curve(predicted[:4000], labels[:4000])
    # Beyond the ends too.
    scores = calibrated(np.append(predicted[4000:], [-3.0, 3.0]), curve)
    assert np.abs(scores[:-2] - expected[4000:]).mean() < 0.1
    order = np.argsort(np.append(predicted[4000:], [-3.0, 3.0]))
    assert (np.diff(scores[order]) > 0).all()


def test_the_curve_has_the_blocks_of_isotonic_regression():
    """By hand: 1, (3, 2), 4 are 1, 2.5, 4, at the mean predictions."""
    curve = isotonic_curve(np.array([0.0, 1.0, 3.0, 5.0]), np.array([1.0, 3.0, 2.0, 4.0]))
    assert curve.tolist() == [[0, 2, 5], [1, 2.5, 4]]
    found = calibrated(np.array([1.0, 2.0, 3.5, 6.0, -1.0]), curve)
    assert found == pytest.approx([1.75, 2.5, 3.25, 4.6, 0.4])
    flat = isotonic_curve(np.array([0.0, 1.0]), np.array([2.0, 1.0]))
    assert calibrated(np.array([0.0, 7.0]), flat).tolist() == [0.0, 7.0]


@pytest.mark.parametrize("kinds", [2, 5])
def test_concordance_counts_pairs(kinds):
    """One by one; of two labels it is scikit-learn's AUC."""
    generator = np.random.default_rng(kinds)
    labels = generator.integers(0, kinds, 60).astype(float)
    predicted = np.round(labels + generator.normal(0, 1, 60), 1)  # with ties
    pairs = [(i, j) for i, j in combinations(range(60), 2) if labels[i] != labels[j]]
    won = [
        0.5 + 0.5 * np.sign((predicted[i] - predicted[j]) * (labels[i] - labels[j]))
        for i, j in pairs
    ]
    assert concordance(predicted, labels)[0] == pytest.approx(np.mean(won), abs=1e-6)
    if kinds == 2:
        auc = roc_auc_score(labels, predicted)
        assert concordance(predicted, labels)[0] == pytest.approx(auc, abs=1e-6)
    assert concordance(np.zeros(60), labels)[0] == 0.5


@pytest.mark.parametrize("kinds", [2, 5])
def test_the_interval_of_concordance_is_as_the_jackknife_says(kinds):
    """The deviation over texts left out one by one, and an end that is at most 1."""
    generator = np.random.default_rng(kinds)
    labels = generator.integers(0, kinds, 200).astype(float)
    predicted = np.round(labels + generator.normal(0, kinds, 200), 1)
    auc, low, high = concordance(predicted, labels)
    without = [
        concordance(np.delete(predicted, row), np.delete(labels, row))[0] for row in range(200)
    ]
    error = np.std(without) * np.sqrt(199)
    assert (high - auc, auc - low) == pytest.approx((1.96 * error,) * 2, rel=0.03)
    assert concordance(labels, labels) == (1, 1, 1)

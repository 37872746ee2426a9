"""Which properties of documents help a model: random selections, and the regression of their loss.

Selections that differ in what they contain are drawn, a proxy is fitted to each, and its loss is
regressed on the means of the documents' properties. Means are weighted by tokens. So the selection
with the least predicted loss, of all that fill a budget of tokens, is that of the documents with
the best scores, in their order: the fitted direction is a score of single documents.

Letters of shapes: K selections, N documents, P properties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from threadpoolctl import threadpool_limits

from datamask.quality.fitting import rank_correlation

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# See docs/log.md#learned.
STRENGTH = 1.5
"""Standard deviation of a document's log-probability to be drawn."""
PENALTIES = (0.0, *np.logspace(-5, 1, 13))
"""Penalties of the ridge regression, by the mean variance of the selections' moments."""
FOLDS = 8
"""Parts of cross-validation."""
FARTHEST = 3.0
"""Largest distance of a property from its mean, in standard deviations."""


def principal_directions(vectors: npt.NDArray[np.float32], number: int) -> Floats:
    """The directions in which vectors (N x D) vary most, as columns, D x *number*."""
    with threadpool_limits(1):  # products and decompositions round differently with each number
        centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
        directions: Floats = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :number]
    largest = np.abs(directions).argmax(axis=0)  # the sign is arbitrary
    directions *= np.sign(directions[largest, np.arange(directions.shape[1])])
    return directions


def standardised(raw: Floats, like: Floats) -> Floats:
    """Properties (N x P) in standard deviations from their means in *like*; 0 where unknown (NaN).

    A property that does not vary becomes 0.
    """
    deviations = np.nanstd(like, axis=0)
    scaled = (raw - np.nanmean(like, axis=0)) / np.where(deviations > 0, deviations, np.inf)
    return np.asarray(np.nan_to_num(np.clip(scaled, -FARTHEST, FARTHEST)))


@dataclass(frozen=True, slots=True)
class Effects:
    """A ridge regression of losses on moments; P of each array.

    Args:
        slopes: change of the loss if the mean of a property rises by 1.
        low, high: their 95 % intervals. They do not cover the bias of the penalty.
        moments, loss: means over the selections.
        penalty: the one with the smallest squared error of leave-one-out predictions.
    """

    slopes: Floats
    low: Floats
    high: Floats
    moments: Floats
    loss: float
    penalty: float

    def predicted(self, moments: Floats) -> Floats:
        """The losses of selections with these moments, K x P."""
        return np.asarray(self.loss + ((moments - self.moments) * self.slopes).sum(axis=1))

    def scores(self, values: Floats) -> Floats:
        """The score of documents with these properties, N x P: less loss is better."""
        return np.asarray(-(values * self.slopes).sum(axis=1))


def drawn(values: Floats, costs: Integers, budget: int, seeds: tuple[int, ...]) -> Integers:
    """The documents of a random selection that fills the budget, in random order.

    The weights of properties are drawn first, then documents without replacement, with
    probabilities proportional to the exponential of their weighted properties.

    Args:
        values: properties, N x P, each of mean 0 and variance 1.
        costs: tokens of each document.
        budget: tokens.
        seeds: of the draw.
    """
    generator = np.random.default_rng(seeds)
    weights: Floats = generator.standard_normal((values.shape[1],))
    weights *= STRENGTH / np.sqrt((weights**2).sum())
    keys = (values * weights).sum(axis=1) + generator.gumbel(size=len(values))
    return filled(np.argsort(-keys, kind="stable"), costs, budget)


def filled(order: Integers, costs: Integers, budget: int) -> Integers:
    """The first documents of an order that fill the budget; the last one may exceed it."""
    return order[: np.searchsorted(np.cumsum(costs[order]), budget) + 1]


def moments_of(values: Floats, costs: Integers, rows: Integers) -> Floats:
    """The means of a selection's properties, weighted by tokens; shape P."""
    return np.asarray(np.average(values[rows], axis=0, weights=costs[rows]))


def fit(moments: Floats, losses: Floats) -> Effects:
    """Regress losses on moments, by ridge regression.

    The penalty follows from leave-one-out predictions, in closed form. Intervals are of Student's t
    and of a covariance that is valid if variances differ (HC3, MacKinnon and White 1985).

    Args:
        moments: K x P, K > P + 1.
        losses: shape K.
    """
    number = len(losses)
    centre, loss = moments.mean(axis=0), float(losses.mean())
    with threadpool_limits(1):  # LAPACK rounds differently with each number of threads
        left, sizes, right = np.linalg.svd(moments - centre, full_matrices=False)
    is_used = sizes > 1e-9 * max(sizes[0], 1e-300)
    left, sizes, right = left[:, is_used], sizes[is_used], right[is_used]
    along = (left * (losses - loss)[:, None]).sum(axis=0)
    fits = []
    for penalty in PENALTIES:
        kept = sizes**2 / (sizes**2 + penalty * (sizes**2).mean())
        leverage = 1 / number + (left**2 * kept).sum(axis=1)
        residuals = losses - loss - (left * (kept * along)).sum(axis=1)
        left_out = residuals / (1 - leverage)
        fits.append((float((left_out**2).sum()), penalty, kept, left_out))
    _, penalty, kept, left_out = min(fits, key=lambda fitted: fitted[:2])
    to_slopes = (right[:, :, None] * (kept / sizes)[:, None, None] * left.T[:, None]).sum(axis=0)
    slopes = (to_slopes * (losses - loss)).sum(axis=1)
    errors = np.sqrt(((to_slopes * left_out) ** 2).sum(axis=1))
    width = stats.t.ppf(0.975, max(number - 1 - kept.sum(), 1)) * errors
    return Effects(slopes, slopes - width, slopes + width, centre, loss, float(penalty))


def cross_validated(moments: Floats, fitted: Floats, judged: Floats) -> tuple[float, float, float]:
    """How well losses of selections are predicted that the regression has not seen.

    Args:
        moments: K x P.
        fitted: losses that are regressed, shape K.
        judged: losses of the same selections on other texts.

    Returns:
        Spearman's correlation of predictions and *judged*, and its 95 % interval (Fieller 1957).
    """
    predicted = np.empty(len(fitted))
    for fold in range(FOLDS):
        is_left_out = np.arange(len(fitted)) % FOLDS == fold
        effects = fit(moments[~is_left_out], fitted[~is_left_out])
        predicted[is_left_out] = effects.predicted(moments[is_left_out])
    correlation = rank_correlation(predicted, judged) or 0.0
    centre = np.arctanh(np.clip(correlation, -0.9999, 0.9999))
    width = 1.96 * np.sqrt(1.06 / (len(fitted) - 3))
    return correlation, float(np.tanh(centre - width)), float(np.tanh(centre + width))

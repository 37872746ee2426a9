"""Decide which arm trains a better model, with the error of that decision.

Two things are random: the seed (initial weights and draw of text) and the held-out documents. The
difference of two arms, in bits per byte, has an error from both. The error of seeds is estimated
from the residuals after each arm and each seed gets a mean of its own, over all arms together,
because a few seeds of one pair say little; the error of documents from the documents. Each has its
own quantile of Student's t, and the squares of the two half widths add up: then an interval covers
the difference at least as often as it says, with two seeds too (Banerjee 1960). With
Satterthwaite's degrees of freedom it covers too seldom, with a bootstrap over seeds and documents
(Owen 2007) far too seldom (tests/evaluation/test_verdict.py). Seeds are paired: the same for every
arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.float64]
"""Bits by arm, seed, learning rate and document."""

LEVEL = 0.05
"""Probability of a wrong verdict among all pairs of equal arms (Holm), as customary."""

POWER = 0.8
"""Probability of detecting the least detectable difference."""

SMALLEST_P_VALUE = 1e-12


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm compared with another.

    Args:
        arm, other: their places.
        seeds: of each.
        difference: in bits per byte; below 0 the arm is better.
        low, high: its 95 % interval.
        p_value: of the hypothesis that they are equal, with Holm's correction over all pairs.
        detectable: the least difference that would be detected with probability `POWER`.
        verdict: on the arm: better, worse or undecided.
    """

    arm: int
    other: int
    seeds: int
    difference: float
    low: float
    high: float
    p_value: float
    detectable: float
    verdict: str


def bits_per_byte(bits: Bits, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Divide all bits by all bytes, by arm, seed and learning rate."""
    return np.asarray(bits.sum(axis=3) / sizes.sum())


def seed_variance(values: npt.NDArray[np.float64]) -> tuple[float, int]:
    """Return the variance of one model's value that its arm and its seed do not explain.

    Args:
        values: by arm and seed.

    Returns:
        The variance, and its degrees of freedom; both 0 with one arm or one seed.
    """
    arms, seeds = values.shape
    freedom = (arms - 1) * (seeds - 1)
    if not freedom:
        return 0.0, 0
    of_seed = values.mean(axis=0) - values.mean()
    residuals = values - values.mean(axis=1, keepdims=True) - of_seed
    return float((residuals**2).sum()) / freedom, freedom


def _ratio(
    apart: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64]
) -> tuple[float, float, int]:
    """Return a difference in bits per byte, its variance by the delta method, and its documents.

    *apart* are differences in bits, by document.
    """
    difference = float(apart.sum() / sizes.sum())
    residuals = apart - difference * sizes
    many = len(sizes) / max(len(sizes) - 1, 1)
    return difference, float(residuals @ residuals) * many / float(sizes.sum()) ** 2, len(sizes)


def compare(
    bits: Bits,
    sizes: npt.NDArray[np.int64],
    level: float = LEVEL,
    groups: Sequence[npt.NDArray[np.bool_]] = (),
    error: float = 0.05,
) -> list[Comparison]:
    """Compare all pairs of arms, on the mixture of the documents or on the mean over groups.

    The documents' error of a mean over groups adds up the groups' errors, divided by their number:
    the groups are fixed, not a sample of groups.

    Args:
        bits: at least two seeds of each arm.
        sizes: bytes of each document.
        level: probability of a wrong verdict among all pairs of equal arms.
        groups: the members of each group; none: all documents are one, the mixture.
        error: probability with which an interval fails.
    """
    groups = groups or [np.ones(len(sizes), bool)]
    per_group = [bits_per_byte(bits[..., members], sizes[members]) for members in groups]
    by_rate = np.mean(per_group, axis=0)
    variance, freedom = seed_variance(by_rate.mean(axis=2))
    pairs = []
    for arm, other in combinations(range(len(bits)), 2):
        apart = bits[arm].mean(axis=(0, 1)) - bits[other].mean(axis=(0, 1))
        ratios = [_ratio(apart[members], sizes[members]) for members in groups]
        difference = float(np.mean([ratio for ratio, _, _ in ratios]))
        of_seeds = 2 * variance / bits.shape[1]
        parts = [(own / len(groups) ** 2, documents - 1) for _, own, documents in ratios]
        parts.append((of_seeds, freedom))
        width, p_value = math.inf, 1.0
        if all(degrees > 0 for _, degrees in parts) and any(part > 0 for part, _ in parts):
            width, p_value = half_width(error, parts), _p_value(difference, parts)
        elif freedom and not difference:
            width = 0.0  # Arms with the same documents train the same models.
        of_rates = (by_rate[arm] - by_rate[other]).mean(axis=0)
        verdict = "undecided"
        if (np.sign(of_rates) == np.sign(difference)).all():
            verdict = "better" if difference < 0 else "worse"
        shape = (arm, other, bits.shape[1], difference, difference - width, difference + width)
        pairs.append(Comparison(*shape, p_value, width * (1 + _POWER_RATIO), verdict))
    corrected = holm(np.array([pair.p_value for pair in pairs]))
    return [
        replace(pair, p_value=value, verdict=pair.verdict if value < level else "undecided")
        for pair, value in zip(pairs, corrected, strict=True)
    ]


_POWER_RATIO = 0.8416 / 1.96
"""Quantile of the normal distribution for `POWER`, divided by the interval's quantile."""


def half_width(level: float, parts: Sequence[tuple[float, int]]) -> float:
    """Return half the width of the interval that fails with probability *level* at most.

    Args:
        level: in (0, 1].
        parts: variances of independent errors, and their degrees of freedom.
    """
    from scipy import special

    return math.sqrt(
        sum(variance * special.stdtrit(freedom, level / 2) ** 2 for variance, freedom in parts)
    )


def _p_value(difference: float, parts: Sequence[tuple[float, int]]) -> float:
    """Return the level at which the interval ends at 0; at least `SMALLEST_P_VALUE`."""
    from scipy import optimize

    def beyond(level: float) -> float:
        return half_width(level, parts) - abs(difference)

    if beyond(SMALLEST_P_VALUE) <= 0:
        return SMALLEST_P_VALUE
    return float(optimize.brentq(beyond, SMALLEST_P_VALUE, 1, xtol=SMALLEST_P_VALUE))


def holm(p_values: npt.NDArray[np.float64]) -> list[float]:
    """Holm's step-down correction (1979)."""
    order = np.argsort(p_values, kind="stable")
    hypotheses = len(order) - np.arange(
        len(order)
    )  # Number of hypotheses that a step corrects for.
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(1, np.maximum.accumulate(hypotheses * p_values[order]))
    return [float(value) for value in corrected]

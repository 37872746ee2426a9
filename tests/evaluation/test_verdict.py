"""The statistics of verdicts, against simulations, a bootstrap and textbook definitions."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from datamask.evaluation.verdict import SMALLEST_P_VALUE, compare

DOCUMENTS = 300
DOCUMENT_NOISE = 0.1


def simulated(rng, arms, seeds, ratio=1.0, effects=None, rates=1):
    """Bits and sizes: bits per byte = effect + noise of seed, document, arm x seed, arm x document.

    *ratio*: the errors of a difference that come from *seeds* seeds, by those from documents. The
    first two noises are shared by all arms.
    """
    sizes = rng.integers(200, 5000, DOCUMENTS)
    error = DOCUMENT_NOISE * np.sqrt((sizes.astype(float) ** 2).sum()) / sizes.sum()
    bits = 1 + (np.zeros(arms) if effects is None else np.asarray(effects))[:, None, None, None]
    bits = bits + rng.normal(0, 0.05, (seeds, 1, 1)) + rng.normal(0, 0.2, DOCUMENTS)
    bits = bits + rng.normal(0, ratio * error * np.sqrt(seeds), (arms, seeds, 1, 1))
    bits = bits + rng.normal(0, DOCUMENT_NOISE, (arms, 1, 1, DOCUMENTS))
    return np.repeat(bits, rates, axis=2) * sizes, sizes


def bootstrap(rng, bits, sizes, draws):
    """The 95 % interval of the first two arms' difference; seeds and documents drawn again."""
    apart = (bits[0] - bits[1]).mean(axis=1)
    seeds, documents = apart.shape
    drawn_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws) / seeds
    drawn = rng.multinomial(documents, np.full(documents, 1 / documents), draws)
    values = ((drawn_seeds @ apart) * drawn).sum(axis=1) / (drawn @ sizes)
    return np.quantile(values, (0.025, 0.975))


def residual_mean_square(values):
    """Of a two-way analysis of variance without missing values, and its degrees of freedom."""
    means = values.mean(axis=1, keepdims=True) + values.mean(axis=0) - values.mean()
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1)
    return ((values - means) ** 2).sum() / freedom, freedom


@pytest.mark.parametrize("ratio", [0.1, 1.0, 5.0])
def test_with_many_seeds_the_interval_is_that_of_a_bootstrap(ratio):
    """The widths agree within 15 %, whatever noise is the larger one."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        bits, sizes = simulated(rng, 2, 30, ratio, effects=(0, 0.01))
        (found,) = compare(bits, sizes, 0.05)
        low, high = bootstrap(rng, bits, sizes, 4000)
        assert (found.high - found.low) == pytest.approx(high - low, rel=0.15)
        assert (found.high + found.low) / 2 == pytest.approx(found.difference)
        assert abs(found.difference - (high + low) / 2) < 0.1 * (high - low)


@pytest.mark.parametrize("ratio", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("seeds", [2, 3])
def test_with_few_seeds_intervals_cover_and_equal_arms_are_undecided(seeds, ratio):
    """95 % intervals cover in 93 % of cases or more; wrong verdicts are as rare as the level."""
    rng, cases, level = np.random.default_rng(1), 400, 0.05
    covered = alarms = 0
    for _ in range(cases):
        found = compare(*simulated(rng, 3, seeds, ratio), level)
        covered += found[0].low <= 0 <= found[0].high
        alarms += any(one.verdict != "undecided" for one in found)
    assert covered >= 0.93 * cases
    assert stats.binom.sf(alarms - 1, cases, level) > 0.01, alarms


def test_the_detectable_difference_is_detected_in_four_of_five_cases():
    """With many seeds and one pair."""
    rng = np.random.default_rng(3)
    nothing = [compare(*simulated(rng, 2, 20), 0.05)[0].detectable for _ in range(50)]
    effects = (0, float(np.mean(nothing)))
    found = [compare(*simulated(rng, 2, 20, effects=effects), 0.05)[0] for _ in range(300)]
    assert {one.verdict for one in found} == {"better", "undecided"}
    assert 0.73 < np.mean([one.verdict == "better" for one in found]) < 0.87


def test_a_difference_beyond_all_doubt_has_a_verdict():
    """Where the p-value is below the smallest number that is computed."""
    (found,) = compare(*simulated(np.random.default_rng(3), 2, 30, effects=(0, 5)), 0.05)
    assert (found.p_value, found.verdict) == (SMALLEST_P_VALUE, "better")


def own_p_value(bits, sizes, arm, other):
    """Uncorrected: the level at which the interval, from its definition, ends at 0."""
    variance, freedom = residual_mean_square((bits.sum(axis=3) / sizes.sum()).mean(axis=2))
    apart = (bits[arm] - bits[other]).mean(axis=(0, 1))
    difference = apart.sum() / sizes.sum()
    of_documents = np.var(apart - difference * sizes, ddof=1) * len(sizes) / sizes.sum() ** 2
    of_seeds = 2 * variance / bits.shape[1]
    low, high = 0.0, 1.0
    for _ in range(40):
        level = (low + high) / 2
        quantiles = stats.t.ppf(1 - level / 2, [freedom, len(sizes) - 1])
        beyond = quantiles**2 @ [of_seeds, of_documents] > difference**2
        low, high = (level, high) if beyond else (low, level)
    return high


def test_verdicts_follow_holm():
    """At every level those pairs have a verdict that Holm's step-down tests reject."""
    rng = np.random.default_rng(4)
    rejections = []
    for _ in range(10):
        bits, sizes = simulated(rng, 4, 3, effects=(0, 0.01, 0.03, 0.05))
        p_values = [own_p_value(bits, sizes, *pair) for pair in combinations(range(4), 2)]
        order = sorted(range(6), key=lambda place: p_values[place])
        for level in (0.01, 0.05, 0.2, 0.4):
            rejected = set()
            for step, place in enumerate(order):
                if p_values[place] > level / (6 - step):
                    break
                rejected.add(place)
            found = compare(bits, sizes, level)
            assert [(one.arm, one.other) for one in found] == list(combinations(range(4), 2))
            sure = [one.verdict != "undecided" for one in found]
            assert {place for place in range(6) if sure[place]} == rejected
            for one in found:
                if one.verdict != "undecided":
                    assert one.verdict == ("better" if one.difference < 0 else "worse")
            rejections.append(len(rejected))
    assert {1, 2, 3, 4} <= {*rejections}


def test_learning_rates_that_disagree_leave_a_pair_undecided():
    """However sure the mean over the rates is."""
    rng = np.random.default_rng(5)
    bits, sizes = simulated(rng, 2, 5, effects=(0, 0.2), rates=2)
    assert compare(bits, sizes, 0.05)[0].verdict == "better"
    bits[1, :, 1] -= 0.25 * sizes
    (found,) = compare(bits, sizes, 0.05)
    assert found.high < 0
    assert found.p_value < 0.05
    assert found.verdict == "undecided"


@pytest.mark.parametrize("case", ["one seed", "one document"])
def test_without_an_estimate_of_the_error_nothing_is_decided(case):
    """The interval is infinite where there is nothing to estimate an error from."""
    bits, sizes = simulated(np.random.default_rng(6), 3, 2, effects=(0, 1, 2))
    if case == "one seed":
        bits = bits[:, :1]
    else:
        bits, sizes = bits[..., :1], sizes[:1]
    for one in compare(bits, sizes, 0.5):
        assert (one.low, one.high) == (-np.inf, np.inf)
        assert (one.verdict, one.p_value) == ("undecided", 1)


def test_models_with_the_same_bits_are_undecided():
    """Without any noise too: arms of the same documents train the same model."""
    bits, sizes = simulated(np.random.default_rng(6), 3, 2)
    bits[1] = bits[0]
    same, *_ = compare(bits, sizes, 0.5)
    assert (same.difference, same.p_value, same.verdict) == (0, 1, "undecided")
    for without_noise in (bits[:1, :1], 0):
        bits[:] = without_noise
        compared = compare(bits, sizes, 0.5)
        assert {(one.verdict, one.low, one.high) for one in compared} == {("undecided", 0, 0)}

"""Mean, median and worst group: exact for planted groups, and intervals against a bootstrap."""

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datamask.config.evaluation import Evaluation
from datamask.evaluation.by_group import over_groups
from datamask.evaluation.results import compare_arms
from datamask.report.evaluation import _in_context, sentence

KINDS = {"news": 400, "law": 150, "poems": 60, "rare": 20}
EFFECTS = {"news": (0.0, -0.10), "law": (0.0, 0.02), "poems": (0.0, 0.30), "rare": (0.0, 9.0)}
"""What each arm adds to the bits per byte of a kind; the second is the other arm."""


def planted(
    rng: np.random.Generator, noise: float = 0.0, seeds: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bits by arm, seed, rate and document; sizes; kinds. Noise of document and of arm and seed."""
    kinds = np.repeat([*KINDS], [*KINDS.values()])
    sizes = rng.integers(200, 3000, len(kinds))
    effects = np.array([EFFECTS[kind] for kind in kinds]).T[:, None, None]
    bits = np.full((2, seeds, 1, len(kinds)), 2.0) + effects
    bits = bits + noise * rng.normal(0, 1, (2, 1, 1, len(kinds)))
    bits = bits + 0.1 * noise * rng.normal(0, 1, (2, seeds, 1, 1))
    return bits * sizes, sizes, kinds


def members(kinds: np.ndarray) -> dict[str, np.ndarray]:
    """Groups of 30 documents or more."""
    return {kind: kinds == kind for kind in KINDS if KINDS[kind] >= 30}


def rows_of(evaluation: dict[str, Any], sets: list[str], groups: list[str | None]) -> list[Any]:
    """The rows of an evaluation of the planted bits."""
    bits, sizes, _ = planted(np.random.default_rng(0), 1e-9)
    held_out = pa.table({"set": sets, "group": groups, "bytes": sizes, "in_all": [True] * 630})
    ngram = {name: [0.0, 0.0] for name in ["all", *sets]}
    settings = Evaluation.model_validate(evaluation)
    return compare_arms(["other", "ours"], bits, held_out, ngram, settings)


@pytest.mark.parametrize("of_source", [True, False])
def test_planted_groups_have_their_values(of_source):
    """Of documents held out of the source, and of a set with its own column; few texts are none."""
    kinds = np.repeat([*KINDS], [*KINDS.values()]).tolist()
    own = {"sets": [{"name": "mine", "path": "x", "group_column": "kind"}]}
    chosen = {"hold_out": 0.1, "hold_out_by": "domain"} if of_source else own
    rows = rows_of(chosen, kinds if of_source else ["mine"] * 630, kinds)
    arms, pair = rows[:2], rows[2]
    assert {row["set"] for row in rows[:3]} == {"all" if of_source else "mine"}
    assert [row["groups"] for row in rows[:3]] == [3, 3, 3]
    assert [row["few"] for row in rows[:3]] == [1, 1, 1]
    assert [row["mean"] for row in arms] == pytest.approx([2.0, 2.0 + 0.22 / 3], abs=1e-7)
    assert pair["mean"] == pytest.approx(-0.22 / 3, abs=1e-7)
    assert pair["median"] == pytest.approx(-0.02, abs=1e-7)
    assert (pair["worst_group"], pair["worst"]) == ("news", pytest.approx(0.1, abs=1e-7))
    assert pair["mean_verdict"] == "better" and pair["verdict"] == "better"
    for name in ("mean", "median", "worst"):
        assert pair[f"{name}_low"] <= pair[name] <= pair[f"{name}_high"]
        assert pair[f"{name}_high"] - pair[f"{name}_low"] < 1e-6
    for row in rows[3:]:
        assert not row.get("groups")  # a single group has none
    text = _in_context(pair | {"sentence": sentence(pair)}, "all", {})["sentence"]
    assert all(part in text for part in ("3 groups", "-0.0733", "-0.0200", "+0.1000", "news"))
    assert "1 of the groups have fewer than 100" in text


def test_a_mean_over_groups_that_decides_otherwise_contests_a_verdict():
    """The mixture is better by its largest kind, and the mean over kinds worse."""
    bits, sizes, kinds = planted(np.random.default_rng(0), 1e-6)
    bits = bits[::-1]
    (found,) = over_groups(bits, sizes, members(kinds))
    assert found["mean_verdict"] == "worse"
    pair = {**found, "arm": "ours", "other": "random", "verdict": "better", "sentence": "said"}
    assert _in_context(pair, "all", {})["against"] == ["mean over groups"]


def bootstrapped(
    rng: np.random.Generator, bits: np.ndarray, sizes: np.ndarray, groups: dict[str, np.ndarray]
) -> np.ndarray:
    """The mean over groups of 2,000 draws of seeds, and of documents within each group."""
    apart = (bits[0] - bits[1]).mean(axis=1)
    seeds, values = len(apart), np.zeros(2000)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), 2000) / seeds
    for rows in groups.values():
        number = int(rows.sum())
        drawn = rng.multinomial(number, np.full(number, 1 / number), 2000)
        of_group = ((weights @ apart[:, rows]) * drawn).sum(1) / (drawn @ sizes[rows])
        values += of_group / len(groups)
    return values


def test_with_many_seeds_the_interval_of_the_mean_is_that_of_a_bootstrap():
    """Within 15 %, as the interval of the mixture."""
    rng = np.random.default_rng(1)
    for _ in range(3):
        bits, sizes, kinds = planted(rng, 0.1, seeds=30)
        (found,) = over_groups(bits, sizes, members(kinds))
        low, high = np.quantile(bootstrapped(rng, bits, sizes, members(kinds)), (0.025, 0.975))
        assert found["mean_high"] - found["mean_low"] == pytest.approx(high - low, rel=0.15)
        assert abs(found["mean"] - (high + low) / 2) < 0.1 * (high - low)


def test_intervals_cover_the_planted_values():
    """With three seeds, 95 % of the intervals or more have mean, median and worst in them."""
    rng, covered = np.random.default_rng(2), {"mean": 0, "median": 0, "worst": 0}
    true = {"mean": -0.22 / 3, "median": -0.02, "worst": 0.1}
    for _ in range(300):
        bits, sizes, kinds = planted(rng, 0.2)
        (found,) = over_groups(bits, sizes, members(kinds))
        for name, value in true.items():
            covered[name] += found[f"{name}_low"] <= value <= found[f"{name}_high"]
    assert min(covered.values()) >= 0.93 * 300, covered


def test_pairs_are_in_the_order_of_verdicts():
    """With four arms, each pair's mean is the difference of the means of its arms."""
    rng = np.random.default_rng(3)
    bits, sizes, kinds = planted(rng, 0.1)
    bits = np.concatenate([bits, 1.01 * bits])
    groups = members(kinds)
    bits_of = bits.mean(axis=(1, 2))
    means = [
        np.mean([one[rows].sum() / sizes[rows].sum() for rows in groups.values()])
        for one in bits_of
    ]
    found = [one["mean"] for one in over_groups(bits, sizes, groups)]
    assert found == pytest.approx([means[a] - means[b] for a, b in combinations(range(4), 2)])

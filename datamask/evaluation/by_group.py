"""Compare two arms by group of the held-out texts: mean, median and worst group.

In the mixture a kind of text counts by its bytes, so a selection may lose every small kind and look
better. Here each group counts once. All groups get intervals that hold together with probability 95
% (Bonferroni). Then the median of the groups lies between the median of the lower ends and the
median of the upper ends, and the worst group between the largest lower and the largest upper end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.evaluation import verdict
from datamask.evaluation.texts import LEAST_DOCUMENTS, SOURCE_SET

FEW = 100
"""A group with fewer held-out texts is marked as having few."""


def groups_of(held_out: pa.Table, name: str, own: list[str]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the members of each group of a set, by name; none if it has fewer than two groups.

    A group with fewer than 30 texts is left out, because its error would not be known.

    Args:
        held_out: columns `set` and `group` of `schemas.HELD_OUT`.
        name: of the set. The set `all` is a sample; its groups have all documents that were drawn.
        own: names of the sets of the user's own.
    """
    sets = np.asarray(held_out["set"].to_pylist(), object)
    of_set = ~np.isin(sets, own) if name == SOURCE_SET else sets == name
    groups = np.asarray(held_out["group"].to_pylist(), object)
    names = dict.fromkeys(group for group in groups[of_set] if group is not None)
    members = {str(group): of_set & (groups == group) for group in names}
    large = {group: rows for group, rows in members.items() if rows.sum() >= LEAST_DOCUMENTS}
    return large if len(large) > 1 else {}


def over_groups(
    bits: verdict.Bits, sizes: npt.NDArray[np.int64], groups: dict[str, npt.NDArray[np.bool_]]
) -> Iterator[dict[str, Any]]:
    """Compare all pairs of arms over groups, in the order of `verdict.compare`.

    Args:
        bits: by arm, seed, learning rate and document.
        sizes: bytes of each document.
        groups: the members of each group, by name; at least two.

    Returns:
        the columns of `schemas.OVER_GROUPS`.
    """
    names, members = [*groups], [*groups.values()]
    means = verdict.compare(bits, sizes, groups=members)
    error = 0.05 / len(groups)
    parts = [verdict.compare(bits[..., rows], sizes[rows], error=error) for rows in members]
    for mean, *of_groups in zip(means, *parts, strict=True):
        values, lows, highs = (
            np.array([getattr(comparison, end) for comparison in of_groups])
            for end in ("difference", "low", "high")
        )
        worst = int(values.argmax())
        yield {
            **counts_of(groups),
            "mean": mean.difference,
            "mean_low": mean.low,
            "mean_high": mean.high,
            "mean_verdict": mean.verdict,
            "median": float(np.median(values)),
            "median_low": float(np.median(lows)),
            "median_high": float(np.median(highs)),
            "worst_group": names[worst],
            "worst": float(values[worst]),
            "worst_low": float(lows.max()),
            "worst_high": float(highs.max()),
        }


def counts_of(groups: dict[str, npt.NDArray[np.bool_]]) -> dict[str, int]:
    """Count the groups, and the groups with fewer than `FEW` texts."""
    return {"groups": len(groups), "few": sum(int(rows.sum()) < FEW for rows in groups.values())}

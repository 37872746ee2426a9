"""An evaluation in words and as a chart."""

from __future__ import annotations

from typing import Any

import pytest

from datamask.report.charts import PICTURE, specification
from datamask.report.evaluation import Findings, difference_chart, sentence


def pair(difference: float, half: float, verdict: str) -> dict[str, Any]:
    """A row of a pair of arms."""
    ends = {"low": difference - half, "high": difference + half, "detectable": 1.4 * half}
    return {
        "arm": "ours",
        "other": "random",
        "bits_per_byte": difference,
        "verdict": verdict,
        **ends,
    }


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            pair(-0.05, 0.01, "better"),
            "ours is better than random: models trained on it need 0.0500 fewer bits per byte "
            "(95 % interval 0.0400 to 0.0600).",
        ),
        (
            pair(0.05, 0.01, "worse"),
            "ours is worse than random: models trained on it need 0.0500 more bits per byte "
            "(95 % interval 0.0400 to 0.0600).",
        ),
        (
            pair(0.01, 0.02, "undecided"),
            "ours and random: undecided. The difference is +0.0100 bits per byte (95 % interval "
            "-0.0100 to +0.0300); 0.0280 would be detected.",
        ),
    ],
)
def test_a_pair_in_words(row: dict[str, Any], text: str) -> None:
    """Who is better, by how much, and how sure that is."""
    assert sentence(row) == text


def test_intervals_lie_along_their_bars() -> None:
    """Bars are horizontal: the ends of an interval are numbers, not names of bars."""
    found = Findings([], [pair(-0.05, 0.01, "better")], {}, {}, "")
    layers = specification(difference_chart(found), PICTURE, 560)["layer"]
    rules = [
        one for part in layers for one in part.get("layer", ()) if one["mark"]["type"] == "rule"
    ]
    interval = [one["encoding"] for one in rules if "x2" in one.get("encoding", {})]
    assert [(one["x"]["field"], one["x2"]["field"]) for one in interval] == [("low", "high")]
    assert interval[0]["x"]["type"] == "quantitative"

"""An evaluation in words and as a chart."""

from types import SimpleNamespace
from typing import Any

import pytest

from datamask.config.loading import parse_settings
from datamask.report import evaluation
from datamask.report.charts import specification
from datamask.report.evaluation import Findings, difference_chart, sentence
from datamask.report.findings import trained


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
    ("row", "told"),
    [
        (pair(-0.05, 0.01, "better"), ["better", "0.0500 fewer", "0.0400 to 0.0600"]),
        (pair(0.05, 0.01, "worse"), ["worse", "0.0500 more", "0.0400 to 0.0600"]),
        (pair(0.01, 0.02, "undecided"), ["undecided", "+0.0100", "-0.0100 to +0.0300", "0.0280"]),
        (pair(0.04, 0.02, "undecided") | {"p_value": 0.0612}, ["0.0280", "p = 0.061"]),
        (pair(0.04, 0.02, "undecided") | {"p_value": 0.01}, ["0.0280", "learning rates"]),
    ],
)
def test_a_pair_in_words(row, told):
    """Who is better, by how much, and how sure that is."""
    said = sentence(row)
    assert "ours" in said and "random" in said and all(part in said for part in told)


def test_intervals_lie_along_their_bars():
    """Bars are horizontal: the ends of an interval are numbers, not names of bars."""
    found = Findings([], [pair(-0.05, 0.01, "better")], {}, {}, "", [])
    layers = specification(difference_chart(found), 560, is_picture=True)["layer"]
    rules = [
        one for part in layers for one in part.get("layer", ()) if one["mark"]["type"] == "rule"
    ]
    interval = [one["encoding"] for one in rules if "x2" in one.get("encoding", {})]
    assert [(one["x"]["field"], one["x2"]["field"]) for one in interval] == [("low", "high")]
    assert interval[0]["x"]["type"] == "quantitative"


@pytest.mark.parametrize(
    ("arms", "verdict", "grade"),
    [
        (["ours", "random"], "better", "good"),
        (["ours", "random"], "undecided", "caution"),
        (["random", "ours"], "better", "warning"),
        (["random", "ours"], "worse", "good"),
        (["random", "top_quality"], "worse", "unknown"),
    ],
)
def test_the_grade_is_that_of_the_runs_own_selection(arms, verdict, grade, monkeypatch):
    """Wherever its arm is in the list."""
    settings = parse_settings({"source": {"path": "x"}, "evaluation": {"arms": arms}})
    row = {"arm": arms[0], "other": arms[1], "verdict": verdict, "sentence": "said", "against": []}
    found = Findings([], [row], {}, {}, "", [])
    monkeypatch.setattr(evaluation, "findings", lambda run: found)
    (finding,) = trained(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    assert (finding.grade, finding.text) == (grade, "said")

"""Ours next to random and top quality, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from datamask.analysis.composition import query
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure for the selection beside random and top quality.

    Args:
        name: a term of the objective, or `mean length`.
        selected: of the documents that were kept.
        random: expected of as many random documents of what pruning left.
        top_quality: of as many documents with the highest quality.
        better: `higher`, `lower`, or empty where neither is.
    """

    name: str
    selected: float
    random: float
    top_quality: float
    better: str


def summary(run: Run) -> list[Comparison]:
    """The small table of a run: each term of the objective, then the mean length.

    Raises:
        RunError: the composition is not there yet.
    """
    rows = [
        Comparison(
            row["term"],
            row["selected"],
            row["random"],
            row["top_quality"],
            "higher" if row["maximise"] else "lower",
        )
        for row in query(run, "SELECT * FROM terms")
    ]
    totals = {row["selection"]: row for row in query(run, "SELECT * FROM totals")}
    for unit in ("characters", "tokens"):
        mean = {name: row[f"mean_{unit}"] for name, row in totals.items()}
        if mean["selected"] is not None:
            ours, random, top = mean["selected"], mean["random"], mean["top_quality"]
            rows.append(Comparison(f"mean length, {unit}", ours, random, top, ""))
    return rows


def summary_text(run: Run) -> str:
    """`summary` as plain text for a terminal, after a line of totals."""
    totals = {row["selection"]: row for row in query(run, "SELECT * FROM totals")}
    before, after = (int(totals[name]["documents"]) for name in ("source", "selected"))
    lines = [f"{after:,d} of {before:,d} documents kept"]
    heading = "".join(f"{name:>14s}" for name in ("ours", "random", "top quality"))
    lines.append(f"{'':26s}{heading}  better")
    for row in summary(run):
        values = "".join(f"{v:14.5g}" for v in (row.selected, row.random, row.top_quality))
        lines.append(f"{row.name:26s}{values}  {row.better}".rstrip())
    return "\n".join(lines)

"""The run's figures as GitHub markdown, for the dataset card and Prefect's artifact.

Every figure comes from `composition.duckdb`, as the report page's do, so the three agree. Names
from the data (dumps, domains) are hostile: they are escaped before they become table cells.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from datamask.analysis.composition import query
from datamask.analysis.screening import benchmarks
from datamask.analysis.summary import summary
from datamask.runs.run import Run

SELECTIONS = {
    "source": "source",
    "candidates": "left by pruning",
    "selected": "ours",
    "top_quality": "top quality",
    "random": "random",
}
"""How a selection is called in text, by its name in the tables."""

_OF = {"shard": "values of shards averaged by what each keeps", "corpus": "of the whole corpus"}

KINDS = {"dump": "dumps", "language": "languages", "domain": "domains"}


def number(value: object) -> str:
    """A value for people: counts in full, other numbers in four digits, a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,d}"
    if isinstance(value, float):
        if abs(value) < 1e-12:  # rounding of a mean that is zero
            return "0"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def share(value: float) -> str:
    """A share of one as a percentage."""
    return f"{value:.2%}"


def cut_short(text: str, most: int = 40) -> str:
    """A name as it fits beside a bar, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def cell(value: object) -> str:
    """A value as a table cell: numbers in few digits, text with all markup disarmed."""
    if not isinstance(value, str):
        return number(value)
    text = html.escape(" ".join(value.split()))
    return "".join(f"\\{character}" if character in r"\|`*_[]" else character for character in text)


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table; the first column is text, the others are aligned right."""
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|:---|" + "---:|" * (len(names) - 1))
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def changes(run: Run, kind: str, most: int) -> list[dict[str, Any]]:
    """Groups of a kind whose share changed most, the largest change first."""
    rows = query(run, "SELECT * FROM groups")
    chosen = [row for row in rows if row["kind"] == kind]
    chosen.sort(key=lambda row: (-abs(row["share_after"] - row["share_before"]), row["name"]))
    return chosen[:most]


def report_markdown(run: Run) -> str:
    """Totals, terms, and what gained and lost most.

    Raises:
        RunError: the composition is not there yet.
    """
    totals = query(run, "SELECT * FROM totals")
    parts = [
        table(
            ("", "documents", "tokens", "mean characters", "mean tokens"),
            (
                (
                    SELECTIONS[row["selection"]],
                    row["documents"],
                    row["tokens"],
                    row["mean_characters"],
                    row["mean_tokens"],
                )
                for row in totals
            ),
        ),
        f"Objective, by term, {_OF[run.settings.selection.scope]} (`random` is the mean over "
        "random subsets of the same size):",
        table(
            ("", "selected", "random", "top quality", "better"),
            (
                (row.name, row.selected, row.random, row.top_quality, row.better or "–")
                for row in summary(run)
            ),
        ),
    ]
    known = run.settings.quality.contamination
    if known is not None:
        parts.append(f"Documents that share {known.ngram} words in a row with a benchmark:")
        names = ("documents", "dropped", "selected", "texts", "short")
        shown = ((row["name"], *(row[name] for name in names)) for row in benchmarks(run))
        parts.append(table(("benchmark", *names[:3], "its texts", "too short to be found"), shown))
    for kind, title in KINDS.items():
        rows = changes(run, kind, 10)
        if len(rows) > 1:
            parts.append(f"Shares of {title} that changed most:")
            shown = (
                (
                    row["name"],
                    row["documents_before"],
                    row["documents_after"],
                    f"{row['share_before']:.2%}",
                    f"{row['share_after']:.2%}",
                )
                for row in rows
            )
            parts.append(table((kind, "before", "after", "share before", "share after"), shown))
    return "\n\n".join(parts) + "\n"

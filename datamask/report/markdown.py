"""The results of a run as GitHub Markdown, for the dataset card and Prefect's artifact.

All values come from `composition.duckdb`, like those of the report page. Names from the data
(dumps, domains) are untrusted and are escaped in table cells.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from datamask.analysis.composition import KINDS, query
from datamask.analysis.drift import drift
from datamask.analysis.screening import benchmarks
from datamask.analysis.summary import repeats_of, summary, totals_of
from datamask.runs.run import Run

SELECTIONS = {
    "source": "source",
    "candidates": "left by pruning",
    "selected": "ours",
    "top_quality": "top quality",
    "random": "random",
}
"""Displayed name of each selection of the tables."""

_OF = {"shard": "means over shards by selected documents", "corpus": "of the whole corpus"}
_TOTALS = ("documents", "tokens", "mean_characters", "mean_tokens")


def number(value: object) -> str:
    """Counts in full, other numbers with four digits, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,d}"
    if isinstance(value, float):
        if abs(value) < 1e-12:  # rounding error of a mean of zero
            return "0"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def share(value: float) -> str:
    """A share in [0, 1] as a percentage."""
    return f"{value:.2%}"


def cut_short(text: str, most: int = 40) -> str:
    """The text on one line, cut to *most* characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def cell(value: object) -> str:
    """A value as a table cell: a number as `number` shows it, text with markup escaped."""
    if not isinstance(value, str):
        return number(value)
    text = html.escape(" ".join(value.split()))
    return "".join(f"\\{character}" if character in r"\|`*_[]" else character for character in text)


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is aligned left, the others right."""
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|:---|" + "---:|" * (len(names) - 1))
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def score_coverage(run: Run) -> list[dict[str, Any]]:
    """For each score, the share of the source's documents that have it (`covered`, in [0, 1])."""
    rows = query(
        run,
        "SELECT score, 1 - missing / greatest(documents, 1) AS covered FROM score_summary "
        "JOIN totals USING (selection) WHERE selection = 'source'",
    )
    found = {row["score"]: row for row in rows}
    return [found[score.name] for score in run.settings.scores]


def moved_groups(run: Run, most: int) -> list[dict[str, Any]]:
    """Groups whose share of the best tenth changes most with normalisation within groups."""
    return query(
        run,
        "SELECT * FROM score_groups WHERE best_within <> best_whole "
        f"ORDER BY abs(best_within - best_whole) DESC, kind, name LIMIT {most}",
    )


def _scores(run: Run) -> list[str]:
    """Coverage and agreement of scores, and the effect of normalisation within groups."""
    shown = [f"`{row['score']}` {share(row['covered'])}" for row in score_coverage(run)]
    parts = [f"Share of the source's documents that have a score: {', '.join(shown)}."]
    pairs = query(run, "SELECT * FROM score_correlations ORDER BY abs(correlation), score, other")
    if pairs:
        rows = ((f"{r['score']}, {r['other']}", r["correlation"], r["documents"]) for r in pairs)
        parts.append("Rank correlations of scores (Spearman), weakest first:")
        parts.append(table(("scores", "correlation", "documents"), rows))
    moved = moved_groups(run, 10)
    if moved:
        parts.append(MOVED)
        shares = (
            (r["name"], r["documents"], *(share(r[key] / r["documents"]) for key in _BEST))
            for r in moved
        )
        parts.append(table(("group", "documents", "whole corpus", "within groups"), shares))
    return parts


_BEST = ("best_whole", "best_within")

MOVED = (
    "Share of each group's documents in the best tenth of the source by quality, if scores are "
    "normalised over the whole corpus and within groups; groups with the largest changes:"
)


def _drift(run: Run) -> list[str]:
    """How the corpus differs from the one that the mask model was learnt on; nothing without."""
    rows = drift(run)
    if not rows:
        return []
    cells = ((row["term"], *(row[key] for key in ("then", "now", "shift"))) for row in rows)
    return [DRIFT, table(("", "learnt on", "these documents", "change"), cells)]


DRIFT = (
    "Against the corpus that the mask model was learnt on: share of the source kept with its "
    "relative change, and mean gain of each term with its change in deviations over documents:"
)


def _repeats(run: Run) -> list[str]:
    """How often training sees the documents; nothing without repeats."""
    found = repeats_of(run)
    if found is None:
        return []
    rows = ((r["repeat"], r["documents"], r["tokens"], share(r["share"])) for r in found.rows)
    return [
        f"How often training sees a document: {number(found.seen)} {found.unit} in "
        f"{found.epochs:.3g} epochs, {share(found.repeated)} of them repeated:",
        table(("repeat", "documents", "tokens", f"share of the {found.unit} seen"), rows),
    ]


def report_markdown(run: Run) -> str:
    """Totals, terms, and the groups whose share changed most.

    Raises:
        RunError: the composition is missing.
    """
    parts = [
        table(
            ("", "documents", "tokens", "mean characters", "mean tokens"),
            (
                (SELECTIONS[name], *(row[key] for key in _TOTALS))
                for name, row in totals_of(run).items()
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
        parts.append(f"Documents that share {known.ngram} consecutive words with a benchmark:")
        names = ("documents", "dropped", "selected", "texts", "short")
        shown = ((row["name"], *(row[name] for name in names)) for row in benchmarks(run))
        parts.append(table(("benchmark", *names[:3], "its texts", "texts too short"), shown))
    parts += _drift(run) + _repeats(run)
    parts += _scores(run)
    for kind, title in KINDS.items():
        rows = query(
            run,
            f"SELECT * FROM groups WHERE kind = '{kind}' "
            "ORDER BY abs(share_after - share_before) DESC, name LIMIT 10",
        )
        if len(rows) > 1:
            parts.append(f"Shares of {title} that changed most:")
            shown = (
                (
                    row["name"],
                    row["documents_before"],
                    row["documents_after"],
                    share(row["share_before"]),
                    share(row["share_after"]),
                )
                for row in rows
            )
            parts.append(table((kind, "before", "after", "share before", "share after"), shown))
    return "\n\n".join(parts) + "\n"

"""The results of a run as GitHub Markdown, for the dataset card and Prefect's artifact.

All values come from `composition.duckdb`, like those of the report page. Names from the data
(dumps, domains) are untrusted and are escaped in table cells.
"""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from datamask.analysis.composition import KINDS, query
from datamask.analysis.summary import benchmarks, drift, repeats_of, summary, totals_of
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

TEMPLATES = Path(__file__).parent / "templates"


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


_NOTES = {
    "drift_note": "Against the corpus that the mask model was learnt on: share of the source kept "
    "with its relative change, and mean gain of each term with its change in deviations over "
    "documents:",
    "moved_note": "Share of each group's documents in the best tenth of the source by quality, if "
    "scores are normalised over the whole corpus and within groups; groups with the largest "
    "changes:",
}


def render_markdown(template: Path, **values: Any) -> str:
    """Markdown or plain text from a template."""
    environment = template_environment(template.parent, keep_trailing_newline=True)
    return environment.get_template(template.name).render(values)


@cache
def template_environment(folder: Path, **options: Any) -> Environment:
    """The templates of a folder, which are compiled once per process.

    They have the filters `cell`, `number` and `share`, and `_NOTES` as values.
    """
    environment = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, **options
    )
    environment.filters |= {"cell": cell, "number": number, "share": share}
    environment.globals |= _NOTES
    return environment


def score_coverage(run: Run) -> dict[str, float]:
    """The share of the source's documents that have a score, in [0, 1], by score."""
    rows = query(
        run,
        "SELECT score, 1 - missing / greatest(documents, 1) AS covered FROM score_summary "
        "JOIN totals USING (selection) WHERE selection = 'source'",
    )
    found = {row["score"]: row["covered"] for row in rows}
    return {score.name: found[score.name] for score in run.settings.scores}


def moved_groups(run: Run, most: int) -> list[dict[str, Any]]:
    """Groups whose share of the best tenth changes most with normalisation within groups."""
    return query(
        run,
        "SELECT * FROM score_groups WHERE best_within <> best_whole "
        f"ORDER BY abs(best_within - best_whole) DESC, kind, name LIMIT {most}",
    )


def report_markdown(run: Run) -> str:
    """Totals, terms, and the groups whose share changed most.

    Raises:
        RunError: the composition is missing.
    """
    known = run.settings.quality.contamination
    most_changed = "ORDER BY abs(share_after - share_before) DESC, name LIMIT 10"
    return render_markdown(
        TEMPLATES / "results.md",
        names=SELECTIONS,
        of=_OF[run.settings.selection.scope],
        totals=totals_of(run),
        terms=summary(run),
        ngram=known and known.ngram,
        benchmarks=benchmarks(run),
        drift=drift(run),
        repeats=repeats_of(run),
        coverage=score_coverage(run),
        correlations=query(
            run, "SELECT * FROM score_correlations ORDER BY abs(correlation), score, other"
        ),
        moved=moved_groups(run, 10),
        groups={
            title: query(run, f"SELECT * FROM groups WHERE kind = '{kind}' {most_changed}")
            for kind, title in KINDS.items()
        },
    )

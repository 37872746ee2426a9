"""The answer of a report: what was selected, whether to trust it, and what to do next.

Page, terminal, card and Prefect's artifact show the same findings; the log has the warnings. Card
and artifact show them, and the results of the run, as GitHub Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datamask.analysis.composition import open_composition, query
from datamask.analysis.summary import benchmarks, drift, funnel_of, repeats_of, totals_of
from datamask.report.finding import Finding
from datamask.report.findings import findings_of
from datamask.report.page_data import TABS
from datamask.report.rendering import render
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class Answer:
    """What was selected, the findings, trained models first, and the commands that follow."""

    what: str
    findings: list[Finding]

    @property
    def commands(self) -> list[str]:
        """Commands of the findings, each once."""
        return list(dict.fromkeys(row.command for row in self.findings if row.command))

    @property
    def warnings(self) -> list[str]:
        """The texts of the findings of grade `warning`."""
        return [row.text for row in self.findings if row.grade == "warning"]


def answer(run: Run) -> Answer:
    """The answer of a finished selection.

    Near-duplicates are known after the report's sample, and trained models after the evaluation.

    Raises:
        RunError: the composition is missing.
    """
    with open_composition(run, "totals"):  # DuckDB opens the file once for all queries
        return Answer(_what(run), [*findings_of(run)])


def answer_markdown(run: Run) -> str:
    """The answer for card and artifact; RUN stands for the folder. Raises as `answer`."""
    return render("answer.md", answer=answer(run)).strip()


def _what(run: Run) -> str:
    totals, selection = totals_of(run), run.settings.selection
    ours, source = totals["selected"], totals["source"]

    def kept(unit: str) -> str:
        share = ours[unit] / max(source[unit], 1)
        return f"{ours[unit]:,.0f} of {source[unit]:,.0f} {unit} ({share:.2%})"

    known = [kept(unit) for unit in ("documents", "tokens") if source[unit] is not None]
    method: str = selection.method
    if method == "mask" and not selection.mask_model:
        method += f", λ = {selection.quality_weight:g}, diversity by {selection.metric}"
    scope = "over all shards" if selection.scope == "corpus" else "shard by shard"
    return f"{known[0]} were selected{'; '.join(['', *known[1:]])}. Method: {method}, {scope}."


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
    """What is left after each step, scores, screening, and the groups that changed most.

    Raises:
        RunError: the composition is missing.
    """
    most_changed = "ORDER BY abs(share_after - share_before) DESC, name LIMIT 10"
    return render(
        "results.md",
        settings=run.settings,
        funnel=funnel_of(run),
        benchmarks=benchmarks(run),
        drift=drift(run),
        repeats=repeats_of(run),
        coverage=score_coverage(run),
        correlations=query(
            run, "SELECT * FROM score_correlations ORDER BY abs(correlation), score, other"
        ),
        explained=query(run, "SELECT * FROM score_explained WHERE score <> 'quality'"),
        moved=moved_groups(run, 10),
        groups={
            title: query(run, f"SELECT * FROM groups WHERE kind = '{kind}' {most_changed}")
            for kind, title in TABS.items()
        },
    )

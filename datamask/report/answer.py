"""The answer of a report: what was selected, whether to trust it, and what to do next.

Page, terminal, card and Prefect's artifact show the same findings; the log has the warnings. Page
and terminal also have the commands to run next.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamask.analysis.summary import open_composition, totals_of
from datamask.report.finding import Finding
from datamask.report.findings import findings_of
from datamask.report.rendering import render
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class Answer:
    """A summary of the selection, the findings, trained models first, and commands."""

    what: str
    findings: list[Finding]

    @property
    def commands(self) -> dict[str, str]:
        """Return commands of the findings, each once, and how long one takes if known."""
        found: dict[str, str] = {}
        for row in self.findings:
            if row.command:
                found.setdefault(row.command, row.takes)
        return found

    @property
    def warnings(self) -> list[str]:
        """Texts of the findings of grade `warning`."""
        return [row.text for row in self.findings if row.grade == "warning"]

    @property
    def markdown(self) -> str:
        """The answer for card and artifact, without commands: their readers lack the run."""
        return render("answer.md", answer=self).strip()


def answer(run: Run) -> Answer:
    """Return the answer of a finished selection.

    Near-duplicates are known after the report's sample, and trained models after the evaluation.

    Raises:
        RunError: the composition is missing.
    """
    with open_composition(run, "totals"):  # DuckDB opens the file once for all queries.
        return Answer(_what(run), [*findings_of(run)])


def _what(run: Run) -> str:
    totals, selection = totals_of(run), run.in_force.selection
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

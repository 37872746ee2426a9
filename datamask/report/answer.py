"""The answer of a report: what was selected, whether to trust it, and what to do next.

Page, log, terminal, dataset card and Prefect's artifact show the same findings.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamask.analysis.summary import totals_of
from datamask.report.findings import Finding, findings_of
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
        return list(dict.fromkeys(one.command for one in self.findings if one.command))


def answer(run: Run) -> Answer:
    """The answer of a finished selection.

    Near-duplicates are known after the report's sample, and trained models after the evaluation.

    Raises:
        RunError: the composition is missing.
    """
    return Answer(_what(run), [*findings_of(run)])


def warnings(run: Run) -> list[str]:
    """The texts of the findings of grade `warning`. Raises as `answer`."""
    return [one.text for one in answer(run).findings if one.grade == "warning"]


def answer_markdown(run: Run) -> str:
    """The answer for card and artifact; RUN stands for the folder. Raises as `answer`."""
    return render("answer.md", answer=answer(run)).strip()


def answer_lines(run: Run) -> list[str]:
    """The answer for a terminal, a line each. Raises as `answer`."""
    found = answer(run)
    lines = [f"{one.mark} {one.name}: {one.text}" for one in found.findings]
    commands = [f"next: {command.replace('RUN', run.address)}" for command in found.commands]
    return [found.what, *lines, *commands]


def _what(run: Run) -> str:
    totals, selection = totals_of(run), run.settings.selection
    ours, source = totals["selected"], totals["source"]

    def part(unit: str) -> str:
        share = ours[unit] / max(source[unit], 1)
        return f"{ours[unit]:,.0f} of {source[unit]:,.0f} {unit} ({share:.2%})"

    known = [part(unit) for unit in ("documents", "tokens") if source[unit] is not None]
    method: str = selection.method
    if method == "mask" and not selection.mask_model:
        method += f", λ = {selection.quality_weight:g}, diversity by {selection.metric}"
    scope = "over all shards" if selection.scope == "corpus" else "shard by shard"
    return f"{known[0]} were selected{'; '.join(['', *known[1:]])}. Method: {method}, {scope}."

"""What an evaluation found, as sentences and tables for report, card and command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datamask.evaluation.results import read_results
from datamask.report.markdown import TEMPLATES, render_markdown
from datamask.runs.run import Run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of an evaluation.

    Args:
        arms: a row per arm on the main set (`schemas.EVALUATION`).
        pairs: a row per pair of arms on the main set.
        other_sets: the same of every other set, by name: arms and pairs.
        metrics: of the receipt of stage `evaluation`.
    """

    arms: list[Row]
    pairs: list[Row]
    other_sets: dict[str, tuple[list[Row], list[Row]]]
    metrics: dict[str, Any]


def findings(run: Run) -> Findings | None:
    """What an evaluation found; None for a run without one."""
    if not run.settings.evaluation.arms:
        return None
    by_set: dict[str, tuple[list[Row], list[Row]]] = {}
    for row in read_results(run):
        by_set.setdefault(row["set"], ([], []))[row["other"] is not None].append(row)
    metrics = run.receipt("evaluation").metrics
    arms, pairs = by_set.pop(metrics["main"])
    return Findings(arms, pairs, by_set, metrics)


def sentence(pair: Row) -> str:
    """A pair of arms in words."""
    apart, low, high = (abs(pair[key]) for key in ("bits_per_byte", "low", "high"))
    if pair["verdict"] == "undecided":
        return (
            f"{pair['arm']} and {pair['other']}: undecided. The difference is "
            f"{pair['bits_per_byte']:+.4f} bits per byte (95 % interval {pair['low']:+.4f} to "
            f"{pair['high']:+.4f}); {pair['detectable']:.4f} would be detected."
        )
    than = "fewer" if pair["bits_per_byte"] < 0 else "more"
    return (
        f"{pair['arm']} is {pair['verdict']} than {pair['other']}: models trained on it need "
        f"{apart:.4f} {than} bits per byte (95 % interval {min(low, high):.4f} to "
        f"{max(low, high):.4f})."
    )


def conditions(run: Run, found: Findings) -> str:
    """Under which conditions the findings hold."""
    evaluation, seeds = run.settings.evaluation, [row["seeds"] for row in found.arms]
    text = render_markdown(
        TEMPLATES / "conditions.md",
        metrics=found.metrics,
        model=evaluation.model,
        epochs=evaluation.epochs,
        seeds=(min(seeds), max(seeds)),
        documents=found.arms[0]["documents"],
    )
    return text.rstrip("\n").replace("\n", " ")


def proxy_note(found: Findings) -> str:
    """What the n-gram model is worth here."""
    proxy = found.metrics["proxy"]
    if not proxy["decided"]:
        return "No pair has a verdict that the n-gram model could agree with."
    return (
        f"The n-gram model, which trains in seconds, agrees with {proxy['agreed']} of "
        f"{proxy['decided']} verdicts."
    )


def evaluation_markdown(run: Run) -> str:
    """Verdicts, conditions and tables; empty for a run without an evaluation."""
    found = findings(run)
    if found is None:
        return ""
    return render_markdown(TEMPLATES / "evaluation.md", found=found, **in_words(run, found))


def in_words(run: Run, found: Findings | None) -> dict[str, Any]:
    """What the templates of the findings need besides them."""
    return {
        "sentence": sentence,
        "conditions": found and conditions(run, found),
        "proxy_note": found and proxy_note(found),
    }

"""What an evaluation found, as sentences, tables and charts for report, card and command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datamask.evaluation.results import read_results
from datamask.evaluation.trials import unit_of
from datamask.evaluation.units import trials_of
from datamask.report.charts import Chart, Series, look
from datamask.report.markdown import table
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
    evaluation, metrics = run.settings.evaluation, found.metrics
    seeds = sorted({row["seeds"] for row in found.arms})
    shown = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    size = f"{metrics['parameters'] / 1e6:.3g} million parameters"
    text = (
        f"Models of {size} (`{evaluation.model}`), {metrics['tokens']:,d} tokens in "
        f"{evaluation.epochs} {'epoch' if evaluation.epochs == 1 else 'epochs'}, {shown} seeds, "
        f"scored on {found.arms[0]['documents']:,d} held-out documents. Lower is better."
    )
    if evaluation.model == "tiny":
        text += " A model this small checks the machinery; it decides nothing about large models."
    for rate, reason in metrics["diverged"].items():
        text += f" Learning rate {rate} is left out, because a model diverged ({reason})."
    return text


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
    heads = ("arm", "bits per byte", "n-gram model", "seeds", "documents", "copies left out")
    known = zip(found.arms, found.metrics["documents"], found.metrics["copies"], strict=True)
    rows = [
        (row["arm"], row["bits_per_byte"], row["ngram"], row["seeds"], documents, copies)
        for row, documents, copies in known
    ]
    parts = [*(f"- {sentence(pair)}" for pair in found.pairs)]
    lines = ["\n".join(parts), conditions(run, found), table(heads, rows), proxy_note(found)]
    for name, (arms, pairs) in found.other_sets.items():
        shown = [(row["arm"], row["bits_per_byte"], row["ngram"]) for row in arms]
        lines += [f"Set `{name}`, {arms[0]['documents']:,d} documents:", table(heads[:3], shown)]
        lines.append("\n".join(f"- {sentence(pair)}" for pair in pairs))
    return "\n\n".join(lines) + "\n"


def evaluation_charts(run: Run) -> list[Chart]:
    """Differences between arms, and training curves; none for a run without an evaluation."""
    found = findings(run)
    if found is None:
        return []
    return [difference_chart(found), _curves(run)]


def difference_chart(found: Findings) -> Chart:
    """The difference of every pair of arms, with its interval."""
    pairs = [f"{pair['arm']} − {pair['other']}" for pair in found.pairs]
    series = Series(
        name="difference",
        x=pairs,
        y=[pair["bits_per_byte"] for pair in found.pairs],
        low=[pair["low"] for pair in found.pairs],
        high=[pair["high"] for pair in found.pairs],
        hover=[sentence(pair) for pair in found.pairs],
        **look(0),
    )
    return Chart(
        key="evaluation-differences",
        title="difference of trained models",
        kind="bars",
        x="difference (bits per byte)",
        y="",
        series=(series,),
        note="Below 0, the first arm trains the better model. Lines span the 95 % interval.",
    )


def _curves(run: Run) -> Chart:
    """Mean training curves of the first learning rate, one per arm."""
    curves: dict[int, list[list[list[float]]]] = {}
    for unit, trial in enumerate(trials_of(run)):
        curve = run.receipt("training", unit).metrics["curve"][1:]
        if trial.rate == 0:
            curves.setdefault(trial.arm, []).append(curve)
    series = []
    for arm, some in curves.items():
        name = run.settings.evaluation.arms[arm].name
        means = [
            (points[0][0], sum(point[1] for point in points) / len(points))
            for points in zip(*some, strict=False)
        ]
        x, y = [tokens for tokens, _ in means], [bits for _, bits in means]
        series.append(Series(name=name, x=x, y=y, **look(arm)))
    first = unit_of(run, trials_of(run)[0]).settings[1]
    return Chart(
        key="evaluation-curves",
        title="training curves",
        kind="lines",
        x="tokens seen",
        y="bits per token of the arm's own text",
        series=tuple(series),
        note=f"Learning rate {first:g}, mean over seeds. An arm's own text may be easier or harder "
        "than that of others: only held-out text is compared.",
    )

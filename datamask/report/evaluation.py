"""Report an evaluation: sentences and tables for report, card and command line, and a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from datamask.evaluation.by_group import FEW
from datamask.evaluation.models import learning_rates
from datamask.evaluation.questions import is_scored
from datamask.evaluation.results import by_set, read_results
from datamask.evaluation.texts import SOURCE_SET
from datamask.evaluation.units import read_bits, sets_of, trials_of
from datamask.evaluation.verdict import LEVEL, bits_per_byte
from datamask.report.charts import Chart, Series, look
from datamask.report.finding import MOST_NAMED
from datamask.report.rendering import render, shown_model
from datamask.runs.files import write_text_file
from datamask.runs.run import Run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of an evaluation.

    Args:
        arms: a row per arm on the main set (`schemas.EVALUATION`).
        pairs: a row per pair of arms on the main set, with its `sentence`, and the sets `against`
            it, which decide otherwise.
        other_sets: arms and pairs of every other set, by name.
        metrics: of the receipt of stage `evaluation`.
        conditions: under which the findings hold, in words.
        choices: a sentence on each set of multiple choice.
    """

    arms: list[Row]
    pairs: list[Row]
    other_sets: dict[str, tuple[list[Row], list[Row]]]
    metrics: dict[str, Any]
    conditions: str
    choices: list[str]

    @property
    def proxy_note(self) -> str:
        """A sentence on how well the n-gram model agrees here."""
        proxy = self.metrics["proxy"]
        if not proxy["decided"]:
            return "No pair has a verdict that the n-gram model could agree with."
        return (
            f"The n-gram model, which trains in seconds, agrees with {proxy['agreed']:,} of "
            f"{proxy['decided']:,} verdicts."
        )


def findings(run: Run) -> Findings | None:
    """Return the results of an evaluation; None for a run without one."""
    if not run.settings.evaluation.arms:
        return None
    sets = {
        name: (arms, [pair | {"sentence": sentence(pair)} for pair in pairs])
        for name, (arms, pairs) in by_set(read_results(run)).items()
    }
    metrics = run.receipt("evaluation").metrics
    choices = [
        _choices(name, arms, pairs)
        for name, (arms, pairs) in sets.items()
        if arms[0]["accuracy"] is not None
    ]
    arms, pairs = sets.pop(metrics["main"])
    others = {name: of_set for name, (_, of_set) in sets.items()}
    pairs = [pair | _in_context(pair, metrics["main"], others) for pair in pairs]
    return Findings(arms, pairs, sets, metrics, _conditions(run, arms, metrics), choices)


def _in_context(pair: Row, main: str, others: dict[str, list[Row]]) -> Row:
    """Complete the sentence of a pair with the held-out set that it is about.

    Sets with another verdict on the same arms stand beside it, and in `against` by name; so does
    the mean over groups.
    """
    contested: list[str] = []
    against = [
        (name, row)
        for name, of_set in others.items()
        for row in of_set
        if (row["arm"], row["other"]) == (pair["arm"], pair["other"])
        and row["verdict"] not in ("undecided", pair["verdict"])
    ]
    text = f"On {_shown_set(main)}, {pair['sentence']}{_by_group(pair)}"
    if pair.get("mean_verdict") not in (None, "undecided", pair["verdict"]):
        contested.append("mean over groups")
    for name, row in against[:MOST_NAMED]:
        text += f" On {_shown_set(name)}, {pair['arm']} is {row['verdict']} "
        text += f"({row['bits_per_byte']:+.4f} bits per byte)."
    if len(against) > MOST_NAMED:
        text += f" {len(against) - MOST_NAMED} further sets decide otherwise too."
    return {"sentence": text, "against": [name for name, _ in against] + contested}


def _by_group(pair: Row) -> str:
    """Write a sentence on the groups of a set, if any: all other figures describe the mixture."""
    if not pair.get("groups"):
        return ""
    mean, median, worst = (
        f"{pair[name]:+.4f} ({pair[f'{name}_low']:+.4f} to {pair[f'{name}_high']:+.4f})"
        for name in ("mean", "median", "worst")
    )
    text = f" That is the mixture. With its {pair['groups']:,} groups counted once each: {mean} on "
    text += f"average, {pair['mean_verdict']}; {median} in the median; {worst} in the worst group, "
    text += f"{pair['worst_group']}."
    if pair["few"]:
        text += f" {pair['few']:,} of the groups have fewer than {FEW} texts."
    return text


def _choices(name: str, arms: list[Row], pairs: list[Row]) -> str:
    """Describe how often the models of each arm choose the right answer, beside guessing."""

    def shown(row: Row, form: str) -> str:
        value, low, high = (
            format(100 * row[key], form) for key in ("accuracy", "accuracy_low", "accuracy_high")
        )
        return f"{value} ({low} to {high})"

    chance = arms[0]["chance"]
    able = [row["arm"] for row in arms if row["accuracy_low"] > chance]
    decided = [
        f"{pair['arm']} is {pair['accuracy_verdict']} than {pair['other']}, {shown(pair, '+.1f')}"
        for pair in pairs
        if pair["accuracy_verdict"] != "undecided"
    ]
    shares = ", ".join(f"{row['arm']} {shown(row, '.1f')}" for row in arms)
    return (
        f"Multiple choice, set {name}, % of {arms[0]['documents']:,d} questions with 95 % "
        f"intervals: {shares}; guessing {100 * chance:.1f}. Better than guessing: "
        f"{', '.join(able) or 'none'}. Differences: {'; '.join(decided) or 'no pair is decided'}. "
        "Small models are near chance: bits per byte of the right answers differ before these "
        "shares do."
    )


def _shown_set(name: str) -> str:
    return "documents held out of the source" if name == SOURCE_SET else f"held-out set {name}"


def sentence(pair: Row) -> str:
    """Describe a pair of arms in words."""
    apart, low, high = (abs(pair[key]) for key in ("bits_per_byte", "low", "high"))
    if pair["verdict"] == "undecided":
        why = ""
        if pair["low"] * pair["high"] > 0:
            why = "; its sign differs between learning rates"
            if pair["p_value"] >= LEVEL:
                why = f"; p = {pair['p_value']:.2g}, corrected for all pairs"
        return (
            f"{pair['arm']} and {pair['other']}: undecided. The difference is "
            f"{pair['bits_per_byte']:+.4f} bits per byte (95 % interval {pair['low']:+.4f} to "
            f"{pair['high']:+.4f}); {pair['detectable']:.4f} would be detected{why}."
        )
    than = "fewer" if pair["bits_per_byte"] < 0 else "more"
    return (
        f"{pair['arm']} is {pair['verdict']} than {pair['other']}: models trained on it need "
        f"{apart:.4f} {than} bits per byte (95 % interval {min(low, high):.4f} to "
        f"{max(low, high):.4f})."
    )


def _conditions(run: Run, arms: list[Row], metrics: dict[str, Any]) -> str:
    evaluation = run.settings.evaluation
    text = render(
        "conditions.md",
        metrics=metrics,
        model=shown_model(evaluation.model),
        epochs=evaluation.epochs,
        question=evaluation.question,
        examples=run.receipt("held_out").metrics["examples"],
        seeds=evaluation.seeds,
        documents=arms[0]["documents"],
        groups=arms[0]["groups"],
    )
    return text.rstrip("\n").replace("\n", " ")


def evaluation_markdown(run: Run) -> str:
    """Write verdicts, conditions and tables; empty for a run without an evaluation."""
    results = findings(run)
    return render("evaluation.md", results=results) if results else ""


def write_evaluation_page(run: Run, results: Findings) -> list[Chart]:
    """Write `evaluation.html` with the results of a run's evaluation, and return its charts."""
    charts = [difference_chart(results), *curves(run)]
    settings = run.settings.evaluation.model_dump(mode="json")
    page = render(
        "evaluation.html",
        title=run.root.absolute().name,
        charts=charts,
        results=results,
        models=models(run),
        level=LEVEL,
        settings=yaml.safe_dump(settings, sort_keys=False),
    )
    write_text_file(run.root / "evaluation.html", page, run.storage)
    return charts


def models(run: Run) -> list[dict[str, Any]]:
    """Return arm, seed, learning rate and bits per byte on the main set, by model.

    Bits per byte are None for a learning rate at which a model diverged.
    """
    by_rate, _ = read_bits(run)
    held_out = run.read_output("held_out", columns=["set", "in_all", "bytes", "right"])
    scored = is_scored(held_out)
    held_out = held_out.filter(scored)
    _, is_member = next(sets_of(held_out, run.settings.evaluation))
    sizes, rates = held_out["bytes"].to_numpy()[is_member], [*by_rate]
    bits = np.stack([*by_rate.values()], axis=2)[..., scored]
    values = bits_per_byte(bits[..., is_member], sizes)
    return [
        {
            "arm": run.settings.evaluation.arms[trial.arm].name,
            "seed": trial.seed,
            "rate": f"{trial.rate:g}",
            "bits_per_byte": values[trial.arm, trial.seed, rates.index(trial.rate)]
            if trial.rate in rates
            else None,
        }
        for trial in trials_of(run)
    ]


def difference_chart(results: Findings) -> Chart:
    """Chart the difference of every pair of arms, with its interval."""
    pairs = [f"{pair['arm']} − {pair['other']}" for pair in results.pairs]
    series = Series(
        name="difference",
        x=pairs,
        y=[pair["bits_per_byte"] for pair in results.pairs],
        ranges=[(pair["low"], pair["high"]) for pair in results.pairs],
        hover=[sentence(pair) for pair in results.pairs],
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


def curves(run: Run) -> list[Chart]:
    """Chart, for each learning rate, the mean training curve of every arm."""
    evaluation = run.settings.evaluation
    curve_of: dict[tuple[float, int], list[list[list[float]]]] = {}
    for unit, trial in enumerate(trials_of(run)):
        curve = run.receipt("training", unit).metrics["curve"][1:]
        curve_of.setdefault((trial.rate, trial.arm), []).append(curve)
    charts = []
    for rate in learning_rates(evaluation):
        series = []
        for number, arm in enumerate(evaluation.arms):
            seeds = curve_of[rate, number]
            points = np.array([*zip(*seeds, strict=False)], float).reshape(-1, len(seeds), 2)
            x, y = points.mean(axis=1).T.tolist()
            series.append(Series(name=arm.name, x=x, y=y, **look(number)))
        charts.append(
            Chart(
                key=f"evaluation-curves-{rate:g}".replace(".", "-"),
                title=f"training curves, learning rate {rate:g}",
                kind="lines",
                x="tokens seen",
                y="bits per token of the arm's own text",
                series=tuple(series),
                note="Mean over seeds. An arm's own text may be easier or harder than that of "
                "others: only held-out text is compared.",
            )
        )
    return charts

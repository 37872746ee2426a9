"""The page of an evaluation: every verdict, every model, and training curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from datamask.evaluation.models import learning_rates
from datamask.evaluation.units import read_main_bits, trials_of
from datamask.evaluation.verdict import bits_per_byte
from datamask.report.charts import Chart, Series, look
from datamask.report.evaluation import Findings, findings, in_words, sentence
from datamask.report.rendering import render
from datamask.runs.files import replace_file
from datamask.runs.run import Run


def write_evaluation_page(run: Run) -> list[Chart]:
    """Write `evaluation.html`, if the run has an evaluation, and return its charts."""
    found = findings(run)
    if found is None:
        return []
    charts = [difference_chart(found), *curves(run)]
    settings = run.settings.evaluation.model_dump(mode="json")
    page = render(
        "evaluation.html",
        title=run.root.absolute().name,
        charts=charts,
        found=found,
        models=models(run),
        level=run.settings.evaluation.level,
        settings=yaml.safe_dump(settings, sort_keys=False),
        **in_words(run, found),
    )
    with replace_file(run.root / "evaluation.html", run.storage) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return charts


def models(run: Run) -> list[dict[str, Any]]:
    """Arm, seed, learning rate and bits per byte on the main set, by model.

    Bits per byte are None for a learning rate at which a model diverged.
    """
    trials, names = trials_of(run), run.settings.evaluation.arms
    bits, sizes, diverged = read_main_bits(run, trials)
    values = bits_per_byte(bits, sizes)
    rates = [f"{rate:g}" for rate in learning_rates(run.settings.evaluation)]
    left = [rate for rate in rates if rate not in diverged]
    rows = []
    for trial in trials:
        arm, rate = names[trial.arm].name, rates[trial.rate]
        found = values[trial.arm, trial.seed, left.index(rate)] if rate in left else None
        rows.append({"arm": arm, "seed": trial.seed, "rate": rate, "bits_per_byte": found})
    return rows


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


def curves(run: Run) -> list[Chart]:
    """For each learning rate the mean training curve of every arm."""
    found: dict[tuple[int, int], list[list[list[float]]]] = {}
    for unit, trial in enumerate(trials_of(run)):
        curve = run.receipt("training", unit).metrics["curve"][1:]
        found.setdefault((trial.rate, trial.arm), []).append(curve)
    charts = []
    for place, rate in enumerate(learning_rates(run.settings.evaluation)):
        series = []
        for arm, settings in enumerate(run.settings.evaluation.arms):
            seeds = found[place, arm]
            points = np.array([*zip(*seeds, strict=False)], float).reshape(-1, len(seeds), 2)
            x, y = points.mean(axis=1).T.tolist()
            series.append(Series(name=settings.name, x=x, y=y, **look(arm)))
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

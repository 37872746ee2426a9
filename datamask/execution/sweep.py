"""Variants of a run: an ordinary run for each combination of other settings, in one folder.

A variant is what `datamask rebuild VARIANT --from RUN --set …` makes: it shares all files that stay
the same with RUN and with the variants before it, resumes, and has its own report and subset. It
trains no models and publishes nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamask.analysis.summary import gains, terms_of
from datamask.config.compute import Compute
from datamask.config.loading import with_values
from datamask.config.plain_yaml import read_yaml
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, SettingsError, gathering, together
from datamask.execution.sharing import check_sharing
from datamask.objectives.formula import metric_name
from datamask.planning.plan import plan_run
from datamask.report.chart_data import curve_charts, series_of, tradeoff_chart
from datamask.report.charts import Chart, Series, look, png
from datamask.report.rendering import number, render
from datamask.runs.files import replace_file, write_text_file
from datamask.runs.opening import open_run
from datamask.runs.run import Run, digest

Over = Mapping[str, Sequence[Any]]
"""The values to try, by the dotted key of their setting."""

Row = dict[str, Any]
"""What a variant reached: see `sweep_rows`."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A run of a sweep: its folder, its settings, and its values of the settings that are swept.

    *values* has the last parts of the keys, such as `quality_weight`.
    """

    root: Path
    settings: Settings
    values: dict[str, Any]


def read_over(items: Iterable[str]) -> dict[str, list[Any]]:
    """Read the values to try, from texts such as `selection.quality_weight=0.1,0.3`.

    Raises:
        SettingsError: a text has no key or no values.
    """
    over: dict[str, list[Any]] = {}
    for item in items:
        key, _, values = item.partition("=")
        if not key or not values:
            raise SettingsError(f"--over {item[:100]}: needed group.key=value,value,…")
        over[key] = read_yaml(f"[{values}]", f"--over {item[:100]}")
    return over


def plan_sweep(
    run: Run,
    over: Over,
    compute: Compute,
    folder: Path | None = None,
    shards: Sequence[int] | None = None,
) -> list[Variant]:
    """Check and plan every variant, before any of them does expensive work.

    Args:
        run: where their other settings are from.
        over: the values of each setting; all combinations are tried.
        compute: as in `plan_run`.
        folder: where the runs are written; None: the folder of *run* with `-sweep` at its end.
        shards: the shards that will be learned; None: all.

    Raises:
        SettingsError: a value does not fit, or the shards do not.
        RunError: the run is in an object store. And as in `plan_run`.
    """
    folder = folder or Path(f"{run.address}-sweep")
    check_sharing(run.address, folder)
    if not over:
        raise SettingsError("sweep: nothing to try; give --over selection.quality_weight=0,0.3,0.7")
    if unknown := sorted({*(shards or ())} - {*range(run.num_shards)}):
        raise SettingsError(f"--shards {unknown[0]}: the run has shards 0 to {run.num_shards - 1}")
    variants, problems = dict[str, Variant](), list[DatamaskError]()
    for values in itertools.product(*over.values()):
        with gathering(problems):
            variant = _variant(run, dict(zip(over, values, strict=True)), folder)
            if shards is not None and variant.settings.selection.has_cut:
                raise SettingsError(
                    "--shards: scope `corpus`, limits and a budget of tokens compare the documents "
                    "of all shards; leave --shards out"
                )
            variants[variant.root.name] = variant
    for variant in variants.values():
        with gathering(problems):
            plan_run(variant.root, variant.settings, compute, origin=run)
    if problems:
        raise together(problems)
    return [*variants.values()]


def _variant(run: Run, values: Mapping[str, Any], folder: Path) -> Variant:
    for key in values:
        if key.startswith(("publication", "evaluation.arms")):
            raise SettingsError(f"--over {key}: a sweep publishes nothing and trains no models")
    settings = with_values(run.settings, values)
    evaluation = settings.evaluation.model_copy(update={"arms": ()})
    settings = settings.model_copy(update={"publication": None, "evaluation": evaluation})
    short = {key.rpartition(".")[2]: value for key, value in values.items()}
    if len(short) < len(values):  # Two groups have a setting of this name.
        short = dict(values)
    # DuckDB reads `=` in a path as a column, and a comma as its end.
    name = "+".join(f"{key}-{value}" for key, value in short.items())
    plain = re.sub(r"[^\w.+-]+", "-", name)[:100]
    return Variant(
        folder / (plain if plain == name else f"{plain}-{digest(name)[:6]}"), settings, short
    )


def run_sweep(
    run: Run,
    variants: Sequence[Variant],
    make: Callable[[Variant, Sequence[Run]], object],
    shards: Sequence[int] | None = None,
) -> tuple[list[Row], Path]:
    """Make the variants one after the other, then write table and charts.

    Args:
        run: where their other settings are from; it is a row of the table if it is finished.
        variants: as `plan_sweep` returns them.
        make: does the rest of a variant; the runs are those whose files it shares.
        shards: the shards that are learned; None: all.

    Returns:
        The rows of the table, and the page.
    """
    made: dict[str, Run] = {}
    for variant in variants:
        make(variant, [run, *made.values()])
        made[variant.root.name] = open_run(variant.root)
    stage, units = ("selection", shards) if shards is not None else ("composition", [0])
    if all(run.state(stage, unit) == "done" for unit in units):
        made = {"the run": run} | made
    rows = sweep_rows(made, shards)
    charts = [tradeoff(rows, {variant.root.name: variant.values for variant in variants})]
    charts += curve_charts(made, shards)
    return rows, write_sweep(variants[0].root.parent, Path(run.address).name, rows, charts)


def sweep_rows(runs: Mapping[str, Run], shards: Sequence[int] | None) -> list[Row]:
    """Return a row for each run by name, with its own report's numbers; of some *shards* only.

    Keys: `variant`; `quality` and `diversity`, gains over random selections as fractions of the
    best selection's gain; `metric`, which measures diversity; `objective`, minus random selections'
    objective; `documents` that are selected. None: the method does not have the number.

    Raises:
        RunError: a run is not finished.
    """
    rows = []
    for name, run in runs.items():
        selection = run.settings.selection
        metric = metric_name(selection.metric) if run.settings.has_vectors else None
        known, objective = gains(run, shards=shards), terms_of(run, shards).get("objective")
        receipts = (run.receipt("selection", n) for n in shards or range(run.num_shards))
        rows.append(
            {
                "variant": name,
                "quality": known.get("quality", {}).get("selected"),
                "diversity": known.get(metric or "", {}).get("selected"),
                "metric": metric,
                "objective": objective and objective["selected"] - objective["random"],
                "documents": sum(receipt.metrics["num_selected"] for receipt in receipts),
            }
        )
    return rows


def tradeoff(rows: Sequence[Row], values: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Chart quality against diversity: a line along the first setting for each other choice.

    *values* has the settings of each variant by its name; a row without is the run itself.
    """
    lines: dict[str, list[tuple[Row, str]]] = {}
    for row in rows:
        if None in (row["quality"], row["diversity"]) or row["variant"] not in values:
            continue
        (key, value), *others = values[row["variant"]].items()
        line = ", ".join(f"{name}={choice}" for name, choice in others) or f"by {key}"
        lines.setdefault(line, []).append((row, number(value)))
    series = [
        Series(
            name=name,
            x=[row["quality"] for row, _ in line],
            y=[row["diversity"] for row, _ in line],
            labels=[value for _, value in line],
            hover=[
                "{variant}\nquality {quality:.0%}, diversity {diversity:.0%}".format(**row)
                for row, _ in line
            ],
            **look(place),
        )
        for place, (name, line) in enumerate(lines.items())
    ]
    series.append(series_of("random", [0.0], [0.0], labels=["random"], size=11))
    metrics = ", ".join(sorted({row["metric"] for row in rows if row["metric"]}))
    note = "Each point is a run, with the numbers of its own report. "
    return tradeoff_chart(series, metrics, note)


def write_sweep(folder: Path, title: str, rows: Sequence[Row], charts: Sequence[Chart]) -> Path:
    """Write `sweep.html` and a picture of each chart into a folder; return the page's path."""
    for chart in charts:
        with replace_file(folder / f"{chart.key}.png") as temporary:
            temporary.write_bytes(png(chart))
    page = folder / "sweep.html"
    write_text_file(page, render("sweep.html", title=title, rows=rows, charts=charts))
    return page

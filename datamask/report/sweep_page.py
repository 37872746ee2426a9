"""Table, trade-off and page of a sweep: what each variant of a run reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datamask.analysis.summary import gains, terms_of
from datamask.report.chart_data import series_of
from datamask.report.charts import Chart, Series, look, png
from datamask.report.rendering import number, render
from datamask.runs.files import replace_file, write_text_file
from datamask.runs.run import Run

Row = dict[str, Any]


def sweep_rows(runs: Mapping[str, Run], shards: Sequence[int] | None) -> list[Row]:
    """Return a row for each run by name, with its own report's numbers; of some *shards* only.

    Keys: `variant`; `quality` and `diversity`, gains over random selections as fractions of the
    best selection's gain; `metric`, which measures diversity; `objective`, minus random selections'
    objective; `documents` that are selected. None: the method does not have the number.

    Raises:
        RunError: a run is not finished.
    """
    from datamask.objectives.weighted import load_objective  # This imports torch.

    rows = []
    for name, run in runs.items():
        selection = run.settings.selection
        metric = load_objective(selection.metric).name if run.settings.has_vectors else None
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
    metrics = ", ".join(sorted({row["metric"] for row in rows if row["metric"]}))
    return Chart(
        key="tradeoff",
        title="quality against diversity",
        kind="lines",
        x="better documents →",
        y="more different →",
        series=(*series, series_of("random", [0.0], [0.0], labels=["random"], size=11)),
        note="Up and right is better. Each point is a run, with the numbers of its own report. "
        f"Quality and diversity (by {metrics}) are shares: 0 is the mean of random selections, 1 "
        "the best selection by this alone.",
    )


def write_sweep(folder: Path, title: str, rows: Sequence[Row], charts: Sequence[Chart]) -> Path:
    """Write `sweep.html` and a picture of each chart into a folder; return the page's path."""
    for chart in charts:
        with replace_file(folder / f"{chart.key}.png") as temporary:
            temporary.write_bytes(png(chart))
    page = folder / "sweep.html"
    write_text_file(page, render("sweep.html", title=title, rows=rows, charts=charts))
    return page


def sweep_markdown(rows: Sequence[Row]) -> str:
    """Write the table as Markdown."""
    return render("sweep.md", rows=rows)

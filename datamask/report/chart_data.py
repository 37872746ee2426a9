"""The report's charts, computed from the run's files.

Curves, lengths and composition are of every document (`composition.duckdb`); the map, the heat map
and the neighbours are of the sample (`datamask.report.sample`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from datamask.analysis.composition import open_composition, query
from datamask.analysis.query import open_run_database
from datamask.report.charts import COLOURS, GREY, Chart, Series
from datamask.report.markdown import KINDS, SELECTIONS, cut_short
from datamask.runs.run import Run

DRAWN_SHARDS = 50
MOST_POINTS = 200
CELLS = 10
MOST_CHANGES = 10

LOOKS = {
    "source": (GREY, 2),
    "candidates": (GREY, 2),
    "random": ("#CC79A7", 3),
    "top_quality": ("#E69F00", 1),
    "diverse": ("#009E73", 2),
    "selected": ("#0072B2", 0),
}
"""Colour and style of a selection, the same in every chart."""

NAMES = SELECTIONS | {"diverse": "diversity only"}


def series_of(selection: str, x: Any, y: Any, **more: Any) -> Series:
    """Values of a selection, in the colour it has in every chart."""
    colour, style = LOOKS[selection]
    return Series(name=NAMES[selection], x=x, y=y, colour=colour, style=style, **more)


def curves(run: Run) -> list[Chart]:
    """One chart per term (the joint objective first): value over steps or seconds, by shard.

    Evenly thinned to at most 50 shards and 200 points each, first and last kept.
    """
    whole = "corpus" if run.settings.selection.num_rounds else ""
    with open_composition(run) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT term FROM curves ORDER BY term <> 'objective', term"
            ).fetchall()
        ]
        numbers = [
            shard
            for (shard,) in connection.execute(
                "SELECT DISTINCT shard FROM curves ORDER BY shard"
            ).fetchall()
        ]
        chosen = _thinned(numbers, DRAWN_SHARDS)
        charts = []
        for name in names:
            series = []
            for place, shard in enumerate(chosen):
                points = connection.execute(
                    "SELECT step, seconds, value FROM curves WHERE term = ? AND shard = ? "
                    "AND isfinite(value) ORDER BY step",
                    [name, shard],
                ).fetchall()
                if points:
                    steps, seconds, values = zip(*_thinned(points, MOST_POINTS), strict=True)
                    series.append(
                        Series(
                            name=whole or f"shard {shard:05d}",
                            x=steps,
                            y=values,
                            other_x=[round(second, 3) for second in seconds],
                            colour=COLOURS[place % len(COLOURS)],
                            style=place // len(COLOURS),
                        )
                    )
            title = "joint objective (scaled)" if name == "objective" else name
            charts.append(
                Chart(
                    key=f"curve-{''.join(c if c.isalnum() else '-' for c in name.lower())}",
                    title=title,
                    kind="lines",
                    x="step",
                    other_x="" if whole else "seconds since learning began",
                    y=title,
                    series=tuple(series),
                )
            )
    return charts


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sample joined with what is known of its documents; columns of equal length."""

    columns: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["id"])


def sampled(run: Run) -> Sampled:
    """The sample with quality, logit, length and who selected it, in order of shard and row."""
    with open_run_database(run) as connection:
        table = connection.sql(
            "SELECT s.*, d.quality, d.logit, d.characters, d.selected, d.top_quality "
            "FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row "
            "AND s.id = d.id ORDER BY s.shard, s.row"
        ).to_arrow_table()
    return Sampled(
        {
            name: np.asarray(table[name].to_pylist(), dtype=_KINDS.get(name))
            for name in table.column_names
        }
    )


_KINDS: dict[str, Any] = {
    "id": object,
    "beginning": object,
    "characters": object,
    **dict.fromkeys(("x", "y", "density", "quality", "logit"), np.float64),
}


def embedding_map(sample: Sampled) -> Chart:
    """Points on the map: every document of the sample, then each selection on top."""
    mapped = np.flatnonzero(np.isfinite(sample["x"]))

    def told(at: int) -> str:
        beginning = sample["beginning"][at] or ""
        scores = f"score {sample['quality'][at]:.4g}, logit {sample['logit'][at]:.4g}"
        text = f"{sample['id'][at]}\n{scores}"
        return f"{text}\n{beginning}" if beginning else text

    series = []
    for name in ("source", "top_quality", "diverse", "selected"):
        rows = mapped if name == "source" else mapped[sample[_COLUMN[name]][mapped]]
        colour, style = LOOKS[name]
        label = {"source": "all candidates", "diverse": "most diverse", "selected": "ours"}
        series.append(
            Series(
                name=label.get(name, NAMES[name]),
                x=[round(float(value), 3) for value in sample["x"][rows]],
                y=[round(float(value), 3) for value in sample["y"][rows]],
                colour=colour,
                style=0 if name == "source" else style + 1,
                hover=[told(int(at)) for at in rows],
                size=5 if name == "source" else 7,
            )
        )
    return Chart(
        key="map",
        title="map of the embedding space",
        kind="points",
        x="t-SNE, first axis (no unit)",
        y="t-SNE, second axis (no unit)",
        series=tuple(series),
        equal=True,
        note=f"{len(mapped):,} candidates drawn at random; near on the map is similar in meaning, "
        "far is not to scale. Most diverse: the same metric with quality left out (λ = 0), "
        "learned on the sample.",
    )


_COLUMN = {"top_quality": "top_quality", "diverse": "diverse", "selected": "selected"}


def kept_by_quality_and_density(sample: Sampled) -> Chart:
    """What share of each tenth of quality and tenth of density was kept."""
    across = tenths(sample["density"])
    down = tenths(sample["quality"])
    kept = np.zeros((CELLS, CELLS))
    count = np.zeros((CELLS, CELLS), dtype=int)
    np.add.at(count, (down, across), 1)
    np.add.at(kept, (down, across), sample["selected"].astype(float))
    share = [
        [float(kept[i, j] / count[i, j]) if count[i, j] else None for j in range(CELLS)]
        for i in range(CELLS)
    ]
    return Chart(
        key="kept",
        title="what was kept, by quality and density",
        kind="cells",
        x="tenth of density (10: the most crowded)",
        y="tenth of quality (10: the best)",
        z=share,
        z_counts=count.tolist(),
        z_label="kept",
        note="Density is the mean cosine to the ten nearest documents of the shard. Choosing by "
        "quality alone would fill the upper rows evenly.",
    )


def tenths(values: np.ndarray) -> np.ndarray:
    """Which tenth of the values each is in, 0 to 9; equal values are in the same."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    result: np.ndarray = CELLS * below // max(len(values), 1)
    return result


def lengths(run: Run, sample: Sampled) -> Chart | None:
    """Quantiles of length by selection; None for a source without text."""
    rows = {row["selection"]: row for row in query(run, "SELECT * FROM lengths")}
    if rows["source"]["q50"] is None:
        return None
    points = [int(name[1:]) for name in rows["source"] if name.startswith("q")]
    diverse = sorted(sample["characters"][sample["diverse"].astype(bool)].tolist())
    series = []
    for name in ("source", "top_quality", "diverse", "selected"):
        if name == "diverse":
            if not diverse:
                continue
            values = [diverse[max(-(-point * len(diverse) // 100), 1) - 1] for point in points]
        elif rows[name]["q50"] is None:
            continue
        else:
            values = [rows[name][f"q{point}"] for point in points]
        series.append(
            series_of(
                name,
                points,
                values,
                hover=[
                    f"{point} % of documents have at most {value:,} characters"
                    for point, value in zip(points, values, strict=True)
                ],
            )
        )
    return Chart(
        key="lengths",
        title="length of documents",
        kind="lines",
        x="quantile (%)",
        y="characters",
        log_y=True,
        series=tuple(series),
        note="A line above the source's means longer documents at that quantile. Diversity only is "
        f"learned on the sample ({len(diverse):,} documents); the others are of every document.",
    )


def length_bands(run: Run) -> Chart | None:
    """What share of each tenth of the source's lengths top quality and ours keep."""
    row = query(run, "SELECT * FROM lengths WHERE selection = 'source'")[0]
    if row["q50"] is None:
        return None
    cuts = [row[f"q{percent}"] for percent in range(10, 100, 10)]
    with open_composition(run) as connection:
        counted = connection.execute(
            "SELECT characters, count(*), sum(selected::INT), sum(top_quality::INT) "
            "FROM documents WHERE characters IS NOT NULL GROUP BY characters"
        ).fetchall()
    bands = [[0, 0, 0] for _ in range(CELLS)]
    for length, *numbers in counted:
        band = bands[bisect_left(cuts, length)]
        for place, number in enumerate(numbers):
            band[place] += int(number)
    x = list(range(1, CELLS + 1))
    spans = [
        f"{low:,} to {high:,} characters" if high else f"over {low:,} characters"
        for low, high in zip(
            [0, *(cut + 1 for cut in cuts[:-1]), cuts[-1]], [*cuts, None], strict=True
        )
    ]
    series = []
    for name, place in (("top_quality", 2), ("selected", 1)):
        shares = [100 * band[place] / band[0] if band[0] else None for band in bands]
        series.append(
            series_of(
                name,
                x,
                shares,
                hover=[
                    f"{span}: {share:.2f} % kept" if share is not None else span
                    for span, share in zip(spans, shares, strict=True)
                ],
            )
        )
    return Chart(
        key="length-bands",
        title="share kept of each tenth of length",
        kind="lines",
        x="tenth by length (10: the longest)",
        y="kept (%)",
        series=tuple(series),
        note="Of the source's documents. A level line would mean no bias of length.",
    )


def composition(run: Run) -> list[Chart]:
    """Biggest gains and losses of share, by kind; kinds with one name only have none."""
    charts = []
    for kind, plural in KINDS.items():
        rows = changed(run, kind)
        if not rows:
            continue
        names = [cut_short(row["name"]) for row in rows]
        # Names cut to the same letters would be one bar.
        names = [
            name if names.count(name) == 1 else f"{name} ({place + 1})"
            for place, name in enumerate(names)
        ]
        points = [100 * (row["share_after"] - row["share_before"]) for row in rows]
        told = [
            f"{row['name']}\n{row['share_before']:.2%} of the source, "
            f"{row['share_after']:.2%} of what is kept "
            f"({row['documents_before']:,} → {row['documents_after']:,} documents)"
            for row in rows
        ]
        parts = []
        for name, colour, sign in (("gained", "#0072B2", 1), ("lost", "#D55E00", -1)):
            at = [place for place, value in enumerate(points) if value * sign > 0]
            parts.append(
                Series(
                    name=name,
                    x=[names[place] for place in at],
                    y=[points[place] for place in at],
                    colour=colour,
                    hover=[told[place] for place in at],
                )
            )
        charts.append(
            Chart(
                key=f"composition-{kind}",
                title=f"{plural} that gained and lost most",
                kind="bars",
                x="change of share (percentage points)",
                y="",
                series=tuple(part for part in parts if part.x),
            )
        )
    return charts


def changed(run: Run, kind: str) -> list[dict[str, Any]]:
    """The ten biggest gains of share, then the ten biggest losses, largest gain first."""
    rows = query(run, f"SELECT * FROM groups WHERE kind = '{kind}'")
    rows.sort(key=lambda row: (row["share_before"] - row["share_after"], row["name"]))
    gains = [row for row in rows if row["share_after"] > row["share_before"]][:MOST_CHANGES]
    losses = [row for row in rows if row["share_after"] < row["share_before"]][-MOST_CHANGES:]
    return gains + losses if len(rows) > 1 else []


def _thinned(values: list[Any], most: int) -> list[Any]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]

"""The report's charts, computed from the run's files.

Curves, lengths and composition cover every document (`composition.duckdb`); map, heat map and
neighbours cover the sample (`datamask.report.sample`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datamask.analysis.composition import KINDS, QUANTILES, open_composition, query, rows_of
from datamask.analysis.query import open_run_database
from datamask.errors import one_line
from datamask.report.charts import COLOURS, GREY, Chart, Series
from datamask.report.markdown import SELECTIONS
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import execute

DRAWN_SHARDS = 20
MOST_POINTS = 100
MOST_MARKS = 1000
HOVER_BYTES = 160
"""Of a document's text on the map: thousands of texts are most of the page's size."""

CELLS = 10
MOST_CHANGES = 10
MOST_NAME = 40

LOOKS = {
    "source": (GREY, 2),
    "candidates": (GREY, 2),
    "random": ("#CC79A7", 3),
    "top_quality": ("#E69F00", 1),
    "diverse": ("#009E73", 2),
    "selected": ("#0072B2", 0),
}
"""Colour and style of a selection, the same in every chart."""

SHARDS = [one for one in COLOURS if one not in (LOOKS["random"][0], LOOKS["top_quality"][0])]
"""Colours of shards, which differ from those of the reference lines."""

NAMES = SELECTIONS | {"diverse": "diversity only"}


def series_of(selection: str, x: Any, y: Any, **more: Any) -> Series:
    """Values of a selection, with its colour and style."""
    colour, style = LOOKS[selection]
    return Series(name=NAMES[selection], x=x, y=y, colour=colour, style=style, **more)


def curves(run: Run) -> list[Chart]:
    """A chart per term, the joint objective first: value over steps or seconds, by shard.

    Two lines show the value of random and of top quality, averaged over shards. At most 20 shards
    are drawn, with 100 points each or 1,000 in all charts: every point has a mark to hover, of a
    kilobyte. They are evenly spaced, with the first and the last.
    """
    with open_composition(run, "curves") as connection:
        shards = execute(connection, "SELECT DISTINCT shard FROM curves ORDER BY 1")
        drawn = [shard for (shard,) in _thinned(shards, DRAWN_SHARDS)]
        names = execute(
            connection, "SELECT DISTINCT term FROM curves ORDER BY term <> 'objective', term"
        )
        terms = rows_of(connection.execute("SELECT term, random, top_quality FROM terms"))
        levels = {row.pop("term"): row for row in terms}
        most = min(MOST_POINTS, max(MOST_MARKS // max(len(drawn) * len(names), 1), 2))
        sql = (
            "SELECT step, value, round(seconds, 3) FROM curves "
            "WHERE term = ? AND shard = ? AND isfinite(value) ORDER BY step"
        )
        return [
            _curve(
                run,
                name,
                {shard: _thinned(execute(connection, sql, [name, shard]), most) for shard in drawn},
                levels.get(name, {}),
            )
            for (name,) in names
        ]


def _curve(run: Run, name: str, points: dict[int, Any], levels: dict[str, float | None]) -> Chart:
    """A term's steps, values and seconds by shard; *levels*: of random and top quality."""
    corpus = run.settings.selection.num_rounds > 0
    series = []
    for place, (shard, values) in enumerate(points.items()):
        if values:
            steps, y, seconds = zip(*values, strict=True)
            turn, colour = divmod(place, len(SHARDS))
            shown = "corpus" if corpus else f"shard {shard:05d}"
            shade = SHARDS[colour]
            line = Series(name=shown, x=steps, y=y, other_x=seconds, colour=shade, style=turn)
            series.append(line)
    ends = [(values[0], values[-1]) for values in points.values() if values]
    first = [min((start[place] for start, _ in ends), default=0) for place in (0, 2)]
    last = [max((end[place] for _, end in ends), default=0) for place in (0, 2)]
    for selection, level in levels.items():
        if level is not None:
            over = {"x": (first[0], last[0]), "other_x": (first[1], last[1])}
            series.append(series_of(selection, y=(level, level), **over))
    title = "joint objective (scaled)" if name == "objective" else name
    return Chart(
        key=f"curve-{''.join(c if c.isalnum() else '-' for c in name.lower())}",
        title=title,
        kind="lines",
        x="step",
        other_x="" if corpus else "seconds since learning began",
        y=title,
        series=tuple(series),
    )


Sample = dict[str, np.ndarray]

_KINDS = dict.fromkeys(("id", "beginning", "characters"), object) | dict.fromkeys(
    ("x", "y", "density", "quality", "logit"), np.float64
)


def sampled(run: Run) -> Sample:
    """Columns of the sample, with quality, logit, length and selections, by shard and row."""
    with open_run_database(run) as connection:
        table = connection.sql(
            "SELECT s.*, d.quality, d.logit, d.characters, d.selected, d.top_quality "
            "FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row "
            "AND s.id = d.id ORDER BY s.shard, s.row"
        ).to_arrow_table()
    return {
        name: np.asarray(table[name].to_pylist(), dtype=_KINDS.get(name))
        for name in table.column_names
    }


def diverse_lengths(sample: Sample) -> list[int]:
    """Characters of the sample's most diverse documents, sorted; empty without text."""
    lengths = sample["characters"][sample["diverse"].astype(bool)].tolist()
    return sorted(length for length in lengths if length is not None)


def embedding_map(run: Run, sample: Sample) -> Chart:
    """The sample's documents: a dot for ours, outlines around the choices of the others."""
    mapped = np.isfinite(sample["x"])
    names = {"selected": "ours", "top_quality": NAMES["top_quality"], "diverse": "most diverse"}
    masks = {name: sample[name].astype(bool) & mapped for name in names}
    chosen = {"source": mapped & ~np.any([*masks.values()], axis=0)} | masks
    series = []
    for name, size in (("source", 5), ("diverse", 12), ("top_quality", 9), ("selected", 6)):
        rows = np.flatnonzero(chosen[name]).tolist()
        colour, style = LOOKS[name]
        series.append(
            Series(
                name=names.get(name, "other candidates"),
                x=sample["x"][rows].round(3).tolist(),
                y=sample["y"][rows].round(3).tolist(),
                colour=colour,
                style=0 if name == "source" else style,
                hover=[_document(sample, row, names, masks) for row in rows],
                size=size,
                hollow=name in ("top_quality", "diverse"),
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
        note=f"{int(mapped.sum()):,} random candidates. A dot within an outline is a document that "
        f"ours and the other selection share. Neighbours on the map have {_likeness(run)}; larger "
        "distances are not to scale. Most diverse: the same metric without quality (λ = 0), "
        "learned on the sample.",
    )


def _likeness(run: Run) -> str:
    """What nearby documents have in common, by the origin of the vectors."""
    if run.settings.source.layout == "features":
        return "similar vectors, which the source has"
    if run.settings.embedding.method == "lexical":
        return "similar wording (lexical vectors), not necessarily similar meaning"
    return "similar meaning, as far as the encoder represents it"


def _document(sample: Sample, row: int, names: dict[str, str], masks: dict[str, np.ndarray]) -> str:
    """What the map says of a document."""
    by = ", ".join(shown for name, shown in names.items() if masks[name][row])
    text = sample["beginning"][row] or ""
    short = text.encode()[:HOVER_BYTES].decode(errors="ignore")
    beginning = text if short == text else f"{short}…"
    facts = f"score {sample['quality'][row]:.4g}, logit {sample['logit'][row]:.4g}"
    chosen = f"chosen by {by}" if by else ""
    return "\n".join(filter(None, (sample["id"][row], facts, chosen, beginning)))


def kept_by_quality_and_density(sample: Sample) -> Chart:
    """The share selected in each tenth of quality and tenth of density."""
    cells = (_tenths(sample["quality"]), _tenths(sample["density"]))
    count = np.zeros((CELLS, CELLS), dtype=int)
    kept = np.zeros((CELLS, CELLS), dtype=int)
    np.add.at(count, cells, 1)
    np.add.at(kept, cells, sample["selected"].astype(int))
    counts = count.tolist()
    return Chart(
        key="kept",
        title="what was kept, by quality and density",
        kind="cells",
        x="tenth of density (10: the most crowded)",
        y="tenth of quality (10: the best)",
        z=[
            [part / whole if whole else None for part, whole in zip(*rows, strict=True)]
            for rows in zip(kept.tolist(), counts, strict=True)
        ],
        z_counts=counts,
        note="Density is the mean cosine to the ten nearest documents of the shard. Selection by "
        "quality alone would fill the upper rows evenly.",
    )


def _tenths(values: np.ndarray) -> np.ndarray:
    """The tenth of each value, 0 to 9; equal values are in the same tenth."""
    below = np.searchsorted(np.sort(values), values, side="left")
    tenths: np.ndarray = CELLS * below // max(len(values), 1)
    return tenths


def length_quantiles(run: Run) -> dict[str, list[int]]:
    """Characters at each of `QUANTILES`, by selection; selections without text are left out."""
    found = {row.pop("selection"): list(row.values()) for row in query(run, "FROM lengths")}
    return {name: values for name, values in found.items() if None not in values}


def quantile_line(values: Sequence[int]) -> dict[str, Any]:
    """Lengths at each of `QUANTILES` as the values of a series."""
    texts = [
        f"{point} % of documents have at most {characters:,} characters"
        for point, characters in zip(QUANTILES, values, strict=True)
    ]
    return {"x": QUANTILES, "y": values, "hover": texts}


def lengths(run: Run, sample: Sample) -> list[Chart]:
    """Quantiles of length by selection; no chart without text."""
    values = length_quantiles(run)
    if "source" not in values:
        return []
    diverse = diverse_lengths(sample)
    if diverse:
        places = [max(-(-point * len(diverse) // 100), 1) - 1 for point in QUANTILES]
        values["diverse"] = [diverse[place] for place in places]
    return [
        Chart(
            key="lengths",
            title="length of documents",
            kind="lines",
            x="quantile (%)",
            y="characters",
            log_y=True,
            series=tuple(
                series_of(name, **quantile_line(values[name]))
                for name in ("source", "top_quality", "diverse", "selected")
                if name in values
            ),
            note="A line above the source's means longer documents at that quantile. Diversity "
            f"only is learned on the sample ({len(diverse):,} documents); the others cover every "
            "document.",
        )
    ]


def composition(run: Run) -> list[Chart]:
    """The largest gains and losses of share, a chart per kind with more than one group."""
    charts = []
    for kind, plural in KINDS.items():
        rows = changed(run, kind)
        if not rows:
            continue
        lines = [one_line(row["name"]) for row in rows]
        names = [line if len(line) <= MOST_NAME else line[: MOST_NAME - 1] + "…" for line in lines]
        # Names that are equal once they are cut would become one bar.
        names = [
            name if names.count(name) == 1 else f"{name} ({place + 1})"
            for place, name in enumerate(names)
        ]
        points = [100 * (row["share_after"] - row["share_before"]) for row in rows]
        hover = [
            f"{row['name']}\n{row['share_before']:.2%} of the source, "
            f"{row['share_after']:.2%} of what is kept "
            f"({row['documents_before']:,} → {row['documents_after']:,} documents)"
            for row in rows
        ]
        series = []
        for name, colour, sign in (("gained", "#0072B2", 1), ("lost", "#D55E00", -1)):
            at = [place for place, value in enumerate(points) if value * sign > 0]
            x, y, texts = ([part[place] for place in at] for part in (names, points, hover))
            series.append(Series(name=name, x=x, y=y, colour=colour, hover=texts))
        charts.append(
            Chart(
                key=f"composition-{kind}",
                title=f"{plural} that gained and lost most",
                kind="bars",
                x="change of share (percentage points)",
                y="",
                series=tuple(part for part in series if part.x),
            )
        )
    return charts


def changed(run: Run, kind: str) -> list[dict[str, Any]]:
    """The ten largest gains of share, then the ten largest losses, by change of share.

    Empty if the kind has only one group.
    """
    rows = query(
        run,
        f"SELECT * FROM groups WHERE kind = '{kind}' ORDER BY share_before - share_after, name",
    )
    gains = [row for row in rows if row["share_after"] > row["share_before"]][:MOST_CHANGES]
    losses = [row for row in rows if row["share_after"] < row["share_before"]][-MOST_CHANGES:]
    return gains + losses if len(rows) > 1 else []


def _thinned(values: Sequence[Any], most: int) -> Sequence[Any]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]

"""Every figure of the report's charts, worked out again by other means, and how it is drawn."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from datamask.report import chart_data, redundancy
from datamask.report.charts import Chart, Series, png, svg
from datamask.report.page import examples
from datamask.report.pictures import write_pictures
from datamask.report.redundancy import neighbours_path, sample_path
from datamask.report.verdict import verdict, verdict_text
from datamask.runs.opening import run_storage
from datamask.runs.run import Run
from tests.report.figures import REPORT, by_place, candidates, texts


def test_the_verdict_has_the_figures_of_the_selection(
    run: Run, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the documents; near-duplicates from the cosines, which another test works out."""
    monkeypatch.setattr(redundancy, "NEAR_DUPLICATE_COSINE", 0.6)
    found = verdict(run)
    ours = [row for row in documents if row["selected"]]
    gains = np.zeros(2)
    for shard in range(run.num_shards):
        left = candidates(documents, shard)
        for place, key in enumerate(("selected", "top_quality")):
            kept = [row["quality"] for row in left if row[key]]
            gain = np.mean(kept) - np.mean([row["quality"] for row in left])
            gains[place] += gain * sum(row["selected"] for row in left) / len(ours)
    assert found.quality == pytest.approx(gains[0] / gains[1], rel=1e-6)
    cosines: dict[str, list[float]] = {}
    for row in pq.read_table(neighbours_path(run)).to_pylist():
        cosines.setdefault(row["set"], []).append(row["cosine"])
    shares = {name: np.mean([one >= 0.6 for one in some]) for name, some in cosines.items()}
    assert found.near_duplicates == pytest.approx(shares)
    assert found.unit == "tokens"
    means = [np.mean([row["tokens"] for row in part]) for part in (ours, documents)]
    assert found.length == pytest.approx(means[0] / means[1])
    before, after = (
        Counter(row[kind] for row in part for kind in ("dump", "language", "domain"))
        for part in (documents, ours)
    )
    large = [name for name, n in before.items() if n * len(ours) / len(documents) >= 5]
    assert (found.groups, found.lost) == (len(large), sum(not after[name] for name in large))
    assert f"{found.quality:.0%} of top quality's gain" in verdict_text(found)


def shortened(text: str) -> str:
    """As much of a text as the map shows: 160 bytes."""
    return text if len(text) <= 160 else f"{text[:160]}…"


def test_the_map_shows_each_selection(run: Run, documents: list[dict[str, Any]]) -> None:
    """Points and what is told of them, by selection."""
    known = by_place(documents)
    rows = [row for row in pq.read_table(sample_path(run)).to_pylist() if row["x"] is not None]
    chart = chart_data.embedding_map(run, chart_data.sampled(run))
    wanted = {
        "ours": lambda row: known[row["shard"], row["row"]]["selected"],
        "top quality": lambda row: known[row["shard"], row["row"]]["top_quality"],
        "most diverse": lambda row: row["diverse"],
    }
    choices = dict(wanted)
    wanted["other candidates"] = lambda row: not any(chosen(row) for chosen in choices.values())
    names = ["other candidates", *reversed(choices)]
    assert [series.name for series in chart.series] == names
    assert [series.hollow for series in chart.series] == [False, True, True, False]
    for series in chart.series:
        chosen = [row for row in rows if wanted[series.name](row)]
        assert list(series.x) == pytest.approx([row["x"] for row in chosen], abs=1e-3)
        assert list(series.y) == pytest.approx([row["y"] for row in chosen], abs=1e-3)
        for row, hover in zip(chosen, series.hover or (), strict=True):
            own = known[row["shard"], row["row"]]
            expected = f"score {own['quality']:.4g}, logit {own['logit']:.4g}"
            by = ", ".join(name for name, is_chosen in choices.items() if is_chosen(row))
            lines = [own["id"], expected, *([f"chosen by {by}"] if by else [])]
            assert hover.split("\n") == [*lines, shortened(row["beginning"])]


def test_cells_are_shares_kept(run: Run, documents: list[dict[str, Any]]) -> None:
    """Tenths by rank, counted in Python."""
    known = by_place(documents)
    rows = [
        {**row, **known[row["shard"], row["row"]], "density": row["density"]}
        for row in pq.read_table(sample_path(run)).to_pylist()
    ]
    kept, count = Counter(), Counter()
    for row in rows:
        cell = tuple(
            10 * sum(other[key] < row[key] for other in rows) // len(rows)
            for key in ("quality", "density")
        )
        count[cell] += 1
        kept[cell] += row["selected"]
    chart = chart_data.kept_by_quality_and_density(chart_data.sampled(run))
    for down in range(10):
        for across in range(10):
            number = count[down, across]
            assert chart.z_counts[down][across] == number
            share = kept[down, across] / number if number else None
            assert chart.z[down][across] == (share if share is None else pytest.approx(share))


def test_lengths_by_quantile(run: Run, documents: list[dict[str, Any]]) -> None:
    """The least length that at least this share does not exceed, also for diversity only."""
    known = by_place(documents)
    diverse = [
        known[row["shard"], row["row"]]["characters"]
        for row in pq.read_table(sample_path(run)).to_pylist()
        if row["diverse"]
    ]
    lists = {
        "source": [row["characters"] for row in documents],
        "top quality": [row["characters"] for row in documents if row["top_quality"]],
        "diversity only": diverse,
        "ours": [row["characters"] for row in documents if row["selected"]],
    }
    (chart,) = chart_data.lengths(run, chart_data.sampled(run))
    assert [series.name for series in chart.series] == list(lists)
    for series in chart.series:
        ordered = sorted(lists[series.name])
        for point, value in zip(series.x, series.y, strict=True):
            assert value == ordered[max(math.ceil(point * len(ordered) / 100), 1) - 1]


def test_composition_is_the_change_of_share(run: Run, documents: list[dict[str, Any]]) -> None:
    """In percentage points, gains first."""
    kept = [row for row in documents if row["selected"]]
    charts = {chart.key: chart for chart in chart_data.composition(run)}
    assert set(charts) == {"composition-dump", "composition-language", "composition-domain"}
    for kind in ("dump", "language", "domain"):
        before = Counter(row[kind] for row in documents)
        after = Counter(row[kind] for row in kept)
        change = {n: 100 * (after[n] / len(kept) - before[n] / len(documents)) for n in before}
        shown = {
            name: value
            for series in charts[f"composition-{kind}"].series
            for name, value in zip(series.x, series.y, strict=True)
        }
        moved = {name: value for name, value in change.items() if value}
        assert shown == {name: pytest.approx(value) for name, value in moved.items()}


def test_examples_are_ordered_by_logit(run: Run, documents: list[dict[str, Any]]) -> None:
    """The nearest to the threshold, surest and best dropped come first."""
    left = [row for row in documents if not row["dropped"]]
    kept = [row for row in left if row["selected"]]
    dropped = [row for row in left if not row["selected"]]
    expected = {
        "Kept, near the threshold": sorted(kept, key=lambda r: (r["logit"], r["id"])),
        "Dropped, near the threshold": sorted(dropped, key=lambda r: (-r["logit"], r["id"])),
        "Highest logit": sorted(kept, key=lambda r: (-r["logit"], r["id"])),
        "Dropped despite high quality": sorted(dropped, key=lambda r: (-r["quality"], r["id"])),
    }
    source = texts(run)
    found = examples(run)
    assert list(found) == list(expected)
    for title, rows in found.items():
        assert len(rows) == REPORT["examples"]
        assert [row["id"] for row in rows] == [row["id"] for row in expected[title][: len(rows)]]
        for row in rows:
            assert " ".join(source[row["id"]].split()).startswith(row["beginning"].rstrip("…"))


def test_pictures_are_those_of_the_page(run: Run, tmp_path: Path) -> None:
    """One PNG a chart, of some size, the same bytes each time; pictures of old charts go."""
    chart = redundancy.neighbours(run)
    assert png(chart) == png(chart)
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "old.png").write_bytes(b"")
    write_pictures(run_storage(tmp_path), "pictures", [chart, chart_data.curves(run)[0]])
    assert {path.name for path in folder.iterdir()} == {"neighbours.png", "curve-objective.png"}
    shown = Image.open(folder / "neighbours.png")
    assert shown.size[0] > 600 and len(shown.convert("RGB").getcolors(10**6) or ()) > 20
    page = run.path("report").read_text(encoding="utf-8")
    for path in (run.root / "pictures").iterdir():
        assert f'<figure id="{path.stem}"' in page


def test_names_from_the_data_are_text_in_a_drawing() -> None:
    """Markup in names of bars, axes and series reaches the page as text, and only as text."""
    hostile = "<a href='https://evil.example'>x</a> \"&\0\x1b"
    series = Series(name=hostile, x=[hostile], y=[1.0], colour="#000000")
    chart = Chart(key="k", title=hostile, kind="bars", x=hostile, y="", series=(series,))
    root = ElementTree.fromstring(svg(chart, 400))
    assert not [element for element in root.iter() if element.tag.rpartition("}")[2] == "a"]
    labels = [element.get("aria-label") or "" for element in root.iter()]
    shown = hostile.replace("\0", "\ufffd").replace("\x1b", "\ufffd")
    assert f"{shown}: {shown}: 1" in labels


def test_a_gap_a_heat_map_and_both_scales_can_be_drawn() -> None:
    """Missing values leave gaps, cells without documents say so, logarithmic axes have ticks."""
    gap = Series(name="a", x=[1, 2, 3], y=[10.0, None, 1000.0], colour="#000000", hover=["x"] * 3)
    line = Chart(key="k", title="t", kind="lines", x="x", y="y", series=(gap,), log_y=True)
    drawn = svg(line, 400)
    assert drawn.count('aria-label="x"') == 2 and ">100<" in drawn
    cells = Chart(key="c", title="t", kind="cells", x="", y="", z=[[0.5, None]], z_counts=[[4, 0]])
    assert "50.0% of 4 kept" in svg(cells, 400) and "no document" in svg(cells, 400)

"""Every figure of the report's charts, worked out again by other means, and how it is drawn."""

from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from datamask.analysis import summary
from datamask.execution.sweep import tradeoff
from datamask.report import chart_data, group_findings, redundancy
from datamask.report.answer import answer
from datamask.report.charts import (
    Chart,
    Series,
    hover_texts,
    png,
    specification,
    svg,
    write_pictures,
)
from datamask.report.quality_findings import _median_characters
from datamask.report.redundancy import neighbours_path, sample_path
from datamask.report.rendering import number
from datamask.runs.opening import run_storage
from datamask.showing import figure
from tests.report.figures import by_place, candidates


def test_gains_and_findings_are_those_of_the_documents(run, documents, monkeypatch):
    """Quality, near-duplicates, lengths and groups worked out from the documents."""
    monkeypatch.setattr(redundancy, "NEAR_DUPLICATE_COSINE", 0.6)
    monkeypatch.setattr(group_findings, "LEAST_EXPECTED", 5)
    gains, most = np.zeros(2), 0.0
    ours = [row for row in documents if row["selected"]]
    for shard in range(run.num_shards):
        left = candidates(documents, shard)
        quality, share = [row["quality"] for row in left], sum(row["selected"] for row in left)
        for place, key in enumerate(("selected", "top_quality")):
            kept = [row["quality"] for row in left if row[key]]
            gains[place] += (np.mean(kept) - np.mean(quality)) * share / len(ours)
        best = np.mean(sorted(quality)[-share:])
        most += (best - np.mean(quality)) * share / len(ours)
    found = summary.gains(run)["quality"]
    expected = dict(zip(("selected", "top_quality"), gains / most, strict=True))
    assert found == pytest.approx({**expected, "error": 0}, abs=0.01)
    texts = {one.name: one for one in answer(run).findings}
    assert f"quality {found['selected']:.0%}" in texts["trade-off"].text
    cosines: dict[str, list[float]] = {}
    for row in pq.read_table(neighbours_path(run)).to_pylist():
        cosines.setdefault(row["set"], []).append(row["cosine"])
    for name, some in cosines.items():
        shown = {"selected": "ours", "top_quality": "top quality"}.get(name, name)
        share = np.mean([one >= 0.6 for one in some])
        assert f"{shown} {share:.1%} ± " in texts["near-duplicates"].text
    means = [np.mean([row["tokens"] for row in part]) for part in (documents, ours)]
    assert f"{means[0]:,.0f} in the source" in texts["length"].text
    assert f"{means[1]:,.0f} in the selection" in texts["length"].text
    for when, part in (("before", documents), ("after", ours)):
        median = np.median([row["characters"] for row in part])
        assert _median_characters(run, when) == pytest.approx(median, rel=0.4)  # in an octave
    before, after = (
        Counter(row[kind] for row in part for kind in ("dump", "language", "domain"))
        for part in (documents, ours)
    )
    share = len(ours) / len(documents)
    large = {name: after[name] / n / share for name, n in before.items() if n * share >= 5}
    assert f"documents or more of {len(large)} groups" in texts["groups"].text
    assert texts["trained models"].grade == "unknown"


def test_the_trade_off_has_every_selection(run):
    """Random at zero, ours and top quality at their gains."""
    chart = chart_data.tradeoff(run)
    places = {series.name: (series.x[0], series.y[0]) for series in chart.series}
    found = summary.gains(run)
    assert places["random"] == (0, 0)
    for name, key in (("ours", "selected"), ("top quality", "top_quality")):
        assert places[name] == (found["quality"][key], found["disf"][key])


def test_the_map_shows_each_selection(run, documents):
    """Points and what is told of them, by selection."""
    known = by_place(documents)
    rows = [row for row in pq.read_table(sample_path(run)).to_pylist() if row["x"] is not None]
    chart = chart_data.embedding_map(run)
    wanted = {
        "ours": lambda row: known[row["shard"], row["row"]]["selected"],
        "top quality": lambda row: known[row["shard"], row["row"]]["top_quality"],
    }
    choices = dict(wanted)
    wanted["other candidates"] = lambda row: not any(chosen(row) for chosen in choices.values())
    names = ["other candidates", *reversed(choices)]
    assert [series.name for series in chart.series] == names
    assert [series.hollow for series in chart.series] == [False, True, False]
    for series in chart.series:
        chosen = [row for row in rows if wanted[series.name](row)]
        assert list(series.x) == pytest.approx([row["x"] for row in chosen], abs=1e-3)
        assert list(series.y) == pytest.approx([row["y"] for row in chosen], abs=1e-3)
        assert list(series.hover or ()) == [row["id"] for row in chosen]


def test_pictures_are_those_of_the_page(run, tmp_path):
    """One PNG a chart, of some size, the same bytes each time; pictures of old charts go."""
    chart = chart_data.tradeoff(run)
    assert png(chart) == png(chart)
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "old.png").write_bytes(b"")
    write_pictures(run_storage(tmp_path), [chart])
    assert {path.name for path in folder.iterdir()} == {"tradeoff.png"}
    shown = Image.open(folder / "tradeoff.png")
    assert shown.size[0] > 600 and len(shown.convert("RGB").getcolors(10**6) or ()) > 20
    page = run.path("report").read_text(encoding="utf-8")
    for path in (run.root / "pictures").iterdir():
        assert f'<figure id="{path.stem}"' in page


def test_names_from_the_data_are_text_in_a_drawing():
    """Markup in names of bars, axes and series reaches the page as text, and only as text."""
    hostile = "<a href='https://evil.example'>x</a> \"&\0\x1b"
    series = Series(name=hostile, x=[hostile], y=[1.0], colour="#000000")
    chart = Chart(key="k", title=hostile, kind="bars", x=hostile, y="", series=(series,))
    root = ElementTree.fromstring(svg(chart, 400))
    assert not [element for element in root.iter() if element.tag.rpartition("}")[2] == "a"]
    labels = [element.get("aria-label") or "" for element in root.iter()]
    shown = hostile.replace("\0", "\ufffd").replace("\x1b", "\ufffd")
    assert f"{shown}: {shown}: 1" in labels


def test_lines_labelled_by_lambda_have_a_legend():
    """Labels that are not names of series do not replace the legend; names do."""
    values = {n: {"quality_weight": 0.5, "metric": n} for n in ("disf", "pairwise")}
    known = {"quality": 1.0, "diversity": 1.0, "metric": "m"}
    chart = tradeoff([{"variant": name, **known} for name in values], values)
    named = Series(name="ours", x=[1], y=[1], colour="#000000", labels=["ours"])
    assert not chart.is_labelled and replace(chart, series=(named, named)).is_labelled
    legends = [
        layer["encoding"]["color"] for layer in specification(chart, 560, is_picture=True)["layer"]
    ]
    assert [legend["datum"] for legend in legends] == [
        *("metric=disf", "metric=pairwise", "random")
    ]


def test_a_picture_says_colour_dash_and_marker_in_its_legend():
    """A missing value leaves a gap; a legend has all that distinguishes series, one for all."""
    gap = Series(name="a", x=[1, 2, 3], y=[10.0, None, 1000.0], colour="#000000", hover=["x"] * 3)
    other = Series(name="b", x=[1], y=[2.0], colour="#ff0000", style=1)
    chart = Chart(key="k", title="t", kind="lines", x="x", y="y", series=(gap, other))
    assert svg(chart, 400).count('aria-label="a: x"') == 2
    for place, layer in enumerate(specification(chart, 400, is_picture=True)["layer"]):
        for channel in ("color", "shape", "strokeDash"):
            encoding = layer["encoding"][channel]
            assert encoding["datum"] == "ab"[place]
            assert encoding["scale"]["domain"] == ["a", "b"]
            assert encoding["scale"]["range"][0] != encoding["scale"]["range"][1]
    assert len(png(chart)) > 1000


@pytest.mark.parametrize(
    ("value", "four", "six"),
    [
        (24000, "24,000", "24,000"),
        (24000.0, "24,000", "24,000"),
        (-1234.5678, "-1,235", "-1,234.57"),
        (12345.678, "12,346", "12,345.7"),
        (1234567.8, "1,234,568", "1,234,568"),
        (0.00012345678, "0.0001235", "0.000123457"),
        (1.5e300, "1.5e+300", "1.5e+300"),
        (float("inf"), "inf", "inf"),
    ],
)
def test_figures_have_separators(value, four, six):
    """In pages, charts and tables of the terminal: with as many digits as each of them shows."""
    assert (number(value), figure(value, 6)) == (four, six)
    series = Series(name="a", x=[value], y=[value], colour="#000000")
    chart = Chart(key="c", title="", kind="points", x="", y="", series=(series,))
    assert four in hover_texts(chart, series)[0]


def test_a_series_without_values_leaves_no_picture_without_a_name():
    """A map of three documents may have no other candidates; screen readers name what is there."""
    empty = Series(name="a", x=[], y=[], colour="#000000")
    series = (empty, replace(empty, name="b", x=[1], y=[2]))
    drawn = svg(Chart(key="k", title="t", kind="points", x="x", y="y", series=series), 300)
    symbols = [
        element
        for element in ElementTree.fromstring(drawn).iter()
        if element.get("role") == "graphics-symbol"
    ]
    assert symbols and all(element.get("aria-label") for element in symbols)


def test_steps_are_whole_numbers():
    """One or two steps of learning have no tick at one and a half."""
    for steps in ([1, 2], [1, 2, 3], [0, 50, 100]):
        series = Series(name="a", x=steps, y=[100 * step for step in steps], colour="#000000")
        drawn = svg(Chart(key="k", title="", kind="lines", x="", y="", series=(series,)), 300)
        texts = [text.text or "" for text in ElementTree.fromstring(drawn).iter()]
        assert {f"{steps[0]:d}", f"{steps[-1]:d}"} <= {*texts}
        assert not any("." in text for text in texts)

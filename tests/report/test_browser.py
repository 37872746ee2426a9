"""The pages in a real headless Chromium: what people see, click, hover and tab to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.report.redundancy import sample_path
from datamask.report.rendering import explanations
from tests.report.conftest import HOSTILE, Made

PAGES = ("report", "comparison", "sweep")


@contextlib.contextmanager
def opened(
    chromium: Any, path: Path, width: int = 1280, scheme: str = "light"
) -> Iterator[tuple[Any, list[str]]]:
    """A page with all charts drawn, and what went wrong or over the network."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(path.as_uri())
    wrong[:] = [text for text in wrong if text not in (path.as_uri(), "data:,")]
    yield page, wrong
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_errors_and_network(chromium: Any, made: Made, name: str) -> None:
    """Nothing on the console, nothing requested but the file itself; every chart is drawn."""
    with opened(chromium, made.pages[name]) as (page, wrong):
        assert wrong == []
        for plot in page.locator(".plot").all():
            assert plot.locator("svg:visible").count() == 1


@pytest.mark.parametrize("name", PAGES)
def test_no_sideways_scroll_on_a_small_phone(chromium: Any, made: Made, name: str) -> None:
    """320 px: wide tables scroll in their own box."""
    with opened(chromium, made.pages[name], width=320) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(chromium: Any, made: Made, name: str, scheme: str) -> None:
    """axe-core, all of WCAG 2 A and AA, contrast included, in both colour schemes."""
    from axe_playwright_python.sync_playwright import Axe

    with opened(chromium, made.pages[name], scheme=scheme) as (page, _):
        rules = ["wcag2a", "wcag2aa", "wcag21aa"]
        # Of rules that pass, one element each is enough to hear of: a chart has thousands.
        found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
        problems = [
            (violation["id"], [node["html"][:120] for node in violation["nodes"][:3]])
            for violation in found.response["violations"]
        ]
        assert problems == []
        assert "color-contrast" in [rule["id"] for rule in found.response["passes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chart_text_has_contrast(chromium: Any, made: Made, scheme: str) -> None:
    """Axes are SVG, which axe does not judge: WCAG's 4.5 to 1 by its own formula."""
    with opened(chromium, made.pages["report"], scheme=scheme) as (page, _):
        colours = page.evaluate(
            "[...document.querySelectorAll('.plot text')].map((t) => getComputedStyle(t).fill)"
        )
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert len(colours) > 50
        assert min(contrast(colour, ground) for colour in set(colours)) >= 4.5


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two `rgb(r, g, b)`."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_buttons_hide_and_show_series(chromium: Any, made: Made) -> None:
    """By mouse and by keyboard; the button says which."""
    with opened(chromium, made.pages["report"]) as (page, _):
        button = page.locator("#map .keys button", has_text="top quality")
        visible = [page.locator(f'#map g[class*=" series{n}_"] path').first for n in range(4)]
        button.click()
        assert [mark.is_visible() for mark in visible] == [True, True, False, True]
        assert button.get_attribute("aria-pressed") == "false"
        page.keyboard.press("Enter")
        assert all(mark.is_visible() for mark in visible)
        assert button.get_attribute("aria-pressed") == "true"


def test_hovering_shows_the_document(chromium: Any, made: Made) -> None:
    """The mouse over a point of ours shows id, score, logit and text, as text."""
    rows = query(made.run, "SELECT shard, row, id, quality, logit FROM selection")
    known = {(row["shard"], row["row"]): row for row in rows}
    sample = [
        row
        for row in pq.read_table(sample_path(made.run)).to_pylist()
        if (row["shard"], row["row"]) in known
    ]
    with opened(chromium, made.pages["report"]) as (page, wrong):
        points = page.locator('#map g[class*=" series3_"] [aria-label]')
        assert points.count() == len(sample)
        page.locator("#map .plot").scroll_into_view_if_needed()
        seen = set()
        for place, row in enumerate(sample[:12]):
            box = points.nth(place).bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            shown = page.locator("#tip").text_content()
            own = known[row["shard"], row["row"]]
            if own["id"] in shown:  # else a neighbour lies on top
                assert f"score {own['quality']:.4g}, logit {own['logit']:.4g}" in shown
                assert row["beginning"][:160] in shown
                seen.add(own["id"])
        assert len(seen) >= 4
        assert wrong == []


def test_arrow_keys_read_the_values(chromium: Any, made: Made) -> None:
    """A chart is in the tab order, and its values can be walked without a mouse."""
    with opened(chromium, made.pages["report"]) as (page, _):
        page.locator("#neighbours .plot").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        said = page.locator("#neighbours [aria-live]").text_content()
        assert said.startswith("left by pruning: ") and "cosine ≥ 0.02" in said
        page.keyboard.press("ArrowDown")
        assert page.locator("#neighbours [aria-live]").text_content().startswith("ours: ")
        assert page.locator("#tip").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#tip").is_visible()
        page.locator("#kept .plot").focus()
        page.keyboard.press("End")
        assert (
            "quality tenth 10, density tenth 10" in page.locator("#kept [aria-live]").text_content()
        )


def test_curves_switch_from_steps_to_seconds(chromium: Any, made: Made) -> None:
    """The same values over the other axis, which says its unit."""
    with opened(chromium, made.pages["report"]) as (page, _):
        points = '#curve-objective .plot svg:visible g[class*=" series0_"] [aria-label]'
        before = _centres(page.locator(points))
        page.locator("#curve-objective .switch button", has_text="seconds").click()
        after = _centres(page.locator(points))
        assert "seconds" in page.locator("#curve-objective .plot svg:visible").text_content()
        rows = query(
            made.run,
            "SELECT step, seconds, value FROM curves WHERE term = 'objective' AND shard = 0 "
            "ORDER BY step",
        )
        assert len(rows) == len(before) == len(after) > 3
        for centres, name in ((before, "step"), (after, "seconds")):
            across = [round(row[name], 3) for row in rows]  # as the page has them
            assert max(across) > min(across)
            assert np.corrcoef([x for x, _ in centres], across)[0, 1] > 0.999
            assert (
                np.corrcoef([-y for _, y in centres], [row["value"] for row in rows])[0, 1] > 0.999
            )
        page.locator("#curve-objective .plot").focus()
        page.keyboard.press("End")
        said = page.locator("#curve-objective [aria-live]").text_content()
        assert said.startswith("shard 00000: step ")
        assert float(said.rpartition(": ")[2]) == pytest.approx(rows[-1]["value"], rel=1e-4)


def _centres(marks: Any) -> list[tuple[float, float]]:
    boxes = [mark.bounding_box() for mark in marks.all()]
    return [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_a_script_in_a_document_does_nothing(chromium: Any, made: Made, name: str) -> None:
    """It is there to read, letter by letter, and nothing else."""
    with opened(chromium, made.pages[name]) as (page, wrong):
        assert "owned" not in page.title()
        texts = page.locator(".documents .text").all_text_contents()
        assert any(text.startswith(HOSTILE.strip()) for text in texts)
        assert page.locator("img").count() == 0
        assert page.locator("main script").count() == 0
        assert wrong == []


def test_charts_follow_a_change_of_the_colour_scheme(chromium: Any, made: Made) -> None:
    """Text that was dark on light becomes light on dark."""
    with opened(chromium, made.pages["report"]) as (page, _):
        colour = "getComputedStyle(document.querySelector('#lengths text')).fill"
        before = page.evaluate(colour)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(colour) != before
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert contrast(page.evaluate(colour), ground) >= 4.5


@pytest.mark.slow
def test_a_page_opens_quickly(chromium: Any, made: Made) -> None:
    """Everything is there within three seconds; slow, because other tests take the processor."""
    with opened(chromium, made.pages["report"]) as (page, _):
        timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        assert timing < 3000


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_explained(chromium: Any, made: Made, name: str) -> None:
    """Each number of a table or card has a line, by hover; documents' ids and names need none."""
    with opened(chromium, made.pages[name]) as (page, _):
        bare = page.evaluate(
            "[...document.querySelectorAll('tbody td:not(:first-child), .heads li')].filter("
            "  (one) => /^[≤−+-]?\\d/.test(one.textContent.trim()) && !explanation(one)"
            ").map((one) => one.parentNode.textContent)"
        )
        assert bare == []


def test_explanations_by_pointer_and_keyboard(chromium: Any, made: Made) -> None:
    """A number shows those of its row and column; a heading its own, on focus until Escape."""
    with opened(chromium, made.pages["report"]) as (page, _):
        tip, row = page.locator("#tip"), page.locator("tr", has_text="disf").first
        row.locator("td").nth(2).hover()
        assert tip.text_content() == f"{explanations()['disf']}\n{explanations()['random']}"
        page.locator("h1").hover()
        assert not tip.is_visible()
        page.locator("th abbr", has_text="random").first.focus()
        assert tip.is_visible() and tip.text_content() == explanations()["random"]
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        assert page.locator("abbr[title]").count() == 0

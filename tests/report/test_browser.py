"""The pages in a real headless Chromium: what people see, click, hover and tab to."""

import contextlib
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.report.redundancy import sample_path
from datamask.report.rendering import explanations
from tests.conftest import mostly_nightly
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
def test_a_page_opens_without_errors_and_network(chromium, made, name):
    """Nothing on the console, nothing requested but the file itself; every chart is drawn."""
    with opened(chromium, made.pages[name]) as (page, wrong):
        assert wrong == []
        page.evaluate(
            "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
        )
        for plot in page.locator(".plot").all():
            assert plot.locator("svg:visible").count() == 1


@pytest.mark.parametrize("name", PAGES)
def test_no_sideways_scroll_on_a_small_phone(chromium, made, name):
    """320 px: wide tables scroll in their own box."""
    with opened(chromium, made.pages[name], width=320) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize(
    ("name", "scheme"),
    mostly_nightly(
        [("report", "light"), ("comparison", "dark"), ("sweep", "light")],
        product(PAGES, ("light", "dark")),
    ),
)
def test_axe_finds_nothing(chromium, made, name, scheme):
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
def test_chart_text_has_contrast(chromium, made, scheme):
    """Axes are SVG, which axe does not judge: WCAG's 4.5 to 1 by its own formula."""
    with opened(chromium, made.pages["report"], scheme=scheme) as (page, _):
        colours = page.evaluate(
            "[...document.querySelectorAll('.plot text')].map((t) => getComputedStyle(t).fill)"
        )
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert len(colours) > 20
        assert min(contrast(colour, ground) for colour in set(colours)) >= 4.5


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two `rgb(r, g, b)`."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_buttons_hide_and_show_series(chromium, made):
    """By mouse and by keyboard; the button says which."""
    with opened(chromium, made.pages["report"]) as (page, _):
        button = page.locator("#map .keys button", has_text="top quality")
        visible = [page.locator(f'#map g[class*=" series{n}_"] path').first for n in range(3)]
        button.click()
        assert [mark.is_visible() for mark in visible] == [True, False, True]
        assert button.get_attribute("aria-pressed") == "false"
        page.keyboard.press("Enter")
        assert all(mark.is_visible() for mark in visible)
        assert button.get_attribute("aria-pressed") == "true"


def test_a_document_is_searched_sorted_opened_and_linked_to_the_map(chromium, made):
    """Act as a person who looks for a document and its nearest selected one."""
    known = {row["id"]: row for row in query(made.run, "SELECT * FROM documents")}
    with opened(chromium, made.pages["report"]) as (page, wrong):
        rows = page.locator("#read tr")
        names = page.locator("#read tr td:first-child button")
        page.locator("[data-filter=read]").select_option("kept")
        found = [name.get_attribute("name") for name in names.all()]
        assert found and all(known[name]["selected"] for name in found)
        heading = page.locator("table:has(#read) th button", has_text="nearest")
        for up in (False, True):
            heading.click()
            shown = page.locator("#read td:nth-child(5)").all_inner_texts()
            cosines = [float(text) for text in shown]
            assert cosines == sorted(cosines, reverse=not up)
        page.locator("[data-search=read]").fill(found[0])
        # Then those that it is the nearest of.
        assert names.first.get_attribute("name") == found[0]
        names.first.focus()
        page.keyboard.press("Enter")
        assert rows.count() == names.count() + 1
        (sampled,) = [r for r in sample(made) if r["id"] == found[0]][:1]
        assert sampled["text"] in page.locator("#read .text").first.text_content()
        begins = " ".join(sampled["text"].split())[:100]
        assert names.first.text_content() == begins
        assert sampled["nearest"] in page.locator("#read .opened").text_content()
        page.keyboard.press("Enter")
        assert rows.count() == names.count()
        mark = page.locator('#map g[class*=" series2_"] [aria-label]').first
        page.locator("#map").scroll_into_view_if_needed()
        mark.dispatch_event("click")
        said = mark.get_attribute("aria-label")
        assert said == f"ours: {names.first.get_attribute('name')}"
        assert rows.count() == names.count() + 1
        assert wrong == []


def test_a_near_copy_pair_is_found_and_read_side_by_side(chromium, made):
    """By the filter or by either id; both texts are there, and the sum that is the logit."""
    pairs = [row for row in sample(made) if (row["cosine"] or 0) >= 0.95]
    assert {row["kind"] for row in pairs} >= {"near-copy pair"}
    with opened(chromium, made.pages["report"]) as (page, wrong):
        names = page.locator("#read tr td:first-child button")
        page.locator("[data-filter=read]").select_option(label="near-copy pairs")
        found = {name.get_attribute("name") for name in names.all()}
        assert found == {row["id"] for row in pairs if row["text"]}
        assert page.locator("#read .opened .pair").count() == len(found)  # open without a click
        pair = next(row for row in pairs if row["kind"] == "near-copy pair")
        page.locator("[data-filter=read]").select_option("")
        page.locator("[data-search=read]").fill(f"{pair['nearest']} {pair['id']}")
        page.locator(f"#read button[name='{pair['id']}']").click()
        texts = page.locator("#read .opened .text").all_text_contents()
        assert texts == [
            pair["text"],
            next(r["text"] for r in sample(made) if r["id"] == pair["nearest"] and r["text"]),
        ]
        boxes = [box.bounding_box() for box in page.locator("#read .opened .text").all()]
        assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
        said = page.locator("#read .opened .facts").nth(1).text_content()
        total, quality, others = (
            float(n.replace("−", "-")) for n in re.findall(r"[+−][\d.]+", said)
        )
        assert total == pytest.approx(quality + others, abs=2e-3) and quality != 0
        assert quality == pytest.approx(0.5 * pair["quality_gain"], abs=1e-3)
        assert wrong == []


def test_a_click_opens_the_document_with_exactly_this_id(chromium, made):
    """Although more documents than the table lists have its id within theirs, and come first."""
    with opened(chromium, made.pages["report"]) as (page, _):
        page.locator("#read tr").first.wait_for()
        page.evaluate(
            "new Rows('read', [...Array(100).keys(), ''].map((more) => documentRow("
            "[`1${more}`, 'kept', 'random', 0, 0, null, null, 1, '', null, null, ''],"
            " new Map(), 1))).open('1')"
        )
        assert page.locator("#read button").first.text_content() == "1"
        assert page.locator("#read .opened").count() == 1


def test_the_first_screen_has_texts_and_reasons(chromium, made):
    """Three kept and three others, each as it is in the run, on two lines, beside a reason."""
    known = {row["id"]: row for row in query(made.run, "SELECT * FROM documents")}
    texts = {row["id"]: row["text"] for row in sample(made)}
    with opened(chromium, made.pages["report"], width=1400) as (page, _):
        for title, is_kept in (("Kept", True), ("Not kept", False)):
            part = page.locator("section", has=page.locator(f"h2:text-is('{title}')"))
            names = part.locator("li bdi").all_text_contents()
            assert len({*names}) == 3
            for name, entry in zip(names, part.locator("li").all(), strict=True):
                assert known[name]["selected"] == is_kept
                text = entry.locator(".text")
                assert text.text_content() == " ".join(texts[name].split())[:300]
                assert text.bounding_box()["height"] <= 2 * 1.5 * 16 + 1
                assert len(entry.locator(".facts").text_content()) > len(name) + 5
        assert part.bounding_box()["y"] < 900
        # A finding unfolds to its figures.
        entry = page.locator(".findings li").first
        assert not entry.locator("p").is_visible()
        entry.locator("summary").click()
        assert entry.locator("p").is_visible()


def sample(made: Made) -> list[dict[str, Any]]:
    """The rows of the report's sample."""
    return pq.read_table(sample_path(made.run)).to_pylist()


def test_a_group_shows_its_funnel(chromium, made):
    """Tabs by kind, the relative share kept as a number, and what each step left."""
    with opened(chromium, made.pages["report"]) as (page, _):
        page.locator("[data-filter=groups]").select_option("language")
        rows = {
            row["name"]: row
            for row in query(made.run, "SELECT * FROM groups WHERE kind = 'language'")
        }
        names = page.locator("#groups tr td:first-child button").all_text_contents()
        assert set(names) == set(rows)
        shares = page.locator("#groups td:nth-child(2)").all_inner_texts()
        for name, text in zip(names, shares, strict=True):
            share = rows[name]["share_after"] / rows[name]["share_before"]
            assert float(text) == pytest.approx(share, abs=1e-3)
        page.locator("#groups button").first.click()
        sql = "SELECT documents FROM funnel WHERE kind = 'language' AND name = '{}' ORDER BY number"
        counts = [str(row["documents"]) for row in query(made.run, sql.format(names[0]))]
        said = page.locator("#groups .opened").text_content()
        assert re.findall(r": (\d+)", said) == counts


def test_settings_stand_under_their_run(chromium, made):
    """The right edge of each value's text is that of its column's heading, and in no other column.

    Values are of any length, so a heading and a value that are aligned differently lie far apart.
    """
    script = """() => [...document.querySelectorAll('[aria-label="Settings"] tr')].map(row =>
        [...row.cells].map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return range.getBoundingClientRect().right;
        }))"""
    with opened(chromium, made.pages["comparison"]) as (page, _):
        heads, *rows = page.evaluate(script)
        assert rows and len(heads) == 3
        for row in rows:
            assert row[1:] == pytest.approx(heads[1:], abs=1.5)


def test_a_command_is_copied(chromium, made):
    """The clipboard has what stands next to the button."""
    with opened(chromium, made.pages["report"]) as (page, _):
        page.context.grant_permissions(["clipboard-read"])
        line = page.locator(".commands li").first
        line.locator("button").click()
        assert line.locator("button").text_content() == "copied"
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == line.locator("code").text_content()


def test_arrow_keys_read_the_values(chromium, made):
    """A chart is in the tab order, and its values can be walked without a mouse."""
    with opened(chromium, made.pages["report"]) as (page, _):
        page.locator("#tradeoff .plot").focus()
        page.keyboard.press("ArrowRight")
        said = page.locator("#tradeoff [aria-live]")
        first = said.text_content()
        page.keyboard.press("ArrowDown")
        assert said.text_content() != first and "quality" in said.text_content()
        assert page.locator("#tip").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#tip").is_visible()


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_a_script_in_a_document_does_nothing(chromium, made, name):
    """It is there to read, letter by letter, and nothing else."""
    with opened(chromium, made.pages[name]) as (page, wrong):
        assert "owned" not in page.title()
        if name == "report":
            page.locator("[data-search=read]").fill("owned")
            page.locator("#read button").first.click()
        texts = page.locator(".opened .text").all_text_contents()
        assert any(text.startswith(HOSTILE.strip()) for text in texts)
        assert page.locator("img").count() == 0
        assert page.locator("main script").count() == (name == "report")  # its data
        assert wrong == []


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_explained(chromium, made, name):
    """Each number of a table or card has a line, by hover; documents' ids and names need none."""
    with opened(chromium, made.pages[name]) as (page, _):
        bare = page.evaluate(
            "[...document.querySelectorAll('tbody td:not(:first-child), .heads li')].filter("
            "  (one) => /^[≤−+-]?\\d/.test(one.textContent.trim()) && !explanation(one)"
            ").map((one) => one.parentNode.textContent)"
        )
        assert bare == []


@pytest.mark.slow
def test_explanations_by_pointer_and_keyboard(chromium, made):
    """A number shows those of its row and column; a heading its own, on focus until Escape."""
    with opened(chromium, made.pages["report"]) as (page, _):
        tip, row = page.locator("#tip"), page.locator("tr", has_text="source").first
        row.locator("td").nth(3).hover()
        assert tip.text_content() == explanations()["tokens"]
        page.locator("h1").hover()
        assert not tip.is_visible()
        page.locator("th abbr", has_text="tokens").first.focus()
        assert tip.is_visible() and tip.text_content() == explanations()["tokens"]
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        assert page.locator("abbr[title]").count() == 0

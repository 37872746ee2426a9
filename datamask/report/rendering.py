"""Render pages, Markdown and plain text from the templates in `templates/`.

A page needs no network and no server: its charts are SVG, and a content security policy forbids
loading anything. The template engine and the chart renderer escape text from the data in pages; in
Markdown, names from the data (dumps, domains) are untrusted too, and `cell` escapes them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml
from markupsafe import Markup

from datamask import __version__
from datamask.config.screening import Contamination
from datamask.errors import one_line
from datamask.report.charts import svg
from datamask.showing import figure

TEMPLATES = Path(__file__).parent / "templates"

_NOTES = {
    "drift_note": "Against the corpus that the mask model was learnt on: share of the source kept "
    "with its relative change, and mean gain of each term with its change in deviations over "
    "documents:",
    "explained_note": "How much of a score is known from a document's group alone: how well the "
    "group separates the best tenth by the score (AUC: 0.5 is chance, 1 is always), and the share "
    "of the score's variance that is between groups:",
    "moved_note": "Share of each group's documents in the best tenth of the source by quality, if "
    "scores are normalised over the whole corpus and within groups; groups with the largest "
    "changes:",
}


STEPS = {
    "source": "source",
    "empty": "without empty documents",
    "too_long": "without too long documents",
    "held_out": "without held-out documents",
    "missing-score": "without documents that lack a score",
    "duplicate": "without duplicates",
    "contaminated": "without contaminated documents",
    "near_duplicate": "without near-duplicates",
    "pruned": "without the worst (pruned)",
    "selected": "selected",
}
"""Names, in words, of the steps after which documents remain."""


def render(template: str, folder: Path = TEMPLATES, **values: Any) -> str:
    """Render a template of a folder with values; a self-contained page if it is HTML."""
    rendered: str = _environment(folder).get_template(template).render(values)
    return rendered


@cache
def _environment(folder: Path) -> Any:
    """Return the templates of a folder, compiled once per process."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=select_autoescape(),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": cell,
        "number": number,
        "share": "{:.2%}".format,
        "explained": explained,
        "step": STEPS.__getitem__,
        "svg": lambda chart, width: Markup(svg(chart, width)),
    }
    environment.globals |= _NOTES | {
        "fate_of_benchmarks": fate_of_benchmarks,
        "css": Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        "js": Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
        "version": __version__,
    }
    return environment


def fate_of_benchmarks(known: Contamination) -> str:
    """Say in a clause what happens to documents that share words with benchmarks."""
    if known.action == "drop_covered":
        return f"dropped if they hold {known.covered:.0%} of an item, otherwise flagged"
    return "dropped" if known.action == "drop" else "flagged, not dropped"


def number(value: object) -> str:
    """Write counts in full, other numbers with four digits, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    # Less is the rounding error of a mean of zero.
    return figure(value if abs(value) >= 1e-12 else 0)


def cell(value: object) -> str:
    """Write a value as a table cell: a number as `number` shows it, text with markup escaped."""
    if not isinstance(value, str):
        return number(value)
    # Apostrophes and single ampersands stay: people read the Markdown as text too.
    text = re.sub(r"&(?=#?\w+;)", "&amp;", one_line(value)).replace("<", "&lt;")
    return "".join(f"\\{character}" if character in r"\|`*_[]" else character for character in text)


def shown_path(path: str) -> str:
    """Show a URL without credentials and query; of any other path, the last component."""
    url = urlsplit(path)
    if url.scheme and url.netloc and url.scheme != "file":
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    return path.rstrip("/").rpartition("/")[2]


def shown_model(model: str) -> str:
    """Show a model's name on the Hub; of a local folder, the last component."""
    # Hub names have at most one slash.
    is_folder = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return shown_path(model) if is_folder else model


@cache
def explanations() -> dict[str, str]:
    """Explanations of the numbers of the pages (`templates/explanations.yaml`)."""
    text = (TEMPLATES / "explanations.yaml").read_text(encoding="utf-8")
    texts: dict[str, str] = yaml.safe_load(text)
    return texts


def explained(text: object, table: str = "", key: str = "", *, is_button: bool = False) -> Markup:
    """Add an explanation to a text for pointer and keyboard; the text alone if there is none.

    *key* of the explanation, within *table*, is the text if empty. A button has the focus in place
    of its text.
    """
    name, known = key or str(text), explanations()
    explanation = known.get(f"{table}: {name}", known.get(name))
    if explanation is None:
        return Markup("{}").format(text)
    focus = Markup("" if is_button else ' tabindex="0"')
    return Markup('<abbr{} title="{}">{}</abbr>').format(focus, explanation, text)

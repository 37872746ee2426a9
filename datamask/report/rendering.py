"""Pages from the templates in `templates/`.

A page needs no network and no server: its charts are SVG, and a content security policy forbids
loading anything. The template engine and the chart renderer escape text from the data.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from jinja2 import Environment
from markupsafe import Markup

from datamask import __version__
from datamask.report.charts import svg
from datamask.report.markdown import TEMPLATES, template_environment


def render(template: str, **values: Any) -> str:
    """A self-contained page from a template in `templates/`."""
    return (
        _environment()
        .get_template(template)
        .render(
            css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
            js=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
            version=__version__,
            **values,
        )
    )


@cache
def _environment() -> Environment:
    environment = template_environment(TEMPLATES, autoescape=True)
    environment.filters |= {
        "explained": explained,
        "svg": lambda chart, width, **options: Markup(svg(chart, width, **options)),
    }
    return environment


@cache
def explanations() -> dict[str, str]:
    """What the numbers of the pages mean (`templates/explanations.yaml`)."""
    text = (TEMPLATES / "explanations.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


def explained(text: object, table: str = "", key: str = "") -> Markup:
    """The text with its explanation for pointer and keyboard; alone if there is none.

    Args:
        text: what is shown, escaped.
        table: name of the table that it is in.
        key: of the explanation; the text if empty.
    """
    name, known = key or str(text), explanations()
    found = known.get(f"{table}: {name}", known.get(name))
    if found is None:
        return Markup("{}").format(text)
    return Markup('<abbr tabindex="0" title="{}">{}</abbr>').format(found, text)

"""Stage `report`: one self-contained HTML page of a run.

It opens with no network and no server: plotly's script is inside. Every figure comes from
`composition.duckdb`; text from the data is escaped by the template engine, never by hand. The page
is a function of the run's files, so equal runs have equal pages but for the seconds in the curves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from datamask import __version__
from datamask.composition import query, summary
from datamask.config import Compute
from datamask.embedding.embed import encoder_name
from datamask.embedding.pinning import PIN
from datamask.report import figures
from datamask.report.markdown import KINDS, SELECTIONS, changes, number
from datamask.store import Run, html_receipt, replace_file

MOST_SHARDS = 200
MOST_GROUPS = 20


def write_report(run: Run, compute: Compute) -> None:
    """Write `report.html`.

    Raises:
        RunError: the composition is missing or stale.
    """
    run.receipt("composition")
    receipt = run.make_receipt("report", 0, run.num_documents)
    with replace_file(run.path("report"), root=run.root) as temporary:
        temporary.write_text(html_receipt(receipt) + page(run), encoding="utf-8")


def page(run: Run) -> str:
    """The page's HTML, without the receipt."""
    from plotly.offline import get_plotlyjs

    totals = {row["selection"]: row for row in query(run.root, "SELECT * FROM totals")}
    charts = figures.curves(run)
    lengths = figures.lengths(run)
    settings = run.settings.model_dump(mode="json")
    settings["source"]["path"] = Path(settings["source"]["path"]).name
    shards = query(
        run.root, f"SELECT * FROM shards ORDER BY objective - objective_random LIMIT {MOST_SHARDS}"
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["number"] = number
    environment.filters["share"] = lambda value: f"{value:.2%}"
    template = environment.from_string(
        (Path(__file__).parent / "template.html").read_text(encoding="utf-8")
    )
    return template.render(
        script=Markup(get_plotlyjs()),
        curves=[_chart(figure, f"curve-{n}") for n, figure in enumerate(charts)],
        lengths=None if lengths is None else _chart(lengths, "lengths"),
        title=run.root.absolute().name,
        totals=totals,
        names=SELECTIONS,
        terms=summary(run.root),
        scores=query(run.root, "SELECT * FROM score_summary"),
        groups={title: changes(run, kind, MOST_GROUPS) for kind, title in KINDS.items()},
        shards=shards,
        num_shards=run.num_shards,
        encoder=encoder_name(run),
        revision=run.pins.get(PIN),
        settings=yaml.safe_dump(settings, sort_keys=False),
        version=__version__,
    )


def _chart(figure: Any, name: str) -> Markup:
    text = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    # plotly escapes what it embeds: to_html serialises to JSON with <, > and & as \uXXXX.
    return Markup(text)

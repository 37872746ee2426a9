"""The report's tables and pictures as artifacts of the flow run."""

import base64
import json
import re
import shlex
from pathlib import Path
from typing import Any

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from datamask.analysis.composition import query
from datamask.analysis.frontier import frontier
from datamask.analysis.summary import summary
from datamask.config.outputs import Sweep
from datamask.execution.status import LISTED_SHARDS
from datamask.report.evaluation import evaluation_markdown
from datamask.report.markdown import report_markdown
from datamask.report.redundancy import near_duplicates_markdown
from datamask.report.sweep_page import sweep_markdown, sweep_rows
from datamask.report.verdict import verdict, verdict_text
from datamask.report.warnings import warnings_markdown
from datamask.runs.run import Run, digest


def show_report(run: Run) -> None:
    """Markdown, tables of terms, groups and shards, the pictures, and the way to the pages."""
    show_verdict(run)
    columns = {"term": "name", "ours": "selected", "random": "random"}
    columns |= {"top quality": "top_quality", "better": "better"}
    terms = [{name: getattr(row, of) for name, of in columns.items()} for row in summary(run)]
    create_table_artifact(terms, **_titled(run, "terms", ": against random and top quality"))
    groups = query(
        run,
        "SELECT kind, name, documents_before, documents_after, share_before, share_after "
        "FROM groups ORDER BY abs(share_after - share_before) DESC, kind, name LIMIT 100",
    )
    if groups:
        create_table_artifact(groups, **_titled(run, "composition", ": largest changes"))
    shards = query(
        run,
        f"SELECT * FROM shards ORDER BY objective - objective_random, shard LIMIT {LISTED_SHARDS}",
    )
    order = ": least gain over random first" if run.settings.selection.scope == "shard" else ""
    create_table_artifact(shards, **_titled(run, "shards-learned", order))
    show_pictures(run, "pictures")
    models = ["evaluation.html"] if run.settings.evaluation.arms else []
    show_pages(run, "report-page", "report.html", *models)


def show_verdict(run: Run) -> None:
    """The verdict, warnings, near-duplicates, trained models and tables as Markdown."""
    made = (warnings_markdown, near_duplicates_markdown, evaluation_markdown, report_markdown)
    texts = (verdict_text(verdict(run)), *(make(run) for make in made))
    create_markdown_artifact("\n\n".join(filter(None, texts)), **_titled(run, "report"))


def _titled(run: Run, name: str, about: str = "") -> dict[str, Any]:
    """Key and description of an artifact.

    The key has the run in it: artifacts of other runs are not versions of this one.
    """
    folder = re.sub("[^a-z0-9]+", "-", run.root.name.lower()).strip("-")
    key = "-".join(filter(None, (folder, digest(run.address)[:6], name)))
    return {"key": key, "description": f"{run.address}{about}"}


def show_sweep(run: Run, sweep: Sweep, page: Path) -> None:
    """The recommendation, every choice, the pictures, and the way to the page."""
    points = frontier(run, sweep)
    create_markdown_artifact(sweep_markdown(run, sweep, points), **_titled(run, "sweep"))
    rows = sweep_rows(points, run.settings.selection.metric)
    create_table_artifact(rows, **_titled(run, "sweep-choices"))
    show_pictures(run, "sweep/pictures")
    show_pages(run, "sweep-page", str(page.relative_to(run.root)))


def show_pictures(run: Run, folder: str) -> None:
    """Every picture of a folder, as data within its artifact."""
    for name in run.storage.list(folder, "*.png"):
        path = run.fetch(name)
        data = base64.b64encode(path.read_bytes()).decode()
        key = f"picture-{path.stem.replace('_', '-')}"
        title = _titled(run, key, f": {path.name}")
        create_image_artifact(f"data:image/png;base64,{data}", **title)


SERVED = "http://127.0.0.1:8000"
"""The address of `datamask open RUN --serve`."""


def show_pages(run: Run, key: str, *names: str) -> None:
    """How to read pages of a run: a browser opens no file:// link from another page."""
    links = ", ".join(f"[{name}]({SERVED}/{name})" for name in names)
    command = f"datamask open {shlex.quote(run.address)} --serve"
    text = f"While this command runs on the machine of your browser, these links open: {links}"
    create_markdown_artifact(f"{text}\n\n```\n{command}\n```\n", **_titled(run, key))


def show_publication(run: Run) -> None:
    """A link to the dataset on the Hub; nothing after a dry run."""
    record = json.loads(run.path("publication").read_bytes())
    if "url" in record:
        create_link_artifact(f"{record['url']}/tree/{record['tag']}", **_titled(run, "dataset"))

"""Show the report's tables and pictures as artifacts of the flow run."""

import base64
import json
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact
from prefect.assets import Asset, AssetProperties, add_asset_metadata, materialize

from datamask.execution.sweep import Row
from datamask.report.answer import answer
from datamask.report.evaluation import evaluation_markdown
from datamask.report.markdown import report_markdown
from datamask.report.rendering import render
from datamask.runs.run import Run, digest
from flows.orchestration.events import tell


def titled(run: Run, name: str, about: str = "") -> dict[str, Any]:
    """Return key and description of an artifact.

    The key has the run in it: artifacts of other runs are not versions of this one.
    """
    words = (run.root.name, digest(run.address)[:6], name)
    parts = (re.sub("[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)
    return {"key": "-".join(filter(None, parts)), "description": f"{run.address}{about}"}


def show_report(run: Run) -> None:
    """Show answer, trained models, tables and links to the pages as one artifact; pictures."""
    pages = ["report.html", *(["evaluation.html"] if run.settings.evaluation.arms else [])]
    texts = (answer(run).markdown, evaluation_markdown(run), report_markdown(run))
    text = "\n\n".join(filter(None, (*texts, way_to_pages(run, *pages))))
    create_markdown_artifact(text, **titled(run, "report"))
    for name in run.storage.list("pictures", "*.png"):
        _show_picture(run, run.fetch(name))


def show_sweep(run: Run, rows: list[Row], page: Path) -> None:
    """Show the table of a sweep, a link to its page, and its pictures."""
    text = f"{render('sweep.md', rows=rows)}\n\nThe page: `{page}`"
    create_markdown_artifact(text, **titled(run, "sweep"))
    for path in sorted(page.parent.glob("*.png")):
        _show_picture(run, path)


def _show_picture(run: Run, path: Path) -> None:
    """Show a picture as data within its artifact."""
    data = base64.b64encode(path.read_bytes()).decode()
    title = titled(run, f"picture-{path.stem.replace('_', '-')}", f": {path.name}")
    create_image_artifact(f"data:image/png;base64,{data}", **title)


SERVED = "http://127.0.0.1:8000"
"""Address of `datamask open RUN --serve`."""


def way_to_pages(run: Run, *names: str) -> str:
    """Explain how to read pages of a run: a browser opens no file:// link from another page."""
    links = ", ".join(f"[{name}]({SERVED}/{name})" for name in names)
    command = f"datamask open {shlex.quote(run.address)} --serve"
    text = f"While this command runs on the machine of your browser, these links open: {links}"
    return f"{text}\n\n```\n{command}\n```\n"


def show_publication(run: Run, worked: Collection[str]) -> None:
    """Show the dataset on the Hub as a link; if it has changed, also as an asset, and by an event.

    *worked* are the stages that this flow run has not found done. A dry run shows nothing.
    """
    record = json.loads(run.path("publication").read_bytes())
    if "url" not in record:
        return
    create_link_artifact(f"{record['url']}/tree/{record['tag']}", **titled(run, "dataset"))
    if "publication" not in worked or not (record["new_commit"] or record["new_tag"]):
        return
    name = record["url"].partition("/datasets/")[2]
    dataset = Asset(key=record["url"], properties=AssetProperties(name=name, url=record["url"]))

    @materialize(dataset, name="dataset")
    def register() -> None:
        version = {name: record[name] for name in ("tag", "commit")}
        add_asset_metadata(dataset, {**version, "run": run.address})

    register()
    known = {name: record[name] for name in ("url", "tag", "commit", "new_commit", "new_tag")}
    tell(run, "subset.published", **known)

"""The report page and its markdown: the run's own figures, hostile names disarmed, no network."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.analysis.summary import summary
from datamask.config.compute import Compute
from datamask.errors import RunError
from datamask.publishing.folder import write_folder
from datamask.report import page as report_page
from datamask.report import sample
from datamask.report.markdown import SELECTIONS, report_markdown
from datamask.report.page import write_report
from datamask.report.redundancy import redundancy
from datamask.report.rendering import cell, number
from datamask.report.warnings import warnings
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from tests.conftest import leave_out_charts, measure_roughly
from tests.finished import DUMPS, corpus, finish, settings

pytestmark = pytest.mark.usefixtures("roughly")


class Page(HTMLParser):
    """Tables as lists of rows, addresses that a browser would fetch, and tags counted."""

    def __init__(self) -> None:
        """Nothing seen."""
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.labels: list[str] = []
        self._text: list[str] | None = None
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Cells open, addresses are noted."""
        self.tags.append(tag)
        self.labels += [value or "" for name, value in attrs if name == "aria-label"]
        self.fetched += [value or "" for name, value in attrs if name in ("src", "srcset")]
        if tag == "link":
            self.fetched.append(dict(attrs).get("href") or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._text = []
        if tag == "script":
            self._script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        """Cells close."""
        if tag in ("td", "th") and self._text is not None:
            self.rows[-1].append("".join(self._text))
            self._text = None
        if tag == "script":
            self._script = False

    def handle_data(self, data: str) -> None:
        """Text of cells and scripts."""
        if self._text is not None:
            self._text.append(data)
        if self._script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Page]:
    """A finished run and its parsed page."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        measure_roughly(patch)
        run = finish(folder / "run", settings(corpus(folder / "source")), "report")
    page = Page()
    page.feed(run.path("report").read_text(encoding="utf-8"))
    return run, page


def test_the_page_fetches_nothing_and_carries_its_receipt(made: tuple[Run, Page]) -> None:
    """No script, style, picture or font from elsewhere; done is what the receipt says."""
    run, page = made
    assert all(address.startswith("data:") for address in page.fetched)
    assert "@import" not in run.path("report").read_text(encoding="utf-8").split("<script>")[0]
    assert read_receipt(run.path("report")) == run.receipt("report")


def test_tables_show_the_runs_figures(made: tuple[Run, Page]) -> None:
    """Terms, totals and scores stand in the page as an own query finds them."""
    run, page = made
    assert "Warning:" not in run.path("report").read_text(encoding="utf-8").split("<script>")[0]
    shown = {row[0]: row for row in reversed(page.rows) if row}  # a name's first row
    for row in query(run, "SELECT * FROM terms"):
        for place, key in enumerate(("selected", "random", "top_quality"), 1):
            assert shown[row["term"]][place].startswith(number(row[key]))
    kept = query(run, "SELECT count(*) AS n, sum(tokens) AS t FROM documents WHERE selected")
    totals = next(row for row in page.rows if row[0] == "ours" and len(row) == 5)
    assert totals[1:3] == [str(kept[0]["n"]), number(int(kept[0]["t"]))]
    scores = query(run, "SELECT max(edu) AS top FROM documents")[0]
    assert any(
        row[:2] == ["edu", "source"] and row[4] == number(scores["top"]) for row in page.rows
    )


def test_hostile_names_are_text(made: tuple[Run, Page]) -> None:
    """A dump named as a script tag is a cell with these letters and no script."""
    _, page = made
    cells = [row[0] for row in page.rows if row]
    assert set(DUMPS) <= set(cells)
    assert not any(script.startswith("alert") for script in page.scripts)


def test_charts_hold_the_curves(made: tuple[Run, Page]) -> None:
    """Each point of each curve is in the page, with its step, seconds and value."""
    run, page = made
    rows = query(run, "SELECT * FROM curves WHERE isfinite(value)")
    wanted = {
        f"shard {row['shard']:05d}: step {row['step']}, {round(row['seconds'], 3)} s: "
        f"{row['value']:.5g}"
        for row in rows
    }
    assert wanted and wanted <= set(page.labels)


def test_markdown_has_the_summary_and_no_markup(made: tuple[Run, Page]) -> None:
    """The same figures for card and artifact; names cannot end a cell or open a tag."""
    run, _ = made
    text = report_markdown(run)
    for row in summary(run):
        assert f"| {number(row.selected)} | {number(row.random)} |" in text
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    unescaped = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    assert set(unescaped) == {6}


def test_a_score_that_most_documents_lack_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the top of the page, in the list of warnings and in the card, with the share.

    The run of the other tests has a score of every document, and no warning.
    """
    leave_out_charts(monkeypatch)
    measure_roughly(monkeypatch)
    source = corpus(tmp_path / "source")
    ids = [
        name for path in sorted(source.iterdir()) for name in pq.read_table(path)["id"].to_pylist()
    ]
    (tmp_path / "s.csv").write_text("id,score\n" + "".join(f"{name},1\n" for name in ids[:47]))
    score = {"name": "edu", "kind": "file", "path": str(tmp_path / "s.csv"), "missing": "fill"}
    publication = {"license": "mit", "dry_run": True}
    chosen = settings(source, quality={"scores": [score]}, publication=publication)
    run = finish(tmp_path / "run", chosen)
    said = f"{1 - 47 / len(ids):.1%} of the source's documents, filled with 0"
    assert any(said in line for line in warnings(run))
    assert f"</strong> Score edu is missing for {said}".replace("'", "&#39;") in run.path(
        "report"
    ).read_text(encoding="utf-8")
    assert run.settings.publication is not None
    write_folder(run, run.settings.publication)
    card = (run.root / "publication" / "README.md").read_text(encoding="utf-8")
    assert f"> - Score edu is missing for {said}" in card.split("## ")[0]
    first, second, *_ = card.split("\n## ")[1:]
    assert first.startswith("Before and after") and second.startswith("What is in it")
    for name, row in redundancy(run).items():
        line = f"| {SELECTIONS[name]} | {row['documents']} | {number(row['mean'])} "
        assert f"{line}| {row['near_duplicates']:.1%} ± {row['error']:.1%} |" in first
    assert first.index("near-duplicate") < first.index("| source |")
    assert "![Map of the embedding space](pictures/map.png)" in card


def test_cells_disarm_markdown() -> None:
    """Pipes, backticks, stars, brackets, tags and line breaks."""
    assert cell("a|b\n`c` <b>*[x](y)*") == r"a\|b \`c\` &lt;b&gt;\*\[x\](y)\*"
    assert (cell(None), cell(1234567), cell(0.12345)) == ("–", "1,234,567", "0.1235")


def test_the_report_waits_for_its_composition(made: tuple[Run, Page], tmp_path: Path) -> None:
    """A page of stale figures is never written."""
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source")), "selection")
    with pytest.raises(RunError, match="missing; run stage `composition`"):
        write_report(run, Compute())
    assert not run.path("report").exists()


def test_a_sample_may_miss_small_shards_and_sets(
    made: tuple[Run, Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard too small for a share of the sample, and no top quality in the sampled shards."""
    leave_out_charts(monkeypatch)
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    monkeypatch.setattr(sample, "_shares", lambda sizes, total: [0, *[5] * (len(sizes) - 1)])
    sample.write_sample(run, Compute())
    rows = pq.read_table(sample.sample_path(run)).to_pylist()
    assert {row["shard"] for row in rows} == {*range(1, run.num_shards)}
    left = pq.read_table(sample.neighbours_path(run)).to_pylist()
    left = [row for row in left if row["set"] not in ("top_quality", "random")]
    table = pa.Table.from_pylist(left, sample.NEIGHBOUR)
    write_parquet(sample.neighbours_path(run), table.schema, [table], storage=run.storage)
    monkeypatch.setattr(report_page, "write_sample", lambda run, compute: None)
    write_report(run, Compute())
    shown = run.path("report").read_text(encoding="utf-8")
    assert "near-duplicates in the selection" not in shown

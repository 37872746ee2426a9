"""The report page and its markdown: the run's own figures, hostile names disarmed, no network."""

import base64
import gzip
import html
import json
import re
import shutil
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.errors import InputError, RunError
from datamask.report import page as report_page
from datamask.report import sample
from datamask.report.answer import answer
from datamask.report.markdown import report_markdown
from datamask.report.page import write_report
from datamask.report.rendering import cell, number
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from tests.conftest import leave_out_charts, measure_roughly, nightly
from tests.finished import DUMPS, corpus, finish, publish_locally, settings

pytestmark = pytest.mark.usefixtures("roughly")


@dataclass(frozen=True)
class Page:
    """The text of a page."""

    text: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of all rows of tables, without their markup."""
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", self.text, re.DOTALL)
        cells = (re.findall(r"<t[dh]\b[^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows)
        return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in cells]

    @property
    def scripts(self) -> list[str]:
        """Return the content of the elements `script`."""
        return re.findall(r"<script[^>]*>(.*?)</script>", self.text, re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Page]:
    """A finished run and its parsed page."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        measure_roughly(patch)
        run = finish(folder / "run", settings(corpus(folder / "source")), "report")
    return run, Page(run.path("report").read_text(encoding="utf-8"))


def test_the_page_fetches_nothing_and_carries_its_receipt(made):
    """No script, style, picture or font from elsewhere; done is what the receipt says."""
    run, page = made
    fetched = re.findall(r"<link[^>]*href=\W?([^\s>]*)|\s(?:src|srcset)=\W?([^\s>]*)", page.text)
    assert fetched and all("".join(address).startswith("data:") for address in fetched)
    assert "@import" not in page.text.split("<script>")[0]
    assert read_receipt(run.path("report")) == run.receipt("report")


def test_tables_show_the_runs_figures(made):
    """Funnel and scores stand in the page as an own query of the documents finds them."""
    run, page = made
    shown = {row[0]: row for row in reversed(page.rows) if row}  # a name's first row
    for name, where in (
        ("source", "true"),
        ("without the worst (pruned)", "dropped IS NULL"),
        ("selected", "selected"),
    ):
        sql = "SELECT count(*) AS n, sum(tokens) AS tokens, avg(quality) AS quality FROM documents"
        (row,) = query(run, f"{sql} WHERE {where}")
        assert shown[name][1] == number(row["n"]) and shown[name][3] == number(int(row["tokens"]))
        assert float(shown[name][6]) == pytest.approx(row["quality"], abs=1e-3)
    scores = query(run, "SELECT max(edu) AS top FROM documents")[0]
    assert any(
        row[:2] == ["edu", "source"] and row[4] == number(scores["top"]) for row in page.rows
    )


def test_the_data_has_groups_and_documents(made):
    """Every group of several, named as in the source; texts and nearest selected documents."""
    run, page = made
    data = unpacked(page.scripts)
    assert not any(script.startswith("alert") for script in page.scripts)
    assert {row[1] for row in data["groups"] if row[0] == "dump"} == set(DUMPS)
    known = {row["id"]: row for row in query(run, "SELECT * FROM documents")}
    kept = sum(row["selected"] for row in known.values())
    for kind, name, before, after, retention, steps in data["groups"]:
        if kind != "length":
            rows = [row for row in known.values() if row[kind] == name]
            assert before == len(rows) == steps[0]
            assert after == sum(row["selected"] for row in rows) == steps[-1]
            assert retention == pytest.approx(after / kept / (before / len(known)), abs=1e-5)
    assert sum(row[2] for row in data["groups"] if row[0] == "length") == len(known)
    assert {row[1] for row in data["documents"]} == {"kept", "left out", "dropped"}
    for row in data["documents"]:
        own = known[row[0]]
        assert row[1] == (
            "kept" if own["selected"] else "dropped" if own["dropped"] else "left out"
        )
        assert row[5] is None or (known[row[5]]["selected"] and row[5] != row[0])
        assert (row[5] is None) == (own["dropped"] is not None) and row[8] is not None


def unpacked(scripts: list[str]) -> dict[str, Any]:
    """The data of a page, from its script elements."""
    (packed,) = (text for text in scripts if text.startswith("H4sI"))
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


@pytest.mark.parametrize("selection", [{"tokens": 900}, *nightly({"method": "top_quality"})])
def test_a_browser_can_read_the_data_where_gains_are_unknown(tmp_path, monkeypatch, selection):
    """JSON has no NaN, and a page whose data has one shows no table: not seen without a budget."""
    leave_out_charts(monkeypatch)
    measure_roughly(monkeypatch)
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source"), selection=selection))
    page = run.path("report").read_text(encoding="utf-8")
    [packed] = re.findall(r"H4sI[A-Za-z0-9+/=]+", page)
    data = gzip.decompress(base64.b64decode(packed)).decode()
    documents = json.loads(data, parse_constant=pytest.fail)["documents"]
    assert documents and all(row[9] is None for row in documents)


def test_markdown_has_the_summary_and_no_markup(made):
    """Card and artifact have the same figures; names cannot end a cell or open a tag."""
    run, _ = made
    text = report_markdown(run)
    for row in query(run, "SELECT * FROM funnel WHERE kind = 'all'"):
        assert f"| {number(row['documents'])} | {number(row['tokens'])} |" in text
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    unescaped = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    assert set(unescaped) == {6, 7}


@pytest.mark.slow
def test_a_score_that_most_documents_lack_is_a_warning(tmp_path, monkeypatch):
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
    score = {"name": "edu", "kind": "file", "path": str(tmp_path / "s.csv"), "missing": 0}
    publication = {"license": "mit", "dry_run": True}
    chosen = settings(source, quality={"scores": [score]}, publication=publication)
    run = finish(tmp_path / "run", chosen)
    said = f"Score edu is missing for {1 - 47 / len(ids):.1%} of the source's documents"
    assert any(line.startswith(said) for line in answer(run).warnings)
    page = html.unescape(run.path("report").read_text(encoding="utf-8"))
    assert said in page.split('<h2 id="next">')[0]
    card = (publish_locally(run) / "README.md").read_text(encoding="utf-8")
    first, *_ = card.split("\n## ")
    assert said in first
    assert "![Map of the embedding space](pictures/map.png)" in card


def test_cells_disarm_markdown():
    """Pipes, backticks, stars, brackets, tags, entities and line breaks; apostrophes stay."""
    assert cell("it's R&D & &#x27;") == "it's R&D & &amp;#x27;"
    assert cell("a|b\n`c` <b>*[x](y)*") == r"a\|b \`c\` &lt;b>\*\[x\](y)\*"
    assert (cell(None), cell(1234567), cell(0.12345)) == ("–", "1,234,567", "0.1235")


def test_the_report_waits_for_its_composition(planned):
    """A page of stale figures is never written."""
    with pytest.raises(RunError, match="missing; run stage `composition`"):
        write_report(planned, Compute())
    assert not planned.path("report").exists()


def test_a_report_is_written_again_without_the_source(made, tmp_path, monkeypatch):
    """The sample has its texts already; without a sample, the source is read."""
    leave_out_charts(monkeypatch)
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")

    def gone(run: Run, wanted: object) -> dict[tuple[int, int], str]:
        raise InputError("no such file", path=run.pieces[0].path)

    monkeypatch.setattr(sample, "beginnings", gone)
    run.path("report").unlink()
    write_report(run, Compute())
    assert run.path("report").exists()
    sample.sample_path(run).unlink()
    with pytest.raises(InputError, match="no such file"):
        write_report(run, Compute())


def test_a_sample_may_miss_small_shards_and_sets(made, tmp_path, monkeypatch):
    """A shard too small for a share of the sample, and no top quality in the sampled shards."""
    leave_out_charts(monkeypatch)
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    monkeypatch.setattr(sample, "_shares", lambda sizes, total: [0, *[5] * (len(sizes) - 1)])
    sample.write_sample(run)
    rows = pq.read_table(sample.sample_path(run)).to_pylist()
    assert {row["shard"] for row in rows} == {*range(1, run.num_shards)}
    left = pq.read_table(sample.neighbours_path(run)).to_pylist()
    left = [row for row in left if row["set"] != "random"]
    table = pa.Table.from_pylist(left, sample.NEIGHBOUR)
    write_parquet(sample.neighbours_path(run), table.schema, [table], storage=run.storage)
    monkeypatch.setattr(report_page, "write_sample", lambda run: None)
    write_report(run, Compute())
    shown = run.path("report").read_text(encoding="utf-8")
    assert "at a cosine of at least" not in shown

"""Screening as a whole: refusals, settings, counts on pages."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.errors import DatamaskError
from datamask.planning.plan import plan_run
from datamask.report.redundancy import compared_copies
from tests.finished import finish, publish_locally, settings
from tests.hygiene.screened import SIMILARITY, prose, texts_of, write

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def test_all_problems_are_reported_before_any_work(tmp_path, benchmarks):
    """Files and columns that are missing, and files that cannot be read; nothing is left behind."""
    source = write(tmp_path / "source" / "a.parquet", ["a", "b"]).parent
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\nnot json\n')
    (tmp_path / "table.csv").write_text("text\na\n")
    (tmp_path / "image.jsonl").write_text('{"picture": 1}\n')
    pq.write_table(pa.table({"id": ["1"]}), tmp_path / "earlier.parquet")
    names = ("absent.jsonl", "broken.jsonl", "table.csv", "image.jsonl")
    sets = [str(tmp_path / name) for name in names]
    sets.append({**benchmarks[1], "name": "b", "columns": ["questions"]})
    quality = {
        "contamination": {"sets": sets},
        "near_duplicates": {"against": [str(tmp_path / "earlier.parquet"), "/nowhere/*.parquet"]},
    }
    with pytest.raises(DatamaskError) as caught:
        plan_run(tmp_path / "run", settings(source, quality=quality))
    told = str(caught.value)
    for part in (
        "absent.jsonl: no .parquet, .jsonl, .ndjson, .txt files found",
        "broken.jsonl, line 2: not JSON",
        "table.csv: unknown kind of file; use .parquet, .jsonl, .ndjson, .txt",
        "image.jsonl, column text: absent; needed is one of: picture",
        "b.parquet, column questions: absent; needed is one of: text",
        "earlier.parquet, column text: absent; needed is one of: id",
        "/nowhere/*.parquet: no .parquet, .jsonl, .ndjson, .txt files found",
    ):
        assert part in told, told
    assert not (tmp_path / "run").exists()


def test_layout_features_has_no_text_to_screen(tmp_path):
    """Said with the other problems of the settings."""
    source = write(tmp_path / "source" / "a.parquet", ["a"]).parent
    quality = {"near_duplicates": {}, "scores": []}
    chosen = settings(source, quality=quality, source={"layout": "features"})
    with pytest.raises(DatamaskError, match=r"quality\.near_duplicates: needs text; layout"):
        plan_run(tmp_path / "run", chosen)


@pytest.mark.slow
def test_counts_are_shown_wherever_results_are(tmp_path, benchmarks, copies):
    """Report, card and published scores; no path of this machine is published."""
    source, _ = copies
    leak = next(texts_of(benchmarks[1]))
    write(source / "leak.parquet", [f"{prose(random.Random(n))} {leak}" for n in range(40)])
    quality = {
        "near_duplicates": {"similarity": SIMILARITY, "against": [benchmarks[1]["path"]]},
        "contamination": {"sets": benchmarks, "action": "flag", "common": 40},
    }
    pq.write_table(pa.table({"id": ["x"], "text": [leak]}), benchmarks[1]["path"])
    to = {"license": "mit", "dry_run": True, "include": ["scores"]}
    chosen = settings(source, quality=quality, selection={"ratio": 0.4}, publication=to)
    run = finish(tmp_path / "run", chosen)
    [counts] = query(
        run,
        "SELECT count(*) FILTER (dropped = 'near_duplicate') AS near, "
        "count(*) FILTER (contaminated_by = '<b>|table') AS shared, "
        "count(*) FILTER (contaminated_by = '<b>|table' AND selected) AS kept FROM documents",
    )
    assert counts["near"] and counts["shared"] == 40 and counts["kept"]
    page = run.path("report").read_text()
    assert "<td>&lt;b&gt;|table</td><td>1</td><td>0</td><td>0</td><td>40</td><td>40</td>" in page
    assert "<b>|table" not in page
    compared = compared_copies(run)
    assert compared["dropped"] >= 20
    for pair in compared["pairs"]:
        assert f"{pair['id']} <small>{pair['text'][:120]}</small><br>{pair['other_id']}" in page
    folder = publish_locally(run)
    card = (folder / "README.md").read_text()
    assert f"| Near-duplicates | {counts['near']} dropped, of which " in card
    assert "documents that share 13 consecutive words are flagged, not dropped" in card
    assert str(tmp_path) not in card and "path: c.txt" in card
    published = pq.read_table(next((folder / "scores").glob("*.parquet")))
    assert sum(name == "<b>|table" for name in published["contaminated_by"].to_pylist()) == 40

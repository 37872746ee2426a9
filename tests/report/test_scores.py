"""Coverage and agreement of scores, and what comparison within groups moves, in report and card."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import moved_groups, query, score_coverage
from datamask.report.markdown import report_markdown
from datamask.runs.run import Run
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two scores, one compared within languages and missing in places."""
    folder = tmp_path_factory.mktemp("scores")
    path = corpus(folder / "source") / "0.parquet"
    table = pq.read_table(path)
    edu = [None if row < 3 else value for row, value in enumerate(table["edu"].to_pylist())]
    pq.write_table(table.set_column(table.column_names.index("edu"), "edu", [edu]), path)
    one = {"name": "edu", "kind": "column", "column": "edu", "missing": "drop"}
    scores = [{**one, "normalise_within": "language"}, {"name": "heuristic"}]
    return finish(folder / "run", settings(folder / "source", quality={"scores": scores}))


def test_coverage_counts_the_source(run):
    """117 of 120 documents have the first score, all have the second; the card says so."""
    assert list(score_coverage(run).items()) == [("edu", 117 / 120), ("heuristic", 1.0)]
    assert "`edu` 97.50%, `heuristic` 100.00%" in report_markdown(run)


def test_agreement_is_shown(run):
    """The correlation of the pair is in the database, the page and the card's figures."""
    [row] = query(run, "SELECT * FROM score_correlations")
    assert (row["score"], row["other"], row["documents"]) == ("edu", "heuristic", 117)
    shown = f"{row['correlation']:.4g}"
    assert f"| edu, heuristic | {shown} | 117 |" in report_markdown(run)
    assert f"<td>{shown}</td><td>117</td>" in run.path("report").read_text(encoding="utf-8")


def test_groups_that_gain_and_lose_are_shown(run):
    """Counts are those of the candidates by language; what one gains, the other loses."""
    rows = query(run, "SELECT * FROM score_groups")
    compared = query(
        run, "SELECT language FROM documents WHERE dropped IS NULL OR dropped = 'pruned'"
    )
    counts = Counter(row["language"] for row in compared)
    assert {row["name"]: row["documents"] for row in rows} == counts
    assert {sum(row[key] for row in rows) for key in ("best_whole", "best_within")} == {
        sum(counts.values()) // 10
    }
    moved = moved_groups(run, 10)
    page = run.path("report").read_text(encoding="utf-8")
    assert ("within groups" in page) == bool(moved)
    for row in moved:
        share = f"{row['best_within'] / row['documents']:.2%}"
        assert f"<td>{share}</td>" in page and share in report_markdown(run)

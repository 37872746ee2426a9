"""The commands `query` and `report`: what they print, and that queries only read."""

import csv
import io
import json
import re
from collections import Counter

import pytest
from click.testing import CliRunner

from datamask.analysis.summary import relations, run_query
from datamask.cli.main import cli
from datamask.config.loading import load_settings
from datamask.errors import RunError
from tests.docs.pages import PAGES, ROOT
from tests.finished import finish, selected_ids, settings, table_of


def command(*arguments: object) -> str:
    """Standard output of a command that succeeds."""
    result = CliRunner().invoke(cli, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_relation_named_can_be_queried(made):
    """And its description names every column, which the documentation shows."""
    for name, meaning in relations().items():
        with run_query(made.run, f"SELECT * FROM {name}") as (columns, rows):
            # This run has one score, its shards learn alone, and it has no evaluation.
            without = ("rounds", "score_correlations", "score_groups", "drift", "arms", "verdicts")
            assert next(rows, None) or name in without
        told = set(re.findall(r"[a-z_0-9]+", meaning))
        if name != "selection":
            assert set(columns) - told <= {"edu"}, name
    listed = command("query", made.run.root)
    assert [line.split()[0] for line in listed.splitlines()] == list(relations())


def test_selection_is_what_the_masks_keep(made):
    """The view against the masks' own files, as CSV, JSON lines and aligned text."""
    run = made.run
    kept = sorted(selected_ids(run))
    sql = "SELECT id, quality FROM selection ORDER BY id"
    rows = list(csv.DictReader(io.StringIO(command("query", run.root, sql, "--format", "csv"))))
    assert [row["id"] for row in rows] == kept
    lines = command("query", run.root, sql, "--format", "json").splitlines()
    assert [json.loads(line)["id"] for line in lines] == kept
    assert json.loads(lines[0])["quality"] == float(rows[0]["quality"])
    shown = command("query", run.root, sql).splitlines()
    assert shown[0].split() == ["id", "quality"]
    assert [line.split()[0] for line in shown[1:]] == kept


@pytest.mark.parametrize("sql", ["SELECT tokenz FROM documents", "SELEC 1"])
def test_a_query_that_is_refused_shows_no_other_sql(sql, made):
    """The line names what is wrong in the user's statement, without the one that DuckDB runs."""
    with pytest.raises(RunError) as caught, run_query(made.run, sql):
        pass
    said = str(caught.value)
    assert ("tokenz" if "FROM" in sql else "SELEC") in said
    assert "LINE" not in said and "query(?)" not in said and "\n" not in said


def test_every_value_is_valid_json(made):
    """JSON has neither infinite numbers nor bytes."""
    sql = "SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, 1] AS b, '\\xff'::BLOB AS c, NULL AS d"
    found = json.loads(command("query", made.run.root, sql, "--format", "json"), parse_constant=int)
    assert found == {"a": None, "b": [None, 1], "c": "_w==", "d": None}


def test_the_queries_of_the_documentation_run(made):
    """At least ten, and each finds something; this run has neither `drift` nor `arms`."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r'datamask query \S+ "([^"]+)"', pages)
    assert len(found) >= 10
    for sql in found:
        with run_query(made.run, sql) as (columns, rows):
            assert columns and (next(rows, None) or re.search("drift|arms", sql)), sql


def test_a_mixture_goes_out_and_comes_back(source, tmp_path):
    """Shares of tokens, by brute force; the limits of another mixture keep it."""
    run = finish(tmp_path / "run", settings(source), "composition")
    page = (ROOT / "docs/budget.md").read_text(encoding="utf-8")
    shares, limits = re.findall(r'datamask query \S+ "([^"]+)"', page)
    rows = csv.DictReader(io.StringIO(command("query", run.root, shares, "--format", "csv")))
    kept: Counter[str] = Counter()
    for one in table_of(run, "documents").to_pylist():
        kept[one["domain"]] += one["tokens"] * one["selected"]
    expected = {name: tokens / kept.total() for name, tokens in kept.items() if tokens}
    assert {row["domain"]: float(row["share"]) for row in rows} == pytest.approx(expected)
    mixture = {"site0.org": 0.5, "site1.org": 0.3, "site2.org": 0.2}
    values = ", ".join(map(str, mixture.items()))
    limits = re.sub(r"VALUES .*?\)\)", f"VALUES {values})", limits)
    lines = command("query", run.root, limits, "--format", "json").splitlines()
    assert [json.loads(line)["value"] for line in lines] == [*mixture, None]
    given = f"selection.limits=[{','.join(lines)}]"
    chosen, _ = load_settings(None, (given,), settings(source))
    again = finish(tmp_path / "again", chosen, "documents")
    rows = table_of(again, "documents").to_pylist()
    counts = Counter(row["domain"] for row in rows if row["selected"])
    assert counts.total() == 30 and {*counts} == {*mixture}
    for name, count in counts.items():
        assert abs(count / 30 - mixture[name]) <= 0.05 * mixture[name] + 0.5 / 30

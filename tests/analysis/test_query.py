"""The commands `query` and `report`: what they print, and that queries only read."""

import csv
import io
import json
import re

from click.testing import CliRunner

from datamask.analysis.query import relations, run_query
from datamask.cli.main import cli
from tests.docs.pages import PAGES
from tests.finished import selected_ids


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

"""A selection of no document crashes no later stage."""

import pytest

from datamask.analysis.summary import query
from datamask.execution.sweep import sweep_rows
from datamask.report.answer import answer
from datamask.selection import threshold
from datamask.selection.order import NOTHING
from tests.cli.commands import here
from tests.finished import finish, settings, table_of


@pytest.mark.usefixtures("undrawn")
def test_every_later_stage_and_command_copes(source, tmp_path, monkeypatch):
    """Subset, composition, report, card, publication, comparison and sweep."""
    monkeypatch.setattr(threshold, "last_within", lambda *_: NOTHING)
    to = {"dry_run": True, "license": "mit", "include": ["scores"]}
    chosen = settings(source, selection={"tokens": 500, "steps": 5}, publication=to)
    run = finish(tmp_path / "run", chosen, "publication")
    assert table_of(run, "subset").num_rows == 0
    assert query(run, "SELECT sum(documents_after) AS n FROM groups") == [{"n": 0}]
    assert answer(run).what.startswith("0 of 120 documents (0.00%) were selected")
    assert (run.root / "publication" / "README.md").exists()
    monkeypatch.undo()
    other = finish(tmp_path / "other", settings(source, selection={"steps": 5}), "composition")
    assert here("compare", run.root, other.root, "-o", tmp_path / "page.html") == 0
    (row,) = sweep_rows({"it": run}, None)
    assert row["documents"] == 0 and row["quality"] is None

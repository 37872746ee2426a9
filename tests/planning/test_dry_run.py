"""`datamask plan --dry-run` refuses what a launch refuses, or says what it has not read."""

import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, RunError
from datamask.planning.plan import dry_run, plan_run
from tests.cli.commands import here
from tests.finished import corpus, settings


def damaged(folder: Path, values: dict[str, Any]) -> Path:
    """The corpus in a folder with these values in one document."""
    path = folder / "0.parquet"
    columns = pq.read_table(path).to_pydict()
    for name, value in values.items():
        columns[name][3] = value
    if values:
        pq.write_table(pa.table(columns), path, row_group_size=12)
    return folder


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize(
    ("values", "selection"),
    [
        ({"id": "1-01"}, {}),  # that of another file's document
        ({"id": None}, {}),
        ({"edu": float("nan")}, {}),
        ({}, {"tokens": 999_999}),
        ({}, {"limits": [{"column": "language", "value": "fi", "floor": 0.5}]}),
    ],
)
def test_a_dry_run_finds_what_a_launch_refuses(tmp_path, values, selection, is_planned):
    """A dry run of a new or planned run reports the same problems; the folder stays as it is."""
    source = corpus(tmp_path / "source")
    if is_planned:
        plan_run(tmp_path / "run", settings(source))
    chosen = settings(damaged(source, values), selection=selection)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan, are_rows_checked = dry_run(tmp_path / "run", chosen, Compute())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(DatamaskError) as caught:
        plan_run(tmp_path / "run", chosen)
    assert list(map(str, plan.problems)) == list(map(str, caught.value.problems))
    assert are_rows_checked or is_planned


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """A dry run refuses it too, before anything is read; a file is not a folder."""
    source = corpus(tmp_path / "source")
    roots = [tmp_path / "closed" / "run", source / "0.parquet" / "run"]
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for root in roots:
        for start in (plan_run, dry_run):
            with pytest.raises(RunError) as caught:
                start(root, settings(source), Compute())
            assert str(root) in str(caught.value)
        assert not root.exists()


def test_a_dry_run_says_that_a_distant_source_was_not_read(tmp_path, capsys):
    """Standard error names the source; the status is that of the other checks."""
    files = fsspec.filesystem("memory")
    for path in damaged(corpus(tmp_path / "source"), {"id": "1-01"}).iterdir():
        files.pipe(f"/distant/{path.name}", path.read_bytes())
    more = ("--set", "embedding.method=lexical", "--set", "source.path=memory://distant")
    assert here("plan", tmp_path / "run", "--dry-run", *more) == 0
    files.rm("/distant", recursive=True)
    assert capsys.readouterr().err.startswith("not checked: the rows of memory://distant (")

"""Rows of converted files that are refused, and corrected where a person corrects them."""

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datamask.errors import InputError
from datamask.planning.plan import plan_run
from tests import finished
from tests.faults.comparison import contents
from tests.finished import WORDS
from tests.source.converting import records, write

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def source(folder: Path, end: str, **bad: str) -> tuple[Path, list[dict[str, object]]]:
    """Two files of thirty records; with *bad*, record 20 of the second has these values."""
    rows: list[dict[str, object]] = [
        {"id": f"n{number}", "text": f"{WORDS[number % 9]} {number}", "edu": number / 2}
        for number in range(60)
    ]
    write(folder / f"a{end}", rows[:30])
    changed = [*rows[30:50], rows[50] | bad, *rows[51:]]
    return write(folder / f"b{end}", changed), rows


@pytest.mark.parametrize(
    ("end", "column", "line"),
    [(".jsonl", "id", 21), (".jsonl.gz", "id", 21), (".csv", "id", 22), (".csv", "edu", 22)],
)
def test_a_corrected_file_is_read_again(tmp_path, end, column, line):
    """The message has its line, which an editor shows; the same folder then plans."""
    path, rows = source(tmp_path / "source", end, **{column: ""})
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", finished.settings(tmp_path / "source"))
    assert f"{path}, line {line}, column {column}" in str(caught.value)
    assert "converted" not in str(caught.value)
    write(path, rows[30:])
    run = plan_run(tmp_path / "run", finished.settings(tmp_path / "source"))
    assert run.num_documents == 60
    other = plan_run(tmp_path / "other" / "run", finished.settings(tmp_path / "source"))
    assert contents(run.root / "converted") == contents(other.root / "converted")


def test_ids_that_are_not_unique_are_named_where_they_are(tmp_path):
    """Both files of the source, none of the run."""
    path, _ = source(tmp_path / "source", ".jsonl", id="n0")
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", finished.settings(tmp_path / "source"))
    assert str(path) in str(caught.value) and str(path.with_name("a.jsonl")) in str(caught.value)
    assert "converted" not in str(caught.value)


def test_rows_of_several_lines_and_blank_lines_are_found(tmp_path):
    """A cell of CSV with a line break, blank lines in JSON: the line is that of an editor."""
    (tmp_path / "csv").mkdir()
    texts = ["one\ntwo", "three", "four"]
    lines = "".join(f'{row},"{text}",1\n' for row, text in zip("ab", texts, strict=False))
    (tmp_path / "csv" / "a.csv").write_text(f'id,text,edu\n{lines}\n,"four",1\n')
    (tmp_path / "json").mkdir()
    rows = [{"id": "a", "text": "x", "edu": 1}, {"id": "", "text": "y", "edu": 2}]
    content = "\n\n\n".join(map(json.dumps, rows))
    (tmp_path / "json" / "a.jsonl").write_text(f"\n{content}\n")
    for name, line in (("csv", 6), ("json", 5)):
        with pytest.raises(InputError) as caught:
            plan_run(tmp_path / f"run-{name}", finished.settings(tmp_path / name))
        assert f", line {line}, column id" in str(caught.value), name


def test_a_run_made_from_another_extends_alone(tmp_path):
    """It writes nothing into the other run, which can be launched and deleted."""
    folder, one, two = tmp_path / "source", tmp_path / "one", tmp_path / "two"
    write(folder / "1.jsonl", records(1, 60))
    run = finished.finish(one, finished.settings(folder), "scores")
    before = {path: path.stat().st_mtime_ns for path in one.rglob("*") if path.is_file()}
    plan_run(two, None, origin=run)
    first = "converted/1.jsonl.parquet"
    assert os.path.samefile(one / first, two / first)
    write(folder / "2.jsonl", records(2, 60))
    grown = plan_run(two, None, extend=True)
    assert {Path(piece.path).parent for piece in grown.pieces} == {two / "converted"}
    assert {path: path.stat().st_mtime_ns for path in one.rglob("*") if path.is_file()} == before
    (folder / "2.jsonl").rename(tmp_path / "2.jsonl")
    assert plan_run(one, None).num_documents == 60
    shutil.rmtree(one)
    (tmp_path / "2.jsonl").rename(folder / "2.jsonl")
    assert plan_run(two, None).num_documents == 120
    assert pq.read_table(two / first).num_rows == 60

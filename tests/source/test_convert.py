"""JSON lines, CSV and Arrow files as sources, compared with Python's own readers."""

import gzip
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import InputError, RunError
from datamask.planning.plan import plan_run
from datamask.report.findings import findings_of
from datamask.runs.opening import run_storage
from datamask.source import formats
from datamask.source.convert import convert, source_files
from tests import finished
from tests.cli.commands import here
from tests.conftest import nightly
from tests.source.converting import Record, converted, flat, records, write

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def known(rows: list[Record]) -> list[Record]:
    """Rows without null values, which a column of another file may have added."""
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def test_rows_are_those_of_other_readers(tmp_path):
    """Order, values and types of JSON lines, compressed ones too, CSV and Arrow; the same bytes."""
    ends = (".jsonl", ".jsonl.gz", ".ndjson.zst", ".json.gz", ".csv", ".arrow")
    files = {f"{number}/part{end}": records(number, 50) for number, end in enumerate(ends)}
    for name, rows in files.items():
        if name.endswith(".csv"):
            rows[:] = [{key: row[key] for key in ("id", "text", "edu", "date")} for row in rows]
        write(tmp_path / "source" / name, rows)
    tables = converted(tmp_path / "source", tmp_path / "one")
    for rows, table in zip(files.values(), tables, strict=True):
        assert known(table.to_pylist()) == known([*map(flat, rows)])
        assert table.schema == tables[0].schema
    assert tables[0].schema.field("date").type == pa.string()
    converted(tmp_path / "source", tmp_path / "other", workers=3)
    for path in (tmp_path / "one" / "converted").glob("*.parquet"):
        assert path.read_bytes() == (tmp_path / "other" / "converted" / path.name).read_bytes()


@pytest.mark.parametrize("end", [".jsonl.zst", *nightly(".csv", ".arrow")])
def test_a_run_selects_the_same_as_from_parquet(tmp_path, end):
    """Documents are the same, and the column of a record within the record is a score."""
    rows = [{key: row[key] for key in ("id", "text", "edu")} for row in records(7, 120)]
    write(tmp_path / "source" / f"a{end}", rows[:70])
    write(tmp_path / "source" / f"b{end}", rows[70:])
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet" / "all.parquet")
    selected = []
    for folder in (tmp_path / "source", tmp_path / "parquet"):
        plan = {"rows_per_shard": 1000}
        chosen = finished.settings(folder, plan=plan, selection={"method": "top_quality"})
        run = finished.finish(tmp_path / f"run-{folder.name}", chosen, "subset")
        selected.append({row["id"] for row in pq.read_table(run.root / "subset").to_pylist()})
    assert len(selected[0]) == 30
    assert selected[0] == selected[1]


def test_all_files_of_known_formats_are_read_and_others_are_named(tmp_path, caplog):
    """Parquet beside JSON lines; a warning names the rest; datasets' .json files do not count."""
    rows = [{key: row[key] for key in ("id", "text", "edu")} for row in records(3, 60)]
    pq.write_table(pa.Table.from_pylist(rows[:25]), tmp_path / "a.parquet")
    write(tmp_path / "b.jsonl", rows[25:])
    (tmp_path / "notes.docx").write_text("x")
    (tmp_path / "dataset_info.json").write_text("{\n}")
    run = plan_run(tmp_path.parent / f"{tmp_path.name}-run", finished.settings(tmp_path))
    assert run.num_documents == 60
    assert "notes.docx" in caplog.text and "dataset_info.json" in caplog.text
    with pytest.raises(InputError) as caught:
        source_files(str(write(tmp_path / "only" / "notes.txt", rows).parent))
    assert "notes.txt" in str(caught.value)


def test_lone_surrogates_become_u_fffd(tmp_path):
    """In texts, ids and names, beside pairs and escaped backslashes, as Python reads these."""
    draw = random.Random(3)
    pieces = re.findall(r"\S+", r"\uD83d \ude00 \udBff \uDFFF \\ \n ud800 \u00e9 \/ é")
    texts = ["".join(draw.choices(pieces, k=8)) for _ in range(400)]
    lines = [f'{{"id": "{row}{text}", "k\\udc00": "{text}"}}' for row, text in enumerate(texts)]
    lines.insert(7, "{broken")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))

    def whole(text: str) -> str:
        return "".join("\ufffd" if "\ud800" <= sign <= "\udfff" else sign for sign in text)

    del lines[7]
    rows = [json.loads(line) for line in lines]
    source = Source(path=str(path), most_bad_lines=1)
    copies, pins = convert(str(path), [str(path)], source, run_storage(tmp_path), Compute())
    got = pq.read_table(copies[0]).to_pylist()
    assert got == [{whole(key): whole(value) for key, value in row.items()} for row in rows]
    lone = sum(len(re.findall("[\ud800-\udfff]", "".join([*row, *row.values()]))) for row in rows)
    assert pins["scores:lone_surrogates"] == str(lone) and pins["scores:bad_lines"] == "1"


def test_bad_lines_are_refused_or_counted(tmp_path):
    """File and line of the first one, before planning; with a bound they are left out."""
    path = write(tmp_path / "source" / "a.jsonl", records(4, 40))
    lines = path.read_bytes().splitlines()
    lines[7], lines[9], lines[20] = b'{"id": broken', b"", b"[1, 2]"
    lines[30] = lines[30].replace(b'"text": "', b'"text": "\\ud800 ')
    path.write_bytes(b"\n".join(lines))
    root = tmp_path / "run"
    with pytest.raises(InputError) as caught:
        plan_run(root, finished.settings(path.parent))
    assert "a.jsonl, line 8" in str(caught.value) and "\n" not in str(caught.value)
    assert not (root / "run.json").exists()
    bounded = {"path": str(path.parent), "most_bad_lines": 2}
    run = finished.finish(root, finished.settings(path.parent, source=bounded), "composition")
    assert run.num_documents == 37
    found = {finding.name: finding.text for finding in findings_of(run)}
    assert found["source"] == "2 lines were left out: they are not JSON."
    assert "1 lone surrogates" in found["characters"]


def test_ids_are_made_where_there_are_none(tmp_path):
    """File and row: unique for equal texts too, the same in every run, and said."""
    rows = [{"text": row["text"], "edu": row["edu"]} for row in records(5, 40)]
    write(tmp_path / "source" / "a.jsonl", rows)
    write(tmp_path / "source" / "b.jsonl", rows)
    chosen = finished.settings(tmp_path / "source", quality={"duplicates": "keep"})
    ids: list[list[str]] = []
    for name in ("one", "two"):
        run = finished.finish(tmp_path / name, chosen, "composition")
        copies = sorted((run.root / "converted").glob("*.parquet"))
        ids.append([name for path in copies for name in pq.read_table(path)["id"].to_pylist()])
    expected = [f"{name}.jsonl:{row}" for name in ("a", "b") for row in range(40)]
    assert ids == [expected, expected]
    assert "ids" in {finding.name for finding in findings_of(run)}


@pytest.mark.slow
def test_a_conversion_goes_on_and_changed_files_are_refused(tmp_path):
    """Only absent copies are made again; a touched file is the same; another content is refused."""
    folder, root = tmp_path / "source", tmp_path / "run"
    paths = [write(folder / f"{number}.jsonl", records(number, 60)) for number in (1, 2)]
    run = finished.finish(root, finished.settings(folder), "subset")
    before = [row["id"] for row in pq.read_table(run.root / "subset").to_pylist()]
    copies = sorted((root / "converted").glob("*.parquet"))
    times = [path.stat().st_mtime_ns for path in copies]
    written = copies[1].read_bytes()
    copies[1].unlink()
    os.utime(paths[0], ns=(1, 1))
    plan_run(root, None)
    assert copies[0].stat().st_mtime_ns == times[0]
    assert copies[1].read_bytes() == written
    write(folder / "3.jsonl", records(3, 60))
    assert here("rebuild", root) == 2
    assert here("extend", root) == 0
    assert {row["id"][:3] for row in pq.read_table(run.root / "subset").to_pylist()} == {
        "001",
        "002",
        "003",
    }
    assert before
    write(paths[0], records(9, 60))
    with pytest.raises(InputError) as caught:
        plan_run(root, None)
    # Nor are files named that were only not looked at.
    assert str(paths[0]) in str(caught.value) and len(caught.value.problems) == 1


@pytest.mark.parametrize("how", ["moved", "of a deleted run"])
def test_copies_are_in_the_folder_of_a_run_that_is_there(tmp_path, how):
    """A run that was moved, or that shares copies of a deleted one, keeps its shards and files."""
    write(tmp_path / "source" / "1.jsonl", records(1, 60))
    settings, old, root = finished.settings(tmp_path / "source"), tmp_path / "old", tmp_path / "new"
    run = finished.finish(old, settings, "scores")
    if how == "moved":
        old.rename(root)
    else:
        plan_run(root, None, origin=run)
        shutil.rmtree(old)
    now = plan_run(root, None)
    assert not old.exists()
    assert {Path(piece.path).parent for piece in now.pieces} == {root / "converted"}
    assert [piece.digest for piece in now.pieces] == [piece.digest for piece in run.pieces]
    assert not now.remaining("scores") or how != "moved"
    assert plan_run(root, None).pieces == now.pieces
    root.rename(old)
    write(tmp_path / "source" / "2.jsonl", records(2, 60))
    with pytest.raises(RunError) as caught:
        plan_run(old, None)
    assert "2.jsonl" in str(caught.value) and "1.jsonl" not in str(caught.value)


def test_a_type_that_does_not_fit_the_planned_ones_is_refused(tmp_path):
    """A file that is added later keeps to the columns and types of the first ones."""
    folder, root = tmp_path / "source", tmp_path / "run"
    rows = records(1, 60)
    write(folder / "1.jsonl", rows)
    finished.finish(root, finished.settings(folder), "scores")
    path = write(folder / "2.jsonl", [row | {"id": f"x{row['id']}", "edu": "high"} for row in rows])
    with pytest.raises(InputError) as caught:
        plan_run(root, None, extend=True)
    assert str(path) in str(caught.value) and "edu" in str(caught.value)
    assert "removed" not in str(caught.value)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    """Between the look and the conversion; no copy of it is left."""
    path = write(tmp_path / "source" / "a.jsonl", records(1, 20))
    whole = formats.read_records

    def replaced(*given: Any) -> Iterator[pa.RecordBatch]:
        write(path, records(2, 20))
        return whole(*given)

    monkeypatch.setattr(formats, "read_records", replaced)
    with pytest.raises(InputError) as caught:
        converted(path.parent, tmp_path / "run")
    assert str(path) in str(caught.value)
    assert not [*(tmp_path / "run").rglob("*.parquet")]


def test_files_at_a_url_are_converted(tmp_path):
    """Copied for the conversion, and nothing of them is left."""
    rows = records(6, 30)
    local = write(tmp_path / "a.jsonl.gz", rows)
    with fsspec.open("memory://source/a.jsonl.gz", "wb") as file:
        file.write(local.read_bytes())
    _, names = source_files("memory://source")
    path, where = "memory://source", run_storage(tmp_path / "run")
    [copy], _ = convert(path, names, Source(path=path), where, Compute())
    assert known(pq.read_table(copy).to_pylist()) == known([*map(flat, rows)])
    assert not (tmp_path / "run" / "tmp").exists()


def test_the_commands_of_a_user(tmp_path, capsys):
    """`init` looks at the first records, a dry run says what to do, `ingest` serves many runs.

    The settings of `init` hold for records without a score that it did not look at.
    """
    folder, pool, config = tmp_path / "source", tmp_path / "pool", tmp_path / "mine.yaml"
    write(folder / "a.jsonl.zst", records(1, 60))
    write(folder / "b.jsonl", [*records(2, 60), *(row | {"edu": None} for row in records(3, 3))])
    assert here("init", folder, "-o", config) == 0
    assert "metadata.url" in config.read_text() and "name: edu" in config.read_text()
    arguments = ("--config", config, "--dry-run", "--set", "embedding.method=lexical")
    arguments += ("--set", "embedding.dimension=32")
    assert here("plan", tmp_path / "run", *arguments) == 0, "a launch converts by itself"
    shown = capsys.readouterr()
    assert "datamask ingest" in shown.err and "refused" not in shown.out
    assert not (tmp_path / "run").exists()
    assert here("ingest", folder, pool) == 0
    times = [path.stat().st_mtime_ns for path in (pool / "converted").glob("*.parquet")]
    assert len(times) == 2
    assert here("ingest", folder, pool) == 0
    assert times == [path.stat().st_mtime_ns for path in (pool / "converted").glob("*.parquet")]
    arguments += ("--set", f"source.path={pool}/converted/*.parquet")
    assert here("plan", tmp_path / "run", *arguments) == 0

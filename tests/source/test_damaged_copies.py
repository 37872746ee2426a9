"""A flipped bit of a file that no stage writes: nothing is made from it, and `verify` finds it."""

import json
import random
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import CorruptFileError, DatamaskError, InputError, RunError
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.quality.labelling import append, read_journal, write_labels
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run, run_storage
from datamask.source.opening import open_parquet, open_text
from datamask.source.originals import NOTE
from tests import finished
from tests.faults.comparison import contents
from tests.source.converting import records, write

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def flip(path: Path, draw: random.Random) -> bytes:
    """Change one bit in a file; its whole content."""
    whole = path.read_bytes()
    data = bytearray(whole)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return whole


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, one of JSON lines and one of CSV."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [{key: row[key] for key in ("id", "text", "edu")} for row in records(1, 60)]
    write(folder / "a.jsonl", rows[:30])
    write(folder / "b.csv", rows[30:])
    return folder


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of a run to compare with."""
    root = tmp_path_factory.mktemp("whole") / "run"
    finished.finish(root, finished.settings(source), "subset")
    return contents(root / "subset")


@pytest.mark.parametrize("name", ["a.jsonl", "b.csv", "files.json"])
def test_nothing_is_made_from_a_damaged_copy(source, undisturbed, tmp_path, name):
    """A bit flips after planning; launches end with the subset of an undisturbed run."""
    root = tmp_path / "run"
    damaged = root / (NOTE if name == "files.json" else f"converted/{name}.parquet")
    plan_run(root, finished.settings(source))
    flip(damaged, random.Random(name))
    told = []
    while len(told) < 2:
        try:
            finished.finish(root, finished.settings(source), "subset")
            break
        except DatamaskError as error:
            told.append(error)
    assert len(told) == 1 and str(damaged) in str(told[0])
    assert contents(root / "subset") == undisturbed


def test_no_bit_of_a_copy_may_change(source, tmp_path):
    """Wherever it is: headers of pages, which have no checksum in Parquet, too."""
    run = plan_run(tmp_path / "run", finished.settings(source))
    piece = run.pieces[0]
    path = Path(piece.path)
    for seed in range(8):
        whole = flip(path, random.Random(seed))
        refused = pytest.raises((CorruptFileError, InputError))
        with refused, open_parquet(piece.path, 0, piece.digest) as file:
            list(file.iter_batches())
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.corrupt").unlink(missing_ok=True)
        path.write_bytes(whole)
    with open_parquet(piece.path, 0, piece.digest) as file:
        assert sum(len(batch) for batch in file.iter_batches()) == 30


@pytest.mark.parametrize("from_end", [1, 6, 30, 200, 700])
def test_a_damaged_footer_is_a_damaged_copy(source, tmp_path, from_end):
    """Not a source that has changed, which a user would have to restore; launches repair it."""
    run = plan_run(tmp_path / "run", finished.settings(source))
    path = run.root / "converted/a.jsonl.parquet"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[-from_end] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptFileError):
        plan_run(run.root, None)
    plan_run(run.root, None)
    assert path.read_bytes() == whole


def test_verify_reads_what_no_stage_writes(source, tmp_path):
    """Copies, their note and labels are set aside; a launch makes the copies again."""
    root = tmp_path / "run"
    run = finished.finish(root, finished.settings(source), "scores")
    labels = root / "labels" / "mine" / "labels.jsonl"
    write_labels(labels, {f"{number:03d}": {"grade": 3} for number in range(50)}, run.storage)
    read = verify(run).files
    assert verify(run).corrupt == ()
    harmed = [labels, root / NOTE, *sorted((root / "converted").glob("*.parquet"))]
    before = {path: flip(path, random.Random(str(path.name))) for path in harmed}
    found = verify(run)
    assert found.files == read
    assert {name for name, _ in found.corrupt} == {
        path.relative_to(root).as_posix() for path in harmed
    }
    plan_run(root, None)
    assert {path: path.read_bytes() for path in harmed[2:]} == {
        path: before[path] for path in harmed[2:]
    }
    assert verify(open_run(root)).corrupt == ()


@pytest.mark.parametrize("name", ["converted/a.jsonl.parquet", NOTE])
def test_a_folder_in_place_of_a_copy_is_named(source, tmp_path, name):
    """In one line, and a launch without it makes the copy again."""
    run = plan_run(tmp_path / "run", finished.settings(source))
    path = run.root / name
    whole = path.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match=f"^{path}: a folder is in the place"):
        plan_run(run.root, None)
    path.rmdir()
    plan_run(run.root, None)
    assert path.read_bytes() == whole


def test_damaged_labels_are_not_read(tmp_path):
    """Neither the file for a score, in which a grade is another, nor a line of the journal."""
    storage = run_storage(tmp_path / "run")
    labels = storage.root / "labels" / "mine" / "labels.jsonl"
    write_labels(labels, {"a": {"grade": 3}, "b": {"grade": 4}}, storage)
    labels.write_text(labels.read_text().replace("3", "2"))
    with pytest.raises(CorruptFileError) as caught, open_text(str(labels)) as file:
        file.read()
    assert str(labels) in str(caught.value)
    journal = tmp_path / "journal.jsonl"
    lines = [{"id": "é", "key": "3"}, {"id": "b", "key": "4"}]
    for line in lines:
        append(journal, line)
    assert read_journal(journal) == lines
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text(journal.read_text().replace('"key": "4"', '"key": "5"'))
    with pytest.raises(InputError) as wrong:
        read_journal(journal)
    assert f"{journal}, row 1" in str(wrong.value)
    assert all(line["digest"] for line in told)


def test_pages_of_a_remote_copy_have_checksums(tmp_path):
    """Where the whole file is not read, the pages that are read are compared."""
    table = pa.table({"text": [f"text {number}" for number in range(500)]})
    write_parquet(tmp_path / "a.parquet", table.schema, [table], compression="none")
    data = (tmp_path / "a.parquet").read_bytes()
    assert data.count(b"text 77") == 1
    with fsspec.open("memory://copies/a.parquet", "wb") as file:
        file.write(data.replace(b"text 77", b"text 78"))
    refused = pytest.raises(InputError, match=r"copies/a\.parquet")
    with refused, open_parquet("memory://copies/a.parquet") as file:
        list(file.iter_batches())
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 500

"""Every byte of a run is checked, and what is corrupt is made again as it was."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from datamask.errors import CorruptFileError
from datamask.execution.pipeline import rebuild
from datamask.execution.verification import verify
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests import finished
from tests.cli.commands import here

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("verify")
    source = finished.corpus(folder / "source")
    to = {"publication": {"license": "mit", "dry_run": True}}
    return rebuild(folder / "run", finished.settings(source, **to)).root


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Run:
    """A copy of it, links and all."""
    subprocess.run(["cp", "-a", original, tmp_path / "run"], check=True)
    return open_run(tmp_path / "run")


def outputs(run: Run) -> dict[str, bytes]:
    """Files that must come out the same: all with a checksum, except files with durations."""
    timed = ("composition.duckdb", "report.html")
    names = (name for name in checksums(run) if not name.startswith(timed))
    return {name: (run.root / name).read_bytes() for name in names}


def checksums(run: Run) -> dict[str, str]:
    """The SHA-256 on record, by the name of the file."""
    records = [json.loads(p.read_text()) for p in sorted((run.root / "records").rglob("*.json"))]
    return {n: sha256 for record in records for n, sha256 in record.get("sha256", {}).items()}


def flip(path: Path, place: float) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[min(int(place * len(data)), len(data) - 1)] ^= 1
    path.write_bytes(data)


def test_checksums_are_those_of_sha256sum(run):
    """Another program agrees on every file, and every output has one."""
    sums = checksums(run)
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sums.items())
    command = ["sha256sum", "--check", "--quiet"]
    subprocess.run(command, input=lines, text=True, cwd=run.root, check=True)
    assert verify(run).corrupt == ()
    # The card's checksum is in published.json, as those of all published files.
    assert verify(run).files == len(sums) + 1
    for stage in ("scores", "quality", "embeddings", "selection", "subset"):
        named = {name for name in sums if name.startswith(f"{stage}/")}
        assert named == {f"{stage}/{path.name}" for path in (run.root / stage).iterdir()}, stage


@pytest.mark.parametrize(
    "places", [{"plan.parquet": 0.02}, {"selection/00001.parquet": 0.5, "report.html": 0.999}]
)
def test_flipped_bits_are_found_and_repaired(run, places):
    """Remade files equal the lost ones; test_damage.py and the campaign flip bytes of all."""
    before = outputs(run)
    for name, place in places.items():
        flip(run.root / name, place)
    assert [name for name, _ in verify(run).corrupt] == [*places]
    assert all((run.root / f"{name}.corrupt").exists() for name in places)
    rebuild(run.root)
    assert outputs(open_run(run.root)) == before
    assert verify(open_run(run.root)).corrupt == ()


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_damaged_file_of_the_subset_is_all_that_is_made_again(run, is_verified):
    """The publication is whole again too, and published.json is left alone."""

    def stamps() -> dict[str, int]:
        """The inode of every file but records and links."""
        inside = (path for path in run.root.rglob("*") if path.is_file())
        names = {str(path.relative_to(run.root)): path.stat().st_ino for path in inside}
        left_out = ("records/", "logs/", "locks/", "publication/")
        return {name: inode for name, inode in names.items() if not name.startswith(left_out)}

    def published() -> dict[str, bytes]:
        folder = run.root / "publication"
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    name = "subset/train-00001-of-00002.parquet"
    before, content = stamps(), published()
    # In place, as a failing disk does it: whatever shares the inode is damaged too.
    with (run.root / name).open("rb+") as file:
        file.truncate(3000)
    if is_verified:
        verify(run)
    rebuild(run.root)
    after = stamps()
    assert {file for file in before if after.get(file) != before[file]} == {name}
    assert published() == content


def test_damage_of_a_run_that_one_may_only_read_is_reported(run, monkeypatch):
    """All of it, and the run stays as it is, locks included."""
    names = ["quality/00001.parquet", "selection/00001.parquet"]
    for name in names:
        flip(run.root / name, 0.5)
    (run.root / "locks").mkdir(exist_ok=True)
    (run.root / "locks").rmdir()
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    monkeypatch.setattr(os, "access", lambda path, mode: path != run.root)
    checked = verify(run)
    assert ([name for name, _ in checked.corrupt], checked.may_write) == (names, False)
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


def test_a_file_without_checksum_is_not_trusted(run):
    """Nobody knows what was written."""
    record = run.root / "records" / "selection" / "00001.parquet.json"
    record.write_text(record.read_text().replace("selection/00001", "selection/00002"))
    assert verify(run).corrupt == (("selection/00001.parquet", "its checksum is missing"),)


def test_no_bit_of_the_plan_may_change(run):
    """Its footer too, where Parquet keeps no checksum: nobody works by such a plan."""
    path = run.root / "plan.parquet"
    whole = path.read_bytes()
    for place in range(0, len(whole), 1009):
        flip(path, place / len(whole))
        with pytest.raises(CorruptFileError, match=r"plan\.parquet: damaged"):
            open_run(run.root).num_units("subset")
        path.write_bytes(whole)
    assert open_run(run.root).num_units("subset") > 0


def test_the_command_names_what_is_corrupt_and_what_to_do(run, capsys):
    """Exit 0 when all is well; otherwise the files, and the command that fixes them."""
    assert here("verify", run.root) == 0
    assert capsys.readouterr().out.rstrip().endswith("0 corrupt")
    flip(run.path("selection", 2), 0.5)
    assert here("verify", run.root) == 2
    ill = capsys.readouterr()
    assert f"{run.path('selection', 2)}: SHA-256 is" in ill.out
    assert f"`datamask rebuild {run.root}` to compute them again" in ill.err
    assert here("status", run.root, "--shards") == 0
    left = capsys.readouterr().out.splitlines()
    heads = ["shard", "scores", "quality", "embeddings", "selection", "outcome"]
    assert left[0].split() == [*heads, "documents"]
    assert left[1].split() == ["00002", *["done"] * 3, "missing", "done", "done"]
    assert [line.split()[0] for line in left[2:]] == ["00000", "00001"]

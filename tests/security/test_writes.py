"""Every path below a run that a command writes has been checked by `names.inside`.

The interpreter reports each file that it opens for writing, and each rename, link and deletion. So
the test needs no list of files.
"""

import contextlib
import os
import pty
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest

from datamask.cli.main import cli
from datamask.cli.options import RunPlace
from datamask.execution.pipeline import rebuild
from datamask.runs import checkpoints
from datamask.storage import names
from datamask.storage.temporary import FOLDER
from tests import finished
from tests.malformed.commands import run_main
from tests.quality.endpoint import KEY, RUBRIC, endpoint

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PLACES = {
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.remove": (0,),
    "os.mkdir": (0,),
    "os.chmod": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}
"""Events of the interpreter, and which of their arguments are paths that change."""

_written: list[str] = []
_is_watching = False


def _watch(event: str, given: tuple[Any, ...]) -> None:
    if not _is_watching:
        return
    places = PLACES.get(event, ())
    if event == "open" and isinstance(given[2], int) and given[2] & WRITING:
        places = (0,)
    _written.extend(os.fsdecode(given[n]) for n in places if not isinstance(given[n], int))


sys.addaudithook(_watch)


@contextlib.contextmanager
def watching(patch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Record written paths and checks: yields the paths that `inside` has returned."""
    global _is_watching
    checked: set[str] = set()
    real = names.inside

    def noted(root: Path, name: str) -> Path:
        path = real(root, name)
        checked.add(os.path.abspath(path))
        return path

    for module in list(sys.modules.values()):
        if module.__dict__.get("inside") is real:
            patch.setattr(module, "inside", noted)
    _written.clear()
    _is_watching = True
    try:
        yield checked
    finally:
        _is_watching = False
        for module in list(sys.modules.values()):
            if module.__dict__.get("inside") is noted:  # Also one that was imported meanwhile.
                module.__dict__["inside"] = real


def is_checked(path: str, run: Path, checked: set[str]) -> bool:
    """Return True if a path was checked, is above one, or in this test's temporary folder."""
    temporary = Path(path).relative_to(run).parts[:2]
    if temporary[0] == FOLDER and len(temporary) == 2:
        return str(run.joinpath(*temporary)).removesuffix(".lock") in checked
    home = next((str(p) for p in Path(path).parents if str(p) in checked and p.is_dir()), None)
    is_new_name = ".tmp" in Path(path).suffixes  # beside a checked path, with a random name
    above = any(other.startswith(f"{path}/") for other in checked)
    return path in checked or above or (is_new_name and home is not None)


def rubric(folder: Path, url: str) -> list[str]:
    """Options of `label` for an endpoint."""
    (folder / "rubric.yaml").write_text(RUBRIC)
    return ["--rubric", str(folder / "rubric.yaml"), "--endpoint", url, "--texts", "5"]


COMMANDS: dict[str, Callable[[str, Path, str], list[str]]] = {
    "rebuild": lambda run, place, url: ["rebuild", run, "--set", "selection.steps=5"],
    "rebuild --from": lambda run, place, url: ["rebuild", f"{place}/other", "--from", run],
    "extend": lambda run, place, url: ["extend", run],
    "rerun-failed": lambda run, place, url: ["rerun-failed", run],
    "plan": lambda run, place, url: ["plan", run],
    "ingest": lambda run, place, url: ["ingest", f"{place}/lines.jsonl", f"{place}/ingested"],
    "report": lambda run, place, url: ["report", run],
    "apply": lambda run, place, url: [
        *("apply", run, f"{place}/applied"),
        *("--set", f"source.path={place}/new"),
    ],
    "verify": lambda run, place, url: ["verify", run],
    "status": lambda run, place, url: ["status", run],
    "compare": lambda run, place, url: [
        "compare",
        run,
        f"{place}/other",
        "--output",
        f"{place}/c.html",
    ],
    "query": lambda run, place, url: ["query", run, "SELECT count(*) FROM documents"],
    "label": lambda run, place, url: ["label", run, *rubric(place, url)],
    "label by hand": lambda run, place, url: ["label", run, "--texts", "5"],
    "open": lambda run, place, url: ["open", run],
}
"""One call of each command, or two, by its name."""

ELSEWHERE = {"evaluate", "sweep", "seen"}
"""Commands that write outputs of stages as `rebuild` does, or only outside of runs."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and a finished run that has published into a folder."""
    place = tmp_path_factory.mktemp("made")
    source = finished.corpus(place / "source")
    chosen = finished.settings(source, publication={"dry_run": True, "license": "mit"})
    rebuild(place / "run", chosen)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run; its source has one more file."""
    for name in ("run", "other"):
        shutil.copytree(made / "run", tmp_path / name, symlinks=True)
    shutil.copytree(made / "source", tmp_path / "new")
    (tmp_path / "lines.jsonl").write_text('{"id": "a", "text": "b"}\n')
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    return tmp_path


def test_every_command_of_a_run_is_walked():
    """A new command that takes a run must be called here, or listed as one that writes nothing."""
    of_runs = {
        name
        for name, command in cli.commands.items()
        if not isinstance(command, click.Group)
        and any(isinstance(given.type, RunPlace) for given in command.params)
    }
    assert of_runs <= {name.split()[0] for name in COMMANDS} | ELSEWHERE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_writes_below_a_run_only_what_was_checked(name, place, made, monkeypatch):
    """Each path that the interpreter reports, of the run and of runs made from it."""
    run = place / "run"
    if name == "verify":
        spoilt = run / "selection/00000.parquet"
        spoilt.write_bytes(spoilt.read_bytes()[:-1])
    ours, theirs = pty.openpty()
    os.write(ours, b"0123q")
    added = made / "source/9.parquet"
    if name == "extend":
        table = pq.read_table(made / "source/0.parquet")
        ids = [f"9-{row}" for row in range(table.num_rows)]
        pq.write_table(table.set_column(0, "id", [ids]), added)
    try:
        with (
            endpoint() as stub,
            open(theirs, closefd=False) as terminal,
            watching(monkeypatch) as checked,
        ):
            monkeypatch.setattr(sys, "stdin", terminal)
            status = run_main(["-q", *COMMANDS[name](str(run), place, stub.url)])
    finally:
        added.unlink(missing_ok=True)
        os.close(ours)
        os.close(theirs)
    assert status == (2 if name == "verify" else 0)
    runs = [folder for folder in place.iterdir() if folder.is_dir() and folder.name != "new"]
    written = {
        (folder, path)
        for folder in runs
        for path in map(os.path.abspath, _written)
        if Path(path).is_relative_to(folder) and Path(path) != folder
    }
    assert written or name in ("status", "compare", "query", "open")
    unchecked = sorted(path for folder, path in written if not is_checked(path, folder, checked))
    assert not unchecked


@pytest.mark.parametrize("name", ["status", "verify", "rebuild", "report", "label", "plan"])
@pytest.mark.parametrize("file", ["selection/00001.parquet", "run.json", "records", "locks/x"])
def test_a_pipe_in_the_place_of_a_file_ends_no_command(name, file, place, capsys):
    """And a socket: reading one never ends. Whoever needs the file refuses in one line."""
    path = place / "run" / file
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if file == "run.json":
        with contextlib.chdir(path.parent):  # the name of a socket is short
            socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        os.mkfifo(path)
    status = run_main(["-q", *COMMANDS[name](str(place / "run"), place, "http://127.0.0.1:1/v1")])
    said = capsys.readouterr().err
    assert status in (0, 2, 75) and (status != 2 or str(path) in said), said
    needed = file == "run.json" or (file, name) in (
        *(("records", command) for command in ("verify", "rebuild")),
        *(("selection/00001.parquet", command) for command in ("status", "verify", "rebuild")),
    )
    assert status == 2 or not needed


def test_a_pipe_in_a_source_is_refused(tmp_path, capsys):
    """Parquet and JSON lines."""
    for suffix in ("parquet", "jsonl"):
        source = finished.corpus(tmp_path / suffix)
        os.mkfifo(source / f"more.{suffix}")
        command = ["-q", "plan", str(tmp_path / "run"), "--set", f"source.path={source}"]
        assert run_main(command) == 2
        assert f"more.{suffix}: a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["run.json", "published.json", "mask_model/model.json"])
def test_brackets_without_end_are_a_damaged_file(file, place, capsys):
    """Deeper than Python's parser goes: no traceback, and no bug of ours."""
    (place / "run" / file).write_text("[" * 200_000)
    for name in ("status", "verify", "rebuild", "apply"):
        command = COMMANDS[name](str(place / "run"), place, "")
        assert run_main(["-q", *command]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err


def test_labels_follow_no_link_out_of_a_run(place, capsys):
    """The journal is cut to whole lines when it is read: not a file of the user's."""
    thesis = place / "thesis.txt"
    thesis.write_text("the only copy, without a line break")
    journal = place / "run/labels/labels/journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.symlink_to(thesis)
    status = run_main(["-q", "label", str(place / "run"), "--endpoint", "http://127.0.0.1:1/v1"])
    assert thesis.read_text() == "the only copy, without a line break"
    assert status == 2 and str(journal) in capsys.readouterr().err

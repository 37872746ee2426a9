"""Run folders, plans and outputs that are misplaced, damaged or changed are refused or named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.malformed.commands import assert_refused, run_main
from tests.malformed.inputs import (
    LINES,
    ROWS,
    Cases,
    Make,
    arguments,
    corpus,
    rebuild,
    sets,
)


def after_planning(
    spoil: Callable[[Path], object], *, command: str = "rebuild", **settings: str | int
) -> Make:
    """A planned run, then something happens, then a command."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        assert run_main(["-q", "plan", *rebuild(folder)[1:]]) == 0
        spoil(folder)
        if command == "rebuild":
            named = {
                key: str(value).replace("HERE", str(folder)) for key, value in settings.items()
            }
            return rebuild(folder, **named)
        return [command, str(folder / "run")]

    return make


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """The bytes of a file changed."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def other_texts(folder: Path) -> None:
    """The source written again with other texts."""
    shutil.rmtree(folder / "source")
    corpus(folder / "source", text=["other"] * ROWS)


RUNS: Cases = {
    "run's name that is not UTF-8": (
        arguments("rebuild", "HERE/caf\udce9", *sets(source__path="HERE/source")),
        "caf\\udce9: its name is not UTF-8 in this locale; rename it",
    ),
    "planned run that a pattern of scores covers": (
        after_planning(
            lambda folder: (folder / "s.csv").write_text("id,score\n" + LINES),
            quality__scores="[{name: edu, kind: file, path: 'HERE/**/*.*'}]",
        ),
        "run: inside quality.scores.0.path (",
    ),
    "run that is a file": (
        arguments("rebuild", "HERE/source/0.parquet", *sets(source__path="HERE/source")),
        "0.parquet is a file; name a folder",
    ),
    "source that changed": (after_planning(other_texts), "1.parquet has changed; restore it, or"),
    "file that went": (
        after_planning(lambda folder: (folder / "source/1.parquet").unlink()),
        "1.parquet was removed; restore it",
    ),
    "another cut": (
        after_planning(lambda folder: None, plan__rows_per_shard=5),
        "planned with another plan.rows_per_shard (8, now 5); set it back, or use another folder",
    ),
    "scores that are missing from a planned run": (
        after_planning(
            lambda folder: (folder / "s.csv").write_text("id,score\n0-0,1\n"),
            quality__scores="[{name: edu, kind: file, path: HERE/s.csv}]",
        ),
        "0.parquet, row 1, column edu: score missing, NaN or infinite in 15 documents",
    ),
    "run.json changed by hand": (
        after_planning(edit("run/run.json", lambda data: data.replace(b"0.25", b"0.26"))),
        "run.json: not as datamask wrote it (changed by hand or damaged)",
    ),
    "no plan": (
        after_planning(lambda folder: (folder / "run/plan.parquet").unlink(), command="status"),
        "no plan yet; run `datamask plan",
    ),
    "plan of other bytes": (
        after_planning(
            edit("run/plan.parquet", lambda d: d[:20] + b"x" + d[21:]), command="verify"
        ),
        "run: 1 corrupt files were renamed to *.corrupt; run `datamask rebuild",
    ),
    "status of no run": (arguments("status", "HERE/none"), "none: no run here (run.json is"),
}


@pytest.mark.parametrize("name", RUNS)
def test_bad_input_gets_one_line(name, tmp_path, capsys):
    """Places for a run that cannot be used, and planned runs whose files or input changed."""
    assert_refused(RUNS[name], tmp_path, capsys)

"""Runs `datamask` in this process, and checks that it refuses an input in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest

from datamask.cli import main

LATE = frozenset({"embeddings", "selection", "subset"})
"""The outputs of stages that no bad input may reach."""


def run_main(given: list[str]) -> int:
    """Run `datamask` with these arguments in this process, and return its exit status."""
    before = sys.argv
    sys.argv = ["datamask", *given]
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def problems(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on standard error, each of them a problem."""
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("datamask: ") for line in lines), lines
    return lines


def assert_refused(
    case: tuple[Any, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    late: frozenset[str] = LATE,
) -> None:
    """One line that names place and remedy, status 2, and no output named in *late*."""
    make, *fragments = case
    command = make(folder)
    capsys.readouterr()
    status = run_main(["-q", *command])
    lines = problems(capsys)
    assert (status, len(lines)) == (2, 1), (status, lines)
    for fragment in fragments:
        assert fragment in lines[0], (fragment, lines[0])
    assert not late & {path.name for path in (folder / "run").glob("*")}

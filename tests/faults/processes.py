"""Commands in process groups of their own, ended with all their children if they do not end."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

MOST_SECONDS = 3600
"""Of one command: hundreds of times what a case takes, because a busy machine is slow."""

OFTEN = (
    "from datamask.runs import checkpoints; checkpoints.SECONDS = 0; "
    "from datamask.cli.main import main; main()"
)
"""The command with a checkpoint at every step. What it makes is what workers of a server make."""


def start(*arguments: str, python: tuple[str, ...] = (), **environment: str) -> subprocess.Popen:
    """Start `datamask` with these arguments; *python* replaces `-c OFTEN`."""
    return subprocess.Popen(
        [sys.executable, *(python or ("-c", OFTEN)), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def complete(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; its exit status and all it said.

    Raises:
        RuntimeError: it was ended, with its children, because its time was over.
    """
    try:
        said, _ = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        said = end(process)
        raise RuntimeError(f"no end after {MOST_SECONDS} s: {said[-2000:]}") from None
    return process.returncode, said


def end(process: subprocess.Popen[str]) -> str:
    """Kill a process with its children; what it said."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]

"""Commands in process groups of their own, ended with all their children if they make no progress.

A busy machine makes every command slow, so patience is not measured by the clock: a command may use
so much time of the processors, and may be idle for so long.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

MOST_SECONDS = 300
"""Processor time of one command with its children: twenty times what a case takes."""

MOST_IDLE_SECONDS = 120
"""Time of the clock without any use of a processor: longer than every wait between two attempts."""

POLL_SECONDS = 5


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
    used, changed = 0.0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=POLL_SECONDS)
            return process.returncode, said
        now = processor_seconds(process.pid)
        if now != used:
            used, changed = now, time.monotonic()
        idle = time.monotonic() - changed
        if used > MOST_SECONDS or idle > MOST_IDLE_SECONDS:
            said = end(process)
            raise RuntimeError(
                f"no end after {used:.0f} s of processors and {idle:.0f} s idle: {said[-2000:]}"
            )


def end(process: subprocess.Popen[str]) -> str:
    """Kill a process with its children; what it said."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def processor_seconds(group: int) -> float:
    """Processor time of the living processes of a group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain spaces.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

"""Runs `datamask` commands as processes that can be stopped between two steps.

A script of its own, because it forks: a process that has imported everything and done nothing
answers in milliseconds what a new interpreter answers in seconds. A step is a lock that is asked
for, a file that is moved into place, or a reading of run.json; a command stops right before one.

A line of JSON on standard input names a command, the step before which it is to stop, and another
command that runs in that gap, to its end or until it waits for a lock. A line of JSON on standard
output says how both ended.
"""

import contextlib
import fcntl
import importlib
import io
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

SECONDS = 120
"""After so long a command hangs."""


class Command:
    """A command in a process of its own.

    Args:
        arguments: of `datamask`.
        stop: the step before which it stops, by its number, or the first of a name; None: it
            never does.
    """

    def __init__(self, arguments: list[str], stop: int | str | None) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        news, tell = os.pipe()
        wait, self.let_go = os.pipe()
        self.news = news
        self.heard = b""
        self.steps: list[str] = []
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            os.close(wait)
            return
        _work(arguments, stop, self.output.fileno(), tell, wait)

    def follow(self, *until: str) -> str:
        """Wait until it says one of these words, or has ended; which, or `end`."""
        deadline = time.monotonic() + SECONDS
        while True:
            while b"\n" in self.heard:
                line, _, self.heard = self.heard.partition(b"\n")
                word, _, rest = line.decode().partition(" ")
                if word == "step":
                    self.steps.append(rest)
                if word in until:
                    return word
            if not select.select([self.news], [], [], max(0, deadline - time.monotonic()))[0]:
                break
            heard = os.read(self.news, 4096)
            if not heard:
                _, status = os.waitpid(self.pid, 0)
                self.status = os.waitstatus_to_exitcode(status)
                return "end"
            self.heard += heard
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.status = -1
        return "end"

    def go_on(self) -> None:
        """Let it go on after a stop."""
        os.write(self.let_go, b"x")

    def result(self) -> dict[str, Any]:
        """Return how it ended."""
        self.output.seek(0)
        output = self.output.read().decode(errors="replace")
        self.output.close()
        os.close(self.news)
        os.close(self.let_go)
        return {"status": self.status, "output": output, "steps": self.steps}


def _work(arguments: list[str], stop: int | str | None, output: int, tell: int, wait: int) -> None:
    """The child's side: never returns."""
    import datamask.cli.main
    import datamask.storage.file_locks

    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0), write_through=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", 0), write_through=True)
    number = 0

    def step(kind: str, place: str) -> None:
        nonlocal number, stop
        os.write(tell, f"step {kind} {place}\n".encode())
        if stop in (number, f"{kind} {place}"):
            stop = None
            os.write(tell, b"stopped\n")
            os.read(wait, 1)
        number += 1

    flock, replace, read_text = fcntl.flock, os.replace, Path.read_text

    def locked(handle: int, operation: int) -> None:
        with contextlib.suppress(OSError):
            step("lock", Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        flock(handle, operation)

    def replaced(source: Any, target: Any, **options: Any) -> None:
        step("rename", "/".join(Path(target).parts[-2:]))
        replace(source, target, **options)

    def read(path: Path, *more: Any, **options: Any) -> str:
        if path.name == "run.json":
            step("read", path.name)
        return read_text(path, *more, **options)

    def paused(seconds: float) -> None:
        os.write(tell, b"waiting\n")
        pause(seconds)

    fcntl.flock, os.replace, Path.read_text = locked, replaced, read  # type: ignore[assignment]
    pause, datamask.storage.file_locks.pause = datamask.storage.file_locks.pause, paused
    sys.argv = ["datamask", *arguments]
    status = 0
    try:
        datamask.cli.main.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run a command, and another in the gap before one of its steps."""
    first = Command(request["first"], request.get("stop"))
    stopped = first.follow("stopped") == "stopped"
    answer: dict[str, Any] = {"stopped": stopped, "waited": False}
    if stopped:
        second = Command(request["second"], None)
        answer["waited"] = second.follow("waiting") == "waiting"
        first.go_on()
        first.follow()
        if second.status is None:
            second.follow()
        answer["second"] = second.result()
    answer["first"] = first.result()
    return answer


def warm() -> None:
    """Import what commands import, draw no charts, measure roughly: they cost, and lock nothing."""
    from datamask.runs.stages import STAGES

    for stage in STAGES.values():
        importlib.import_module(stage.work.partition(":")[0])
    more = ("planning.plan", "report.page", "execution.verification")
    for name in (*(f"datamask.{name}" for name in more), "duckdb", "sklearn"):
        importlib.import_module(name)
    sys.modules["datamask.learning.scales"].MOST_SUBSETS = 4  # type: ignore[attr-defined]
    page: Any = sys.modules["datamask.report.page"]
    page.write_pictures = lambda *given: None
    page.svg = lambda *given, **how: "<svg></svg>"


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may speak there
    warm()
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()

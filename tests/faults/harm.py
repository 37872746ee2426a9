"""The faults: each starts or takes a run in a folder, does harm to it, and leaves it so.

Every choice (which shard, which moment, which byte) comes from the generator that is given.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 120
OUTPUTS = ("file_scores", "scores", "screening", "combined", "similar_pairs")
OUTPUTS += ("quality", "embeddings", "selection", "subset", "documents")
SINGLE_OUTPUTS = (
    "near_duplicates.parquet",
    "pruning.parquet",
    "plan.parquet",
    "benchmark_ngrams.parquet",
    "earlier_signatures.parquet",
)
SINGLE_OUTPUTS += ("composition.duckdb", "report.html", "published.json")


@dataclass(frozen=True, slots=True)
class Case:
    """One undisturbed run to compare with, and how it was made.

    Args:
        config: the settings' file.
        reference: the folder of the undisturbed run.
        seconds: what that took.
    """

    config: Path
    reference: Path
    seconds: float


def rebuild(case: Case, root: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    """Start `datamask rebuild` in a process group of its own."""
    return _start("rebuild", str(root), "--config", str(case.config), *more, **environment)


def extend(root: Path) -> subprocess.Popen[str]:
    """Start `datamask extend` in a process group of its own."""
    return _start("extend", str(root))


def _start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "datamask.cli.main", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def complete(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; its exit status and all it said."""
    told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, told


def outputs(root: Path) -> list[Path]:
    """The output files that are there."""
    found = [path for stage in OUTPUTS for path in sorted((root / stage).glob("[!.]*.parquet"))]
    return found + [root / name for name in SINGLE_OUTPUTS if (root / name).exists()]


def wait_for_output(
    root: Path, number: int, alive: Callable[[], bool], generator: random.Random
) -> bool:
    """Wait until so many outputs are there, and a random moment more; False if the run ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(outputs(root)) < number:
        if not alive() or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    time.sleep(generator.uniform(0, 0.1))
    return alive()


def kill_process(case: Case, root: Path, generator: random.Random) -> str:
    """SIGKILL at a random moment: of all stages by outputs, now and then while it still starts."""
    workers = generator.choice((1, 4))
    while True:
        process = rebuild(case, root, "--set", f"compute.workers={workers}")
        if generator.random() < 0.2:
            time.sleep(generator.uniform(0.1, case.seconds))
        else:
            number = generator.randrange(len(outputs(case.reference)))
            wait_for_output(root, number, lambda: process.poll() is None, generator)  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            return f"killed after {len(outputs(root))} outputs, {workers} workers"
        shutil.rmtree(root, ignore_errors=True)


def kill_extension(case: Case, root: Path, generator: random.Random) -> str:
    """A run of the first half of the files is extended, and killed when its plan has grown."""
    corpus, later = case.config.parent / "corpus", case.config.parent / "later"
    files = sorted(corpus.iterdir())
    added = files[len(files) // 2 :]
    while True:
        later.mkdir()
        for file in added:
            file.rename(later / file.name)
        try:
            status, told = complete(rebuild(case, root))
        finally:
            for file in added:
                (later / file.name).rename(file)
            later.rmdir()
        if status:
            raise RuntimeError(told)
        planned = (root / "plan.parquet").stat().st_mtime_ns
        process = extend(root)
        # Before that, the run is still the smaller one, and done.
        while process.poll() is None and (root / "plan.parquet").stat().st_mtime_ns == planned:
            time.sleep(0.002)
        time.sleep(generator.uniform(0, case.seconds))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            return f"killed while {len(added)} files were added"
        shutil.rmtree(root)


def kill_and_cut(case: Case, root: Path, generator: random.Random) -> str:
    """SIGKILL, and the newest output is cut short, as a power failure leaves it."""
    told = kill_process(case, root, generator)
    there = outputs(root)
    if there:
        newest = max(there, key=lambda path: path.stat().st_mtime_ns)
        _cut(newest, generator)
        told += f", {newest.relative_to(root)} cut"
    return told


def cut_output(case: Case, root: Path, generator: random.Random) -> str:
    """An output of a finished run loses its end."""
    _copy(case.reference, root)
    path = generator.choice(outputs(root))
    _cut(path, generator)
    return f"{path.relative_to(root)} cut to {path.stat().st_size} bytes"


def flip_byte(case: Case, root: Path, generator: random.Random) -> str:
    """One bit of an output of a finished run changes."""
    _copy(case.reference, root)
    path = generator.choice(outputs(root))
    data = bytearray(path.read_bytes())
    where = generator.randrange(len(data))
    data[where] ^= 1 << generator.randrange(8)
    path.write_bytes(data)
    return f"{path.relative_to(root)}: byte {where} flipped"


def turn_clock_back(case: Case, root: Path, generator: random.Random) -> str:
    """Killed; then the clock stands a year earlier, so every file of the run is from the future."""
    told = kill_process(case, root, generator)
    future = time.time() + 365 * 86400
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (future, future))
    return f"{told}, files dated a year ahead"


@contextlib.contextmanager
def small_disk(root: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of *size* bytes at *root*, in memory; yields what makes it larger.

    Raises:
        PermissionError: only root may mount.
    """
    root.mkdir(parents=True)
    if os.geteuid() != 0:
        raise PermissionError("only root may mount a file system")

    def mount(*options: str) -> None:
        done = subprocess.run(["mount", *options, str(root)], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(done.stderr.strip())

    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda larger: mount("-o", f"remount,size={larger}")
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def _copy(reference: Path, root: Path) -> None:
    # Links stay links: harm to the subset is harm to the publication too.
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", reference, root], check=True)


def _cut(path: Path, generator: random.Random) -> None:
    os.truncate(path, generator.randrange(path.stat().st_size))

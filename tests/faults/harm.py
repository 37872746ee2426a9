"""The faults: each starts or takes a run in a folder, does harm to it, and leaves it so.

Every choice (which shard, which moment, which byte) comes from the generator that is given.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from tests.faults.comparison import LEFT_OUT
from tests.faults.processes import complete, end, start

PATIENCE_SECONDS = 300
"""Silence after an output, from which a run counts as hung: a busy machine is slow, not damaged."""
NOT_MADE = ("run.json", "tmp", *LEFT_OUT)
"""What is no output in a run's folder."""


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


def rebuild(case: Case, root: Path, *more: str, **how: Any) -> subprocess.Popen[str]:
    """Start `datamask rebuild`; *how* is as in `processes.start`."""
    return start("rebuild", str(root), "--config", str(case.config), *more, **how)


def extend(root: Path) -> subprocess.Popen[str]:
    """Start `datamask extend`."""
    return start("extend", str(root))


def outputs(root: Path) -> list[Path]:
    """The output files that are there, without those that are linked to another."""
    files = []
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = sorted(name for name in folders if name not in NOT_MADE)
            names = [name for name in names if name not in NOT_MADE]
        files += [Path(folder, name) for name in sorted(names) if name[0] != "."]
    return [path for path in files if not path.is_symlink() and path.suffix != ".corrupt"]


def wait_for_output(
    root: Path, number: int, alive: Callable[[], bool], generator: random.Random
) -> bool:
    """Wait until so many outputs are there, and a random moment more; False if the run ended."""
    there, heard = 0, time.monotonic()
    while (now := len(outputs(root))) < number:
        if now != there:
            there, heard = now, time.monotonic()
        if not alive() or time.monotonic() - heard > PATIENCE_SECONDS:
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
        end(process)
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
        end(process)
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
    return _flip(root, outputs(root), generator)


def flip_unpublished(case: Case, root: Path, generator: random.Random) -> str:
    """One bit of what will be published, or of what that was made from, changes."""
    _copy(case.reference, root)
    (root / "published.json").unlink()
    if generator.random() < 0.5:
        shutil.rmtree(root / "publication")
    return _flip(root, outputs(root), generator)


def kill_and_flip(case: Case, root: Path, generator: random.Random) -> str:
    """SIGKILL, and one bit of an output changes before later stages read it."""
    killed = kill_process(case, root, generator)
    written = outputs(root)
    return f"{killed}, {_flip(root, written, generator)}" if written else killed


def _flip(root: Path, among: list[Path], generator: random.Random) -> str:
    path = generator.choice(among)
    data, times = bytearray(path.read_bytes()), path.stat()
    where = generator.randrange(len(data))
    data[where] ^= 1 << generator.randrange(8)
    path.write_bytes(data)
    if generator.random() < 0.5:  # a disk rots without a change of the time
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return f"{path.relative_to(root)}: byte {where} flipped"


def replace_input(case: Case, root: Path, generator: random.Random) -> str:
    """A file that the run was planned with is another while it works, and later itself again."""
    folder = case.config.parent
    inputs = [*sorted((folder / "corpus").iterdir()), folder / "scores.csv"]
    inputs += [folder / "benchmark.txt", folder / "earlier.parquet"]
    path = generator.choice(inputs)
    kept = path.with_name(f".{path.name}")
    process = rebuild(case, root, "--set", f"compute.workers={generator.choice((1, 4))}")
    number = generator.randrange(1, len(outputs(case.reference)))
    wait_for_output(root, number, lambda: process.poll() is None, generator)
    there = len(outputs(root))
    shutil.copy2(path, kept)
    os.replace(_another(kept, generator), path)
    try:
        status, said = complete(process)
    finally:
        os.replace(kept, path)
    if "Traceback" in said or status not in (0, 2, 75):
        raise RuntimeError(said)
    return f"{path.name} replaced after {there} outputs, status {status}"


def _another(path: Path, generator: random.Random) -> Path:
    """A file of the same shape, and often of the same time, with other texts or scores."""
    other = path.with_name(f"{path.name}.new")
    if path.suffix == ".txt":
        other.write_text(path.read_text()[::-1])
    else:
        table = read_rows(path)
        name = "text" if "text" in table.column_names else "score"
        values = table[name].to_pylist()
        turned = [value[::-1] if name == "text" else 6 - value for value in values]
        write_rows(other, table.set_column(table.column_names.index(name), name, [turned]))
    if generator.random() < 0.5:
        times = path.stat()
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    return other


def _format(path: Path) -> str:
    """The ending that names a file's format, as of `.0.csv.new`."""
    return path.suffixes[-1] if path.suffix != ".new" else path.suffixes[-2]


def read_rows(path: Path) -> pa.Table:
    """The rows of a file of Parquet, JSON lines or CSV."""
    match _format(path):
        case ".parquet":
            return pq.read_table(path)
        case ".jsonl":
            return pa.Table.from_pylist([json.loads(line) for line in path.open()])
    return csv.read_csv(path)


def write_rows(path: Path, table: pa.Table) -> None:
    """Write rows in the format that the file's ending names."""
    match _format(path):
        case ".parquet":
            pq.write_table(table, path)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        case _:
            csv.write_csv(table, path)


def put_directory(case: Case, root: Path, generator: random.Random) -> str:
    """A directory takes the place of an output: of a finished run, or of one that was killed."""
    if generator.random() < 0.5:
        kill_process(case, root, generator)
    else:
        _copy(case.reference, root)
    name = generator.choice(outputs(case.reference)).relative_to(case.reference)
    path = root / name
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    if generator.random() < 0.5:
        (path / "file").write_text("of a user")
    return f"{name} is a directory"


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

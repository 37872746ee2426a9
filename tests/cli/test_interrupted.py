"""Ctrl-C in real processes: said at once, obeyed at the next checkpoint, and the second at once."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, exit_status
from datamask.execution.pipeline import run_stage
from datamask.execution.verification import verify
from datamask.runs.run import Run
from tests.finished import corpus, finish, settings, up_to

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

COMMAND = "from datamask.cli.main import main; main()"
STUCK = f"""
import time
from datamask.execution import attempts
attempts._work = lambda *given: time.sleep(600)
{COMMAND}
"""
"""The command, with units of work that reach no checkpoint."""


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of the command, whose error output is read."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for something that a living process does."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """Read up to the first line that has these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


@pytest.mark.slow
def test_shards_stop_at_their_next_checkpoint(tmp_path):
    """Two masks that would be learned for hours are saved and given up, and go on from there."""
    selection = {"estimator": "policy_gradient", "steps": 10**6, "rollouts": 4, "tolerance": 0}
    chosen = settings(corpus(tmp_path / "source"), selection=selection)
    root = finish(tmp_path / "run", chosen, "embeddings").root
    records = [root / f"records/selection/0000{shard}.parquet.json" for shard in range(2)]
    for _ in range(2):
        process = started(COMMAND, "rerun-failed", root, "--set", "compute.workers=2")
        wait_until(lambda: all(map(Path.exists, records)), process)
        for path in records:
            path.unlink()
        process.send_signal(signal.SIGINT)
        line_with(process, "next checkpoint")
        _, told = process.communicate(timeout=200)
        assert process.returncode == 130
        assert told.splitlines()[-1].startswith("interrupted")
        assert "Traceback" not in told
        assert len([*root.glob("checkpoints/selection/0000[01]/*/learner.npz")]) == 2
    assert "resuming from a checkpoint" in (root / "logs/selection/00000.log").read_text()


@pytest.mark.slow
def test_a_second_interruption_waits_for_nothing(planned):
    """A unit that reaches no checkpoint delays the first Ctrl-C, and not the second."""
    root = planned.root
    process = started(STUCK, "rerun-failed", root)
    wait_until((root / "records/scores/00000.parquet.json").exists, process)
    process.send_signal(signal.SIGINT)
    line_with(process, "next checkpoint")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=200)
    assert process.returncode == 130
    assert told.splitlines()[-1].startswith("interrupted")


FILES = {
    "scores": lambda run: run.path("scores", 1),
    "quality": lambda run: run.path("quality"),
    "selection": lambda run: run.path("selection", 1),
    "record": lambda run: run.record_path("selection", 1),
}


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_named(name, planned):
    """The error names the folder and no temporary file; without the folder the run goes on."""
    run: Run = planned
    folder: Path = FILES[name](run)
    folder.mkdir(parents=True)
    with pytest.raises(DatamaskError) as caught:
        for stage in up_to(run, "selection"):
            run_stage(run, stage, Compute())
    assert exit_status(caught.value) == 2
    assert f"{folder}: " in str(caught.value)
    assert ".tmp" not in str(caught.value) and f"{run.root}/tmp/" not in str(caught.value)
    folder.rmdir()
    for stage in up_to(run, "selection"):
        run_stage(run, stage, Compute())
    assert not run.remaining("selection")


def test_verify_moves_a_folder_aside(planned):
    """Like a damaged file, with its content; then the file is made."""
    run = planned
    (run.path("scores", 1) / "draft").mkdir(parents=True)
    assert [name for name, _ in verify(run).corrupt] == ["scores/00001.parquet"]
    assert (run.root / "scores/00001.parquet.corrupt/draft").is_dir()
    run_stage(run, "scores", Compute())
    assert not run.remaining("scores")

"""Processes that are killed."""

import signal
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import os, signal, sys
from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.runs import checkpoints
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.opening import open_run
save, saves = Checkpoints.save, []
def saved(*given):
    save(*given)
    saves.append(given)
    if len(saves) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoints.save = saved
checkpoints.SECONDS = 0
run_stage(open_run(sys.argv[1]), sys.argv[2], Compute(), shards=[0])
"""


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is dead."""
    process.kill()
    process.communicate()


def kill_at_checkpoint(root: Path, stage: str) -> None:
    """Do the first unit of a stage in a process that is killed after its fifth checkpoint."""
    killed = subprocess.run([sys.executable, "-c", _SCRIPT, str(root), stage], check=False)
    assert killed.returncode == -signal.SIGKILL

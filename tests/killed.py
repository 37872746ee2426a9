"""Processes that are killed."""

import subprocess


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is dead."""
    process.kill()
    process.communicate()

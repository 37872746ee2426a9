"""A throw-away PostgreSQL server on this machine, from the installed binaries."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.server import free_port

USER = "postgres"
"""Whom it runs as when the tests run as root, which PostgreSQL refuses to be."""


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Start it, and yield the address that Prefect takes. Skips by name where there is none."""
    found = shutil.which("initdb") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[::-1]), ""
    )
    if not found:
        pytest.skip("no PostgreSQL on this machine (initdb is missing)")
    programs = Path(found).resolve().parent
    folder, port = Path(tempfile.mkdtemp(prefix="datamask-postgresql-")), free_port()
    prefix = []
    if os.geteuid() == 0:
        try:
            shutil.chown(folder, USER)
        except LookupError:
            pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
        prefix = ["runuser", "-u", USER, "--"]

    def run(program: str, *arguments: str) -> None:
        command = [*prefix, str(programs / program), *arguments]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    data = str(folder / "data")
    try:
        run("initdb", "--pgdata", data, "--username", "prefect", "--auth", "trust", "--no-sync")
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        run("pg_ctl", "start", "-w", "-D", data, "-l", str(folder / "log"), "-o", options)
        try:
            run("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect")
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
        finally:
            run("pg_ctl", "stop", "-D", data, "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Compare two run folders in all that must agree: every byte except durations.

Curves, the DuckDB file and the report say how long the work took, so these are compared by what
they hold besides; `records/` and `logs/` are not. The plan has the paths of converted copies, and
is compared without the run's folder. The report also names that folder: give the folders that are
compared the same name.
"""

import hashlib
import re
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from datamask.errors import DatamaskError
from datamask.runs.opening import open_run
from datamask.runs.stages import stages_of

LEFT_OUT = ("records", "logs", "checkpoints", "locks")
CLOCK = ("seconds", "started", "finished")


def contents(root: Path) -> dict[str, str]:
    """A digest of everything in a run folder that must come out the same, by relative path."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and any(part.startswith(".") for part in name.parts):
            found[str(name)] = "left by a killed process"
        elif path.is_file() and name.parts[0] not in LEFT_OUT and ".corrupt" not in str(name):
            found[str(name)] = digest_of(path)
    return found


def finished(root: Path) -> dict[str, tuple[int, int]]:
    """The outputs that are done: inode and time of change, by relative path."""
    try:
        run = open_run(root)
        done = {}
        for stage in stages_of(run.settings):
            for unit in range(run.num_units(stage)):
                if run.state(stage, unit) == "done":
                    path = run.path(stage, unit)
                    there = path.stat()
                    done[str(path.relative_to(root))] = (there.st_ino, there.st_mtime_ns)
    except DatamaskError:
        return {}
    return done


def digest_of(path: Path) -> str:
    """The digest of one file of a run folder."""
    if path.suffix == ".duckdb":
        data = _tables(path).encode()
    elif path.name == "plan.parquet":
        table = pq.read_table(path)
        data = f"{table.to_pylist()} {table.schema.metadata}".replace(
            f"{path.parent}/", ""
        ).encode()
    elif path.suffix == ".html":
        text = path.read_text(encoding="utf-8")
        assert text.rstrip().endswith(("</html>", "-->")), f"{path} is cut short"
        headings = re.findall(r"<h[1-3][^>]*>[^<]*", text)
        data = " ".join(headings).encode()
    else:
        data = path.read_bytes()
    return hashlib.sha256(data).hexdigest()


def _tables(path: Path) -> str:
    with duckdb.connect(str(path), read_only=True) as database:
        told = []
        for (table,) in sorted(
            database.sql("select table_name from duckdb_tables()").fetchall(),
        ):
            found = database.table(table)
            kept = [column for column in found.columns if column not in CLOCK]
            rows = found.select(*kept).fetchall() if kept else []
            told.append(f"{table} {kept} {sorted(map(repr, rows))}")
    return "\n".join(told)

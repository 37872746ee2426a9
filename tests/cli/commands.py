"""The command in processes and in this process, and a small run for it: corpus and settings."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.finished import WORDS
from tests.malformed.commands import run_main


def here(*arguments: object) -> int:
    """Run the command in this process, which costs no import; its exit status."""
    return run_main([str(argument) for argument in arguments])


def in_a_terminal(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and what a terminal got from standard error."""
    command = [sys.executable, "-m", "datamask.cli.main", *map(str, arguments)]
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=given) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the command has closed the terminal
            while part := os.read(ours, 65536):
                shown += part
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    return process.returncode, printed, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def text_corpus(folder: Path, rows: int = 120, files: int = 3) -> Path:
    """Parquet files of small English-looking texts in FineWeb's columns."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for file in range(files):
        ids = [f"doc-{file}-{row}" for row in range(rows // files)]
        texts = [
            "The " + " ".join(generator.choice(WORDS, generator.integers(20, 60))) + " of it."
            for _ in ids
        ]
        table = pa.table(
            {
                "text": texts,
                "id": ids,
                "dump": [f"dump-{file}"] * len(ids),
                "url": [f"https://www.site{row % 7}.org/{row}" for row in range(len(ids))],
                "language": ["en"] * len(ids),
                "token_count": [len(text.split()) for text in texts],
                "score": generator.standard_normal(len(ids)),
            }
        )
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=10)
    return folder


SMALL = ("embedding.method=lexical", "plan.rows_per_shard=40", "selection.steps=20")
SMALL += ("embedding.dimension=32",)


def settings(source: Path, *more: str) -> list[str]:
    """`--set` arguments for a small run."""
    items = (f"source.path={source}", *SMALL, *more)
    return [part for item in items for part in ("--set", item)]

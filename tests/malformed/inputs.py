"""Builders of the broken inputs that several modules use, and of the commands that read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 8
WIDTH = 4
IDS = [f"{file}-{row}" for file in range(2) for row in range(ROWS)]
LINES = "".join(f"{key},0.5\n" for key in IDS)
REST = [0.5] * (ROWS - 1)
WITHOUT = "in 1 documents; fix them, or set missing of score edu to `drop` or to a number"
SMALL = {
    "embedding.method": "lexical",
    "embedding.dimension": str(WIDTH),
    "plan.rows_per_shard": "8",
    "selection.ratio": "0.25",
    "selection.steps": "5",
}
Make = Callable[[Path], list[str]]
"""Makes an input in a folder and returns the arguments of the command that reads it."""
Cases = dict[str, tuple[Any, ...]]
"""By name: a `Make`, then fragments of the expected message."""


def corpus(folder: Path, **changes: Any) -> Path:
    """Two files of eight documents; *changes* replace columns of the second (None removes one)."""
    folder.mkdir(parents=True)
    for file in range(2):
        columns: dict[str, Any] = {
            "id": [f"{file}-{row}" for row in range(ROWS)],
            "text": [f"The river and the stone of market {file} {row}." for row in range(ROWS)],
            "score": [0.1 * row for row in range(ROWS)],
        }
        if file == 1:
            columns |= changes
        kept = {name: values for name, values in columns.items() if values is not None}
        pq.write_table(pa.table(kept), folder / f"{file}.parquet", row_group_size=4)
    return folder


def features(folder: Path, **changes: Any) -> Path:
    """One file in the published layout."""
    folder.mkdir(parents=True)
    vectors = np.random.default_rng(0).standard_normal((ROWS, WIDTH))
    columns: dict[str, Any] = {
        "chunk_id": list(range(ROWS)),
        "quality_score": [0.1 * row for row in range(ROWS)],
        "feature_arr": pa.array(vectors.tolist(), pa.list_(pa.float32())),
    }
    columns |= changes
    kept = {name: values for name, values in columns.items() if values is not None}
    pq.write_table(pa.table(kept), folder / "0.parquet")
    return folder


def sets(**settings: object) -> list[str]:
    """`--set` arguments; `__` stands for the dot."""
    given = SMALL | {key.replace("__", "."): str(value) for key, value in settings.items()}
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


def rebuild(folder: Path, **settings: object) -> list[str]:
    """A launch on the folder's corpus."""
    settings = {"source__path": folder / "source", **settings}
    return ["rebuild", str(folder / "run"), *sets(**settings)]


def setting(**settings: object) -> Make:
    """A good corpus and other settings."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        named = {key: str(value).replace("HERE", str(folder)) for key, value in settings.items()}
        return rebuild(folder, **named)

    return make


def arguments(*given: str) -> Make:
    """A command on a good corpus; HERE is the folder."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        return [part.replace("HERE", str(folder)) for part in given]

    return make


def bytes_of(change: Callable[[bytes], bytes]) -> Make:
    """The second file's bytes changed."""

    def make(folder: Path) -> list[str]:
        path = corpus(folder / "source") / "1.parquet"
        path.write_bytes(change(path.read_bytes()))
        return rebuild(folder)

    return make


def every_file(change: Callable[[pa.Table], pa.Table], **settings: object) -> Make:
    """All files of the corpus changed in the same way."""

    def make(folder: Path) -> list[str]:
        for path in corpus(folder / "source").iterdir():
            pq.write_table(change(pq.read_table(path)), path)
        return rebuild(folder, **settings)

    return make


def score_file(name: str, content: str | bytes | dict[str, Any], **more: object) -> Make:
    """A good corpus and a file of scores."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        path = folder / name
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        score = {"name": "edu", "kind": "file", "path": str(path), **more}
        return rebuild(folder, quality__scores=json.dumps([score]))

    return make

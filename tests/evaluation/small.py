"""A corpus with copies of texts in it, and evaluations of it that take a second."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.settings import Settings
from datamask.runs.run import Run
from tests import finished
from tests.finished import table_of

FILES, ROWS = 3, 100
SMALL = {
    "hold_out": 0.2,
    "model": "tiny",
    "tokens": 3000,
    "seeds": 2,
    "learning_rates": [0.004],
    "arms": ["ours", "random"],
}


def corpus(folder: Path) -> Path:
    """Three files of a hundred documents, each text of 40 to 80 words out of 300.

    In files 1 and 2, documents 0 to 19 have the texts of file 0, and documents 20 to 39 have them
    with another word at the end. Of file 0, document 50 is empty and 51 has two words.
    """
    generator = np.random.default_rng(8)
    words = ["".join(generator.choice(list("abcdeimnorst"), 5)) for _ in range(300)]
    folder.mkdir(parents=True)
    first: list[str] = []
    for file in range(FILES):
        texts = [" ".join(generator.choice(words, generator.integers(40, 80))) for _ in range(ROWS)]
        if file:
            texts[:20] = first[:20]
            texts[20:40] = [f"{text} {words[file]}" for text in first[20:40]]
        else:
            texts[50:52] = [" \n", "two words"]
            first = texts
        table = pa.table(
            {
                "id": [f"{file}-{row:02d}" for row in range(ROWS)],
                "text": texts,
                "language": ["en" if row % 3 else "de" for row in range(ROWS)],
                "edu": generator.standard_normal(ROWS),
            }
        )
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=20)
    return folder


def settings(source: Path, selection: dict[str, Any] | None = None, **evaluation: Any) -> Settings:
    """The settings of `finished`, with a small evaluation."""
    chosen: Settings = finished.settings(
        source,
        plan={"rows_per_shard": 120},
        selection={"ratio": 0.25, **(selection or {})},
        evaluation={**SMALL, **evaluation},
    )
    return chosen


def source_table(source: Path) -> dict[str, dict[str, Any]]:
    """The rows of the source by id."""
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(source.glob("*.parquet")))
    return {row["id"]: row for row in rows.to_pylist()}


def drawn(seed: int, share: float, ids: list[str]) -> set[str]:
    """The ids that the rule of `evaluation.hold_out` draws."""

    def number(name: str) -> int:
        return int.from_bytes(hashlib.md5(f"{seed}/{name}".encode()).digest()[8:], "little")

    return {name for name in ids if number(name) < share * 2**64}


def quality(run: Run) -> list[dict[str, Any]]:
    """The rows of the quality files."""
    rows: list[dict[str, Any]] = table_of(run, "quality").to_pylist()
    return rows


def contents(run: Run, folder: str = "training") -> dict[str, bytes]:
    """The bytes of every file in a folder of the evaluation."""
    paths = (run.root / "evaluation" / folder).glob("*.parquet")
    return {path.stem: path.read_bytes() for path in paths}


def bits_per_byte(root: Path) -> dict[str, float]:
    """Of every model on the documents held out of the source, by the name of its file."""
    held_out = pq.read_table(root / "evaluation" / "held_out.parquet").to_pylist()
    in_all = [number for number, row in enumerate(held_out) if row["in_all"]]
    size = sum(held_out[number]["bytes"] for number in in_all)
    by_model = {}
    for path in (root / "evaluation" / "training").glob("*.parquet"):
        bits = pq.read_table(path)["bits"].to_pylist()
        by_model[path.stem] = sum(bits[number] for number in in_all) / size
    return by_model


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

"""Documents to screen, benchmarks, and runs up to the screening."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.runs.run import Run
from tests.finished import finish, settings, table_of
from tests.hygiene.test_minhash import VOCABULARY

SIMILARITY = 0.7


def write(path: Path, texts: list[str], **columns: list[Any]) -> Path:
    """A Parquet file of documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = columns.pop("id", [f"{path.stem}-{row:03d}" for row in range(len(texts))])
    scores = columns.pop("edu", [random.Random(text).random() for text in texts])
    pq.write_table(pa.table({"id": names, "text": texts, "edu": scores, **columns}), path)
    return path


def prose(generator: random.Random, length: int = 60) -> str:
    """Words in no order."""
    return " ".join(generator.choices(VOCABULARY, k=length))


def screened(root: Path, source: Path, last: str = "quality", **quality: object) -> Run:
    """A run without pruning, up to a stage."""
    chosen = settings(source, quality={"prune_fraction": 0.0, **quality}, selection={"ratio": 0.1})
    return finish(root, chosen, last)


def judged(run: Run) -> dict[str, dict[str, Any]]:
    """The rows of `quality/` by id."""
    return {row["id"]: row for row in table_of(run, "quality").to_pylist()}


def texts_of(one: dict[str, Any]) -> Iterator[str]:
    """The items of a set, by what the documentation says."""
    yield from map(" ".join, columns_of(one))


def columns_of(one: dict[str, Any]) -> Iterator[list[str]]:
    """The texts of each item of a set, column by column."""
    path = Path(one["path"])
    if path.suffix == ".jsonl":
        for line in path.read_text().splitlines():
            row = json.loads(line)
            choices = row.get("choices") or {"text": [], "n": []}
            yield [row["question"] or "", " ".join([*choices["text"], *map(str, choices["n"])])]
    elif path.suffix == ".parquet":
        yield from ([text] for text in pq.read_table(path)["text"].to_pylist())
    else:
        yield [path.read_text()]


def hidden(text: str, character: str) -> str:
    """A text with a character inside every word, and the rest of the word in capital letters."""
    return " ".join(word[:1] + character + word[1:].upper() for word in text.split())

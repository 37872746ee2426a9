"""Records as files of JSON lines, CSV and Arrow, by Python's own writers, and their conversion."""

import csv
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.runs.opening import run_storage
from datamask.source.convert import convert, source_files
from tests import finished

Record = dict[str, Any]


def records(seed: int, count: int) -> list[Record]:
    """Records as in crawls: objects within objects, lists, absent and null values, any text."""
    drawn = random.Random(seed)
    rows: list[Record] = []
    for number in range(count):
        words = drawn.choices([*finished.WORDS, "é", "“quoted”", "a\tb", "line\nbreak", '"'], k=20)
        row: Record = {"id": f"{seed:03d}-{number}", "text": " ".join(words), "edu": drawn.random()}
        if drawn.random() < 0.7:
            row["metadata"] = {
                "url": f"http://s{number % 3}.org/{number}",
                "a.b/c": number,
                "n": None,
            }
        if drawn.random() < 0.5:
            row["tags"] = ["x", {"y": 1}]
        row["date"] = "2024-01-02T03:04:05Z"
        rows.append(row)
    return rows


def write(path: Path, rows: list[Record]) -> Path:
    """Write records in the format that the name tells, with Python's own writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(lines))
        case ".zst":
            with pa.CompressedOutputStream(str(path), "zstd") as file:
                file.write(lines)
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as text:
                writer = csv.DictWriter(text, [*flat(rows[0])])
                writer.writeheader()
                writer.writerows(map(flat, rows))
        case ".arrow":
            names = dict.fromkeys(name for row in map(flat, rows) for name in row)
            table = pa.table({name: [flat(row).get(name) for row in rows] for name in names})
            with pa.ipc.new_stream(str(path), table.schema) as stream:
                stream.write_table(table)
        case _:
            path.write_bytes(lines)
    return path


def flat(row: Record) -> Record:
    """A record as a row: dotted names, lists as their JSON text."""

    def walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, f"{name}.{key}" if name else key)
        else:
            is_list = isinstance(value, list)
            yield name, json.dumps(value, separators=(",", ":")) if is_list else value

    return dict(walk(row, ""))


def converted(folder: Path, target: Path, workers: int = 1, **source: Any) -> list[pa.Table]:
    """The copies of a folder's files."""
    chosen = Source(path=str(folder), **source)
    _, others = source_files(str(folder))
    where = run_storage(target)
    copies, _ = convert(str(folder), others, chosen, where, Compute(workers=workers))
    return [pq.read_table(path) for path in copies]

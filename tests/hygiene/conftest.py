"""Documents with copies of each other, and benchmarks."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hygiene.screened import prose, write
from tests.hygiene.test_minhash import edited


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Four files with copies of each other's documents, and every document's text by id."""
    generator = random.Random(11)
    texts: dict[str, str] = {}
    originals = [prose(generator) for _ in range(60)]
    for file in range(4):
        for row in range(40):
            kept = originals[generator.randrange(60)]
            text = prose(generator) if row % 2 else edited(generator, kept, generator.randrange(3))
            texts[f"{file}-{row:03d}"] = text
    for file in range(4):
        names = [name for name in texts if name.startswith(f"{file}-")]
        write(tmp_path / "source" / f"{file}.parquet", [texts[name] for name in names], id=names)
    return tmp_path / "source", texts


SETS = [
    {"name": "questions", "columns": ["question", "choices"]},
    {"name": "<b>|table", "columns": ["text"]},
    {"name": "prose", "columns": ["text"]},
]


@pytest.fixture
def benchmarks(tmp_path: Path) -> list[dict[str, Any]]:
    """Sets of JSON lines, of Parquet and of plain text, with hostile names."""
    generator = random.Random(2)
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    rows = [
        {"question": prose(generator, 9), "choices": {"text": ["Yes, it is", "no"], "n": [1, 2]}}
        for _ in range(20)
    ]
    # Fewer words than an n-gram: found as a whole.
    rows += [
        {"question": prose(random.Random(f"short {n}"), 3 + n), "choices": None}
        for n in range(1, 7)
    ]
    lines = [json.dumps(row) for row in [*rows, {"question": "too short"}, {"question": None}]]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    texts = [prose(generator, 30) for _ in range(10)]
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), folder / "b.parquet")
    (folder / "c.txt").write_text(f"{prose(generator, 20)}\n{prose(generator, 20)}\n")
    names = ("a.jsonl", "b.parquet", "c.txt")
    return [{**one, "path": str(folder / name)} for one, name in zip(SETS, names, strict=True)]

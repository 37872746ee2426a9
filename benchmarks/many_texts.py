"""Write any number of texts of real length, for a run that is watched as a whole.

A text is the first half of one docstring and the second half of another one of the same package, so
words, lengths and kinds are real and hardly any text repeats. The examples and settings are those
of the demo, with shards of the default size.

    python -m benchmarks.many_texts runs/many --rows 1000000
    /usr/bin/time -v datamask rebuild runs/many-run --config runs/many/settings.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from examples.demo_corpus import APART, write_corpus

ROWS_PER_FILE = 100_000


def halves(texts: list[str]) -> tuple[list[str], list[str]]:
    """Cut each text at the space nearest to its middle."""
    cuts = [text.find(" ", len(text) // 2) for text in texts]
    return (
        [text[:cut] if cut > 0 else text for text, cut in zip(texts, cuts, strict=True)],
        [text[cut:] if cut > 0 else "" for text, cut in zip(texts, cuts, strict=True)],
    )


def write_texts(folder: Path, rows: int) -> None:
    """Write *rows* texts as Parquet files, and the settings of a run over them."""
    demo = folder / "docstrings"
    if not demo.exists():
        write_corpus(demo, apart=APART)
    corpus = pq.read_table(demo, columns=["text", "dump"])
    beginnings, ends = halves(corpus["text"].to_pylist())
    package = np.unique(corpus["dump"].to_numpy(), return_inverse=True)[1]
    order, starts = np.argsort(package, kind="stable"), np.searchsorted(np.sort(package), package)
    counts = np.bincount(package)[package]
    generator = np.random.default_rng(0)
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    for start in range(0, rows, ROWS_PER_FILE):
        number = min(ROWS_PER_FILE, rows - start)
        first = generator.integers(len(beginnings), size=number)
        second = order[starts[first] + generator.integers(counts[first])]
        texts = [beginnings[a] + ends[b] for a, b in zip(first, second, strict=True)]
        ids = [f"t{start + row:09d}" for row in range(number)]
        table = pa.table({"id": ids, "text": texts, "dump": corpus["dump"].take(first)})
        pq.write_table(table, folder / "texts" / f"{start // ROWS_PER_FILE:05d}.parquet")
    examples = str(demo) + "-examples.jsonl"
    settings = {
        "source": {"path": str(folder / "texts")},
        "quality": {"scores": [{"name": "numeric", "kind": "examples", "path": examples}]},
        "embedding": {"method": "lexical"},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))


def main() -> None:
    """Write the texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    write_texts(given.folder, given.rows)


if __name__ == "__main__":
    main()

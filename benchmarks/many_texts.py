"""Write any number of texts of real length, for a run that is watched as a whole.

A text is the first half of one docstring and the second half of another one of the same package, so
words, lengths and kinds are real and hardly any text repeats. The examples and settings are those
of the demo, with shards of the default size.

    python -m benchmarks.many_texts runs/many --rows 1000000 --run runs/many-run

With `--run`, the stages are run in this process, and a line for each says CPU seconds, seconds and
the most memory (Linux). The last lines are the shares of the best quality and diversity.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.scale import watch
from datamask.config.loading import load_settings
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


def watch_texts(folder: Path, root: Path) -> None:
    """Run all stages, and print what each takes and what was selected."""
    run = watch(root, *load_settings(folder / "settings.yaml"))
    for shard in range(run.num_shards):
        for name, term in run.receipt("selection", shard).metrics["terms"].items():
            gained = (term["selected"] - term["random"]) / (term["best"] - term["random"])
            print(f"shard {shard}, {name}: {gained:.2f} of the best gain over random")


def main() -> None:
    """Write the texts, and select from them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="folder of a run of all stages")
    given = parser.parse_args()
    if not (given.folder / "settings.yaml").exists():
        write_texts(given.folder, given.rows)
    if given.run:
        watch_texts(given.folder, given.run)


if __name__ == "__main__":
    main()

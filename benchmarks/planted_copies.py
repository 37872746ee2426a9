"""Near-duplicates at scale: planted copies through the stages that find and drop them.

Creates texts of 100 random words. One in twenty copies a text of another shard: half of these with
one word replaced (Jaccard similarity of the word 5-grams 0.90), half with five (0.59). With
`--crowd`, all are copies of one text, so that one cluster has a twentieth of all documents. Each
stage up to `quality` runs in a process of its own on one worker, with a similarity of 0.8.

    python -m benchmarks.planted_copies --rows 10000000 [--folder runs/planted]
        [--shards 10] [--units 1] [--crowd]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.quality_stages import do_stage, print_stages
from datamask.config.loading import parse_settings
from datamask.hygiene import similar_pairs
from datamask.hygiene.minhash import bands_of
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run

SIMILARITY = 0.8
SCHEMA = pa.schema({"id": pa.string(), "text": pa.string(), "score": pa.float64()})
WORDS, VOCABULARY = 100, 100_000
BLOCK, COPIES = 20_000, 1_000
"""Rows of a block, and how many of them, the last ones, are copies."""
BLOCKS_PER_FILE = 50


def _originals(block: int) -> tuple[np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(block)
    return generator.integers(0, VOCABULARY, (BLOCK, WORDS)), generator


def _blocks(first: int, blocks: int, crowd: bool) -> Iterator[pa.RecordBatch]:
    vocabulary = pa.array([f"word{number}" for number in range(VOCABULARY)])
    for block in range(first, min(first + BLOCKS_PER_FILE, blocks)):
        words, generator = _originals(block)
        other = (block + blocks // 2) % blocks
        words[-COPIES:] = _originals(0)[0][:1] if crowd else _originals(other)[0][:COPIES]
        words[-COPIES:, 50] = generator.integers(0, VOCABULARY, COPIES)
        for place in (10, 30, 70, 90):
            words[-COPIES // 2 :, place] = generator.integers(0, VOCABULARY, COPIES // 2)
        flat = vocabulary.take(pa.array(words.reshape(-1)))
        lists = pa.ListArray.from_arrays(
            np.arange(0, BLOCK * WORDS + 1, WORDS, dtype=np.int32), flat
        )
        kinds = ["original"] * (BLOCK - COPIES) + ["near"] * (COPIES // 2) + ["far"] * (COPIES // 2)
        ids = [f"{kind}-{block:05d}-{row:05d}" for row, kind in enumerate(kinds)]
        scores = generator.standard_normal(BLOCK)
        scores[-COPIES:] -= 10
        texts = pc.binary_join(lists, " ")
        yield pa.record_batch([pa.array(ids), texts, pa.array(scores)], schema=SCHEMA)


def main() -> None:
    """Create the texts if they are missing, run, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/planted"))
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--units", type=int, default=1, help="of stage similar_pairs")
    parser.add_argument("--crowd", action="store_true", help="all copies are of one text")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    bands = len(bands_of(SIMILARITY))
    similar_pairs.HASHES_AT_ONCE = -(-arguments.rows * bands // arguments.units)
    similar_pairs.DOCUMENTS_AT_ONCE = similar_pairs.HASHES_AT_ONCE
    name = f"{arguments.rows}-crowd" if arguments.crowd else str(arguments.rows)
    source, root = arguments.folder / f"texts-{name}", arguments.folder / f"run-{name}"
    settings = parse_settings(
        {
            "source": {"path": str(source), "columns": {"text": "text", "id": "id"}},
            "plan": {"rows_per_shard": arguments.rows // arguments.shards},
            "quality": {
                "scores": [{"name": "score", "kind": "column", "column": "score"}],
                "near_duplicates": {"similarity": SIMILARITY},
            },
            "embedding": {"method": "lexical"},
            "selection": {"ratio": 0.1},
        }
    )
    if arguments.stage:
        do_stage(root, arguments.stage, settings)
        return
    blocks = arguments.rows // BLOCK
    for first in range(0, blocks, BLOCKS_PER_FILE):
        path = source / f"{first // BLOCKS_PER_FILE:05d}.parquet"
        if not path.exists():
            write_parquet(path, SCHEMA, _blocks(first, blocks, arguments.crowd))
    print_stages("benchmarks.planted_copies", root, settings)
    run = open_run(root)
    paths = [str(run.path("quality", shard)) for shard in range(run.num_shards)]
    table = ds.dataset(paths).to_table(columns=["id", "dropped"])
    dropped = pc.equal(table["dropped"], "near_duplicate").fill_null(False)
    for kind in ("original", "near", "far"):
        here = pc.starts_with(table["id"], kind)
        share = pc.mean(dropped.filter(here).cast(pa.float64())).as_py()
        print(f"{kind}: {pc.sum(here).as_py()} texts, {share:.4%} dropped")


if __name__ == "__main__":
    main()

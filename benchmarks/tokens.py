"""Tokenising against `tokenizers` itself, and the order and the files of many documents.

    python -m benchmarks.tokens [--texts 20000] [--documents 10000000] [--memory 512MB]

Texts are pieces of the modules of Python's standard library, encoded by a byte-level BPE of 8,192
tokens that is trained on some of them. Stage `tokenised` reads them from a file of the subset and
writes their tokens; `tokenizers` encodes the same texts, which are in memory, in one batch per
1,024. The order is that of documents of 47 random tokens, of which every fourth is seen twice to
four times; two of the token files are written. CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import resource
import shutil
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.runs import schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import run_storage
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run
from datamask.runs.subset_files import SubsetFile
from datamask.tokens.files import write_tokens
from datamask.tokens.order import put_in_order
from datamask.tokens.tokenise import PIN, tokenise

DOCUMENTS_PER_FILE, TOKENS = 1_000_000, 47


class Files(Run):
    """The files that the stages of tokens read, without the stages that make them."""

    num_shards = property(lambda run: 1)
    subset_files = property(lambda run: [SubsetFile((0,))] * len(list(run.root.glob("*/*.bin"))))

    def receipt(self, stage: str, unit: int = 0) -> Receipt:
        """Whatever its fingerprint."""
        return read_receipt(self.path(stage, unit))

    def state(self, stage: str, unit: int = 0) -> str:
        """What is read is done."""
        return "done"

    def make_receipt(
        self, stage: str, unit: int, rows: int, metrics: dict[str, Any] | None = None
    ) -> Receipt:
        """With no fingerprint."""
        return Receipt(stage, unit, "", rows, metrics or {})

    def name(self, stage: str, unit: int = 0) -> str:
        """The one file of the subset has the name of one among many."""
        return "subset/0.parquet" if stage == "subset" else super().name(stage, unit)


def open_files(root: Path) -> Files:
    """The run of a folder."""
    tokens = {"tokenizer": str(root / "tokenizer.json")}
    selection = {"documents": 1, "max_repeat": 4, "training_documents": 1}
    settings = parse_settings({"tokens": tokens, "selection": selection})
    return Files(run_storage(root), settings, {PIN: None})  # type: ignore[dict-item]


def texts_of(number: int) -> list[str]:
    """Pieces of 40 lines of the standard library, again from the start if there are too few."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lines = [line for path in paths for line in path.read_text("utf-8", "replace").splitlines()]
    pieces = ["\n".join(lines[first : first + 40]) for first in range(0, len(lines), 40)]
    return [pieces[place % len(pieces)] for place in range(number)]


def make_texts(root: Path, number: int) -> None:
    """The tokenizer, and a file of the subset."""
    texts = texts_of(number)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts[:3000], trainer)
    tokenizer.save(str(root / "tokenizer.json"))
    columns = {"id": [str(n) for n in range(number)], "text": texts, "quality": [0.0] * number}
    table = pa.table({**columns, "repeat": pa.array([1] * number, pa.int32())})
    receipt = functools.partial(Receipt, "subset", 0, "")
    write_parquet(root / "subset/0.parquet", table.schema, [table], receipt)


def make_tokens(root: Path, documents: int) -> None:
    """Files like those of stage `tokenised`, with random tokens."""
    generator = np.random.default_rng(0)
    size = DOCUMENTS_PER_FILE * TOKENS
    metrics = {"type": "uint16", "end": 0, "tokens": size}
    shutil.rmtree(root / "records")  # of the real tokens, which these replace
    for unit in range(documents // DOCUMENTS_PER_FILE):
        rows = np.arange(DOCUMENTS_PER_FILE)
        columns = {
            "id": [f"<urn:uuid:{unit:08x}-{row:012x}>" for row in rows.tolist()],
            "quality": generator.normal(size=len(rows)),
            "repeat": np.where(rows % 4, 1, 2 + rows // 4 % 3),
            "start": rows * TOKENS,
            "tokens": np.full(len(rows), TOKENS),
        }
        table = pa.table(columns).cast(schemas.TOKENISED)
        receipt = functools.partial(Receipt, "tokenised", unit, "", metrics=metrics)
        write_parquet(root / f"tokenised/{unit:05d}.parquet", table.schema, [table], receipt)
        values = generator.integers(0, 2**16, size, np.uint16)
        values.tofile(root / f"tokenised/{unit:05d}.bin")


def encode_alone(root: Path, method: str) -> None:
    """What `tokenizers` does with the same texts."""
    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    texts = pq.read_table(root / "subset/0.parquet", columns=["text"])["text"].to_pylist()
    before = cpu_seconds()
    for first in range(0, len(texts), 1024):
        batch = getattr(tokenizer, method)(texts[first : first + 1024], add_special_tokens=False)
        _ = [encoding.ids for encoding in batch]
    show(f"tokenizers, {method}", cpu_seconds() - before)


def tokenise_all(root: Path, compute: Compute) -> None:
    """The stage, with reading and writing."""
    before, run = cpu_seconds(), open_files(root)
    tokenise(run, 0, compute)
    tokens = run.receipt("tokenised", 0).metrics["tokens"]
    show("stage tokenised", cpu_seconds() - before, f"{tokens:,} tokens")


def order_all(root: Path, compute: Compute) -> None:
    """The stage that puts all exposures in order."""
    before = cpu_seconds()
    put_in_order(open_files(root), compute)
    made = read_receipt(root / "tokens/order.parquet")
    show("stage order", cpu_seconds() - before, f"{made.rows:,} exposures")


def write_two(root: Path, compute: Compute) -> None:
    """Two token files."""
    for unit in (0, 1):
        before, run = cpu_seconds(), open_files(root)
        write_tokens(run, unit, compute)
        tokens = run.receipt("tokens", unit).metrics["tokens"]
        show(f"token file {unit}", cpu_seconds() - before, f"{tokens:,} tokens")


def cpu_seconds() -> float:
    """Of all threads of this process."""
    return sum(os.times()[:2])


def show(name: str, seconds: float, told: str = "") -> None:
    """A row of the table."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {name} | {seconds:.1f} s | {peak:.2f} GiB | {told} |", flush=True)


def alone(work: Callable[..., None], *arguments: Any) -> None:
    """In a process of its own, for its peak memory."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--memory", default="512MB", help="DuckDB's limit")
    arguments = parser.parse_args()
    compute = Compute(duckdb_memory=arguments.memory)
    print("| | CPU | peak memory | |\n|:--|--:|--:|:--|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_texts(root, arguments.texts)
        for method in ("encode_batch", "encode_batch_fast"):
            alone(encode_alone, root, method)
        alone(tokenise_all, root, compute)
        make_tokens(root, arguments.documents)
        alone(order_all, root, compute)
        alone(write_two, root, compute)


if __name__ == "__main__":
    main()

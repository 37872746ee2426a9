"""Stage `tokens`: the tokens in the order of training, in files of bounded size.

`tokens/NNNNN.bin` is an array of tokens (little-endian, without a header), document after document,
as nanoGPT, OLMo-core and others map it into memory; `NNNNN.idx` is the index with which Megatron-LM
reads the same file, `NNNNN.csv.gz` the boundaries of documents for OLMo-core (a line `start,end`
per document, in tokens of the file), and `NNNNN.json` a header for everyone. A document is within
one file.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.csv import WriteOptions, write_csv

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError
from datamask.runs.files import read_columns, replace_file, write_text_file
from datamask.runs.run import Run
from datamask.runs.stages import Unit
from datamask.tokens.tokenise import PIN

TOKENS_AT_ONCE = 2**25
"""Tokens that are gathered together: at most 128 MiB."""

MEGATRON_TYPES = {"uint16": 8, "uint32": 4}
"""Megatron's numbers of types; its int32 (4) has the bytes of uint32 up to `LARGEST_TOKEN`."""


def units(run: Run) -> list[Unit]:
    """List the token files; before there is an order, all that is known is that there is one."""
    is_known = run.state("order") == "done"
    number = run.receipt("order").metrics["files"] if is_known else 1
    return [Unit(f"tokens/{file:05d}", None, is_extra=file > 0) for file in range(number)]


def write_tokens(run: Run, unit: int, compute: Compute) -> None:
    """Write a token file, its index, the boundaries of documents, and its header."""
    made = run.receipt("order").metrics
    columns = ["first_token", "tokens", "unit", "start"]
    rows = read_columns(run.path("order"), columns, [("file", "=", unit)])
    first, lengths = (rows[name].to_numpy() for name in columns[:2])
    kind, starts = np.dtype(made["type"]).newbyteorder("<"), first - first[0]
    binary, index, boundaries = (run.root / name for name in run.beside("tokens", unit))
    paths = {
        source: run.fetch(run.beside("tokenised", source)[0])
        for source in rows["unit"].unique().to_pylist()
    }
    with replace_file(binary, run.storage) as temporary, temporary.open("wb") as file:
        ends = np.flatnonzero(np.diff(first // TOKENS_AT_ONCE)) + 1
        for begin, end in zip([0, *ends], [*ends, len(rows)], strict=True):
            file.write(gather(rows.slice(begin, end - begin), paths, kind, made["end"]).data)
    with replace_file(index, run.storage) as temporary, temporary.open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, MEGATRON_TYPES[kind.name]))
        file.write(struct.pack("<QQ", len(rows), len(rows) + 1))
        file.write(lengths.astype("<i4").data)
        file.write((starts * kind.itemsize).astype("<i8").data)
        file.write(np.arange(len(rows) + 1, dtype="<i8").data)
    table = pa.table([starts, starts + lengths], ["start", "end"])
    with (
        replace_file(boundaries, run.storage) as temporary,
        temporary.open("wb") as file,
        # Without a name and a time, the same boundaries are the same bytes.
        gzip.GzipFile("", "wb", 1, file, mtime=0) as packed,
    ):
        write_csv(table, packed, WriteOptions(include_header=False))
    about = {"first_token": int(first[0]), "tokens": int(lengths.sum()), "type": kind.name}
    about |= {"documents": len(rows), "end_of_document": made["end"]}
    about |= {"tokenizer_digest": run.pinned_revisions[PIN]}
    receipt = run.make_receipt("tokens", unit, len(rows), {"tokens": about["tokens"]})
    text = json.dumps({"receipt": asdict(receipt), **about}, indent=2, sort_keys=True)
    write_text_file(run.local_path("tokens", unit), text + "\n", run.storage)


def gather(
    rows: pa.Table, paths: dict[int, Path], kind: np.dtype, last: int
) -> npt.NDArray[np.generic]:
    """Gather the tokens of exposures in their order, of type *kind*, from files by unit.

    *rows* have the columns `unit`, `start` and `tokens`. Each exposure ends with the token *last*,
    also one that is cut: without it, a trainer would read two documents as one.
    """
    unit, start, lengths = (rows[name].to_numpy() for name in ("unit", "start", "tokens"))
    gathered = np.empty(int(lengths.sum()), kind)
    view, size = gathered.data.cast("B"), kind.itemsize
    ends = np.cumsum(lengths)
    order = np.lexsort((start, unit))  # Files are read from their beginning to their end.
    borders = np.flatnonzero(np.diff(unit[order], prepend=-1, append=-1))
    spans = np.stack([(ends - lengths) * size, ends * size, start * size], axis=1)
    for begin, end in itertools.pairwise(borders):
        path = paths[int(unit[order[begin]])]
        with path.open("rb", buffering=0) as file:
            for first, stop, offset in spans[order[begin:end]].tolist():
                if os.preadv(file.fileno(), [view[first:stop]], offset) != stop - first:
                    raise CorruptFileError(f"{path}: tokens are missing; delete it and relaunch")
    gathered[ends - 1] = last
    return gathered

"""Stage `subset`: the selected documents, in the source's columns and order, ready to publish.

A file is made from its own shards alone, by any worker: `documents/` says which rows are selected,
and pyarrow streams them from the source and writes them with the source's types. A file contains
documents of one dump only, because a dump is a configuration on the Hub and each document is stored
once. Rows keep the source's order within a dump, so that a rebuild with few changes writes nearly
the same bytes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError
from datamask.runs.files import parquet_output, read_columns
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.schemas import added_columns
from datamask.runs.subset_files import SubsetFile
from datamask.source.dumps import dump_names
from datamask.source.reading import read_shard, source_schema

logger = logging.getLogger(__name__)

PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": True,
    "dictionary_pagesize_limit": 2**20,
    "column_encoding": None,
    "write_page_index": True,
    "use_content_defined_chunking": {
        "min_chunk_size": 256 * 1024,
        "max_chunk_size": 1024 * 1024,
        "norm_level": 0,
    },
}
"""Format of published files, chosen for the Hub's viewer and its Xet storage.

Zstandard makes text a third smaller than snappy and is widely supported. The page index lets the
viewer and DuckDB fetch single pages. Content-defined chunking places page boundaries by values, not
by size: if documents are added or removed, the pages around them keep their bytes, and Xet, which
stores each chunk once, uploads only the changes. The chunk sizes are those of `datasets` and the
Hub. Row groups of about 100 MB (`ROW_GROUP_BYTES`) are below the 300 MB that the viewer
loads, and large enough for the chunks; with files of about 512 MB (`subset.file_bytes`) a terabyte
has a few thousand files and a failed upload costs little.
"""

ROW_GROUP_BYTES = 100 * 2**20


@dataclass(slots=True)
class Output:
    """A file being written, with a buffer of rows for a row group of about *limit* bytes."""

    write: Callable[[pa.Table], None]
    limit: int
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer rows; write a row group once they reach *limit* bytes."""
        self.waiting.append(batch)
        self.size += batch.nbytes
        if self.size >= self.limit:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self.waiting:
            self.write(pa.Table.from_batches(self.waiting).combine_chunks())
        self.waiting, self.size = [], 0


def remove_other_files(run: Run) -> None:
    """Remove the files of another layout of the subset; files of this one are replaced."""
    expected = {run.name("subset", unit) for unit in range(run.num_units("subset"))}
    for name in run.storage.list("subset", "train-*.parquet"):
        if name not in expected:
            run.storage.remove(name)


def write_subset(run: Run, unit: int, compute: Compute) -> None:
    """Write a file of the subset, and in the same pass the unfinished files of its group.

    Each is finished after the last of its shards.

    Raises:
        CorruptFileError: its documents are not those of the source.
        StorageError: the disk is full.
    """
    group = run.subset_groups[unit]
    others = [index for index, other in enumerate(run.subset_groups) if other == group]
    units = sorted({unit, *run.remaining("subset", others)})
    files = {unit: run.subset_files[unit] for unit in units}
    # The source's columns in their order, then quality, logit, shard and any repeat.
    schema = pa.schema([*source_schema(run), *added_columns(run.settings)])
    shards = sorted({shard for file in files.values() for shard in file.shards})
    for shard in shards:
        run.receipt("documents", shard)
    with contextlib.ExitStack() as all_files:
        open_files = {unit: all_files.enter_context(contextlib.ExitStack()) for unit in units}
        outputs = {
            unit: open_file.enter_context(_output(run, unit, schema))
            for unit, open_file in open_files.items()
        }
        for shard in shards:
            chosen = chosen_documents(run, shard)
            parts = {
                unit: _places(chosen, file) for unit, file in files.items() if shard in file.shards
            }
            wanted = np.unique(np.concatenate([*parts.values()]))
            for first, batch in _selected_rows(run, shard, chosen, wanted, schema):
                for unit, rows_of_unit in parts.items():
                    rows = np.flatnonzero(np.isin(wanted[first : first + len(batch)], rows_of_unit))
                    if len(rows):
                        outputs[unit].add(batch.take(pa.array(rows)))
            for unit in parts:
                if shard == files[unit].shards[-1]:
                    open_files[unit].close()


def _places(chosen: pa.Table, file: SubsetFile) -> np.ndarray:
    """Return the documents of a file among the selected documents of a shard."""
    rows = np.arange(len(chosen))
    if file.dump:
        rows = rows[pc.equal(chosen["dump"], file.dump).to_numpy()]
    start = len(rows) * file.part // file.parts
    return rows[start : len(rows) * (file.part + 1) // file.parts]


@contextlib.contextmanager
def _output(run: Run, unit: int, schema: pa.Schema) -> Iterator[Output]:
    file = run.subset_files[unit]
    path = run.local_path("subset", unit)

    def receipt(rows: int) -> Receipt:
        logger.debug("subset: %s: %d documents", path.name, rows)
        metrics = {"shards": list(file.shards), "dump": file.dump}
        return run.make_receipt("subset", unit, rows, metrics)

    with parquet_output(path, schema, receipt, storage=run.storage, **PARQUET_OPTIONS) as write:
        output = Output(write, ROW_GROUP_BYTES)
        yield output
        output.flush()


def chosen_documents(run: Run, shard: int) -> pa.Table:
    """Read a shard's selected documents in the source's order.

    Columns are row, id, dump (`dump_names`) and those that the subset adds, without prefix.
    """
    columns = list(dict.fromkeys(["row", "id", "dump", *_added_names(run)]))
    chosen = read_columns(run.path("documents", shard), columns, [("selected", "=", True)])
    dumps = dump_names(chosen["dump"].combine_chunks())
    return chosen.set_column(columns.index("dump"), "dump", dumps)


def _added_names(run: Run) -> list[str]:
    prefix = run.settings.subset.column_prefix
    return [column.name.removeprefix(prefix) for column in added_columns(run.settings)]


def _selected_rows(
    run: Run, shard: int, chosen: pa.Table, wanted: np.ndarray, schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of some chosen documents, in the source's order.

    *wanted* are their places in *chosen*, ascending. A batch comes with the index in *wanted* of
    its first row.
    """
    columns = source_schema(run).names
    id_place = columns.index(run.settings.source.id_column)
    names, first = _added_names(run), 0
    for taken in read_shard(run, shard, columns, chosen["row"].to_numpy()[wanted]):
        ours = chosen.take(pa.array(wanted[first : first + len(taken)]))
        if not pc.all(pc.equal(taken.column(id_place).cast(pa.string()), ours["id"])).as_py():
            raise CorruptFileError(
                f"{run.path('documents', shard)}: other ids than the source's; delete it and "
                "relaunch"
            )
        added = [ours[name].combine_chunks() for name in names]
        yield first, pa.RecordBatch.from_arrays([*taken.columns, *added], schema=schema)
        first += len(taken)
    if first != len(wanted):
        raise CorruptFileError(
            f"{run.path('documents', shard)}: rows beyond the source's end; delete it and relaunch"
        )

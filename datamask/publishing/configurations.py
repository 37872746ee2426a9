"""The configurations of a published dataset, and the files of `sample`, `scores` and `tokens`.

    data/<config>/train-00000-of-000NN.parquet   the subset: `default`, or a folder per dump
    sample/train-00000-of-000NN.parquet          a random sample of the subset
    scores/train-00000-of-000NN.parquet          scores of every document of the source
    tokens/train-00000-of-000NN.parquet          tokens of the documents in the order of training

`data/` contains each selected document once, as in FineWeb: `default` loads all of it, the
configuration of a dump loads its folder. It can be read with a glob and be the source of another
run. `sample` repeats documents and `scores` has other columns, so they have their own folders.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.outputs import Publication
from datamask.config.selection import NO_GROUP
from datamask.runs import schemas
from datamask.runs.files import parquet_output, read_columns
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, digest
from datamask.source.long_texts import BATCH_ROWS
from datamask.source.reading import take_rows
from datamask.source.token_counts import TEXTS_AT_ONCE
from datamask.storage.local import sha256_of
from datamask.subset.write import PARQUET_OPTIONS, ROW_GROUP_BYTES, Output

SAMPLE = 0.01
"""Fraction of the subset in configuration `sample`: enough to look at before a large download."""

SCORES_PER_FILE = 5_000_000
"""Documents per file of `scores`: a few hundred megabytes."""


@dataclass(frozen=True)
class Configuration:
    """The files that `load_dataset(repository, name)` loads.

    Args:
        name: of the configuration.
        pattern: glob of its files in the repository.
        about: description for the card.
        files: paths on this machine by path in the repository.
    """

    name: str
    pattern: str
    about: str
    files: dict[str, Path]

    @functools.cached_property
    def rows(self) -> int:
        """Number of documents."""
        return sum(pq.read_metadata(path).num_rows for path in self.files.values())

    @functools.cached_property
    def memory_bytes(self) -> int:
        """Uncompressed size."""
        footers = (pq.read_metadata(path) for path in self.files.values())
        return sum(
            footer.row_group(group).total_byte_size
            for footer in footers
            for group in range(footer.num_row_groups)
        )

    @property
    def stored_bytes(self) -> int:
        """Size of the files."""
        return sum(path.stat().st_size for path in self.files.values())


def configurations(run: Run, publication: Publication, folder: Path) -> list[Configuration]:
    """Make `default`, dumps by name, and `sample` and `scores`, whose files go to *folder*.

    They are written if missing or stale; the subset and the composition must be up to date. A dump
    without selected documents has no configuration, unless no document is selected.
    """
    by_dump: dict[str, list[Path]] = {}
    for unit in range(run.num_units("subset")):
        by_dump.setdefault(run.subset_files[unit].dump, []).append(run.path("subset", unit))
    about = "all selected documents"
    if "" in by_dump:
        made = [_configuration("default", "data/default", by_dump[""], about)]
    else:
        dumps = [
            _configuration(dump, f"data/{dump}", paths, f"the documents of dump `{dump}`")
            for dump, paths in by_dump.items()
        ]
        dumps = [dump for dump in dumps if dump.rows] or dumps[:1]
        files = {name: path for dump in dumps for name, path in dump.files.items()}
        dumps.sort(key=lambda dump: dump.name)
        made = [Configuration("default", "data/*/train-*.parquet", about, files), *dumps]
    made.append(_write_sample(run, made[0], folder / "sample"))
    if "scores" in publication.include:
        made.append(_write_scores(run, folder / "scores"))
    if "tokens" in publication.include:
        made.append(_write_tokens(run, folder / "tokens"))
    return made


def _configuration(name: str, folder: str, paths: list[Path], about: str) -> Configuration:
    """Make a configuration of some files, which are numbered in its folder."""
    names = (f"{folder}/{file}" for file in _names(len(paths)))
    files = dict(zip(names, paths, strict=True))
    return Configuration(name, f"{folder}/train-*.parquet", about, files)


def _names(count: int) -> list[str]:
    return [f"train-{number:05d}-of-{count:05d}.parquet" for number in range(count)]


def _write_sample(run: Run, default: Configuration, folder: Path) -> Configuration:
    """Write a random sample of the subset in its order; the seed determines the documents."""
    count = min(max(1, round(SAMPLE * default.rows)), default.rows)
    generator = np.random.default_rng([run.settings.seed, default.rows])
    chosen = np.sort(generator.choice(default.rows, count, replace=False, shuffle=False))

    def batches() -> Iterator[pa.RecordBatch]:
        for path in default.files.values():
            with pq.ParquetFile(path, pre_buffer=False) as file:
                yield from file.iter_batches(BATCH_ROWS)

    files = -(-int(SAMPLE * default.stored_bytes) // run.settings.subset.file_bytes)
    made_from = digest("sample", 1, SAMPLE, run.settings.seed, run.fingerprint_all("subset"))
    sample = (rows for _, rows in take_rows(batches(), chosen))
    about = f"{100 * SAMPLE:.3g} % of them, chosen at random"
    schema = pq.read_schema(next(iter(default.files.values()))).remove_metadata()
    return _write(run, folder, about, schema, sample, count, max(1, files), made_from)


def _write_scores(run: Run, folder: Path) -> Configuration:
    """Write id, dump, raw scores, quality, dropped, logit, selected and shard of every document."""
    names = [score.name for score in run.settings.scores]
    columns = (
        *("id", "dump", *names, "quality", "dropped", *schemas.NEAR_DUPLICATE.names),
        *("contaminated_by", "logit", "selected", "shard"),
    )
    documents = schemas.documents(run.settings)
    schema = pa.schema([(name, documents.field(name).type) for name in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in range(run.num_shards):
            table = run.read_output("documents", shard, schema.names)
            column = schema.get_field_index("dump")
            is_none = pc.equal(table["dump"], NO_GROUP)
            table = table.set_column(column, "dump", pc.if_else(is_none, None, table["dump"]))
            yield from table.cast(schema).to_batches()

    files = -(-run.num_documents // SCORES_PER_FILE)
    made_from = digest("scores", 3, names, run.fingerprint_all("selection"))
    about = "scores of every document of the source, without text"
    return _write(run, folder, about, schema, batches(), run.num_documents, files, made_from)


def _write_tokens(run: Run, folder: Path) -> Configuration:
    """Write id, exposure, first token and the list of tokens of every exposure."""
    order = run.receipt("order")
    kind = pa.from_numpy_dtype(order.metrics["type"])
    columns = [schemas.ORDER.field(name) for name in ("id", "exposure", "first_token")]
    schema = pa.schema([*columns, pa.field("tokens", pa.list_(kind), nullable=False)])

    def batches() -> Iterator[pa.RecordBatch]:
        for unit in range(run.num_units("tokens")):
            rows = read_columns(run.path("order"), filters=[("file", "=", unit)])
            tokens = np.memmap(run.fetch(run.beside("tokens", unit)[0]), order.metrics["type"], "r")
            for first in range(0, len(rows), TEXTS_AT_ONCE):
                batch = rows.slice(first, TEXTS_AT_ONCE)
                lengths, starts = batch["tokens"].to_numpy(), batch["first_token"].to_numpy()
                begin = int(starts[0] - rows["first_token"][0].as_py())
                values = pa.array(tokens[begin : begin + int(lengths.sum())])
                offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
                lists = pa.ListArray.from_arrays(offsets, values)
                facts = [batch[field.name].combine_chunks() for field in columns]
                yield pa.RecordBatch.from_arrays([*facts, lists], schema=schema)

    made_from = digest("tokens", 1, run.fingerprint("order"))
    files = int(order.metrics["files"])
    about = "tokens of every exposure of a document, in the order of training"
    return _write(run, folder, about, schema, batches(), order.rows, files, made_from)


def _write(
    run: Run,
    folder: Path,
    about: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    rows: int,
    num_files: int,
    made_from: str,
) -> Configuration:
    """Write rows to files of equal length, unless the files are up to date."""
    paths = [folder / name for name in _names(num_files)]
    made = _configuration(folder.name, folder.name, paths, about)
    if all(_is_whole(run, path, made_from) for path in paths):
        return made
    waiting = pa.RecordBatch.from_pylist([], schema=schema)
    for number, path in enumerate(paths):
        size = rows * (number + 1) // num_files - rows * number // num_files
        receipt = functools.partial(Receipt, folder.name, number, made_from)
        output_of = {**PARQUET_OPTIONS, "storage": run.storage}
        with parquet_output(path, schema, receipt, **output_of) as write:
            output = Output(write, ROW_GROUP_BYTES)
            while size:
                if not len(waiting):
                    waiting = next(batches)
                batch = waiting.slice(0, size)
                waiting = waiting.slice(len(batch))
                size -= len(batch)
                output.add(batch)
            output.flush()
    return made


def _is_whole(run: Run, path: Path, made_from: str) -> bool:
    """Return True if an earlier publication's file is up to date, and its bytes are as written."""
    noted = run.storage.noted_sha256(path.relative_to(run.root).as_posix())
    return run.state_of(path, made_from) == "done" and sha256_of(path)[0] == noted

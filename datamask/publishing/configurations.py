"""The configurations of a published dataset: the files of each, and those that are made for it.

    data/<config>/train-00000-of-000NN.parquet   the subset: `default`, or a folder for each dump
    sample/train-00000-of-000NN.parquet          a seeded share of it, for looking
    scores/train-00000-of-000NN.parquet          every document of the source, for redoing the cut

`data/` is the dataset and nothing else, and holds no document twice, as in FineWeb: `default` loads
all of it, a dump's configuration its folder. So `data/` can be read by a glob, and be the source of
another run. `sample` repeats documents and `scores` has other columns: both are separate from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.outputs import Publication
from datamask.errors import CorruptFileError
from datamask.runs.files import parquet_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, digest
from datamask.source.reading import BATCH_ROWS
from datamask.storage.duckdb_scratch import temporary_duckdb
from datamask.subset.write import PARQUET_OPTIONS, Output

SCORES_PER_FILE = 5_000_000
"""Documents in a file of `scores`: some hundred megabytes."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What `load_dataset(repository, name)` loads.

    Args:
        name: of the configuration.
        pattern: glob of its files in the repository.
        about: what it holds, for the card.
        files: path in the repository and place on this machine.
        schema: of all its files.
        rows: documents.
        memory_bytes: uncompressed.
        stored_bytes: of the files.
    """

    name: str
    pattern: str
    about: str
    files: tuple[tuple[str, Path], ...]
    schema: pa.Schema
    rows: int
    memory_bytes: int
    stored_bytes: int


def configurations(
    run: Run, publication: Publication, compute: Compute, folder: Path
) -> list[Configuration]:
    """All configurations, `default` first; `sample` and `scores` are written where they are stale.

    A dump of which nothing was selected has none, unless nothing was selected at all.

    Args:
        run: with an up-to-date subset.
        publication: whether there is a sample, and scores.
        compute: DuckDB's memory and threads.
        folder: for the files of `sample` and `scores`.
    """
    by_dump: dict[str, list[Path]] = {}
    for unit in range(run.num_units("subset")):
        by_dump.setdefault(run.subset_files[unit].dump, []).append(run.path("subset", unit))
    dumps = []
    for dump, paths in by_dump.items():
        name = dump or "default"
        about = f"the documents of dump `{name}`"
        dumps.append(_configuration(name, f"data/{name}", paths, about))
    dumps = [dump for dump in dumps if dump.rows] or dumps[:1]
    default = Configuration(
        "default",
        "data/default/train-*.parquet" if "" in by_dump else "data/*/train-*.parquet",
        "all selected documents",
        tuple(file for dump in dumps for file in dump.files),
        dumps[0].schema,
        sum(dump.rows for dump in dumps),
        sum(dump.memory_bytes for dump in dumps),
        sum(dump.stored_bytes for dump in dumps),
    )
    made = [default, *(dump for dump in dumps if dump.name != "default")]
    if publication.sample:
        paths = _write_sample(run, default, publication.sample, folder / "sample")
        about = f"{100 * publication.sample:.3g} % of them at random, for looking"
        made.append(_configuration("sample", "sample", paths, about))
    if publication.scores:
        paths = _write_scores(run, compute, folder / "scores")
        about = "every document of the source without its text, for redoing the cut"
        made.append(_configuration("scores", "scores", paths, about))
    return made


def _configuration(name: str, folder: str, paths: list[Path], about: str) -> Configuration:
    """One with files of its own, which get numbers of their own."""
    rows = memory = 0
    for path in paths:
        metadata = pq.read_metadata(path)
        rows += metadata.num_rows
        groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
        memory += sum(group.total_byte_size for group in groups)
    names = _names(len(paths))
    return Configuration(
        name,
        f"{folder}/train-*.parquet",
        about,
        tuple((f"{folder}/{names[i]}", path) for i, path in enumerate(paths)),
        pq.read_schema(paths[0]).remove_metadata(),
        rows,
        memory,
        sum(path.stat().st_size for path in paths),
    )


def _names(count: int) -> list[str]:
    return [f"train-{number:05d}-of-{count:05d}.parquet" for number in range(count)]


def _write_sample(run: Run, default: Configuration, share: float, folder: Path) -> list[Path]:
    """Draw the same documents for the same seed, in the order of the files they come from."""
    count = min(max(1, round(share * default.rows)), default.rows)
    generator = np.random.default_rng([run.settings.seed, default.rows])
    places = np.sort(generator.choice(default.rows, count, replace=False, shuffle=False))

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for _, path in default.files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    first, last = np.searchsorted(places, [start, start + len(batch)])
                    if first < last:
                        yield batch.take(pa.array(places[first:last] - start))
                    start += len(batch)

    files = -(-int(share * default.stored_bytes) // run.settings.subset.file_bytes)
    made_from = digest("sample", 1, share, run.settings.seed, run.fingerprint_all("subset"))
    return _write(run, folder, default.schema, batches(), count, max(1, files), made_from)


def _write_scores(run: Run, compute: Compute, folder: Path) -> list[Path]:
    """Id, dump, raw scores, quality, why dropped, logit, selected and shard of every document."""
    names = [score.name for score in run.settings.scores]
    schema = pa.schema(
        [
            pa.field("id", pa.string()),
            pa.field("dump", pa.string()),
            *(pa.field(name, pa.float64()) for name in names),
            pa.field("quality", pa.float64()),
            pa.field("dropped", pa.string()),
            pa.field("logit", pa.float32()),
            pa.field("selected", pa.bool_()),
            pa.field("shard", pa.int32()),
        ]
    )
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    raw = "".join(f's."{name}", ' for name in names)
    query = (
        f"SELECT q.id, s.dump, {raw}q.quality, q.dropped, m.logit, "
        "coalesce(m.selected, false) AS selected, $shard::INT AS shard "
        "FROM read_parquet($quality) q JOIN read_parquet($scores) s ON q.row = s.row "
        "LEFT JOIN read_parquet($selection) m ON q.id = m.chunk_id ORDER BY q.row"
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in range(run.num_shards):
            paths = {stage: str(run.path(stage, shard)) for stage in ("scores", "selection")} | {
                "quality": str(run.quality_path(shard))
            }
            with temporary_duckdb(run.root, compute) as connection:
                table = connection.sql(query, params={**paths, "shard": shard}).to_arrow_table()
            if table.num_rows != run.shard_rows(shard):
                raise CorruptFileError(
                    f"{paths['quality']}: not the documents of {paths['scores']}; delete it and "
                    "relaunch"
                )
            yield from table.cast(schema).to_batches()

    files = -(-run.num_documents // SCORES_PER_FILE)
    made_from = digest("scores", 1, names, run.fingerprint_all("selection"))
    return _write(run, folder, schema, batches(), run.num_documents, files, made_from)


def _write(
    run: Run,
    folder: Path,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    rows: int,
    num_files: int,
    made_from: str,
) -> list[Path]:
    """Write rows to files of equal length, unless they are there already."""
    paths = [folder / name for name in _names(num_files)]
    if all(run.state_of(path, made_from) == "done" for path in paths):
        return [run.fetch(path) for path in paths]
    waiting = next(batches, pa.RecordBatch.from_pylist([], schema=schema))
    for number, path in enumerate(paths):
        due = rows * (number + 1) // num_files - rows * number // num_files

        def receipt(rows: int, number: int = number) -> Receipt:
            return Receipt(folder.name, number, made_from, rows)

        with contextlib.ExitStack() as stack:
            output = Output(
                stack.enter_context(parquet_output(path, schema, receipt, **PARQUET_OPTIONS)),
                run.settings.subset.row_group_bytes,
            )
            while due:
                if not len(waiting):
                    waiting = next(batches)
                part = waiting.slice(0, due)
                waiting = waiting.slice(len(part))
                due -= len(part)
                output.add(part)
            output.flush()
    return paths

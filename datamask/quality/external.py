"""Scores that come in files of their own, matched to documents by id.

The files may be far larger than a shard and in any order, so they are streamed and only the rows
of the shard's documents are kept. An id that occurs twice among them is an error, because either
score could be the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from datamask.config import Score
from datamask.errors import InputError
from datamask.footers import SCORE_SUFFIXES
from datamask.requirements import is_numeric
from datamask.sources import list_files, open_binary, open_parquet


def match_scores(score: Score, ids: pa.ChunkedArray, shard: int) -> pa.Array:
    """The scores of documents, in their order; null where the files have no such id.

    Args:
        score: kind `file`.
        ids: the documents' ids, as text.
        shard: for messages.

    Raises:
        InputError: a file is unreadable or lacks a column, the column is not numeric, or an id
            of the shard occurs twice.
    """
    keys: list[pa.Array] = []
    values: list[pa.Array] = []
    wanted = ids.combine_chunks()
    for path in list_files(score.path, SCORE_SUFFIXES):
        for key, value in read_scores(path, score, shard):
            chosen = pc.is_in(key, wanted)
            keys.append(key.filter(chosen))
            values.append(value.filter(chosen))
    found = pa.chunked_array(keys, pa.string())
    counts = pc.value_counts(found)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise InputError(
            f"{len(repeated)} ids occur more than once, {repeated[0]['values'].as_py()!r} "
            f"{repeated[0]['counts'].as_py()} times; keep one score of each",
            path=score.path,
            shard=shard,
            column=score.id_column,
        )
    places = pc.index_in(wanted, found)
    return pa.chunked_array(values, pa.float64()).combine_chunks().take(places)


def read_scores(
    path: str, score: Score, shard: int | None = None
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Ids as text and scores as float64, batch by batch.

    Args:
        path: one file.
        score: kind `file`.
        shard: for messages.

    Raises:
        InputError: the file is unreadable, lacks a column or holds something else in it.
    """
    try:
        for batch in _batches(path, score, shard):
            value = batch.column(score.column)
            if not is_numeric(value.type):
                raise InputError(
                    f"type {value.type}, needed a number; mend it, or name another column",
                    path=path,
                    shard=shard,
                    column=score.column,
                )
            keys = batch.column(score.id_column).cast(pa.string())
            keys.validate(full=True)  # Arrow reads JSON and Parquet without looking at the bytes
            yield keys, value.cast(pa.float64())
    except pa.ArrowException as error:
        raise InputError(
            f"cannot be read as ids ({score.id_column}) and numbers ({score.column}): "
            f"{' '.join(str(error).split())}; mend the file",
            path=path,
            shard=shard,
        ) from None


def _batches(path: str, score: Score, shard: int | None) -> Iterator[pa.RecordBatch]:
    names = [score.id_column, score.column]

    def check(known: list[str]) -> None:
        for name in names:
            if name not in known:
                raise InputError(
                    f"absent; set column and id_column of score {score.name} to two of: "
                    f"{', '.join(known)}",
                    path=path,
                    shard=shard,
                    column=name,
                )

    if path.lower().endswith(".parquet"):
        with open_parquet(path, shard) as file:
            check(file.schema_arrow.names)
            yield from file.iter_batches(columns=names)
    elif path.lower().endswith(".csv"):
        with open_binary(path) as raw, pa.csv.open_csv(raw) as reader:
            check(reader.schema.names)
        # Ids are read as text: a number would lose its leading zeros.
        types = {score.id_column: pa.string(), score.column: pa.float64()}
        options = {
            "convert_options": pa.csv.ConvertOptions(column_types=types, include_columns=names),
            # Arrow tells the row of a fault only when it reads with one thread.
            "read_options": pa.csv.ReadOptions(use_threads=False),
        }
        with open_binary(path) as raw, pa.csv.open_csv(raw, **options) as reader:
            yield from reader
    elif not path.lower().endswith(SCORE_SUFFIXES):
        kinds = ", ".join(SCORE_SUFFIXES)
        raise InputError(f"not a kind of file that is known; use {kinds}", path=path, shard=shard)
    else:
        with open_binary(path) as raw:
            known = pa.json.open_json(raw).schema
        check(known.names)
        id_type = known.field(score.id_column).type
        schema = pa.schema([(score.id_column, id_type), (score.column, pa.float64())])
        parsing = pa.json.ParseOptions(schema, unexpected_field_behavior="ignore")
        with open_binary(path) as raw:
            yield from pa.json.open_json(raw, parse_options=parsing)

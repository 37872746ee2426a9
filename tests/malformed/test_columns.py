"""Columns of the source that are absent, of another type, or hold unusable values are refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.malformed.commands import assert_refused
from tests.malformed.inputs import (
    REST,
    ROWS,
    WIDTH,
    Cases,
    Make,
    corpus,
    every_file,
    features,
    rebuild,
    setting,
)

EDU = "[{name: edu, kind: column, column: score}]"
LATIN = pa.array([b"caf\xe9"] * ROWS, pa.binary()).view(pa.string())
LATIN_IDS = pa.array([b"%d\xe9" % row for row in range(ROWS)], pa.binary()).view(pa.string())
NAMES = [f"1-{row}" for row in range(ROWS)]


def columns(**changes: Any) -> Make:
    """A corpus with other columns in its second file."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source", **changes)
        return rebuild(folder)

    return make


def scored(**changes: Any) -> Make:
    """Other columns, and a score read from them."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source", **changes)
        return rebuild(folder, quality__scores=EDU)

    return make


def retyped(name: str, kind: pa.DataType) -> Make:
    """All files with another type of a column."""
    return every_file(
        lambda table: table.set_column(
            table.column_names.index(name), name, table[name].cast(kind, safe=False)
        )
    )


def twice_named(folder: Path) -> list[str]:
    """A file with two columns of one name."""
    path = corpus(folder / "source") / "1.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("text", table["id"]), path)
    return rebuild(folder)


COLUMNS: Cases = {
    "column absent everywhere": (setting(source__columns__text="body"), "column body: absent from"),
    "column twice in a file": (twice_named, "1.parquet, column text: occurs more than once"),
    **{
        f"{name} that is a list": (
            every_file(lambda table, name=name: table.append_column(name, [[["x"]] * ROWS])),
            f"column {name}: type list<element: string>, needed text; fix it, or set source.colu",
        )
        for name in ("dump", "language", "url")
    },
    "columns that differ in case": (
        every_file(lambda table: table.append_column("TEXT", table["text"])),
        "column TEXT: differs from column text in case only, which DuckDB ignores; rename one",
    ),
    "text that is bytes": (retyped("text", pa.binary()), "column text: type binary, needed text;"),
    "id that is a fraction": (setting(source__columns__id="score"), "column score: type double,"),
    "score that is text": (
        setting(quality__scores="[{name: edu, kind: column, column: text}]"),
        "column text: type string, needed a number; fix it, or set quality.scores.0.column",
    ),
    "null id": (columns(id=[*NAMES[:5], None, *NAMES[6:]]), "1.parquet, row 5, column id: null or"),
    "id of a page": (
        columns(id=[*NAMES[:5], "x" * 5000, *NAMES[6:]]),
        "1.parquet, row 5, column id: an id of",
    ),
    "id that is not UTF-8": (columns(id=LATIN_IDS), "1.parquet, row 0, column id: not valid"),
    "text that is not UTF-8": (columns(text=LATIN), "1.parquet, shard 00001, row 0, column text:"),
    "address that is not UTF-8": (
        every_file(lambda table: table.append_column("url", pa.chunked_array([LATIN]))),
        "0.parquet, shard 00000, row 0, column url: not valid UTF-8; re-encode it",
    ),
    "no text in any document": (
        every_file(lambda table: table.set_column(1, "text", pa.array([" "] * ROWS))),
        "no document",
    ),
    "more tokens than a text can have": (
        every_file(lambda table: table.append_column("token_count", pa.array([5.0, 1e30] * 4))),
        "0.parquet, shard 00000, row 1, column token_count: 1e+30 tokens in a document; fix it",
    ),
    "scores beyond all measure": (scored(score=[1e308, -1e308, *REST[1:]]), "column edu: values"),
    "more tokens than whole numbers count": (
        every_file(
            lambda table: table.append_column(
                "token_count", [[1, 2**62 if str(table["id"][0]) in NAMES else 3, 2, 2] * 2]
            ),
            selection__tokens=4,
        ),
        "1.parquet, row 1, column token_count: ",
    ),
    "no score of any document": (
        every_file(
            lambda table: table.set_column(2, "score", pa.nulls(ROWS, pa.float64())),
            quality__scores="[{name: edu, kind: column, column: score, missing: drop}]",
        ),
        "no document is left of 16",
        " 16 missing-score",
    ),
    "the same long id": (columns(id=["x" * 999] * 2 + NAMES[2:]), "xxx... 2 times in"),
}


def vectors(**changes: Any) -> Make:
    """The published layout with other columns."""

    def make(folder: Path) -> list[str]:
        features(folder / "source", **changes)
        return rebuild(folder, source__layout="features")

    return make


def unit_vectors(**rows: Any) -> list[Any]:
    """Vectors, some of them replaced: `_3=None`."""
    made: list[Any] = [[1.0, 0.5, 0.25, 0.125]] * ROWS
    for name, value in rows.items():
        made[int(name[1:])] = value
    return made


VECTORS: Cases = {
    "ragged embeddings": (
        vectors(feature_arr=unit_vectors(_3=[1.0])),
        "0.parquet, row 3, column feature_arr: 1 numbers wide; embedding.dimension is 4; fix",
    ),
    "embeddings of another width": (
        vectors(feature_arr=pa.array([[1.0] * 3] * ROWS, pa.list_(pa.float32(), 3))),
        "column feature_arr: 3 numbers wide; set embedding.dimension (4) to that",
    ),
    "NaN in an embedding": (
        vectors(feature_arr=unit_vectors(_5=[1.0, float("nan"), 0.0, 0.0])),
        "0.parquet, row 5, column feature_arr: NaN or infinite number",
    ),
    "embedding of zeros": (
        vectors(feature_arr=unit_vectors(_7=[0.0] * WIDTH)),
        "0.parquet, row 7, column feature_arr: all zeros, has no direction; fix it or drop",
    ),
    "null embedding": (
        vectors(feature_arr=unit_vectors(_2=None)),
        "0.parquet, row 2, column feature_arr: null; give every document an embedding",
    ),
}


@pytest.mark.parametrize("name", [*COLUMNS, *VECTORS])
def test_bad_input_gets_one_line(name, tmp_path, capsys):
    """Columns that are absent, ambiguous, of another type, or hold unusable values or vectors."""
    assert_refused((COLUMNS | VECTORS)[name], tmp_path, capsys)

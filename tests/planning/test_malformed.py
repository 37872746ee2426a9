"""Bad input as users bring it: each gets one line that names the place and the remedy, at once.

Every case goes through the commands themselves. A case makes its input in an empty folder and
gives the command; whatever is not caught on the way out of `main` fails the test by itself, and so
does a second line.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.parquet import encryption

from datamask.cli import main, train_mask
from datamask.config.compute import Compute
from datamask.errors import RunError
from datamask.execution.pipeline import run_stage
from datamask.runs.opening import open_run

ROWS = 8
WIDTH = 4


def corpus(folder: Path, **changes: Any) -> Path:
    """Two files of eight documents; *changes* replace columns of the second (None removes one)."""
    folder.mkdir(parents=True)
    for file in range(2):
        columns: dict[str, Any] = {
            "id": [f"{file}-{row}" for row in range(ROWS)],
            "text": [f"The river and the stone of market {file} {row}." for row in range(ROWS)],
            "score": [0.1 * row for row in range(ROWS)],
        }
        if file == 1:
            columns |= changes
        kept = {name: values for name, values in columns.items() if values is not None}
        pq.write_table(pa.table(kept), folder / f"{file}.parquet", row_group_size=4)
    return folder


def features(folder: Path, **changes: Any) -> Path:
    """One file in the published layout."""
    folder.mkdir(parents=True)
    vectors = np.random.default_rng(0).standard_normal((ROWS, WIDTH))
    columns: dict[str, Any] = {
        "chunk_id": list(range(ROWS)),
        "quality_score": [0.1 * row for row in range(ROWS)],
        "feature_arr": pa.array(vectors.tolist(), pa.list_(pa.float32())),
    }
    columns |= changes
    kept = {name: values for name, values in columns.items() if values is not None}
    pq.write_table(pa.table(kept), folder / "0.parquet")
    return folder


SMALL = {
    "embedding.method": "lexical",
    "embedding.dimension": str(WIDTH),
    "plan.rows_per_shard": "8",
    "selection.ratio": "0.25",
    "selection.steps": "5",
}


def sets(**settings: object) -> list[str]:
    """`--set` arguments; `__` stands for the dot."""
    given = SMALL | {key.replace("__", "."): str(value) for key, value in settings.items()}
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


Make = Callable[[Path], list[str]]


def rebuild(folder: Path, **settings: object) -> list[str]:
    """A launch on the folder's corpus."""
    settings = {"source__path": folder / "source", **settings}
    return ["rebuild", str(folder / "run"), *sets(**settings)]


def columns(**changes: Any) -> Make:
    """A corpus with other columns in its second file."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source", **changes)
        return rebuild(folder)

    return make


EDU = "[{name: edu, kind: column, column: score}]"


def scored(**changes: Any) -> Make:
    """Other columns, and a score read from them."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source", **changes)
        return rebuild(folder, quality__scores=EDU)

    return make


def setting(**settings: object) -> Make:
    """A good corpus and other settings."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        named = {key: str(value).replace("HERE", str(folder)) for key, value in settings.items()}
        return rebuild(folder, **named)

    return make


def bytes_of(change: Callable[[bytes], bytes]) -> Make:
    """The second file's bytes changed."""

    def make(folder: Path) -> list[str]:
        path = corpus(folder / "source") / "1.parquet"
        path.write_bytes(change(path.read_bytes()))
        return rebuild(folder)

    return make


def spoilt_footer(data: bytes) -> bytes:
    """A footer of the right length and of nonsense."""
    length = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - length] + b"\xff" * length + data[-8:]


def page_damage(name: str) -> Make:
    """A column's pages overwritten in the second file; its footer stays whole."""

    def make(folder: Path) -> list[str]:
        path = corpus(folder / "source") / "1.parquet"
        data = bytearray(path.read_bytes())
        chunk = pq.read_metadata(path).row_group(1).column(pq.read_schema(path).names.index(name))
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        path.write_bytes(data)
        return rebuild(folder)

    return make


class PlainKeys(encryption.KmsClient):
    """A key server that gives every key as it is."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        """The key, as text."""
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        """The key."""
        return base64.b64decode(wrapped_key)


def encrypted(path: Path, *, plain_footer: bool, column: str = "text") -> None:
    """Write a file again with one column encrypted."""
    table = pq.read_table(path)
    factory = encryption.CryptoFactory(lambda _: PlainKeys())
    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": [column]}, plaintext_footer=plain_footer
    )
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)


def locked(*, plain_footer: bool) -> Make:
    """The second file encrypted."""

    def make(folder: Path) -> list[str]:
        encrypted(corpus(folder / "source") / "1.parquet", plain_footer=plain_footer)
        return rebuild(folder)

    return make


def locked_scores(folder: Path) -> list[str]:
    """A file of scores whose column is encrypted."""
    command = score_file("s.parquet", {"id": IDS, "score": [0.5] * len(IDS)})(folder)
    encrypted(folder / "s.parquet", plain_footer=True, column="score")
    return command


def every_file(change: Callable[[pa.Table], pa.Table]) -> Make:
    """All files of the corpus changed in the same way."""

    def make(folder: Path) -> list[str]:
        for path in corpus(folder / "source").iterdir():
            pq.write_table(change(pq.read_table(path)), path)
        return rebuild(folder)

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


def odd_name(name: str) -> Make:
    """A folder with brackets, which is no pattern, and in it an empty file of this name."""

    def make(folder: Path) -> list[str]:
        (corpus(folder / "source [1]") / name).write_bytes(b"")
        return rebuild(folder, source__path=folder / "source [1]")

    return make


def dangling_link(folder: Path) -> list[str]:
    """A link to a file that was deleted."""
    (corpus(folder / "source") / "2.parquet").symlink_to(folder / "gone")
    return rebuild(folder)


def objective(body: str, *, inside: bool = False) -> Make:
    """A module of the user's with an objective; *inside*: the body of its `values`."""
    if inside:
        body = (
            "import torch\n"
            "class Term:\n"
            "    name, maximise = 'mine', True\n"
            "    def values(self, masks, batch):\n"
            + "".join(f"        {line}\n" for line in body.splitlines())
        )

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        (folder / "their_terms.py").write_text(body)
        return rebuild(folder, selection__metric="their_terms:Term")

    return make


def score_file(name: str, content: str | bytes | dict[str, Any], **more: object) -> Make:
    """A good corpus and a file of scores."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        path = folder / name
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        score = {"name": "edu", "kind": "file", "path": str(path), **more}
        return rebuild(folder, quality__scores=json.dumps([score]))

    return make


IDS = [f"{file}-{row}" for file in range(2) for row in range(ROWS)]
LINES = "".join(f"{key},0.5\n" for key in IDS)
JSON_LINES = "".join(json.dumps({"id": key, "score": 0.5}) + "\n" for key in IDS)


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


def config(content: str | bytes) -> Make:
    """A good corpus and a configuration file."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        path = folder / "my.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [*rebuild(folder), "--config", str(path)]

    return make


def after_planning(
    spoil: Callable[[Path], object], *, command: str = "rebuild", **settings: str | int
) -> Make:
    """A planned run, then something happens, then a command."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        assert run_main(["-q", "plan", *rebuild(folder)[1:]]) == 0
        spoil(folder)
        if command == "rebuild":
            named = {
                key: str(value).replace("HERE", str(folder)) for key, value in settings.items()
            }
            return rebuild(folder, **named)
        return [command, str(folder / "run")]

    return make


def arguments(*given: str) -> Make:
    """A command on a good corpus; HERE is the folder."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        return [part.replace("HERE", str(folder)) for part in given]

    return make


def run_main(given: list[str]) -> int:
    """What `datamask` does with these arguments, in this process; its exit status."""
    before = sys.argv
    sys.argv = ["datamask", *given]
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """The bytes of a file changed."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def replace_plan(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another table where the plan was."""
    path = folder / "run" / "plan.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def other_texts(folder: Path) -> None:
    """The source written again with other texts."""
    shutil.rmtree(folder / "source")
    corpus(folder / "source", text=["other"] * ROWS)


BAD = b"caf\xe9"
LATIN = pa.array([b"caf\xe9"] * ROWS, pa.binary()).view(pa.string())
LATIN_IDS = pa.array([b"%d\xe9" % row for row in range(ROWS)], pa.binary()).view(pa.string())
REST = [0.5] * (ROWS - 1)
NAMES = [f"1-{row}" for row in range(ROWS)]
WITHOUT = "in 1 documents; fix them, or set missing of score edu to drop or fill"

UNREADABLE: dict[str, tuple[Any, ...]] = {
    "truncated Parquet": (bytes_of(lambda data: data[: len(data) // 2]), "1.parquet: truncated"),
    "zero bytes": (bytes_of(lambda data: b""), "1.parquet: truncated, or not a Parquet file"),
    "not Parquet": (bytes_of(lambda data: b"id,text\n1,hello world\n"), "1.parquet: truncated"),
    "damaged footer": (bytes_of(spoilt_footer), "1.parquet: cannot be read", "replace it"),
    "damaged pages of the id": (page_damage("id"), "1.parquet: cannot be read", "replace it"),
    "damaged pages of the text": (
        page_damage("text"),
        "1 of 2 shards failed: 00001 (file",
        "1.parquet, shard 00001: cannot be read",
        "rerun-failed",
    ),
    "no such folder": (
        setting(source__path="/nowhere"),
        "/nowhere: no .parquet files found; check",
    ),
    "empty glob": (setting(source__path="HERE/source/*.pq"), "*.pq: no .parquet files found"),
    "a file of another kind": (
        arguments("rebuild", "HERE/run", *sets(source__path=__file__)),
        "test_malformed.py: truncated, or not a Parquet file; replace it",
    ),
    "no source at all": (arguments("plan", "HERE/run", *sets()), "source.path: required; a folder"),
    "unknown protocol": (
        setting(source__path="foo://a/b"),
        "foo://a/b: not a path or URL",
        "check",
    ),
    "malformed Hub address": (setting(source__path="hf://x"), "hf://x: not a path or URL", "check"),
    "NUL in a path": (setting(source__path='"/a\\0b"'), "not a path or URL (embedded null byte)"),
    "no row in any file": (
        every_file(lambda table: table.slice(0, 0)),
        "source: no rows in any of its files; check the path",
    ),
    "line break in a file's name": (
        odd_name("a\nb.parquet"),
        r"a\nb.parquet: truncated, or not a Parquet file; replace it",
    ),
    "encrypted column": (
        locked(plain_footer=True),
        "1.parquet: has encrypted columns; decrypt it",
    ),
    "encrypted footer": (
        locked(plain_footer=False),
        "1.parquet: its footer is encrypted; decrypt it",
    ),
    "encrypted scores": (locked_scores, "s.parquet: has encrypted columns; decrypt it"),
    "file's name that is not UTF-8": (
        odd_name("caf\udce9.parquet"),
        r"caf\udce9.parquet: its name is not UTF-8 in this locale; rename it",
    ),
    "dangling link": (dangling_link, "2.parquet: no such file; restore it"),
}
COLUMNS: dict[str, tuple[Any, ...]] = {
    "column absent from one file": (
        columns(text=None),
        "1.parquet, column text: absent, but",
        "give all files the same columns",
    ),
    "column in one file only": (
        columns(extra=[1] * ROWS),
        "0.parquet, column extra: absent, but",
    ),
    "column absent everywhere": (
        setting(source__columns__text="body"),
        "column body: absent from the source; set source.columns.text to one of: id, text, score",
    ),
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
    "column of a name that the subset adds": (
        every_file(lambda table: table.append_column("Shard", table["score"])),
        "column Shard: the subset adds a column of this name; set subset.column_prefix",
    ),
    "text that is a number": (
        columns(text=list(range(ROWS))),
        "1.parquet, column text: type int64 does not fit string",
        "give all files the same types",
    ),
    "text that is bytes": (
        retyped("text", pa.binary()),
        "column text: type binary, needed text; fix it",
    ),
    "id that is a list": (
        columns(id=[["a"]] * ROWS),
        "1.parquet, column id: type list<element: string> does not fit",
    ),
    "id that is a fraction": (
        setting(source__columns__id="score"),
        "column score: type double, needed text or integer; fix it, or set source.columns.id",
    ),
    "score that is text": (
        setting(quality__scores="[{name: edu, kind: column, column: text}]"),
        "column text: type string, needed a number; fix it, or set quality.scores.0.column",
    ),
    "id twice in a file": (
        columns(id=["x"] * ROWS),
        "column id: 1 ids are not unique ('x' 8 times in",
        "make every id occur once",
    ),
    "id twice across files": (
        columns(id=[f"0-{row}" for row in range(ROWS)]),
        "8 ids are not unique ('0-0' 2 times in",
        "0.parquet",
        "1.parquet",
    ),
    "null id": (
        columns(id=[*NAMES[:5], None, *NAMES[6:]]),
        "1.parquet, row 5, column id: null or empty; give every document an id",
    ),
    "empty id": (columns(id=[*NAMES[:7], ""]), "1.parquet, row 7, column id: null or empty"),
    "id that is not UTF-8": (
        columns(id=LATIN_IDS),
        "1.parquet, row 0, column id: not valid UTF-8; re-encode it",
    ),
    "text that is not UTF-8": (
        columns(text=LATIN),
        "1.parquet, shard 00001, row 0, column text: not valid UTF-8; re-encode it",
    ),
    "address that is not UTF-8": (
        every_file(lambda table: table.append_column("url", pa.chunked_array([LATIN]))),
        "0.parquet, shard 00000, row 0, column url: not valid UTF-8; re-encode it",
    ),
    "no text in any document": (
        every_file(lambda table: table.set_column(1, "text", pa.array([" "] * ROWS))),
        "no document",
    ),
    "NaN as score": (
        scored(score=[*REST, float("nan")]),
        "1.parquet, row 7, column score: score missing, NaN or infinite",
        WITHOUT,
    ),
    "infinite score": (scored(score=[float("inf"), *REST]), "row 0, column score:", WITHOUT),
    "null score": (scored(score=[None, *REST]), "row 0, column score:", WITHOUT),
    "more tokens than a text can have": (
        every_file(lambda table: table.append_column("token_count", pa.array([5.0, 1e30] * 4))),
        "scores: 2 of 2 shards failed: 00000, 00001",
        "0.parquet, shard 00000, row 1, column token_count: 1e+30 tokens in a document; fix it",
    ),
    "scores beyond all measure": (
        scored(score=[1e308, -1e308, *REST[1:]]),
        "column edu: values too large for z-score; use normalisation rank",
    ),
}
SCORE_FILES: dict[str, tuple[Any, ...]] = {
    "no such file of scores": (
        setting(quality__scores="[{name: a, kind: file, path: /nowhere.csv}]"),
        "/nowhere.csv: no .parquet, .csv, .jsonl, .ndjson files found; check",
    ),
    "unknown kind of file": (
        score_file("s.tsv", "id\tscore\n"),
        "s.tsv: unknown kind of file; use .parquet, .csv",
    ),
    "truncated Parquet of scores": (score_file("s.parquet", b"PAR1xx"), "s.parquet: truncated"),
    "Parquet of scores without ids": (
        score_file("s.parquet", {"key": IDS, "score": [0.5] * len(IDS)}),
        "s.parquet, column id: absent; set column and id_column of score edu to two of: key, score",
    ),
    "Parquet of scores that are text": (
        score_file("s.parquet", {"id": IDS, "score": ["good"] * len(IDS)}),
        "s.parquet, column score: type string, needed a number; fix it",
    ),
    "Parquet of scores with lists as ids": (
        score_file("s.parquet", {"id": [[key] for key in IDS], "score": [0.5] * len(IDS)}),
        "s.parquet, column id: type list<element: string>, needed text or integer",
        "write the ids as text",
    ),
    "CSV with the score twice": (
        score_file("s.csv", "id,score,score\n" + LINES.replace(",", ",1,")),
        "s.csv, column score: occurs more than once; give every column its own name",
    ),
    "CSV with the id twice": (
        score_file("s.csv", "id,id,score\n" + LINES.replace(",", ",x,")),
        "s.csv, column id: occurs more than once; give every column its own name",
    ),
    **{
        f"{name.split('.')[1]} in {encoding}": (
            score_file(name, text.encode(encoding)),
            f"{name}: encoded in UTF-16 or UTF-32; convert it to UTF-8",
        )
        for name, text in (("s.csv", "id,score\n" + LINES), ("s.jsonl", JSON_LINES))
        for encoding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32")
    },
    "CSV without the score": (
        score_file("s.csv", "id,grade\n" + LINES),
        "s.csv, column score: absent; set column and id_column of score edu to two of: id, grade",
    ),
    "word in a CSV": (
        score_file("s.csv", "id,score\n" + LINES.replace("0-3,0.5", "0-3,good")),
        "s.csv: cannot be read",
        "Row #5: CSV conversion error to double: invalid value 'good'; fix the file",
    ),
    "CSV with a row too wide": (
        score_file("s.csv", "id,score\n" + LINES + "a,b,c\n"),
        "s.csv: cannot be read",
        "Expected 2 columns, got 3",
    ),
    "CSV that is not UTF-8": (
        score_file("s.csv", b"id,score\n" + LINES.encode() + BAD + b",1\n"),
        "s.csv: cannot be read",
        "Row #18: CSV conversion error to string: invalid UTF8",
    ),
    "empty CSV": (score_file("s.csv", ""), "s.csv: cannot be read", "Empty CSV file; fix"),
    "NaN in a CSV": (
        score_file("s.csv", "id,score\n" + LINES.replace("0-3,0.5", "0-3,nan")),
        "0.parquet, row 3, column edu: score missing",
        WITHOUT,
    ),
    "document without a line in the CSV": (
        score_file("s.csv", "id,score\n" + LINES.replace("1-6,", "9-9,")),
        "1.parquet, row 6, column edu: score missing",
        WITHOUT,
    ),
    "id twice in a CSV": (
        score_file("s.csv", "id,score\n" + LINES + "0-0,0.2\n"),
        "s.csv, column id: ids occur more than once, '0-0' 2 times; keep one score of each",
    ),
    "JSONL cut short": (
        score_file("s.jsonl", JSON_LINES + '{"id": "x", '),
        "s.jsonl, row 16: not JSON (",
        "correct the line",
    ),
    "JSONL of scores that are text": (
        score_file("s.jsonl", JSON_LINES.replace("0.5", '"good"')),
        "s.jsonl: cannot be read",
        "changed from number to string",
    ),
    "JSONL without the score in one line": (
        score_file("s.jsonl", JSON_LINES.replace('"0-3", "score"', '"0-3", "grade"')),
        "0.parquet, row 3, column edu: score missing",
        WITHOUT,
    ),
    "JSONL that is not UTF-8": (
        score_file("s.jsonl", JSON_LINES.encode() + b'{"id": "' + BAD + b'", "score": 1}\n'),
        "s.jsonl, row 16: not JSON ('utf-8' codec can't decode",
    ),
}
VECTORS: dict[str, tuple[Any, ...]] = {
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
    "embeddings of integers": (
        vectors(feature_arr=[[1, 2, 3, 4]] * ROWS),
        "column feature_arr: type list<element: int64>, needed a list of floats; fix it",
    ),
    "no quality_score": (
        vectors(quality_score=None),
        "column quality_score: absent from the source; set quality.scores.0.column to one of",
    ),
    "NaN as quality_score": (
        vectors(quality_score=[*REST, float("nan")]),
        "0.parquet, row 7, column quality_score: score missing, NaN or infinite",
    ),
    "chunk_id twice": (
        vectors(chunk_id=[1, 1, *range(2, ROWS)]),
        "column chunk_id: 1 ids are not unique ('1' 2 times in",
    ),
}
SETTINGS: dict[str, tuple[Any, ...]] = {
    "no such configuration": (
        arguments("rebuild", "HERE/run", "--config", "HERE/none.yaml"),
        "--config",
        "none.yaml' does not exist; see `datamask rebuild --help`",
    ),
    "configuration that is not YAML": (
        config("seed: 1\nsource: [1"),
        "my.yaml, line 2, column 11: not YAML (",
        "; fix it",
    ),
    "configuration that is a list": (config("- 1\n"), "my.yaml: needed groups of settings"),
    "configuration of bytes": (config(b"\xff\xfe\x00"), "my.yaml: not YAML (", "fix it"),
    "configuration with an alias": (
        config("seed: &a 1\nplan: {rows_per_shard: *a}\n"),
        "my.yaml, line 2, column 24: not YAML (an alias; write its value here)",
    ),
    "keys that resemble others": (
        config("selection: {ratoi: 1}\n"),
        "selection.ratoi: unknown key; did you mean `ratio`?",
    ),
    "a key outside its group": (
        config("quality_weight: 0.5\n"),
        "quality_weight: unknown key; did you mean `selection.quality_weight`?",
    ),
    "a method that resembles another": (
        setting(selection__method="top-quality"),
        "selection.method:",
        "got 'top-quality'; did you mean `top_quality`?",
    ),
    "a metric that resembles another": (
        setting(selection__metric="dissf"),
        "selection.metric: unknown objective; did you mean `disf`?",
        "known are disf, facility_location, pairwise, vendi, log_determinant and "
        "package.module:Class, got 'dissf'",
    ),
    "key given twice": (
        config("seed: 1\nselection:\n  ratio: 0.1\n  steps: 5\n  'ratio': 0.2\n"),
        "my.yaml, line 5, column 3: not YAML (key `ratio` was given in line 3 already); fix it",
    ),
    "group given twice": (
        config("selection: {ratio: 0.1}\nseed: 1\nselection: {steps: 5}\n"),
        "my.yaml, line 3, column 1: not YAML (key `selection` was given in line 1 already)",
    ),
    "key given twice in a list": (
        config("quality:\n  scores:\n  - name: a\n    kind: column\n    name: b\n"),
        "my.yaml, line 5, column 5: not YAML (key `name` was given in line 3 already)",
    ),
    "YAML nested too deep": (
        config("a: " + "[" * 3000 + "]" * 3000),
        "my.yaml, line 1, column 35",
        "deep",
    ),
    "--set nested too deep": (
        setting(seed="[" * 3000 + "]" * 3000),
        "--set seed=[[[",
        "more than 32 deep",
    ),
    "a word that is said to be a number": (
        setting(seed="!!int foo"),
        "--set seed=!!int foo: not YAML (",
    ),
    "a month that is said to be a date": (
        setting(seed="!!timestamp 2023-99-99"),
        "--set seed=!!timestamp 2023-99-99: not YAML (",
    ),
    "a date in place of a number": (setting(seed="2023-99-99"), "seed:", "got '2023-99-99'"),
    "a number of 5,000 digits": (setting(seed="9" * 5000), "--set seed=99999", "not YAML"),
    "a number of 4,000 digits": (setting(seed="9" * 4000), "seed:"),
    "infinite rate": (setting(selection__initial_lr=".inf"), "selection.initial_lr:", "finite"),
    "unknown key": (config("nonsense: {path: x}\n"), "nonsense: unknown key; `datamask settings`"),
    "unknown key in --set": (
        setting(sorce__path="x"),
        "sorce: unknown key; did you mean `source`?",
    ),
    "--set without =": (
        arguments("rebuild", "HERE/run", "--set", "selection.ratio"),
        "--set selection.ratio: needed group.key=value",
    ),
    "--set of what is no YAML": (setting(seed="[1"), "--set seed=[1, line 1, column 3: not YAML ("),
    "--set below a value": (
        arguments("rebuild", "HERE/run", "--set", "seed=1", "--set", "seed.x=1"),
        "--set seed.x=1: seed is not a group of settings; `datamask settings` lists",
    ),
    "value of another type": (setting(selection__ratio="lots"), "selection.ratio:", "got 'lots'"),
    "value out of range": (
        setting(selection__ratio=2),
        "selection.ratio:",
        "less than or equal to 1, got 2",
    ),
    "infinite weight": (
        setting(selection__more_terms="[{name: pairwise, weight: .inf}]"),
        "selection.more_terms.0.weight:",
        "finite",
    ),
    "score's name with capitals": (
        setting(quality__scores="[{name: Edu}]"),
        "quality.scores.0.name: 'Edu' does not fit; needed:",
        "lower-case",
    ),
    "two scores of one name": (
        setting(quality__scores="[{name: a}, {name: a}]"),
        "quality: score names must differ, got ['a', 'a']",
    ),
    "more documents than there are": (
        setting(selection__documents=100),
        "selection.documents: 100 asked for, the source has 16",
    ),
    "more documents than pruning leaves": (
        setting(selection__ratio=0.9),
        "selection.ratio: 14 documents are to be kept, but quality.prune_fraction 0.4 leaves at "
        "most 10",
    ),
    "unknown objective": (
        setting(selection__metric="beauty"),
        "selection.metric: unknown objective; known are disf,",
    ),
    "objective of no module": (
        setting(selection__metric="nowhere.terms:Class"),
        "objective `nowhere.terms:Class`: cannot be made",
        "No module named 'nowhere'",
        "check the name",
    ),
    "objective that is none": (
        setting(selection__metric="decimal:Decimal"),
        "objective `decimal:Decimal`: needs a class with `name`, `maximise` and `values`; see",
    ),
    "objective whose module fails": (
        objective("raise RuntimeError('boom')"),
        "cannot be made (RuntimeError: boom)",
    ),
    "objective that raises": (
        objective("raise RuntimeError('boom')", inside=True),
        "objective `mine`: failed (RuntimeError: boom); fix its class",
    ),
    "objective that reads an unknown score": (
        objective("return batch.scores['toxic'].sum()", inside=True),
        "objective `mine`: failed (KeyError: 'toxic'); fix its class",
    ),
    "objective that gives NaN": (
        objective("return torch.full((len(masks),), float('nan'))", inside=True),
        "objective `mine`: [nan, nan] on random documents; it must give finite numbers",
    ),
    "objective of another shape": (
        objective("return torch.zeros(3)", inside=True),
        "objective `mine`: values() gave [3] for 2 masks; it must return a tensor of shape [2]",
    ),
    "objective that fails later": (
        objective(
            "if len(masks[0]) < 9:\n    raise RuntimeError('few')\nreturn masks.sum(1) / 1.0",
            inside=True,
        ),
        "selection: 1 of 2 shards failed: 00001 (",
        "objective `mine`: failed (RuntimeError: few); fix its class",
    ),
    "no such folder of a model": (
        setting(embedding__method="sentence-transformer", embedding__model="/nowhere"),
        "embedding.model: no folder /nowhere; check the path",
    ),
    "folder without a model": (
        setting(embedding__method="sentence-transformer", embedding__model="HERE/source"),
        "embedding.model: no model in",
        "config.json is missing",
    ),
    "malformed name of a model": (
        setting(embedding__method="sentence-transformer", embedding__model="a/b/c"),
        "embedding.model a/b/c: Repo id must be in the form",
    ),
    "publication without licence": (
        setting(publication="{repository: a/b}"),
        "publication: `license` is required and never guessed",
    ),
    "publication without owner": (
        setting(publication="{repository: corpus, license: mit}"),
        "publication.repository: 'corpus' does not fit; needed: dataset repository, `owner/name`",
    ),
    "publication under an impossible name": (
        setting(publication="{repository: ../.., license: mit}"),
        "`repository` ../..: the Hub has no names with",
    ),
    "publication without token": (
        setting(publication="{repository: a/b, license: mit}"),
        "HF_TOKEN: not set; export a token with write access to a/b",
    ),
    "score named as a column of the composition": (
        setting(quality__scores="[{name: top_quality}]"),
        "name `top_quality` is reserved for a column of the run's files",
    ),
    "score named as what DuckDB adds": (
        setting(quality__scores="[{name: filename}]"),
        "name `filename` is reserved for a column of the run's files",
    ),
    "unknown device": (
        setting(compute__device="tpu"),
        "compute.device: 'tpu' does not fit; needed",
    ),
    "no memory for DuckDB": (
        setting(compute__duckdb_memory="0MB"),
        "compute.duckdb_memory: needed 1MB to 1000TB, got '0MB'",
    ),
    "more memory for DuckDB than there is": (
        setting(compute__duckdb_memory="9" * 400 + "TB"),
        "compute.duckdb_memory: needed 1MB to 1000TB, got '999",
    ),
    "too little memory for DuckDB": (
        setting(compute__duckdb_memory="1MB"),
        "Out of Memory",
        "raise compute.duckdb_memory",
    ),
}
RUNS: dict[str, tuple[Any, ...]] = {
    "run's name that is not UTF-8": (
        arguments("rebuild", "HERE/caf\udce9", *sets(source__path="HERE/source")),
        r"caf\udce9: its name is not UTF-8 in this locale; rename it",
    ),
    "status of a name that is not UTF-8": (arguments("status", "HERE/caf\udce9"), "not UTF-8"),
    "run inside its source": (
        arguments("rebuild", "HERE/source/run", *sets(source__path="HERE/source")),
        "source/run: inside source.path",
        "use a folder elsewhere",
    ),
    "run that a pattern of the source covers": (
        arguments("rebuild", "HERE/run", *sets(source__path="HERE/**/*.parquet")),
        "run: inside source.path (",
        "where its files would count as input; use a folder elsewhere",
    ),
    "planned run that a pattern of scores covers": (
        after_planning(
            lambda folder: (folder / "s.csv").write_text("id,score\n" + LINES),
            quality__scores="[{name: edu, kind: file, path: 'HERE/**/*.*'}]",
        ),
        "run: inside quality.scores.0.path (",
        "where its files would count as input; use a folder elsewhere",
    ),
    "run behind a backslash": (
        arguments("rebuild", "HERE/a\\b/run", *sets(source__path="HERE/source")),
        "DuckDB would read *, ? or [ as a pattern and \\ as /; use another folder",
    ),
    "run that is a file": (
        arguments("rebuild", "HERE/source/0.parquet", *sets(source__path="HERE/source")),
        "0.parquet is a file; name a folder",
    ),
    "run below a file": (
        arguments("rebuild", "HERE/source/0.parquet/run", *sets(source__path="HERE/source")),
        "0.parquet is a file; name a folder",
    ),
    "source that changed": (
        after_planning(other_texts),
        "the input is not what was planned:",
        "1.parquet has changed; restore it, or use another folder",
    ),
    "file that came": (
        after_planning(lambda f: shutil.copy(f / "source/1.parquet", f / "source/2.parquet")),
        "2.parquet was added; restore it",
    ),
    "file that went": (
        after_planning(lambda folder: (folder / "source/1.parquet").unlink()),
        "1.parquet was removed; restore it",
    ),
    "another cut": (
        after_planning(lambda folder: None, plan__rows_per_shard=5),
        "planned with another plan.rows_per_shard (8, now 5); set it back, or use another folder",
    ),
    "scores that are missing from a planned run": (
        after_planning(
            lambda folder: (folder / "s.csv").write_text("id,score\n0-0,1\n"),
            quality__scores="[{name: edu, kind: file, path: HERE/s.csv}]",
        ),
        "0.parquet, row 1, column edu: score missing, NaN or infinite in 15 documents",
    ),
    "run.json cut short": (
        after_planning(edit("run/run.json", lambda data: data[:50])),
        "run.json: not as datamask wrote it (",
        "delete it, then run `datamask rebuild`",
    ),
    "run.json changed by hand": (
        after_planning(edit("run/run.json", lambda data: data.replace(b"0.25", b"0.26"))),
        "run.json: not as datamask wrote it (changed by hand or damaged)",
    ),
    "run.json of bytes": (
        after_planning(edit("run/run.json", lambda data: b"\xff\0"), command="status"),
        "run.json: not as datamask wrote it (",
    ),
    "plan cut short": (
        after_planning(edit("run/plan.parquet", lambda data: data[:99]), command="status"),
        "plan.parquet: damaged (",
        "delete it and relaunch",
    ),
    "plan without rows": (
        after_planning(lambda f: replace_plan(f, lambda plan: plan.slice(0, 0)), command="status"),
        "plan.parquet: damaged (its SHA-256",
    ),
    "plan of another kind": (
        after_planning(lambda f: replace_plan(f, lambda _: pa.table({"a": [1]})), command="status"),
        "plan.parquet: damaged (its SHA-256",
    ),
    "no plan": (
        after_planning(lambda folder: (folder / "run/plan.parquet").unlink(), command="status"),
        "no plan yet; run `datamask plan",
    ),
    "plan of other bytes": (
        after_planning(
            edit("run/plan.parquet", lambda d: d[:20] + b"x" + d[21:]), command="verify"
        ),
        "run: 1 corrupt files were renamed to *.corrupt; run `datamask rebuild",
    ),
    "status of no run": (
        arguments("status", "HERE/none"),
        "none: no run here (run.json is missing)",
    ),
    "verify of no run": (
        arguments("verify", "HERE/none"),
        "none: no run here (run.json is missing)",
    ),
    "rerun-failed of no run": (arguments("rerun-failed", "HERE/none"), "none: no run here"),
    "rerun-failed with other settings": (
        arguments("rerun-failed", "HERE/none", "--set", "selection.ratio=1"),
        "--set selection.ratio=1: only compute.* here; `datamask rebuild` changes other settings",
    ),
    "unknown command": (
        arguments("rebiuld", "HERE/run"),
        "No such command 'rebiuld'",
        "see `datamask --help`",
    ),
    "unknown option": (arguments("rebuild", "HERE/run", "--force-it"), "'--force-it'", "--help`"),
    "no folder named": (
        arguments("rebuild"),
        "Missing argument 'RUN'; see `datamask rebuild --help`",
    ),
}
TABLE = UNREADABLE | COLUMNS | SCORE_FILES | VECTORS | SETTINGS | RUNS


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token, no Hub, and no module of another test."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "their_terms", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def problems(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on standard error, each of them a problem."""
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("datamask: ") for line in lines), lines
    return lines


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_gets_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names place and remedy, status 2, and nothing computed that costs."""
    make, *fragments = TABLE[name]
    command = make(tmp_path)
    capsys.readouterr()
    assert run_main(["-q", *command]) == 2
    lines = problems(capsys)
    assert len(lines) == 1, lines
    for fragment in fragments:
        assert fragment in lines[0]
    late = (
        {"embeddings", "selection", "subset"}
        if name != "objective that fails later"
        else {"subset"}
    )
    assert not late & {path.name for path in (tmp_path / "run").glob("*")}


def test_all_problems_are_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kinds of fault come together, each has its line, and nothing is written."""
    source = corpus(tmp_path / "source", id=[f"0-{row}" for row in range(ROWS)])
    (source / "2.parquet").write_bytes(b"")
    (source / "3.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"id": ["x"], "score": [float("nan")]}), source / "4.parquet")
    (tmp_path / "s.csv").write_text("id,grade\n0-0,1\n")
    scores = [
        {"name": "edu", "kind": "column", "column": "score"},
        {"name": "one", "kind": "file", "path": str(tmp_path / "s.csv")},
        {"name": "two", "kind": "file", "path": "/nowhere.csv"},
    ]
    command = rebuild(
        tmp_path,
        quality__scores=json.dumps(scores),
        selection__metric="nowhere:Beauty",
        embedding__method="sentence-transformer",
        embedding__model="/nowhere",
        publication="{repository: a/b, license: mit}",
        compute__device="cuda:99",
    )
    assert run_main(["-q", *command]) == 2
    lines = problems(capsys)
    for fragment in (
        "2.parquet: truncated",
        "3.parquet: truncated",
        "4.parquet, column text: absent",
        "4.parquet, row 0, column score: score missing",
        "8 ids are not unique",
        "s.csv, column score: absent",
        "/nowhere.csv: no",
        "objective `nowhere:Beauty`",
        "embedding.model: no folder /nowhere",
        "HF_TOKEN: not set",
        "compute.device: cuda:99 asked for",
    ):
        assert sum(fragment in line for line in lines) == 1, (fragment, lines)
    assert len(lines) == 11, lines
    assert not (tmp_path / "run").exists()


def test_all_faulty_settings_are_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the file, of --set and of compute, each in its line."""
    (tmp_path / "my.yaml").write_text("sorce: {}\nseed: -1\ncompute: {workers: 0}\nplan:\n")
    more = ["--set", "selection.ratio=2", "--set", "quality", "--set", "publication.repository=x"]
    more += ["--set", "selection.metric=dissf"]
    given = ["rebuild", str(tmp_path / "run"), "--config", str(tmp_path / "my.yaml"), *more]
    assert run_main(given) == 2
    keys = [line.split()[1].rstrip(":") for line in problems(capsys)]
    assert sorted(keys) == sorted(
        (
            *("--set", "sorce", "seed", "selection.ratio", "selection.metric"),
            *("publication.repository", "compute.workers"),
        )
    )


def test_a_disk_too_small_is_told_with_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, beside an objective that is unknown."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(100))
    command = setting(selection__metric="nowhere:Beauty")(tmp_path)
    assert run_main(["-q", *command]) == 2
    lines = problems(capsys)
    assert len(lines) == 2
    assert "GiB needed, 0.0 GiB free; use another disk" in lines[1]
    assert not (tmp_path / "run").exists()


def test_many_problems_of_one_kind_are_ten_examples_a_count_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planned run is given 40 other files: what matters comes first, all of it is in a file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = setting()(tmp_path)
    assert run_main(["-q", "plan", *command[1:]]) == 0
    other = tmp_path / "other"
    corpus(other)
    for number in range(40):
        pq.write_table(pa.table({"x": [1], "y": [2]}), other / f"x{number}.parquet")
    (other / "0.parquet").rename(other / "000.parquet")
    for number in range(12):
        (other / f"z{number}.parquet").write_bytes(b"")
    capsys.readouterr()
    assert run_main(["-q", *rebuild(tmp_path, source__path=other)]) == 2
    lines = problems(capsys)
    assert "run: planned with another source.path (" in lines[0]
    assert sum("truncated, or not a Parquet file" in line for line in lines) == 10
    assert "datamask: 2 more problems of this kind" in lines
    # Five columns differ in each of the 40: id, text and score are absent, x and y are more.
    absent = 40 * 5
    assert sum("give all files the same columns" in line for line in lines) == 10
    assert f"datamask: {absent - 10} more problems of this kind" in lines
    assert len(lines) == 1 + 11 + 11 + 1
    words = lines[-1].split()
    assert words[1:4] == ["all", str(1 + 12 + absent), "problems:"]
    listed = Path(words[-1]).read_text().splitlines()
    assert len(listed) == 1 + 12 + absent
    for number in range(40):
        assert sum(f"x{number}.parquet, column" in line for line in listed) == 3
        assert sum(f"x{number}.parquet has it" in line for line in listed) == 2


@contextlib.contextmanager
def without_rights() -> Iterator[Path]:
    """A folder, and this process as a user who owns nothing (root may read everything)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)


@pytest.mark.parametrize(
    ("locked", "message"),
    [
        ("source/1.parquet", "1.parquet: no permission to read it; change its mode"),
        ("source", "no .parquet files found; check the path, and the right to read it"),
        ("outputs", "outputs/run/run.json: Permission denied"),
    ],
)
def test_missing_rights_are_told(
    locked: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file, a folder of the source and a place for the run that are not ours."""
    # Everything that a launch imports is imported before the rights are given up.
    assert run_main(["-q", "plan", *setting()(tmp_path)[1:]]) == 0
    capsys.readouterr()
    user = os.geteuid()
    with without_rights() as folder:
        lower = os.geteuid()
        os.seteuid(user)
        corpus(folder / "source")
        (folder / "outputs").mkdir()
        (folder / "outputs").chmod(0o777)
        (folder / locked).chmod(0o500 if locked == "outputs" else 0)
        command = ["plan", str(folder / "outputs" / "run"), *sets(source__path=folder / "source")]
        os.seteuid(lower)
        try:
            status = run_main(["-q", *command])
        finally:
            os.seteuid(user)
            (folder / locked).chmod(0o700)
    lines = problems(capsys)
    assert (status, len(lines)) == (2, 1)
    assert message in lines[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_a_device_that_is_not_there_is_told_at_once(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first stage, by both commands."""
    assert run_main(["-q", *setting(compute__device=device)(tmp_path)]) == 2
    (line,) = problems(capsys)
    assert f"compute.device: {device} asked for, this machine has no CUDA device; use auto" in line
    assert not (tmp_path / "run" / "scores").exists()
    given = ["--input", str(features(tmp_path / "in")), "--output", str(tmp_path / "mask.parquet")]
    assert train_mask.main([*given, "--device", device]) == 2
    (line,) = problems(capsys)
    assert f"compute.device: {device} asked for" in line


def test_a_hub_that_does_not_answer_may_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 75, and what to do instead."""
    model = setting(embedding__method="sentence-transformer", embedding__model="a/b")
    assert run_main(["-q", *model(tmp_path)]) == 75
    (line,) = problems(capsys)
    assert "embedding.model a/b: the Hub cannot be reached" in line
    assert "try again, or give a local folder" in line


def test_shards_outside_the_plan_are_refused(tmp_path: Path) -> None:
    """The plan's own range is told."""
    assert run_main(["-q", "plan", *setting()(tmp_path)[1:]]) == 0
    run = open_run(tmp_path / "run")
    for shards in ([2], [-1], [0, 7]):
        with pytest.raises(RunError, match=rf"scores: no shard {shards[-1]}; the plan has 0 to 1"):
            run_stage(run, "scores", Compute(), shards=shards)
    assert not (tmp_path / "run" / "scores").exists()


def test_an_output_changed_since_is_named_by_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, what it should be, and the command that fixes it."""
    assert run_main(["-q", "plan", *setting()(tmp_path)[1:]]) == 0
    run = open_run(tmp_path / "run")
    run_stage(run, "scores", Compute())
    edit("run/scores/00001.parquet", lambda data: data[:9] + b"?" + data[10:])(tmp_path)
    capsys.readouterr()
    assert run_main(["verify", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr()
    assert "scores/00001.parquet: SHA-256 is" in shown.out
    assert shown.err.startswith("datamask: ") and shown.err.count("\n") == 1
    assert "1 corrupt files were renamed to *.corrupt; run `datamask rebuild" in shown.err


def shard(**changes: Any) -> Make:
    """The published script's input and output."""

    def make(folder: Path) -> list[str]:
        source = features(folder / "in", **changes)
        return ["--input", str(source), "--output", str(folder / "mask.parquet")]

    return make


def flags(*given: str) -> Make:
    """A good shard and other flags; HERE is the folder."""
    return lambda folder: [
        *shard()(folder),
        *(part.replace("HERE", str(folder)) for part in given),
    ]


SHARDS: dict[str, tuple[Any, ...]] = {
    "no file": (flags("--input", "HERE/none.parquet"), "none.parquet: no .parquet files found"),
    "no score": (shard(quality_score=None), "column quality_score: missing; the file has chunk_id"),
    "score of text": (
        shard(quality_score=["x"] * ROWS),
        "column quality_score: type string, needed numbers",
    ),
    "infinite score": (shard(quality_score=[*REST, float("inf")]), "row 7, column quality_score"),
    "null id": (shard(chunk_id=[None, *range(1, ROWS)]), "row 0, column chunk_id: null; give"),
    "repeated id": (shard(chunk_id=[7] * ROWS), "1 ids are not unique (7 8 times)"),
    "ragged": (shard(feature_arr=unit_vectors(_3=[1.0])), "row 3, column feature_arr: 1 numbers"),
    "ratio": (flags("--select_ratio", "1.5"), "ratio: Input should be less than or equal to 1"),
    "device": (flags("--device", "tpu"), "device: 'tpu' does not fit; needed: auto, cpu, cuda"),
    "rates": (flags("--max_lr", "0.5"), "final_lr 1.0 is above initial_lr 0.5"),
    "output that is a folder": (flags("--output", "HERE/in"), "in: a folder; name a file"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_the_published_script_answers_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same holds for `python -m datamask.cli.train_mask`."""
    make, *fragments = SHARDS[name]
    assert train_mask.main(make(tmp_path)) == 2
    (line,) = problems(capsys)
    for fragment in fragments:
        assert fragment in line
    assert not (tmp_path / "mask.parquet").exists()


def test_a_process_ends_as_the_function_does(tmp_path: Path) -> None:
    """What this file calls in its own process is what a shell sees: one line, status 2."""
    for module, given in (
        ("datamask.cli.main", ["-q", *bytes_of(lambda data: b"")(tmp_path / "a")]),
        ("datamask.cli.train_mask", shard(chunk_id=[7] * ROWS)(tmp_path / "b")),
    ):
        command = [sys.executable, "-m", module, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("datamask: ") and done.stderr.count("\n") == 1


def test_a_mistake_of_ours_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the traceback that a report needs there is a line that says so; status 70."""

    def slip(*_: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("datamask.planning.preview.cut", slip)
    assert run_main(["-q", *setting()(tmp_path)]) == 70
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("datamask: a bug in datamask (ZeroDivisionError: a slip)")


def test_a_reader_that_leaves_is_no_error() -> None:
    """`datamask settings | head -1` says nothing more."""
    command = [sys.executable, "-m", "datamask.cli.main", "settings"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""

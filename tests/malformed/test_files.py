"""Files of the source or of scores that are absent, damaged or not permitted are refused."""

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from tests.malformed.commands import assert_refused, problems, run_main
from tests.malformed.inputs import (
    IDS,
    LINES,
    WITHOUT,
    Cases,
    Make,
    arguments,
    bytes_of,
    corpus,
    every_file,
    rebuild,
    score_file,
    sets,
    setting,
)


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


def odd_name(name: str) -> Make:
    """A folder with brackets, which are not a pattern, and in it an empty file of this name."""

    def make(folder: Path) -> list[str]:
        (corpus(folder / "source [1]") / name).write_bytes(b"")
        return rebuild(folder, source__path=folder / "source [1]")

    return make


def dangling_link(folder: Path) -> list[str]:
    """A link to a file that was deleted."""
    (corpus(folder / "source") / "2.parquet").symlink_to(folder / "gone")
    return rebuild(folder)


UNREADABLE: Cases = {
    "damaged footer": (bytes_of(spoilt_footer), "1.parquet: cannot be read"),
    "damaged pages of the text": (page_damage("text"), "1.parquet, shard 00001: cannot be read"),
    "no such folder": (setting(source__path="/nowhere"), "/nowhere: no files found;"),
    "no source at all": (arguments("plan", "HERE/run", *sets()), "source.path: required; a folder"),
    "NUL in a path": (setting(source__path='"/a\\0b"'), "not a path or URL (embedded null byte)"),
    "no row in any file": (every_file(lambda table: table.slice(0, 0)), "source: no rows in any"),
    "line break in a file's name": (odd_name("a\nb.parquet"), "a\\nb.parquet: truncated, or not a"),
    "encrypted column": (locked(plain_footer=True), "1.parquet: has encrypted columns; decrypt it"),
    "encrypted footer": (locked(plain_footer=False), "1.parquet: its footer is encrypted; decrypt"),
    "file's name that is not UTF-8": (
        odd_name("caf\udce9.parquet"),
        "caf\\udce9.parquet: its name",
    ),
    "dangling link": (dangling_link, "2.parquet: a pipe, socket, device or dead link"),
}


BAD = b"caf\xe9"
JSON_LINES = "".join(json.dumps({"id": key, "score": 0.5}) + "\n" for key in IDS)
SCORE_FILES: Cases = {
    "unknown kind of file": (score_file("s.tsv", "id\tscore\n"), "s.tsv: unknown kind of file;"),
    "Parquet of scores without ids": (
        score_file("s.parquet", {"key": IDS, "score": [0.5] * len(IDS)}),
        "s.parquet, column id: absent; set column and id_column of score edu to two of: key,",
    ),
    "CSV with the score twice": (
        score_file("s.csv", "id,score,score\n" + LINES.replace(",", ",1,")),
        "s.csv, column score: occurs more than once; give every column its own name",
    ),
    **{
        f"{name.split('.')[1]} in {encoding}": (
            score_file(name, text.encode(encoding)),
            f"{name}: encoded in UTF-16 or UTF-32; convert it to UTF-8",
        )
        for name, text in (("s.csv", "id,score\n" + LINES), ("s.jsonl", JSON_LINES))
        for encoding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32")
    },
    "CSV that is not UTF-8": (
        score_file("s.csv", b"id,score\n" + LINES.encode() + BAD + b",1\n"),
        "s.csv: cannot be read",
    ),
    "empty CSV": (score_file("s.csv", ""), "s.csv: cannot be read"),
    "document without a line in the CSV": (
        score_file("s.csv", "id,score\n" + LINES.replace("1-6,", "9-9,")),
        "1.parquet, row 6, column edu: score missing",
        WITHOUT,
    ),
    "id twice in a CSV": (
        score_file("s.csv", "id,score\n" + LINES + "0-0,0.2\n"),
        "s.csv, column id: ids occur more than once, '0-0' 2 times; keep one score of each",
    ),
    "JSONL without the score in one line": (
        score_file("s.jsonl", JSON_LINES.replace('"0-3", "score"', '"0-3", "grade"')),
        "0.parquet, row 3, column edu: score missing",
        WITHOUT,
    ),
}


@pytest.mark.parametrize("name", [*UNREADABLE, *SCORE_FILES])
def test_bad_input_gets_one_line(name, tmp_path, capsys):
    """Files that are absent, damaged, encrypted or of another kind, or lack ids or scores."""
    assert_refused((UNREADABLE | SCORE_FILES)[name], tmp_path, capsys)


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
        ("source", "no files found; check the path, and the right to read it"),
        ("outputs", "outputs/run/run.json: Permission denied"),
    ],
)
def test_missing_permissions_are_reported(locked, message, capsys, tmp_path):
    """A file, a folder of the source and a folder for the run that this user may not use."""
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

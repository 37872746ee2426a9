"""Parquet as teams have it: partitions in folders, no ids, UUIDs, records, other columns."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.errors import DatamaskError, InputError
from datamask.execution.sharing import share
from datamask.planning.first_settings import look
from datamask.planning.plan import plan_run
from tests.finished import finish, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

TEXTS = [
    f"Document {row} tells of {'mills' if row % 2 else 'dams'} {row * 3}." for row in range(24)
]


def write(path: Path, rows: slice, **columns: Any) -> None:
    """Write some of the texts to a file, in small row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": TEXTS[rows], **columns})
    pq.write_table(table, path, row_group_size=3)


def settings(folder: Path, source: dict[str, Any] | None = None, **score: Any) -> Any:
    """A selection by wording of half of the documents."""
    data = {
        "source": {"path": str(folder), **(source or {})},
        "plan": {"rows_per_shard": 9},
        "embedding": {"method": "lexical", "dimension": 16},
        "selection": {"ratio": 0.25, "steps": 5},
    }
    if score:
        data["quality"] = {"scores": [{"name": "edu", "kind": "column", **score}]}
    return parse_settings(data)


def test_folders_are_columns_and_file_and_row_are_ids(tmp_path):
    """The dump of each document is its folder's, and its id has its own row, in every stage."""
    folder = tmp_path / "at=above" / "source"
    write(folder / "dump=2024-10" / "kind=a%2Fb" / "x.parquet", slice(0, 11))
    write(folder / "dump=2024-18" / "kind=c" / "x.parquet", slice(11, 24))
    run = finish(tmp_path / "run", settings(folder), "subset")
    known = {
        f"dump={dump}/kind={kind}/x.parquet:{row - first}": (TEXTS[row], dump, value)
        for first, stop, dump, kind, value in (
            (0, 11, "2024-10", "a%2Fb", "a/b"),
            (11, 24, "2024-18", "c", "c"),
        )
        for row in range(first, stop)
    }
    documents = table_of(run, "documents").to_pylist()
    assert {row["id"]: row["dump"] for row in documents} == {k: v[1] for k, v in known.items()}
    subset = table_of(run, "subset").to_pylist()
    assert len(subset) == 6 and "at" not in subset[0]
    for row in subset:
        assert (row["text"], row["dump"], row["kind"]) == known[row["id"]]
    last = folder / "dump=2024-18" / "kind=c"
    (last / "x.parquet").rename(last / "y.parquet")
    renamed = plan_run(tmp_path / "renamed", settings(folder))
    share(run, renamed)
    finish(renamed.root, renamed.settings, "subset")
    new = {key.replace("kind=c/x", "kind=c/y") for key in known}
    assert {row["id"] for row in table_of(renamed, "documents").to_pylist()} == new
    write(last / "x.parquet", slice(11, 24), kind=["own"] * 13)
    with pytest.raises(DatamaskError):
        plan_run(tmp_path / "run", settings(folder))  # Planned files have changed.


def test_uuids_records_and_other_columns_are_read(tmp_path):
    """Ids of 16 bytes are spelled, values within records have dotted names, absent are null."""
    ids = [uuid.UUID(int=row) for row in range(24)]
    records = [{"url": f"https://{row % 3}.org/", "rated": {"edu": row / 9}} for row in range(24)]
    plain = pa.array([key.bytes for key in ids[:12]], pa.binary(16))
    write(tmp_path / "s" / "a.parquet", slice(0, 12), id=plain, meta=records[:12])
    write(tmp_path / "u" / "a.parquet", slice(0, 12), id=plain, hash=range(12))
    assert look(str(tmp_path / "u")).settings["source"].keys() == {"path"}  # `id`, as usual
    typed = pa.array([key.bytes for key in ids[12:]], pa.uuid())
    write(tmp_path / "s" / "b.parquet", slice(12, 24), id=typed, meta=records[12:], more=range(12))
    within = {"columns": {"url": "meta.url"}}
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", settings(tmp_path / "s", within, column="meta.rated.edu"))
    assert caught.value.column == "more" and "source.union" in str(caught.value)
    assert look(str(tmp_path / "s")).settings["source"]["union"] is True
    chosen = settings(tmp_path / "s", within | {"union": True}, column="meta.rated.edu")
    run = finish(tmp_path / "run", chosen, "subset")
    documents = table_of(run, "documents").to_pylist()
    assert [row["id"] for row in documents] == [str(key) for key in ids]
    assert [row["domain"] for row in documents] == [f"{row % 3}.org" for row in range(24)]
    scores = table_of(run, "scores")
    assert np.allclose(scores["edu"].to_numpy(), np.arange(24) / 9)
    for row in table_of(run, "subset").to_pylist():
        number = uuid.UUID(row["id"]).int
        assert row["text"] == TEXTS[number] and row["meta"] == records[number]
        assert row["more"] == (None if number < 12 else number - 12)


def test_a_wrong_name_of_ids_is_not_replaced(tmp_path):
    """Ids are made only if no setting names a column."""
    write(tmp_path / "s" / "a.parquet", slice(0, 24))
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", settings(tmp_path / "s", {"columns": {"id": "key"}}))
    assert caught.value.column == "key"


@pytest.mark.parametrize(("name", "columns"), [("id", {}), ("key", {"columns": {"id": "key"}})])
def test_ids_are_made_for_all_files_or_none(tmp_path, name, columns):
    """A file without the ids that another has is refused by name, with `union` too."""
    write(tmp_path / "s" / "a.parquet", slice(0, 12), **{name: range(12)})
    write(tmp_path / "s" / "b.parquet", slice(12, 24))
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", settings(tmp_path / "s", {"union": True, **columns}))
    assert str(caught.value.path) == str(tmp_path / "s" / "b.parquet")
    assert caught.value.column == name


@pytest.mark.parametrize("name", ["000.tar", "shard.00000.mds", "data/0.lance"])
def test_other_formats_of_datasets_are_named(tmp_path, name):
    """Even beside files that could be read, such as an index."""
    path = tmp_path / "s" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rows")
    (tmp_path / "s" / "index.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", settings(tmp_path / "s"))
    assert str(caught.value.path) == str(path)

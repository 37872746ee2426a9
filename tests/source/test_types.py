"""The type of a column over all files: it loses no digit, or the source is refused when planned."""

import csv
import json
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trials
from hypothesis import strategies as st

from datamask.errors import InputError
from datamask.planning.plan import plan_run
from datamask.source.columns import whole_tokens
from datamask.source.types import unify_schemas, widened
from tests import finished
from tests.finished import WORDS
from tests.source.converting import converted

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

NUMBERS = [0, 1, -1, 7, 0.5, -2.25, 1e300, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
NUMBERS += [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**38, 10**40]


COLUMNS = 4
VALUES = st.tuples(*[st.sampled_from([*NUMBERS, None])] * COLUMNS)


@trials(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3))
@pytest.mark.parametrize("end", [".jsonl", ".csv"])
def test_no_number_loses_a_digit(tmp_path_factory, end, files):
    """Whole numbers of any size beside fractions, in one file or several: each is read exactly.

    Each column has a type of its own, so four are drawn at once.
    """
    names = [f"n{column}" for column in range(COLUMNS)]
    folder = tmp_path_factory.mktemp("numbers")
    for number, values in enumerate(files):
        path = folder / f"{number}{end}"
        if end == ".csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows(
                    [["id", *names], *([str(k), *row] for k, row in enumerate(values))]
                )
        else:
            rows = (
                {"id": str(row), **dict(zip(names, of_row, strict=True))}
                for row, of_row in enumerate(values)
            )
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = converted(folder, folder / "run")
    found = [table[name].to_pylist() for table in tables for name in names]
    found = [value for values in found for value in values]
    wanted = [row[column] for rows in files for column in range(COLUMNS) for row in rows]
    for value, one in zip(wanted, found, strict=True):
        if value is None:
            assert one is None
        else:
            assert (float(one) if isinstance(value, float) else Fraction(one)) == value


@pytest.mark.parametrize(
    "cells",
    [
        [" 7", "7"],
        ["7 ", "0.5"],
        ["+5", "-.5", "5."],
        ["1_000", "1"],
        ["1e", "2"],
        ["007", "1"],
        ["-0", "nan", "inf"],
    ],
)
def test_any_cell_of_csv_can_be_read(tmp_path, cells):
    """With blanks around it, or as no number is spelled: as a number or as the text that it is."""
    (tmp_path / "source").mkdir()
    lines = "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    (tmp_path / "source" / "a.csv").write_text(f"id,n\n{lines}")
    [table] = converted(tmp_path / "source", tmp_path / "run")
    found = table["n"].to_pylist()
    if table.schema.field("n").type == pa.string():
        assert found == cells
    else:
        assert list(map(repr, found)) == [
            repr(type(one)(cell)) for one, cell in zip(found, cells, strict=True)
        ]


def test_a_key_that_occurs_twice_is_refused(tmp_path):
    """In a record or an object within it: readers of JSON do not agree which value it has."""
    for number, line in enumerate(
        ('{"id": "b", "k": 1, "k": 2}', '{"id": "b", "m": {"k": 1, "k": 2}}')
    ):
        path = tmp_path / str(number) / "a.jsonl"
        path.parent.mkdir()
        path.write_text(f'{{"id": "a", "k": 1}}\n{line}\n')
        with pytest.raises(InputError) as caught:
            converted(path.parent, tmp_path / f"run{number}")
        assert f"{path}, line 2" in str(caught.value) and "'k'" in str(caught.value)


def parquet(folder: Path, **columns: pa.Array) -> Path:
    """Two files of twenty documents, in which *columns* have the types of the first and second."""
    folder.mkdir()
    for number in range(2):
        ids = [f"{number}-{row}" for row in range(20)]
        texts = [" ".join(WORDS[row % 9 :]) + f" {number} {row}" for row in range(20)]
        values = {name: arrays[number] for name, arrays in columns.items()}
        pq.write_table(
            pa.table(
                {"id": ids, "text": texts, "edu": [float(row) for row in range(20)], **values}
            ),
            folder / f"{number}.parquet",
        )
    return folder


@pytest.mark.parametrize("large", [False, True])
def test_numbers_and_times_of_two_files_are_one_column(tmp_path, large):
    """Whole numbers beside doubles, as pandas writes them where a value is missing; two units.

    They are widened, or text if a digit would be lost or a year is beyond those of nanoseconds.
    """
    first = 2**53 + 1 if large else 2**53
    hashes = pa.array([first, *range(19)])
    day = datetime(9999, 12, 31) if large else datetime(2026, 1, 2)
    times = pa.array([day] * 20, pa.timestamp("us")), pa.array([None] * 20, pa.timestamp("ns"))
    columns = {"n": (hashes, pa.array([None, *map(float, range(19))])), "t": times}
    folder = parquet(tmp_path / "source", **columns)
    run = finished.finish(
        tmp_path / "run",
        finished.settings(folder, selection={"documents": 40}, quality={"prune_fraction": 0}),
        "subset",
    )
    rows = pq.read_table(run.root / "subset").to_pylist()
    numbers = {row["id"]: row["n"] for row in rows}
    assert numbers["0-0"] == (str(first) if large else float(first))
    [time] = {row["t"] for row in rows if row["id"] < "1"}
    assert time == (f"{day}.000000" if large else day)
    assert numbers["1-0"] is None and len(numbers) == 40


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int64(), pa.uint64(), pa.large_string()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.float64(), pa.large_string()),
        (pa.bool_(), pa.int64(), pa.large_string()),
        (pa.int64(), pa.string(), pa.large_string()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC"), pa.large_string()),
        (pa.duration("s"), pa.duration("us"), pa.large_string()),
        (pa.list_(pa.timestamp("s")), pa.list_(pa.timestamp("us")), None),
        (pa.null(), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.int64(), None),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), None),
    ],
)
def test_types_are_widened_without_loss(one, other, wanted):
    """In either order; where no type holds both, the source is refused."""
    assert widened(one, other, lambda _: False) == widened(other, one, lambda _: False) == wanted


def test_types_that_no_column_holds_are_refused(tmp_path):
    """When the run is planned, with file and column; no run is left."""
    folder = parquet(tmp_path / "source", n=(pa.array([[1]] * 20), pa.array([1] * 20)))
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "run", finished.settings(folder))
    assert str(folder / "1.parquet") in str(caught.value) and "column n" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "kind"), [(1.5, pa.float64()), (2**63 + 5, pa.uint64()), (-3, pa.int64())]
)
@pytest.mark.parametrize("budget", [{"tokens": 200}, {"ratio": 0.5}])
def test_numbers_of_tokens_are_whole(tmp_path, value, kind, budget):
    """A half or a negative one would be counted as another, so file and row are named."""
    counts = pa.array([9] * 19 + [value], kind)
    folder = parquet(tmp_path / "source", token_count=(counts, counts))
    with pytest.raises(Exception) as caught:
        finished.finish(tmp_path / "run", finished.settings(folder, selection=budget), "scores")
    assert "0.parquet" in str(caught.value) and "row 19" in str(caught.value)
    assert (tmp_path / "run").exists() == ("ratio" in budget)


def test_unknown_numbers_of_tokens_stay_unknown():
    """Null, NaN and infinite."""
    values = pa.array([3.0, None, float("nan"), float("inf")])
    counts, bad = whole_tokens(values)
    assert (counts.to_pylist(), bad) == ([3, None, None, None], -1)


def test_equal_files_have_their_own_schema():
    """A hundred thousand files with one schema are compared as one."""
    schema = pa.schema([("id", pa.string())])
    assert unify_schemas((str(number), schema) for number in range(1000)) == schema
    found: list[Any] = []
    with pytest.raises(InputError) as caught:
        unify_schemas([("a", schema), ("b", pa.schema([("id", pa.string()), ("x", pa.int8())]))])
    found = caught.value.problems
    assert len(found) == 1 and "column x" in str(found[0])

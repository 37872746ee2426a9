"""Beginnings of documents: the right rows, however the source is cut, and no more than allowed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from datamask.source import texts
from datamask.source.reading import read_shard
from datamask.source.texts import beginnings
from tests.finished import corpus, settings


def planned(folder: Path, rows: int) -> Run:
    """A planned run over row groups of twelve documents."""
    chosen = settings(corpus(folder / "source"), plan={"rows_per_shard": rows})
    return plan_run(folder / "run", chosen)


@pytest.mark.parametrize("rows", [5, 7, 12, 31, 1000])
def test_rows_are_found_wherever_shards_are_cut(tmp_path, rows):
    """Against the shard's own reader, for every row, also where a shard begins inside a group."""
    run = planned(tmp_path, rows)
    assert rows != 7 or any(piece.skip_rows for piece in run.pieces)
    expected = {}
    for shard in range(run.num_shards):
        batches = pa.Table.from_batches(read_shard(run, shard, ["text"]))
        for row, text in enumerate(batches["text"].to_pylist()):
            expected[shard, row] = " ".join(text.split())
    found = beginnings(run, list(reversed(expected)))
    assert set(found) == set(expected)
    for place, text in found.items():
        whole = expected[place]
        assert text == whole or (text.endswith("…") and whole.startswith(text[:-1].rstrip()))
    one = dict([next(iter(found.items()))])
    assert beginnings(run, list(one)) == one


def test_no_more_is_read_than_allowed(tmp_path, monkeypatch):
    """Documents beyond the limit have no text; the most wanted shard comes first."""
    run = planned(tmp_path, 30)
    monkeypatch.setattr(texts, "MOST_TEXT_BYTES", 0)
    assert beginnings(run, [(0, 1), (1, 1)]) == {}
    group = pq.ParquetFile(run.pieces[0].path).metadata.row_group(0)
    names = [group.column(place).path_in_schema for place in range(group.num_columns)]
    size = group.column(names.index("text")).total_uncompressed_size
    monkeypatch.setattr(texts, "MOST_TEXT_BYTES", int(1.5 * size))
    assert list(beginnings(run, [(2, 1), (0, 1), (1, 1)])) == [(2, 1)]

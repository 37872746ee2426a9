"""The bound on one document holds wherever a text is read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import InputError
from datamask.execution.pipeline import rebuild, run_stage
from datamask.planning.plan import plan_run
from datamask.quality.importing import import_scores
from datamask.runs.run import Run
from datamask.source import long_texts
from datamask.source.long_texts import BATCH_ROWS, bounded, rows_at_once, surely_long
from datamask.source.reading import read_shard
from tests import finished
from tests.conftest import nightly

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

MOST = 400
LONG = {(0, 3), (1, 29), (3, 11)}
"""File and row of the texts beyond the bound."""


def corpus(folder: Path) -> Path:
    """The usual corpus, with some texts of two-byte characters that are too long."""
    finished.corpus(folder)
    for file, path in enumerate(sorted(folder.iterdir())):
        table = pq.read_table(path)
        texts = [text[:MOST] for text in table["text"].to_pylist()]
        for number, row in LONG:
            if number == file:
                texts[row] = f"{texts[row]} {'ä' * MOST}"
        place = table.column_names.index("text")
        pq.write_table(table.set_column(place, "text", pa.array(texts)), path, row_group_size=12)
    return folder


def chosen(folder: Path, longer: str, **groups: Any) -> Any:
    """Settings with the bound, that keep most documents."""
    source = {"most_characters": MOST, "longer": longer}
    many = {"ratio": 0.9, "steps": 5}
    return finished.settings(
        folder, source=source, selection=many, quality={"prune_fraction": 0.0}, **groups
    )


def texts_of(run: Run) -> dict[str, str]:
    """The texts of the subset, by id."""
    return {row["id"]: row["text"] for row in finished.table_of(run, "subset").to_pylist()}


def test_a_long_text_is_refused_by_row(tmp_path):
    """The shard's first long text is named, with the file and the row in it."""
    run = plan_run(tmp_path / "run", chosen(corpus(tmp_path / "source"), "refuse"))
    for shard, (file, row) in enumerate([(0, 3), (1, 29), (3, 11)]):
        with pytest.raises(InputError) as refused:
            import_scores(run, shard, Compute())
        where = f"{tmp_path}/source/{file}.parquet, shard {shard:05d}, row {row}, column text"
        assert where in str(refused.value)


@pytest.mark.parametrize("longer", ["cut", *nightly("drop")])
def test_every_reader_sees_the_same_text(tmp_path, longer):
    """A run equals one of a corpus whose long texts were cut, or emptied, before it began."""
    source, by_hand = corpus(tmp_path / "source"), tmp_path / "by_hand"
    by_hand.mkdir()
    for path in source.iterdir():
        table = pq.read_table(path)
        texts = [
            text if len(text) <= MOST else text[:MOST] if longer == "cut" else ""
            for text in table["text"].to_pylist()
        ]
        place = table.column_names.index("text")
        changed = table.set_column(place, "text", pa.array(texts))
        pq.write_table(changed, by_hand / path.name, row_group_size=12)
    ours = rebuild(tmp_path / "ours", chosen(source, longer))
    same = rebuild(tmp_path / "same", chosen(by_hand, "refuse"))
    assert texts_of(ours) == texts_of(same)
    assert max(map(len, texts_of(ours).values())) <= MOST
    for stage in ("embeddings", "selection"):
        assert finished.table_of(ours, stage).equals(finished.table_of(same, stage))
    rows = finished.table_of(ours, "quality").to_pylist()
    dropped = {row["id"] for row in rows if row["dropped"] == "too_long"}
    assert dropped == ({f"{file}-{row:02d}" for file, row in LONG} if longer == "drop" else set())
    counts = [
        ours.receipt("scores", shard).metrics["long"]["documents"]
        for shard in range(ours.num_shards)
    ]
    assert sum(counts) == len(LONG)
    verb = "dropped" if longer == "drop" else "cut"
    assert f"3 texts longer than 400 characters were {verb}" in ours.path("report").read_text()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.none() | st.text("aä€😀 ", max_size=12), min_size=1, max_size=30),
    st.integers(1, 8),
    st.sampled_from(("refuse", "cut", "drop")),
    st.sampled_from((pa.string(), pa.large_string(), pa.string_view(), "dictionary")),
    st.integers(1, 40),
)
def test_bounded_batches(values, most, longer, kind, batch_bytes):
    """Any texts in any type come out as Python would cut them, in parts within the memory."""
    texts = pa.array(values, pa.string() if kind == "dictionary" else kind)
    if kind == "dictionary":
        texts = texts.dictionary_encode()
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(values))), texts], ["n", "text"])
    source = Source(most_characters=most, longer=longer)
    before, long_texts.BATCH_BYTES = long_texts.BATCH_BYTES, batch_bytes
    try:
        parts = list(bounded(batch, source))
    finally:
        long_texts.BATCH_BYTES = before
    due = {
        "refuse": lambda text: text,
        "cut": lambda text: text[:most],
        "drop": lambda text: text if len(text) <= most else None,
    }[longer]
    found = [text for _, part, _ in parts for text in part["text"].to_pylist()]
    assert found == [None if text is None else due(text) for text in values]
    assert [n for _, part, _ in parts for n in part["n"].to_pylist()] == list(range(len(values)))
    long = {first + row: size for first, _, longer in parts for row, size in longer.items()}
    assert long == {n: len(text) for n, text in enumerate(values) if text and len(text) > most}
    for _, part, _ in parts:
        sizes = [len((text or "").encode()) for text in part["text"].to_pylist()]
        assert sum(sizes[1:]) <= batch_bytes or longer == "refuse"


PROGRAM = """
import json, resource, sys
from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.runs.opening import open_run
import pyarrow.parquet, datamask.quality.importing
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run_stage(open_run(sys.argv[1]), "scores", Compute())
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))
"""


@pytest.mark.slow
def test_a_text_in_every_row_takes_the_memory_of_a_batch(tmp_path):
    """A file of kilobytes whose dictionary fills 4,000 rows with 1 MB each, 4 GB in all."""
    folder = tmp_path / "source"
    folder.mkdir()
    text = "lorem ipsum dolor " * 60_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4000, np.int32)), pa.array([text]))
    plain = pa.schema([("id", pa.string()), ("text", pa.string())])
    table = pa.table({"id": [str(row) for row in range(4000)], "text": column})
    pq.write_table(table, folder / "a.parquet", store_schema=False, compression="zstd")
    assert pq.read_schema(folder / "a.parquet").equals(plain)
    edu = {"name": "edu", "kind": "file", "path": str(tmp_path / "edu.parquet"), "column": "edu"}
    pq.write_table(
        pa.table({"id": table["id"], "edu": np.arange(4000.0)}), tmp_path / "edu.parquet"
    )
    chosen = finished.settings(folder, quality={"scores": [edu]}, plan={"rows_per_shard": 4000})
    run = plan_run(tmp_path / "run", chosen)
    run_stage(run, "file_scores", Compute())
    given = [sys.executable, "-c", PROGRAM, str(run.root)]
    done = subprocess.run(given, capture_output=True, text=True, check=True, env=os.environ)
    assert json.loads(done.stdout.splitlines()[-1]) < 600e6


def test_the_footer_says_what_is_too_long(tmp_path):
    """A text that must be too long is refused from the footer, and read row by row else."""
    path = tmp_path / "source" / "a.parquet"
    path.parent.mkdir()
    texts = ["short", "x" * 100_000, "y" * 100_000]
    table = pa.table({"id": ["a", "b", "c"], "text": texts, "edu": [0.0, 1.0, 2.0]})
    pq.write_table(table, path, row_group_size=1)
    footer = pq.read_metadata(path)
    assert surely_long(footer, Source(most_characters=2000)) == (1, 1)
    assert surely_long(footer, Source(most_characters=100_000)) is None
    assert rows_at_once(footer.row_group(0), ["text"]) == BATCH_ROWS
    assert 300 < rows_at_once(footer.row_group(1), ["text"]) <= long_texts.BATCH_BYTES // 100_000
    with pytest.raises(InputError) as refused:
        chosen = finished.settings(path.parent, source={"most_characters": 2000})
        plan_run(tmp_path / "run", chosen)
    assert "row 1, column text" in str(refused.value)


def test_only_wanted_rows_are_bounded(tmp_path):
    """Rows that are chosen by number have the numbers of the shard, not of the chosen ones."""
    run = plan_run(tmp_path / "run", chosen(corpus(tmp_path / "source"), "cut"))
    long: dict[int, int] = {}
    rows = np.array([0, 3, 5, 29])
    batches = list(read_shard(run, 0, ["text"], rows, long))
    assert sum(map(len, batches)) == 4
    assert list(long) == [3]

"""No stage reads an input that planning did not see: every kind, replaced before every stage."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.scores import FileScore
from datamask.config.settings import Settings
from datamask.errors import InputError, exit_status
from datamask.execution.attempts import run_unit
from datamask.runs.run import Run
from datamask.runs.stages import STAGES, stages_of
from datamask.source.opening import PlannedFiles, digest_files
from datamask.source.rows import read_scores
from tests import finished
from tests.conftest import nightly
from tests.finished import WORDS

COMPUTE = Compute(workers=1)


@dataclass(frozen=True)
class Input:
    """A file of the user's, and another content of the same shape."""

    path: Path
    other: bytes


def parquet_bytes(table: pa.Table, group: int = 12) -> bytes:
    """The bytes of a file with this table, in row groups of so many rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue().to_pybytes()


def scores(kind: str, names: list[str], numbers: list[float], note: str = "") -> bytes:
    """A file of scores, in four row groups or with a note in each row."""
    if kind == "parquet":
        return parquet_bytes(pa.table({"id": names, "mark": numbers}), len(names) // 4)
    if kind == "csv":
        rows = map(f"{{}},{{}},{note}".format, names, numbers)
        return "\n".join(["id,mark,note", *rows, ""]).encode()
    pairs = zip(names, numbers, strict=True)
    return json_lines([{"id": name, "mark": mark, "note": note} for name, mark in pairs])


def json_lines(rows: list[dict[str, object]]) -> bytes:
    """The rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def prepare(folder: Path) -> dict[str, Input]:
    """Write an input of every kind that a run can read; returns them by kind."""
    source = finished.corpus(folder / "source")
    table = pa.concat_tables(pq.read_table(path) for path in sorted(source.iterdir()))
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    table = pq.read_table(source / "1.parquet").drop(["token_count"])
    for path in source.iterdir():
        pq.write_table(pq.read_table(path).drop(["token_count"]), path, row_group_size=12)
    values = np.random.default_rng(1).standard_normal((2, len(ids)))
    inputs = {"source": (source / "1.parquet", parquet_bytes(table), parquet_bytes(table[::-1]))}
    for kind in ("parquet", "csv", "jsonl"):
        marks = (scores(kind, ids, numbers) for numbers in values.tolist())
        inputs[f"scores_{kind}"] = (folder / f"scores.{kind}", *marks)
    inputs["labels"] = (folder / "labels.csv", *inputs["scores_csv"][1:])
    sets = [json_lines([{"id": "x", "text": " ".join(texts[row].split()[:40])}]) for row in (2, 5)]
    inputs["benchmark"] = (folder / "benchmark.jsonl", *sets)
    generator = np.random.default_rng(2)
    made = [
        json_lines([{"text": " ".join(generator.choice(WORDS, 20))} for _ in range(120)])
        for _ in range(2)
    ]
    inputs["examples"] = (folder / "examples.jsonl", *made)
    earlier = [pa.table({"id": ["old"], "text": [texts[row]]}) for row in (3, 6)]
    inputs["earlier"] = (folder / "earlier.parquet", *map(parquet_bytes, earlier))
    inputs["evaluation_set"] = (folder / "set.jsonl", *sets)
    inputs["ids"] = (folder / "ids.txt", "\n".join(ids[30:]).encode(), "\n".join(ids[31:]).encode())
    path = folder / "tokenizer.json"
    made = [Path(finished.word_tokenizer(path, more)).read_bytes() for more in (0, 1)]
    inputs["tokenizer"] = (path, *made)
    for row in (0, 1):
        np.save(folder / f"{row}.npy", values[:, row * 32 : row * 32 + 32].astype(np.float32))
    vectors = [(folder / f"{row}.npy").read_bytes() for row in (0, 1)]
    inputs["target"] = (folder / "target.npy", *vectors)
    for path, content, _ in inputs.values():
        path.write_bytes(content)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    return {kind: Input(path, other) for kind, (path, _, other) in inputs.items()}


def settings(folder: Path, scope: str) -> Settings:
    """A run that reads all of them."""
    score = {"kind": "file", "id_column": "id", "column": "mark", "normalisation": "none"}
    scores = [
        {**score, "name": kind, "path": str(folder / f"scores.{kind}")}
        for kind in ("parquet", "csv", "jsonl")
    ]
    fitted = {"kind": "examples", "least_correlation": -1, "weight": 0.1}
    examples = {**fitted, "name": "like", "path": str(folder / "examples.jsonl")}
    labelled = {**fitted, "name": "fit", "labels": str(folder / "labels.csv"), "column": "mark"}
    return finished.settings(
        folder / "source",
        source={"tokenizer": str(folder / "tokenizer.json")},
        quality={
            "scores": [*scores, examples, labelled],
            "contamination": {"sets": [str(folder / "benchmark.jsonl")], "ngram": 5},
            "near_duplicates": {"against": [str(folder / "earlier.parquet")]},
            "prune_fraction": 0.05,
        },
        selection={
            "scope": scope,
            "more_terms": [{"name": "target", "weight": 0.5, "path": str(folder / "target.npy")}],
        },
        evaluation={
            "arms": [{"name": "mine", "kind": "ids", "path": str(folder / "ids.txt")}, "random"],
            "sets": [{"name": "set", "path": str(folder / "set.jsonl")}],
            "model": str(folder),  # its tokenizer.json too
            "tokens": 1000,
        },
    )


READ_BY = {
    "examples": {"example_models"},
    "source": {
        "file_scores",
        "example_models",
        "scores",
        "screening",
        "embeddings",
        "subset",
        "tokenizer",
        "arms",
    },
    "labels": {"example_models"},
    "benchmark": {"benchmark_ngrams"},
    "earlier": {"earlier_signatures"},
    "evaluation_set": {"held_out"},
    "ids": {"arms"},
    "tokenizer": {"scores", "tokenizer"},
    "target": {"selection"},
} | {f"scores_{kind}": {"file_scores"} for kind in ("parquet", "csv", "jsonl")}
"""The stages that must read an input, and so refuse another one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the inputs are."""
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def inputs(folder: Path) -> dict[str, Input]:
    """The inputs by kind."""
    return prepare(folder)


@pytest.fixture(scope="module")
def run(folder: Path, inputs: dict[str, Input], undrawn: None, roughly: None) -> Run:
    """A finished run, but for the training of language models."""
    return finished.finish(folder / "run", settings(folder, "shard"), "arms")


def replaced_in_place(path: Path, content: bytes) -> Callable[[], None]:
    """Overwrite a file, and set its times back; returns what restores it."""
    before, facts = path.read_bytes(), path.stat()

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    write(content)
    return lambda: write(before)


def renamed_over(path: Path, content: bytes) -> Callable[[], None]:
    """Move another file into the place of a file; returns what moves the first one back."""
    kept, other = path.with_suffix(".kept"), path.with_suffix(".other")
    other.write_bytes(content)
    os.rename(path, kept)
    os.rename(other, path)
    return lambda: os.rename(kept, path)


WAYS = (replaced_in_place, renamed_over)


def attempts(run: Run) -> Iterator[tuple[str, int, Path, bytes]]:
    """A unit of every stage, with its file, which was taken away, and the content of that."""
    for stage in stages_of(run.settings, last="arms"):
        if stage == "composition":
            continue  # DuckDB writes other bytes each time
        units = {"shard": 1, "file": run.num_units(stage) - 1}
        unit = units.get(STAGES[stage].each, 0)
        path = run.local_path(stage, unit)
        kept = path.read_bytes()
        path.unlink()
        yield stage, unit, path, kept


TOGETHER = (
    ("source",),
    ("scores_csv", "tokenizer"),
    ("scores_jsonl", "benchmark", "labels"),
    ("scores_parquet", "earlier", "target"),
    ("evaluation_set",),
    ("ids", "examples"),
)
"""All kinds, those together that different stages read."""


OTHERS = nightly(*((kinds,) for kinds in (*TOGETHER[:2], *TOGETHER[4:])))


@pytest.mark.parametrize("kinds", [*TOGETHER[2:4], *OTHERS])
def test_no_stage_uses_an_input_that_was_not_planned(run, inputs, kinds):
    """Each makes the same bytes as before or nothing, and names the file and the status."""
    refused: dict[str, set[str]] = {kind: set() for kind in kinds}
    for number, (stage, unit, path, kept) in enumerate(attempts(run)):
        way = WAYS[number % 2]
        restores = [way(inputs[kind].path, inputs[kind].other) for kind in kinds]
        try:
            run_unit(run, stage, unit if STAGES[stage].in_parallel else None, COMPUTE)
        except InputError as error:
            (named,) = (kind for kind in kinds if str(inputs[kind].path) in str(error))
            refused[named].add(stage)
            assert exit_status(error) == 2
            assert not path.exists()
        else:
            assert path.read_bytes() == kept, stage
        finally:
            for restore in restores:
                restore()
            path.write_bytes(kept)
    assert all(refused[kind] >= READ_BY[kind] for kind in kinds)


def content_of(kind: str, start: int) -> bytes:
    """40,000 scores, in several row groups of Parquet or blocks of text."""
    rows = range(start, start + 40_000)
    return scores(kind, [f"{row:06d}" for row in rows], [*map(float, rows)], "x" * 100)


def read_all(path: Path, planned: str, meanwhile: Callable[[int], object]) -> list[float]:
    """The scores of a file, as stages read them; *meanwhile* is called after each batch."""
    score = FileScore(name="mark", kind="file", path=str(path), id_column="id", column="mark")
    rows: list[float] = []
    files = PlannedFiles(str(path))
    with files.compared(planned):
        for number, (_, values) in enumerate(read_scores(str(path), score, files)):
            rows += values.to_pylist()
            meanwhile(number)
    return rows


def test_a_file_that_ended_early_is_not_the_planned_one(tmp_path):
    """The reader met its end while another process wrote it; the rest, there later, was not got."""
    path, content = tmp_path / "scores.csv", content_of("csv", 0)
    path.write_bytes(content)
    files, planned = PlannedFiles(str(path)), digest_files(str(path))
    with pytest.raises(InputError), files.compared(planned), files.open_text(str(path)) as text:
        got = text.read(2**21)
        path.write_bytes(b"")
        got += text.read()
        path.write_bytes(content)
    assert len(got) < len(content)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batches", [None, 1, 2])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_replaced_while_it_is_read(tmp_path, kind, batches, way):
    """Reading ends in an error, or gave the planned rows, even if the file is put back."""
    path = tmp_path / f"scores.{kind}"
    path.write_bytes(content_of(kind, 0))
    planned, expected = digest_files(str(path)), [*map(float, range(40_000))]
    assert read_all(path, planned, lambda batch: None) == expected
    restores: list[Callable[[], None]] = []

    def meanwhile(batch: int) -> None:
        if batch == 0:
            restores.append(way(path, content_of(kind, 500_000)))
        elif batch == batches:
            restores.pop()()

    with contextlib.suppress(InputError):
        assert read_all(path, planned, meanwhile) == expected
    if restores:
        with pytest.raises(InputError):
            read_all(path, planned, lambda batch: None)
        restores.pop()()
    assert read_all(path, planned, lambda batch: None) == expected

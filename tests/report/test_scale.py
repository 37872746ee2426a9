"""The report of a million documents in many shards is small enough to send."""

import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.config.loading import parse_settings
from datamask.embedding.vectors import to_columns
from datamask.runs import schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import create_run
from datamask.runs.run import Run
from datamask.runs.schemas import Piece
from datamask.source.reading import read_footers
from tests.finished import WORDS
from tests.hub.runs import MASK_METRICS, write_outputs
from tests.report.test_browser import opened

SHARDS, ROWS, DIMENSION = 60, 16_667, 32
SELECTED = round(0.1 * SHARDS * ROWS)


def write_run(root: Path) -> Run:
    """A run up to its masks, written by hand: learning a million documents takes minutes."""
    generator = np.random.default_rng(0)
    source = root / "source"
    source.mkdir(parents=True)
    settings = {
        "source": {"path": str(source)},
        "embedding": {"method": "lexical", "dimension": DIMENSION},
        "quality": {"prune_fraction": 0.0},
    }
    run = create_run(root / "run", parse_settings(settings), {})
    pieces = []
    for shard in range(SHARDS):
        path = source / f"{shard:02d}.parquet"
        pq.write_table(texts(shard, generator), path, row_group_size=1000)
        [file], _ = read_footers([str(path)])
        piece = Piece(shard, file.path, 0, -(-ROWS // 1000), 0, ROWS, file.size, file.digest)
        pieces.append(asdict(piece))
    plan = pa.Table.from_pylist(pieces, schema=schemas.PLAN)
    write_parquet(run.plan_path, schemas.PLAN, [plan], storage=run.storage)
    for shard in range(SHARDS):
        write_shard(run, shard, generator)
    return run


SOURCE = pa.schema([("id", pa.string()), ("text", pa.string())])


def texts(shard: int, generator: np.random.Generator) -> pa.Table:
    """Sixty words a document, from a pool of sentences."""
    pool = [" ".join(generator.choice(WORDS, 12)) for _ in range(500)]
    chosen = generator.integers(0, len(pool), (ROWS, 5))
    ids = [f"{shard:02d}-{row:05d}" for row in range(ROWS)]
    joined = [". ".join(pool[place] for place in row) for row in chosen]
    return pa.table({"id": ids, "text": joined}, schema=SOURCE)


def write_shard(run: Run, shard: int, generator: np.random.Generator) -> None:
    """Files of every stage up to the masks, and a long curve."""
    ids = [f"{shard:02d}-{row:05d}" for row in range(ROWS)]
    scores = generator.standard_normal(ROWS)
    length = generator.lognormal(7, 1, ROWS).astype(np.int64)
    logits = (scores + generator.standard_normal(ROWS)).astype(np.float32)
    first, last = (SELECTED * number // SHARDS for number in (shard, shard + 1))
    count = last - first
    selected = np.zeros(ROWS, dtype=bool)
    selected[np.argsort(-logits)[:count]] = True
    vectors = generator.standard_normal((ROWS, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    domains = [f"site{number}.example" for number in generator.zipf(1.3, ROWS) % 100_000]
    names = ["heuristic"]
    columns: dict[str, Any] = {
        "id": ids,
        "row": np.arange(ROWS),
        "characters": length,
        "tokens": length // 5,
        "text_read": np.ones(ROWS, np.float32),
        "dump": [f"dump-{shard % 40}"] * ROWS,
        "language": ["en"] * ROWS,
        "domain": domains,
        "content": [None] * ROWS,
        "heuristic": scores,
    }
    quality = {"id": ids, "row": np.arange(ROWS), "heuristic": scores, "quality": scores}
    empty = [field for field in schemas.quality(names) if field.name not in quality]
    quality |= {field.name: pa.nulls(ROWS, field.type) for field in empty}
    tables = {
        "scores": pa.table(columns, schema=schemas.scores(names)),
        "quality": pa.table(quality, schema=schemas.quality(names)),
        "embeddings": pa.table(
            [pa.array(ids), *to_columns(vectors), pa.array(columns["text_read"])],
            schema=schemas.embeddings(DIMENSION),
        ),
        "selection": pa.table({"logit": logits, "selected": selected}, schema=schemas.MASK),
    }
    terms = {
        name: {**term, "best": term["random"] + 0.1, "error": 0.0}
        for name, term in MASK_METRICS["terms"].items()
    }
    learned = {"num_selected": count, "terms": terms, "scales": dict.fromkeys(terms, 0.1)}
    write_outputs(run, shard, tables, MASK_METRICS | learned)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_million_documents(chromium, tmp_path):
    """Below 3 MB, opened without an error, made within 4 GB of memory."""
    run = write_run(tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run(
        [sys.executable, "-m", "datamask.cli.main", "-q", "report", str(run.root)], check=True
    )
    peak = max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before) / 2**20
    size = run.path("report").stat().st_size
    assert query(run, "SELECT count(*) AS n FROM documents")[0]["n"] == SHARDS * ROWS
    with opened(chromium, run.path("report")) as (_, wrong):
        assert wrong == []
    assert size < 3e6
    assert peak < 4

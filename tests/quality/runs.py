"""Small planned corpora, their stages up to quality, and files of scores for them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from tests.finished import table_of, up_to

COMPUTE = Compute(duckdb_memory="500MB")


def make_run(
    tmp_path: Path, columns: dict[str, Any], *, rows: int = 4, ratio: float = 0.01, **quality: Any
) -> Run:
    """Plan a corpus of these columns, with a row group and a shard every few rows."""
    count = len(next(iter(columns.values())))
    table = {
        "id": [f"d{i:03d}" for i in range(count)],
        "text": [f"some words of text number {i}" for i in range(count)],
        **columns,
    }
    folder = tmp_path / "source"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=rows)
    data = {
        "source": {"path": str(folder)},
        "plan": {"rows_per_shard": rows},
        "quality": quality,
        "selection": {"ratio": ratio},
        "embedding": {"method": "lexical"},
    }
    return plan_run(tmp_path / "run", parse_settings(data))


def score(run: Run, compute: Compute = COMPUTE) -> list[dict[str, Any]]:
    """All stages up to quality; the rows of all quality files."""
    for stage in up_to(run, "quality"):
        run_stage(run, stage, compute)
    rows: list[dict[str, Any]] = table_of(run, "quality").to_pylist()
    return rows


def column(normalisation: str = "none", **more: Any) -> dict[str, Any]:
    """Settings of a score from the column `grade`."""
    return {
        "name": "grade",
        "kind": "column",
        "column": "grade",
        "normalisation": normalisation,
        **more,
    }


def write_scores(path: Path, found: dict[str, float]) -> Path:
    """Scores by key, in the format of the path's suffix."""
    keys, marks = list(found), list(found.values())
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"key": keys, "mark": marks}), path)
    elif path.suffix == ".csv":
        lines = ["mark,key,note", *(f"{found[key]},{key},x" for key in keys)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps({"key": k, "mark": found[k]}) + "\n" for k in keys))
    return path

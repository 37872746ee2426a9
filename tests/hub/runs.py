"""Small finished runs, hand-made, to publish and to write cards of."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.analysis.composition import compose
from datamask.analysis.documents import tabulate
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.runs import schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import create_run
from datamask.runs.run import Run
from datamask.runs.schemas import Piece
from datamask.source.reading import SCHEMA_KEY

NAME = "ada/subset"
ROWS = 40

SUBSET = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("quality", pa.float64()),
        ("logit", pa.float32()),
        ("shard", pa.int32()),
    ]
)


_COMPARED = {"selected": 2.0, "random": 1.0, "top_quality": 1.5}
_MEASURED = _COMPARED | {"best": 3.0, "error": 0.0}
MASK_METRICS: dict[str, Any] = {
    "num_selected": 4,
    "estimator": "expected",
    "steps": 2,
    "stopped_by": "steps",
    "optimality_gap": 0.0,
    "objective": _COMPARED,
    "terms": {
        "quality": {"maximise": True, **_MEASURED},
        "disf": {"maximise": False, **_MEASURED},
    },
}
"""What the learner would say of a shard."""


def write_subset(run: Run, unit: int, word: str = "text") -> None:
    """Write one file of the subset; *word* changes its content."""
    shard = run.subset_files[unit].shards[0]
    rows = enumerate(masks(run, shard).to_pylist())
    chosen = {f"d{shard}-{place}": row for place, row in rows if row["selected"]}
    table = pa.table(
        {
            "text": [f"{word} {name}" for name in chosen],
            "id": [*chosen],
            "quality": [0.5] * len(chosen),
            "logit": [row["logit"] for row in chosen.values()],
            "shard": [shard] * len(chosen),
        },
        schema=SUBSET,
    )
    write_parquet(
        run.path("subset", unit),
        SUBSET,
        [table],
        lambda rows: run.make_receipt("subset", unit, rows),
    )


def masks(run: Run, shard: int) -> pa.Table:
    """The mask of a shard: every tenth document is selected."""
    selected = [row % 10 == 0 for row in range(ROWS)]
    logits = np.where(selected, 2.0, -1.0).astype("float32")
    return pa.table({"logit": logits, "selected": selected}, schema=schemas.MASK)


def finished_run(
    root: Path,
    settings: dict[str, Any] | None = None,
    *,
    num_shards: int = 3,
    pinned_revisions: dict[str, str] | None = None,
    **publication: Any,
) -> Run:
    """A run whose outputs up to the composition are all there, one subset file a shard."""
    data: dict[str, Any] = {
        "source": {"path": "/home/ada/secret/corpus"},
        "embedding": {"method": "lexical"},
        "subset": {"file_bytes": 1024},
        "publication": {"repository": NAME, "license": "odc-by", **publication},
        **(settings or {}),
    }
    run = create_run(root, parse_settings(data), pinned_revisions or {})
    pieces = [
        asdict(Piece(shard, f"{shard}.parquet", 0, 1, 0, ROWS, 9000, f"d{shard}"))
        for shard in range(num_shards)
    ]
    source = pa.schema([SUBSET.field("text"), SUBSET.field("id")])
    noted = {SCHEMA_KEY: source.serialize().to_pybytes().hex()}
    plan = pa.Table.from_pylist(pieces, schema=schemas.PLAN.with_metadata(noted))
    write_parquet(run.plan_path, plan.schema, [plan])
    assert len(run.subset_files) == num_shards
    names = [score.name for score in run.settings.scores]
    for shard in range(num_shards):
        write_shard(run, shard, names)
    for unit in range(num_shards):
        write_subset(run, unit)
    compose_all(run)
    return run


def compose_all(run: Run) -> None:
    """Write the documents of every shard, and the composition."""
    for shard in range(run.num_shards):
        tabulate(run, shard, Compute())
    compose(run, Compute())


def write_shard(run: Run, shard: int, names: list[str]) -> None:
    """Write scores, quality, mask and curve of a shard."""
    ids = [f"d{shard}-{row}" for row in range(ROWS)]
    facts = [
        {"id": name, "row": row, "characters": 100 + row, "tokens": 20 + row}
        | {"dump": "demo", "language": "en", "domain": "example.org"}
        | dict.fromkeys(names, row / ROWS)
        for row, name in enumerate(ids)
    ]
    quality = [
        {"id": name, "row": row, "quality": row / ROWS, "dropped": None}
        | dict.fromkeys(names, row / ROWS)
        for row, name in enumerate(ids)
    ]
    score_schema, quality_schema = schemas.scores(names), schemas.quality(names)
    dimension = run.settings.embedding.dimension
    vector = {"feature_arr": np.full(dimension, dimension**-0.5, np.float16), "text_read": 1.0}
    vectors = [{"chunk_id": name, **vector} for name in ids]
    outputs = {
        "scores": pa.Table.from_pylist(facts, schema=score_schema),
        "quality": pa.Table.from_pylist(quality, schema=quality_schema),
        "embeddings": pa.Table.from_pylist(vectors, schema=schemas.embeddings(dimension)),
        "selection": masks(run, shard),
    }
    write_outputs(run, shard, outputs, MASK_METRICS)


def write_outputs(
    run: Run, shard: int, outputs: dict[str, pa.Table], of_mask: dict[str, Any]
) -> None:
    """Write the files of a shard with receipts, *of_mask* is what learning says; nothing drops."""
    rows = len(outputs["scores"])
    before = {"kept_before": rows * shard, "kept_total": rows * run.num_shards, "centre": 0.0}
    before["unit"] = 1.0
    metrics: dict[str, dict[str, Any]] = {
        "selection": of_mask,
        "scores": {"long": {"policy": "refuse", "bound": 10_000_000, "documents": 0}},
        "quality": {"kept": rows, **before, "tokens": 0, "tokens_before": 0, "tokens_total": 0},
        "embeddings": {"encoder": "lexical", "revision": "lexical-1"},
    }
    for stage, table in outputs.items():
        write_parquet(
            run.path(stage, shard),
            table.schema,
            [table],
            lambda rows, stage=stage: run.make_receipt(stage, shard, rows, metrics.get(stage, {})),
        )

"""The command line of the published DATAMASK script, with this project's learner.

It reads Parquet files with `chunk_id`, `quality_score` and `feature_arr` as one shard and writes
`chunk_id`, `logit`, `selected`, with the flags and defaults of the authors' script (arXiv
2512.24265). The estimator is the same, the objective is not: terms are divided by their standard
deviation over random subsets, λ · Q/σ_Q + (1 − λ) · s · D/σ_D (s = −1 for DiSF and Pair_simi), so
`--lamb` has another scale than in the published script; with `--unscaled` terms are added
unchanged. `--estimator` and `--unscaled` are additional flags. The seed is 0: equal input and flags
give equal bytes. For several shards, other columns or other settings use `datamask rebuild`.

    python -m datamask.cli.train_mask --input shard.parquet --output mask.parquet --algorithm DiSF
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.cli.terminal import escaped_output
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.embedding.vectors import COLUMN, normalise, to_matrix
from datamask.errors import DatamaskError, InputError, SettingsError, exit_status, known, lines
from datamask.execution.devices import check_device
from datamask.in_memory.containers import is_list
from datamask.learning.learner import learn_mask
from datamask.runs import budget, schemas
from datamask.runs.files import write_parquet
from datamask.runs.in_progress import advance, working
from datamask.source.opening import list_files
from datamask.source.pinned import open_parquet

logger = logging.getLogger(__name__)

ALGORITHMS = {"DiSF": "disf", "Facility": "facility_location", "Pair_simi": "pairwise"}
"""Metrics by their names in the published script."""

ROWS_AT_ONCE = 16_384


def train_mask(arguments: argparse.Namespace) -> tuple[int, int]:
    """Learn and write a mask; return the numbers of selected and of read documents.

    Raises:
        InputError: the input is invalid; names file, row and column.
        SettingsError: a flag is out of range.
        StorageError: the output cannot be written.
    """
    selection = selection_of(arguments)
    compute: Compute = parse_settings({"device": arguments.device}, Compute)
    check_device(compute)
    if arguments.output.is_dir():
        raise SettingsError(f"--output {arguments.output}: a folder; name a file")
    ids, quality, features = read_features(arguments.input)
    num_selected = budget.total_budget(selection, len(ids))
    with working("mask"):
        learned = learn_mask(
            features,
            quality,
            selection,
            num_selected,
            seed=0,
            ids=ids.cast(pa.string()).to_numpy(zero_copy_only=False),
            compute=compute,
            progress=lambda step, steps: advance(step, steps, "steps at most"),
        )
    fields = [pa.field("chunk_id", ids.type, nullable=False)]
    schema = pa.schema([*fields, schemas.MASK.field("logit"), schemas.MASK.field("selected")])
    columns = [ids, pa.array(learned.logits), pa.array(learned.selected)]
    write_parquet(arguments.output, schema, [pa.Table.from_arrays(columns, schema=schema)])
    for name, term in learned.metrics["terms"].items():
        values = (term["selected"], term["random"], term["top_quality"])
        logger.info("%s: selected %.6g, random %.6g, top quality %.6g", name, *values)
    return num_selected, len(ids)


def selection_of(arguments: argparse.Namespace) -> Selection:
    """The flags as settings; the published estimator takes all steps and has no swap refinement."""
    values: dict[str, Any] = {
        "ratio": arguments.select_ratio,
        "metric": ALGORITHMS[arguments.algorithm],
        "quality_weight": arguments.lamb,
        "scale_terms": not arguments.unscaled,
        "estimator": arguments.estimator,
        "init": "uniform" if arguments.init == "same" else arguments.init,
        "steps": arguments.n_epochs,
        "batch_fraction": arguments.partial,
        "rollouts": arguments.n_rollout,
        "initial_lr": arguments.max_lr,
        "final_lr": arguments.min_lr,
    }
    if arguments.estimator == "policy_gradient":
        values |= {"tolerance": 0.0, "swap_refinement": 0}
    selection: Selection = parse_settings(values, Selection)
    return selection


def read_features(path: str) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Ids (in their own type), quality (float64) and unit vectors in their stored precision."""
    names = list_files(path)
    total = 0
    for name in names:
        with open_parquet(name) as file:
            for column in _COLUMNS:
                if column not in file.schema_arrow.names:
                    there = ", ".join(file.schema_arrow.names)
                    raise InputError(f"missing; the file has {there}", path=name, column=column)
            total += file.metadata.num_rows
    if not total:
        raise InputError("no documents", path=path)
    ids: list[pa.Array] = []
    quality = np.empty(total)
    features: np.ndarray | None = None
    at = 0
    for name in names:
        with open_parquet(name) as file:
            start = at
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=_COLUMNS):
                stop = at + batch.num_rows
                try:
                    keys, quality[at:stop], vectors = _read_batch(batch, features)
                except InputError as error:
                    row = None if error.row is None else at - start + error.row
                    problem = error.problem
                    raise InputError(problem, path=name, row=row, column=error.column) from None
                if features is None:
                    features = np.empty((total, vectors.shape[1]), vectors.dtype)
                features[at:stop] = vectors
                ids.append(keys)
                at = stop
    assert features is not None
    if len({part.type for part in ids}) > 1:
        ids = [part.cast(pa.string()) for part in ids]
    joined = pa.chunked_array(ids).combine_chunks()
    counts = joined.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        key, times = repeated[0].values()
        problem = f"{len(repeated)} ids are not unique ({key.as_py()!r} {times} times)"
        raise InputError(problem, path=path, column="chunk_id")
    return joined, quality, features


_COLUMNS = ["chunk_id", "quality_score", COLUMN]


def _read_batch(
    batch: pa.RecordBatch, before: np.ndarray | None
) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    ids, scores, lists = (batch.column(name) for name in _COLUMNS)
    if ids.null_count:
        row = pc.index(ids.is_null(), True).as_py()
        raise InputError("null; give it an id", row=row, column="chunk_id")
    if not (pa.types.is_floating(scores.type) or pa.types.is_integer(scores.type)):
        raise InputError(f"type {scores.type}, needed numbers", column="quality_score")
    quality = scores.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not np.isfinite(quality).all():
        row = int(np.flatnonzero(~np.isfinite(quality))[0])
        raise InputError("null, NaN or infinite", row=row, column="quality_score")
    width = 1  # `to_matrix` refuses nulls and other types
    if before is not None:
        width = before.shape[1]
    elif is_list(lists.type) and len(lists):
        width = pc.list_value_length(lists)[0].as_py() or 1
    matrix = normalise(to_matrix(lists, width))
    is_half = pa.types.is_float16(lists.type.value_type)
    return ids, quality, matrix.astype(np.float16) if is_half else matrix


def parser() -> argparse.ArgumentParser:
    """The published flags, `--estimator` and `--unscaled`."""
    made = argparse.ArgumentParser(
        prog="python -m datamask.cli.train_mask",
        description="Learn a mask over one shard of documents with the published script's flags.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--input", required=True, help="Parquet file, folder, glob or URL")
    add("--output", required=True, type=Path, help="Parquet file to write")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    add("--n_epochs", type=int, default=10_000, help="steps of the learner")
    add("--algorithm", choices=list(ALGORITHMS), default="DiSF", help="diversity metric")
    add("--partial", type=float, default=0.05, help="share of the documents in a step's batch")
    add("--max_lr", type=float, default=10.0, help="learning rate at the start")
    add("--min_lr", type=float, default=1.0, help="learning rate at the end")
    add("--n_rollout", type=int, default=128, help="masks drawn per step")
    add("--select_ratio", type=float, default=0.1, help="share of the documents to keep")
    add("--init", choices=["same", "quality"], default="quality", help="initial logits")
    add("--lamb", type=float, default=0.5, help="lambda: 1 is quality only, 0 diversity only")
    unscaled = "add unscaled terms; by default each is divided by its standard deviation"
    add("--unscaled", action="store_true", help=unscaled)
    estimators = ["policy_gradient", "expected"]
    expected = "`expected` does not sample: better masks in a fraction of the time"
    add("--estimator", choices=estimators, default="policy_gradient", help=expected)
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Entry point: report errors in one line each. Returns the exit status."""
    with escaped_output():
        return _run(given)


def _run(given: Sequence[str] | None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    arguments = parser().parse_args(given)
    try:
        selected, read = train_mask(arguments)
    except Exception as raised:
        error = known(raised)
        if not isinstance(error, DatamaskError | OSError):
            raise
        for line in lines(error):
            print(line, file=sys.stderr)
        return exit_status(error)
    print(f"{arguments.output}: {selected:,d} of {read:,d} documents selected")
    return 0


if __name__ == "__main__":
    sys.exit(main())

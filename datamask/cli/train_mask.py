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
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.cli.main import told
from datamask.cli.terminal import escaped_output
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.execution.devices import check_device
from datamask.execution.pipeline import run_stage
from datamask.planning.first_settings import look
from datamask.planning.plan import plan_run
from datamask.runs import schemas
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.stages import stages_of
from datamask.source.opening import list_files
from datamask.source.pinned import open_parquet
from datamask.storage.local import nearest_folder

logger = logging.getLogger(__name__)

ALGORITHMS = {"DiSF": "disf", "Facility": "facility_location", "Pair_simi": "pairwise"}
"""Metrics by their names in the published script."""


def train_mask(arguments: argparse.Namespace) -> tuple[int, int]:
    """Learn and write a mask; return the numbers of selected and of read documents.

    A run of one shard does the work, in a temporary folder beside the output.

    Raises:
        InputError: the input is invalid; names file, row and column.
        SettingsError: a flag is out of range.
        StorageError: the output cannot be written.
    """
    settings = settings_of(arguments)
    compute: Compute = parse_settings({"device": arguments.device}, Compute)
    if arguments.output.is_dir():
        raise SettingsError(f"--output {arguments.output}: a folder; name a file")
    with tempfile.TemporaryDirectory(dir=nearest_folder(arguments.output.parent)) as folder:
        checks = [lambda: check_device(compute)]
        run = plan_run(Path(folder) / "run", settings, compute, checks=checks)
        for stage in stages_of(settings, last="selection"):
            run_stage(run, stage, compute)
        mask = read_columns(run.path("selection", 0), ["logit", "selected"])
        terms = run.receipt("selection", 0).metrics["terms"]
    ids = _read_ids(arguments.input)
    fields = [pa.field("chunk_id", ids.type, nullable=False)]
    schema = pa.schema([*fields, schemas.MASK.field("logit"), schemas.MASK.field("selected")])
    table = pa.Table.from_arrays([ids, mask["logit"], mask["selected"]], schema=schema)
    write_parquet(arguments.output, schema, [table])
    for name, term in terms.items():
        values = (term["selected"], term["random"], term["top_quality"])
        logger.info("%s: selected %.6g, random %.6g, top quality %.6g", name, *values)
    return sum(mask["selected"].to_pylist()), len(ids)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The flags as settings; the published estimator takes all steps and has no swap refinement."""
    selection: dict[str, Any] = {
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
        selection |= {"tolerance": 0.0, "swap_refinement": 0}
    parse_settings({"selection": selection})  # before the input is looked at
    width = look(arguments.input).settings["embedding"].get("dimension", 1)
    settings: Settings = parse_settings(
        {
            "source": {"path": arguments.input, "layout": "features"},
            "plan": {"rows_per_shard": 2**62, "bytes_per_shard": 2**62},
            "quality": {"prune_fraction": 0},
            "embedding": {"dimension": width},
            "selection": selection,
        }
    )
    return settings


def _read_ids(path: str) -> pa.ChunkedArray:
    """Ids in their own type; as text if files have several types."""
    ids = []
    for name in list_files(path):
        with open_parquet(name) as file:
            ids.append(file.read(["chunk_id"])["chunk_id"])
    if len({column.type for column in ids}) > 1:
        ids = [column.cast(pa.string()) for column in ids]
    return pa.chunked_array([chunk for column in ids for chunk in column.chunks], ids[0].type)


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
        form = "%(asctime)s %(message)s"
        logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S")
        arguments = parser().parse_args(given)
        try:
            selected, read = train_mask(arguments)
        except Exception as error:
            return told(error)
        print(f"{arguments.output}: {selected:,d} of {read:,d} documents selected")
        return 0


if __name__ == "__main__":
    sys.exit(main())

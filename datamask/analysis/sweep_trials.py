"""What another lambda would have done: selections learned again on a sample of a run's shards.

Nothing is embedded or scored anew. Every trial (a choice of settings, a seed, a shard) is a file
under `RUN/sweep/trials/` with a receipt, as a stage's output is. Its fingerprint is also its name:
trials of several sweeps lie side by side, and a wider sweep does only what is missing. Quality and
diversity of every trial are measured alike: by the run's own metric, as the gain over random
subsets of the same size in units of their deviation.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.outputs import Sweep
from datamask.config.selection import Selection
from datamask.embedding.vectors import vectors_at
from datamask.errors import RunError
from datamask.runs.files import read_columns, replace_file
from datamask.runs.opening import open_run
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run, digest, shard_seed
from datamask.storage.location import Root

logger = logging.getLogger(__name__)

VERSION = 3
BASE = "as in the run"
KINDS = ("dump", "language", "domain")
QUANTILES = (10, 25, 50, 75, 90)


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings under trial.

    Args:
        variant: what differs from the run's selection beside lambda, such as `ratio=0.05`;
            `as in the run` for none.
        selection: the settings, with lambda.
    """

    variant: str
    selection: Selection

    @property
    def quality_weight(self) -> float:
        """Lambda."""
        return self.selection.quality_weight


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to do: a choice with a seed on a shard."""

    choice: Choice
    seed: int
    shard: int

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        weight = f"lambda {self.choice.quality_weight:g}"
        what = weight if self.choice.variant == BASE else f"{self.choice.variant}, {weight}"
        return f"{what}, seed {self.seed}, shard {self.shard:05d}"


def choices(run: Run, sweep: Sweep) -> list[Choice]:
    """Every lambda for the run's selection, and for each other setting changed alone.

    Raises:
        SettingsError: a value is out of its range.
    """
    own = run.settings.selection
    base = own.model_copy(update={"method": "mask", "steps": min(own.steps, sweep.steps)})
    variants: list[tuple[str, dict[str, Any]]] = [(BASE, {})]
    variants += [(f"metric={value}", {"metric": value}) for value in sweep.metrics]
    variants += [
        (f"ratio={value:g}", {"ratio": value, "documents": None}) for value in sweep.ratios
    ]
    variants += [(f"init={value}", {"init": value}) for value in sweep.inits]
    variants += [
        (f"rollouts={value}", {"rollouts": value, "estimator": "policy_gradient"})
        for value in sweep.rollouts
    ]
    variants += [
        (
            f"initial_lr={value:g}",
            {
                "initial_lr": value,
                "final_lr": min(base.final_lr, value),
                "estimator": "policy_gradient",
            },
        )
        for value in sweep.initial_lrs
    ]
    return [
        Choice(
            name,
            parse_settings(base.model_dump() | changes | {"quality_weight": weight}, Selection),
        )
        for name, changes in variants
        for weight in sorted(set(sweep.quality_weights))
    ]


def chosen_shards(run: Run, sweep: Sweep) -> list[int]:
    """The shards of the sample: drawn by the run's seed from those with documents left.

    Raises:
        RunError: quality or embeddings of a shard are missing or stale.
    """
    full = [
        shard
        for shard in range(run.num_shards)
        if run.receipt("quality", shard).metrics["kept"] > 1
    ]
    if not full:
        raise RunError(
            f"{run.root}: no shard has documents to choose from; lower quality.prune_fraction"
        )
    count = min(sweep.shards, len(full))
    generator = np.random.Generator(np.random.PCG64(run.settings.seed))
    drawn = sorted(generator.choice(full, count, replace=False).tolist())
    for shard in drawn:
        run.receipt(run.quality_stage, shard)
        run.receipt("embeddings", shard)
    return drawn


def trials(run: Run, sweep: Sweep) -> list[Trial]:
    """Everything the sweep needs, in a fixed order.

    Raises:
        RunError: quality or embeddings are not there yet.
        SettingsError: a value is out of its range.
    """
    shards = chosen_shards(run, sweep)
    return [
        Trial(choice, seed, shard)
        for shard in shards
        for choice in choices(run, sweep)
        for seed in sweep.seeds
    ]


def trial_fingerprint(run: Run, sweep: Sweep, trial: Trial) -> str:
    """The hash of what determines a trial's figures."""
    return digest(
        VERSION,
        run.fingerprint(run.quality_stage, trial.shard),
        run.fingerprint("embeddings", trial.shard),
        trial.choice.selection,
        run.settings.selection.metric,
        trial.seed,
        sweep.documents,
    )


def trial_path(run: Run, sweep: Sweep, trial: Trial) -> Path:
    """Where a trial's figures are, in its receipt."""
    return run.root / "sweep" / "trials" / f"{trial_fingerprint(run, sweep, trial)}.json"


def is_tried(run: Run, sweep: Sweep, trial: Trial) -> bool:
    """Whether a trial is done."""
    fingerprint = trial_fingerprint(run, sweep, trial)
    return run.state_of(trial_path(run, sweep, trial), fingerprint) == "done"


def trial_metrics(run: Run, sweep: Sweep, trial: Trial) -> dict[str, Any]:
    """What a trial found.

    Raises:
        RunError: it is missing.
    """
    path = trial_path(run, sweep, trial)
    if not is_tried(run, sweep, trial):
        raise RunError(f"{path}: missing; run `datamask sweep {run.address}` again")
    return read_receipt(run.fetch(path)).metrics


def try_choice(run: Run, sweep: Sweep, trial: Trial, compute: Compute) -> None:
    """Do one trial, unless it is done.

    Raises:
        SettingsError: an objective cannot be had.
        CorruptFileError: a file of the run is damaged.
    """
    from datamask.learning.learner import judge, learn_mask, scale

    if is_tried(run, sweep, trial):
        return
    selection = trial.choice.selection
    inputs = (run.quality_stage, "embeddings")
    made_from = digest([run.fingerprint(stage, trial.shard) for stage in inputs])
    documents = _documents(run.address, made_from, trial.shard, sweep.documents)
    quality = documents["quality"].to_numpy()
    features = documents.features
    count = _count(run, trial.shard, len(quality), selection)
    seed = shard_seed(trial.seed, trial.shard)
    learned = learn_mask(
        features, quality, selection, count, seed=seed, scores=documents.scores, compute=compute
    )
    # The yardstick: the run's own terms over random subsets. They are the same for every trial, so
    # that the spread over seeds is that of the learner alone.
    yardstick = scale(
        features,
        quality,
        run.settings.selection,
        count,
        seed=shard_seed(run.settings.seed, trial.shard),
        scores=documents.scores,
        compute=compute,
    )
    metrics = {
        "selected": count,
        "candidates": len(quality),
        "steps": learned.metrics["steps"],
        "stopped_by": learned.metrics["stopped_by"],
        "terms": judge(yardstick, learned.selected)["terms"],
        "kept": _facts(documents.table.filter(pa.array(learned.selected))),
        "source": _facts(documents.table),
    }
    fingerprint = trial_fingerprint(run, sweep, trial)
    receipt = Receipt("sweep", trial.shard, fingerprint, len(quality), metrics)
    with replace_file(trial_path(run, sweep, trial), run.storage) as temporary:
        temporary.write_text(f'{{"receipt": {receipt.to_json()}}}\n', encoding="utf-8")
    logger.info("sweep: %s: done", trial.name)


@dataclass(frozen=True, slots=True)
class _Documents:
    table: pa.Table
    features: np.ndarray
    scores: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table[name]


@functools.lru_cache(maxsize=1)
def _documents(root: Root, made_from: str, shard: int, most: int) -> _Documents:
    """A shard's candidates, or a seeded draw of them, with facts and vectors.

    The last shard's are kept, because its trials follow each other; *made_from* tells versions of
    the files apart.
    """
    run = open_run(root)
    names = [score.name for score in run.settings.scores]
    quality = read_columns(run.quality_path(shard), ["row", *names, "quality", "dropped"])
    quality = quality.filter(pc.is_null(quality["dropped"]))
    size = quality.num_rows
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    places = np.sort(generator.permutation(size)[:most])
    quality = quality.take(places)
    facts = read_columns(run.path("scores", shard), ["characters", "tokens", *KINDS])
    facts = facts.take(quality["row"].combine_chunks())
    features = vectors_at(
        run.path("embeddings", shard), run.settings.embedding.dimension, places, size
    )
    scores = {name: quality[name].to_numpy().astype(np.float32) for name in names}
    return _Documents(facts.append_column("quality", quality["quality"]), features, scores)


def _count(run: Run, shard: int, size: int, selection: Selection) -> int:
    """Documents to keep of a sample: as large a part as the run would keep of the shard."""
    from datamask.runs import budget

    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    units = budget.shard_units(selection, run.num_documents, left)
    there = left.kept if selection.tokens is None else left.tokens
    kept_of_sample: int = round(units * size / max(there, 1))
    return max(1, kept_of_sample)


def _facts(table: pa.Table) -> dict[str, Any]:
    """Lengths and composition of some documents, small enough to keep for every trial."""
    found: dict[str, Any] = {"documents": table.num_rows}
    for unit in ("characters", "tokens"):
        known = pc.sum(table[unit]).as_py()
        found[unit] = known
    lengths = table["characters"].drop_null()
    if len(lengths):
        points = pc.quantile(lengths, [q / 100 for q in QUANTILES], interpolation="lower")
        found["quantiles"] = dict(zip(map(str, QUANTILES), points.to_pylist(), strict=True))
    for kind in KINDS:
        counted = pc.value_counts(table[kind].drop_null()).to_pylist()
        counted.sort(key=lambda pair: (-pair["counts"], pair["values"]))
        found[kind] = {pair["values"]: pair["counts"] for pair in counted[:1000]}
    return found

"""Sweep: learning with other values of lambda on a sample of a run's shards.

Scores and embeddings of the run are reused. Every trial (a choice of settings, a seed, a shard) is
a file under `RUN/sweep/trials/` with a receipt, like the output of a stage. Its fingerprint is its
name, so the trials of several sweeps share the folder and a larger sweep computes only what is
missing. Quality and diversity of every trial are measured with the run's own metric, as the gain
over random subsets of the same size in units of their standard deviation.
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
from datamask.errors import RunError, SettingsError
from datamask.runs import budget
from datamask.runs.files import read_columns, write_text_file
from datamask.runs.followed import selection_of
from datamask.runs.opening import open_run
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run, digest, shard_seed
from datamask.source.pinned import digest_file
from datamask.storage import stopping
from datamask.storage.location import Root

logger = logging.getLogger(__name__)

VERSION = 10

DOCUMENTS = 5000
"""Most sampled documents of a shard."""

STEPS = 100
"""Most steps of a trial: enough to compare."""

BASE = "as in the run"


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings to try.

    Args:
        variant: how they differ from the run's selection except for lambda, such as `ratio=0.05`;
            `as in the run` if they do not.
        selection: the settings, with lambda.
        files: digests of the files that its further terms read.
    """

    variant: str
    selection: Selection
    files: tuple[str, ...] = ()

    @property
    def quality_weight(self) -> float:
        """Lambda."""
        return self.selection.quality_weight


@dataclass(frozen=True, slots=True)
class Trial:
    """A choice with a seed on a shard."""

    choice: Choice
    seed: int
    shard: int

    @property
    def name(self) -> str:
        """Short description for logs and task names."""
        weight = f"lambda {self.choice.quality_weight:g}"
        what = weight if self.choice.variant == BASE else f"{self.choice.variant}, {weight}"
        return f"{what}, seed {self.seed}, shard {self.shard:05d}"


def choices(run: Run, sweep: Sweep) -> list[Choice]:
    """Every lambda for the run's selection, and for each of the changes.

    Raises:
        SettingsError: a value is out of its range.
        InputError: a file of a further term is missing.
    """
    own = selection_of(run)
    base = own.model_copy(update={"method": "mask", "steps": min(own.steps, STEPS)})
    chosen = []
    for change in ({}, *sweep.changes):
        variant = ", ".join(f"{key}={value}" for key, value in change.items()) or BASE
        try:
            selection: Selection = parse_settings(base.changed(change), Selection)
        except SettingsError as error:
            raise SettingsError(f"sweep.changes {variant}: {error}") from None
        files = tuple(digest_file(t.path) for t in selection.more_terms if t.path)
        chosen += [
            Choice(variant, selection.model_copy(update={"quality_weight": weight}), files)
            for weight in sorted(set(sweep.quality_weights))
        ]
    return chosen


def chosen_shards(run: Run, sweep: Sweep) -> list[int]:
    """The shards of the sample, drawn with the run's seed from those with more than one candidate.

    Raises:
        RunError: the run has no embeddings, or quality or embeddings of a shard are missing or
            stale.
    """
    if not run.settings.has_vectors:
        raise RunError(
            f"{run.address}: the run has no embeddings to learn from; sweep a run that has"
        )
    full = [
        shard
        for shard in range(run.num_shards)
        if run.receipt("quality", shard).metrics["kept"] > 1
    ]
    if not full:
        raise RunError(
            f"{run.root}: no shard has documents to choose from; lower quality.prune_fraction"
        )
    generator = np.random.Generator(np.random.PCG64(run.settings.seed))
    count = min(sweep.shards, len(full))
    drawn = sorted(generator.choice(full, count, replace=False).tolist())
    for shard in drawn:
        run.receipt(run.quality_stage, shard)
        run.receipt("embeddings", shard)
    return drawn


def trials(run: Run, sweep: Sweep) -> list[Trial]:
    """All trials of a sweep, in a fixed order.

    Raises:
        RunError: quality or embeddings are missing.
        SettingsError: a value is out of its range.
    """
    tried = choices(run, sweep)
    return [
        Trial(choice, seed, shard)
        for shard in chosen_shards(run, sweep)
        for choice in tried
        for seed in sweep.seeds
    ]


def trial_path(run: Run, trial: Trial) -> Path:
    """The file whose receipt has a trial's metrics; its name hashes all that determines them."""
    fingerprint = digest(
        VERSION,
        run.fingerprint(run.quality_stage, trial.shard),
        run.fingerprint("embeddings", trial.shard),
        trial.choice.selection.of_mask(),
        trial.choice.files,
        run.settings.selection.metric,
        trial.seed,
        DOCUMENTS,
    )
    return run.root / "sweep" / "trials" / f"{fingerprint}.json"


def is_tried(run: Run, trial: Trial) -> bool:
    """Whether a trial is done."""
    path = trial_path(run, trial)
    return run.state_of(path, path.stem) == "done"


def trial_metrics(run: Run, trial: Trial) -> dict[str, Any]:
    """The metrics of a finished trial.

    Raises:
        RunError: the trial is missing.
    """
    path = trial_path(run, trial)
    if not is_tried(run, trial):
        raise RunError(f"{path}: missing; run `datamask sweep {run.address}` again")
    return read_receipt(run.fetch(path)).metrics


def try_choice(run: Run, trial: Trial, compute: Compute) -> None:
    """Run one trial, unless it is done.

    Raises:
        SettingsError: an objective cannot be loaded.
        CorruptFileError: a file of the run is damaged.
    """
    from datamask.learning.learner import judge, learn_mask, scale
    from datamask.objectives.weighted import build_terms
    from datamask.selection.terms import terms_of

    if is_tried(run, trial):
        return
    selection = trial.choice.selection
    inputs = (run.quality_stage, "embeddings")
    made_from = digest([run.fingerprint(stage, trial.shard) for stage in inputs])
    table, features, scores = _documents(run.address, made_from, trial.shard)
    quality = table["quality"].to_numpy()
    count = _count(run, trial.shard, len(quality), selection)
    seed = shard_seed(trial.seed, trial.shard)
    paths = (term.path for term in selection.more_terms if term.path)
    terms = build_terms(selection, dict(zip(paths, trial.choice.files, strict=True)))
    learned = learn_mask(
        features,
        quality,
        selection,
        count,
        seed=seed,
        scores=scores,
        terms=terms,
        compute=compute,
        progress=lambda step, steps: stopping.check(),
    )
    # Every trial is judged against the same random subsets, so that the spread over seeds is that
    # of the learner alone.
    own, seed = selection_of(run), shard_seed(run.settings.seed, trial.shard)
    terms, given = terms_of(run), (features, quality, own, count, seed, scores, compute)
    random = scale(*given, terms=terms, learns=False)
    metrics = {
        "selected": count,
        "candidates": len(quality),
        "steps": learned.metrics["steps"],
        "stopped_by": learned.metrics["stopped_by"],
        "terms": judge(random, learned.selected)["terms"],
        "kept": _facts(table.filter(pa.array(learned.selected))),
    }
    path = trial_path(run, trial)
    receipt = Receipt("sweep", trial.shard, path.stem, len(quality), metrics)
    write_text_file(path, f'{{"receipt": {receipt.to_json()}}}\n', run.storage)
    logger.info("sweep: %s: done", trial.name)


@functools.lru_cache(maxsize=1)
def _documents(
    root: Root, made_from: str, shard: int
) -> tuple[pa.Table, np.ndarray, dict[str, np.ndarray]]:
    """Lengths and quality, vectors, and scores of a seeded draw of a shard's candidates.

    The cache keeps the last shard, because the trials of a shard follow each other; *made_from* is
    part of its key because the files may change.
    """
    from datamask.selection.documents import read_quality, with_vectors  # imports torch

    run = open_run(root)
    kept = run.receipt("quality", shard).metrics["kept"]
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    drawn = np.sort(generator.permutation(kept)[:DOCUMENTS])
    documents = with_vectors(run, read_quality(run, shard), rows=drawn)
    facts = read_columns(run.path("scores", shard), ["characters", "tokens"])
    facts = facts.take(documents.rows).append_column("quality", pa.array(documents.quality))
    return facts, documents.features, documents.scores


def _count(run: Run, shard: int, size: int, selection: Selection) -> int:
    """Documents to select from a sample: the share that the run selects from the shard."""
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    units = budget.shard_units(selection, run.num_documents, left)
    total = left.kept if selection.tokens is None else left.tokens
    return max(1, round(units * size / max(total, 1)))


def _facts(table: pa.Table) -> dict[str, Any]:
    """Number of documents, and their characters and tokens; None if unknown."""
    totals = {unit: pc.sum(table[unit]).as_py() for unit in ("characters", "tokens")}
    return {"documents": table.num_rows, **totals}

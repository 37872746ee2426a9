"""One pass and more rounds in scope `corpus`, and their mask models on documents not seen before.

20 shards of an input select a tenth, after a sample of some size and 1 to 5 rounds, by the real
pipeline. The reference is one learner that holds all documents: scope `shard`, all in one shard.
All maximise the same objective (`global_selection.common_objective`). `gain` is that over random
selections, as a share of the reference's. CPU seconds are those of the stages from the first that
learns to the mask model, divided by the reference's; `needed` is how often these stages ask for the
vector of a document, on average, and `read` how often they read it from disk, where row groups are
read as a whole. Copies of the sample's vectors, which the stages exchange, are not counted.

The mask model of each selection then judges documents that were held out: the share that it keeps,
and the gain there as a share of that of a learner of the same documents, with as many kept.

    python -m benchmarks.one_pass --data text
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq

from benchmarks.global_selection import (
    SHARDS,
    Planted,
    common_objective,
    mask_of,
    of_random,
    planted,
    select,
    union,
    write,
)
from benchmarks.inputs import load
from datamask.config.compute import Compute
from datamask.embedding.vectors import read_vectors
from datamask.execution.pipeline import run_stage
from datamask.runs.run import Run
from datamask.runs.stages import learning_stages
from datamask.selection import documents as of_shards
from datamask.selection import sampling

STAND_INS = sampling.STAND_INS

ROUNDS = {65_536: (1, 2, 3, 5), 16_384: (1, 2, 3), 4096: (1, 2)}
"""Values of `sampling.SAMPLE`, and rounds after each."""

CASES = (
    *(("disf", weight, tuple(ROUNDS)) for weight in (0.5, 0.1)),
    *(("disf", weight, (65_536,)) for weight in (0.9, 0.0)),
    *(("pairwise", weight, tuple(ROUNDS)) for weight in (0.5, 0.1)),
    *(("pairwise", weight, (65_536,)) for weight in (0.9, 0.0)),
)
"""Metric, lambda and samples."""

CONTINUED = ("corpus_statistics", "round")
"""Stages whose work for fewer rounds is part of that for more."""


@dataclass(frozen=True, slots=True)
class Side:
    """Documents that are learnt, or that are held out: in memory, as input, and as runs."""

    corpus: Planted
    folder: Path

    @staticmethod
    def of(features: np.ndarray, quality: np.ndarray, rows: np.ndarray, folder: Path) -> Side:
        """Write some documents of an input as that of runs, in as many files as shards."""
        corpus = Planted(features[rows], quality[rows], np.full(len(rows), -1))
        write(corpus, folder / "source", len(rows) // SHARDS)
        return Side(corpus, folder)

    def run(self, shards: int, last: str = "embeddings", **selection: Any) -> Run:
        """A run of so many shards; its folder keeps what does not depend on the selection."""
        number, width = self.corpus.features.shape
        root = self.folder / f"{shards}-shards"
        rows = number // shards
        return select(self.folder / "source", root, rows, width, last, **selection)

    def objective(self, selection: dict[str, Any]) -> dict[str, Any]:
        """The selection with scales over all documents in lambda."""
        number, width = self.corpus.features.shape
        root = self.folder / f"{SHARDS}-shards"
        return common_objective(self.folder / "source", root, number // SHARDS, width, selection)

    def gain(self, mask: np.ndarray, chosen: dict[str, Any]) -> float:
        """The objective of a mask minus that of random masks with as many documents."""
        value = union(self.corpus, chosen)
        return value(mask) - of_random(value, len(mask), int(mask.sum()))


@contextmanager
def counted(cost: Counter[str]) -> Iterator[None]:
    """Add up CPU time, vectors that stages ask for, and those in the row groups they read."""

    def read(path: Path, dimension: int, rows: np.ndarray | None = None) -> Any:
        found = read_vectors(path, dimension, rows)
        about = pq.read_metadata(path)
        sizes = np.array([about.row_group(n).num_rows for n in range(about.num_row_groups)])
        places = np.arange(sizes.sum()) if rows is None else rows
        touched = np.unique(np.searchsorted(np.cumsum(sizes), places, "right"))
        cost.update(needed=len(places), read=int(sizes[touched].sum()))
        return found

    start = time.process_time_ns()
    with patch.object(of_shards, "read_vectors", read):
        yield
    cost["nanoseconds"] += time.process_time_ns() - start


def learn(run: Run, costs: dict[str, Counter[str]]) -> Counter[str]:
    """Do the stages that learn, and add up what they cost since the first round."""
    for stage in learning_stages(run.settings):
        if stage not in CONTINUED:
            costs[stage] = Counter()
        with counted(costs.setdefault(stage, Counter())):
            run_stage(run, stage, Compute())
    return sum(costs.values(), Counter())


def unseen(run: Run, others: Side, chosen: dict[str, Any]) -> str:
    """The share that a run's mask model keeps of others, and its share of the gain there."""
    if run.receipt("mask_model").metrics["unavailable"]:
        return "no model | –"
    model = str(run.path("mask_model").parent)
    kept = mask_of(others.run(1, "selection", **chosen, mask_model=model))
    if not 0 < kept.sum() < len(kept):
        return f"{kept.mean():.1%} | –"
    best = mask_of(others.run(1, "selection", **chosen, documents=int(kept.sum())))
    gain = others.gain(kept, chosen) / others.gain(best, chosen)
    return f"{kept.mean():.1%} | {gain:.1%}"


def compare(learnt: Side, others: Side, samples: Sequence[int], **given: Any) -> None:
    """Print the rows of an objective."""
    number, chosen = len(learnt.corpus.quality), learnt.objective(given)
    run = learnt.run(1, **chosen)
    spent = learn(run, {})
    reference = learnt.gain(mask_of(run), chosen)

    def show(run: Run, how: str, cost: Counter[str], is_judged: bool = True) -> None:
        cells = [
            f"{given['metric']} | {given['quality_weight']} | {how}",
            f"{learnt.gain(mask_of(run), chosen) / reference:.2%}",
            *(f"{cost[name] / number:.2f}" for name in ("needed", "read")),
            f"{cost['nanoseconds'] / spent['nanoseconds']:.2f}",
            unseen(run, others, chosen) if is_judged else " | ",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)

    show(run, "all | one shard", spent)
    for sample in samples:
        costs: dict[str, Counter[str]] = {}
        before = 0
        for rounds in ROUNDS[sample]:
            sampling.SAMPLE, sampling.STAND_INS = sample, min(sample, STAND_INS)
            how: dict[str, Any] = {"rounds": rounds}
            run = learnt.run(SHARDS, **chosen, **how, scope="corpus")
            costs = costs if before > 1 else {}
            cost = learn(run, costs)
            if run.last_round == before:
                break  # it had settled
            before = run.last_round
            size = run.receipt("round_total", 0).metrics["sample"]["documents"]
            has_settled = run.receipt("round_total", before).metrics["settled"]
            text = f"{size:,} | {before}{', settled' if has_settled else ''}"
            is_last = has_settled or rounds == ROUNDS[sample][-1]
            show(run, text, cost, rounds == 1 or is_last)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="text", choices=("text", "clustered", "planted"))
    parser.add_argument("--documents", type=int, default=100_000, help="that are learnt")
    parser.add_argument("--unseen", type=int, default=10_000, help="further documents")
    parser.add_argument("--only", nargs="*", help="metrics")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"), help="of the input")
    arguments = parser.parse_args()
    rows = arguments.documents + arguments.unseen
    if arguments.data == "planted":
        corpus = planted(rows // SHARDS, 64)
        features, quality = corpus.features, corpus.quality
    else:
        features, quality = load(arguments.folder, arguments.data, rows)
    order = np.random.default_rng(0).permutation(rows)
    print(
        "| metric | lambda | sample | rounds | gain | needed | read | time | unseen: kept | gain |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        parts = np.sort(order[arguments.unseen :]), np.sort(order[: arguments.unseen])
        learnt, others = (
            Side.of(features, quality, part, Path(name) / side)
            for side, part in zip(("learnt", "unseen"), parts, strict=True)
        )
        for metric, weight, samples in CASES:
            if not arguments.only or metric in arguments.only:
                compare(learnt, others, samples, metric=metric, quality_weight=weight)


if __name__ == "__main__":
    main()

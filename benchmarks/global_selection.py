"""Selection over the corpus compared with selection per shard: objective and near-duplicates.

The shards of the corpus differ in quality and topics, and have near-duplicates in each other:
`planted` is synthetic, `semantic` are real texts with a domain per shard and exact near-copies.
`selection.scope` is `shard`, `corpus`, and `shard` with all documents in one shard, which is the
oracle: the best selection that fits one machine's memory. All three use the real pipeline and the
same objective: lambda and the scales of the terms over random subsets of the whole corpus give one
weight for all of them.

    python -m benchmarks.global_selection [--data semantic] [--documents 4000] [--dimension 64]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from benchmarks.inputs import load, semantic_documents
from benchmarks.near_copies import OVERLAP, ngrams_of, overlapping
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.execution.pipeline import run_stage
from datamask.learning.data import raw_values
from datamask.learning.learner import shard_data
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, build_terms
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from datamask.runs.stages import stages_of

SHARDS = 20
SUM = (
    {"name": "pairwise", "weight": 0.3},
    {"name": "benchmarks.global_selection:Evenness", "weight": 0.3},
)
CASES: tuple[tuple[str, float, tuple[dict[str, Any], ...]], ...] = (
    *(("disf", weight, ()) for weight in (0.5, 0.1, 0.9, 0.0)),
    *(("pairwise", weight, ()) for weight in (0.5, 0.1, 0.0)),
    *(("benchmarks.spectrum:Vendi", weight, ()) for weight in (0.5, 0.1, 0.0)),
    *(("benchmarks.spectrum:LogDeterminant", weight, ()) for weight in (0.5, 0.1, 0.0)),
    *(("disf", weight, SUM) for weight in (0.5, 0.1, 0.0)),
)
"""Metric, lambda, and further terms: a sum of second and first moments, quality and an own term."""
COPIED = 0.2
"""Share of every shard that are near-copies of texts which other shards have too."""


class Evenness(MomentObjective):
    """A term of one's own: as much of the first dimension as of the second, on average."""

    name = "evenness"
    maximise = False
    order: ClassVar[int] = 1

    def of_moments(self, moments: Moments) -> Tensor:
        """((Σ x₁ − Σ x₂) / S)²."""
        return ((moments.first_D[0] - moments.first_D[1]) / moments.count).square()


@dataclass(frozen=True, slots=True)
class Planted:
    """A corpus with its shards concatenated.

    Args:
        features: unit rows, float32.
        quality: of each document.
        originals: number of the text of which a document is a near-copy, -1 for none.
    """

    features: np.ndarray
    quality: np.ndarray
    originals: np.ndarray


def planted(documents: int, dimension: int, shards: int = SHARDS, seed: int = 0) -> Planted:
    """Shards of so many documents: topics of their own, quality shifted, a fifth near-copies."""
    generator = np.random.default_rng(seed)
    topics = 100
    centres = generator.normal(size=(topics, dimension))
    common = 1 / np.arange(1, topics + 1) ** 0.7
    common /= common.sum()
    number = documents * shards // 50
    texts = centres[generator.choice(topics, number, p=common)]
    texts = texts + 0.7 * generator.normal(size=texts.shape)
    text_quality = generator.normal(0.5, 1, number)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in range(shards):
        own = 0.6 * common + 0.4 * generator.dirichlet(np.full(topics, 0.5))
        topic = generator.choice(topics, documents, p=own)
        features = centres[topic] + 0.9 * generator.normal(size=(documents, dimension))
        quality = generator.normal(0, 0.8) + generator.normal(size=documents)
        quality += 0.3 * centres[topic, 0]
        originals = np.full(documents, -1)
        rows = generator.choice(documents, int(COPIED * documents), replace=False)
        originals[rows] = generator.choice(number, len(rows))
        features[rows] = texts[originals[rows]] + 0.05 * generator.normal(
            size=(len(rows), dimension)
        )
        quality[rows] = text_quality[originals[rows]] + 0.1 * generator.normal(size=len(rows))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        parts.append((features.astype(np.float32), quality, originals))
    return Planted(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def semantic(folder: Path, documents: int, shards: int = SHARDS) -> Planted:
    """Real texts, sorted by domain; a group of near-copies counts as copies of one text."""
    rows = documents * shards
    features, quality = load(folder, "semantic", rows)
    table = semantic_documents(folder, rows)
    pairs = overlapping(ngrams_of(table["text"]), OVERLAP)
    edges = coo_array((np.ones(len(pairs), bool), pairs.T), (rows, rows))
    groups = connected_components(edges, directed=False)[1]
    groups[np.bincount(groups)[groups] == 1] = -1
    order = np.argsort(table["domain"].to_numpy(), kind="stable")
    return Planted(np.asarray(features[order], np.float32), quality[order], groups[order])


def write(corpus: Planted, folder: Path, documents: int) -> None:
    """Write the corpus as published DATAMASK input, one file per shard."""
    folder.mkdir(parents=True)
    width = corpus.features.shape[1]
    for shard, start in enumerate(range(0, len(corpus.features), documents)):
        rows = slice(start, start + documents)
        flat = pa.array(corpus.features[rows].ravel())
        table = pa.table(
            {
                "chunk_id": [f"{row:08d}" for row in range(start, start + documents)],
                "quality_score": corpus.quality[rows],
                "feature_arr": pa.FixedSizeListArray.from_arrays(flat, width),
            }
        )
        pq.write_table(table, folder / f"{shard:05d}.parquet")


def select(
    source: Path,
    root: Path,
    rows_per_shard: int,
    width: int,
    last: str = "selection",
    **selection: Any,
) -> Run:
    """Run the pipeline up to the masks, or another stage."""
    data = {
        "source": {"path": str(source), "layout": "features"},
        "plan": {"rows_per_shard": rows_per_shard},
        "embedding": {"dimension": width},
        "selection": selection,
    }
    run = plan_run(root, parse_settings(data))
    stages = stages_of(run.settings)
    for stage in stages[: stages.index(last) + 1]:
        run_stage(run, stage, Compute())
    return run


def mask_of(run: Run) -> np.ndarray:
    """Which documents a run selected, in the corpus's order."""
    parts = [pq.read_table(run.path("selection", shard)) for shard in range(run.num_shards)]
    return np.concatenate([part["selected"].to_numpy() for part in parts])


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one method over the union of the shards.

    Args:
        name: of the method.
        objective: of the union.
        closed: share of the distance from a selection per shard to the oracle.
        gain: share of the oracle's gain over random selections.
        copies: selected documents that are near-copies of another selected document.
        seconds: CPU time of the whole run.
        least: documents selected from the shard with the fewest.
        most: documents selected from the shard with the most.
    """

    name: str
    objective: float
    closed: float
    gain: float
    copies: int
    seconds: float
    least: int
    most: int


def compare(
    corpus: Planted, folder: Path, documents: int, shards: int = SHARDS, **selection: Any
) -> list[Result]:
    """`shard`, `corpus` after every number of rounds from 1 to 5, and the oracle, in this order."""
    width = corpus.features.shape[1]
    source = folder / "source"
    if not source.exists():
        write(corpus, source, documents)
    ways: dict[str, dict[str, Any]] = {"shard": {}}
    ways |= {f"corpus, {n} rounds": {"scope": "corpus", "rounds": n} for n in range(1, 6)}
    ways["one single shard"] = {}
    root = Path(tempfile.mkdtemp(dir=folder))
    chosen = common_objective(source, root, documents, width, selection)
    found: dict[str, tuple[np.ndarray, float]] = {}
    for name, options in ways.items():
        rows = documents * shards if name == "one single shard" else documents
        root = Path(tempfile.mkdtemp(dir=folder))
        start = time.process_time()
        run = select(source, root, rows, width, **chosen, **options)
        found[name] = mask_of(run), time.process_time() - start
    value = union(corpus, chosen)
    local, oracle = (value(found[name][0]) for name in ("shard", "one single shard"))
    random = of_random(value, len(corpus.quality))
    results = []
    for name, (mask, seconds) in found.items():
        kept = corpus.originals[mask]
        kept = kept[kept >= 0]
        counts = mask.reshape(shards, documents).sum(1)
        copies = len(kept) - len(np.unique(kept))
        least, most = int(counts.min()), int(counts.max())
        objective = value(mask)
        closed, gain = (
            (objective - local) / (oracle - local),
            (objective - random) / (oracle - random),
        )
        results.append(Result(name, objective, closed, gain, copies, seconds, least, most))
    return results


def common_objective(
    source: Path, root: Path, documents: int, width: int, selection: dict[str, Any]
) -> dict[str, Any]:
    """The selection with its terms' scales over the whole corpus in lambda, and scaling off."""
    run = select(source, root, documents, width, **selection, scope="corpus", method="random")
    scales = run.receipt("round_total", 0).metrics["scales"]
    quality, *others = build_terms(run.settings.selection)
    metric, *more = (one.weight / scales[one.objective.name] for one in others)
    whole = quality.weight / scales["quality"] + metric
    terms = zip(selection.get("more_terms", ()), more, strict=True)
    return {
        **selection,
        "quality_weight": 1 - metric / whole,
        "more_terms": [term | {"weight": weight / whole} for term, weight in terms],
        "scale_terms": False,
    }


def union(corpus: Planted, selection: dict[str, Any]) -> Callable[[np.ndarray], float]:
    """The objective of a mask of the whole corpus."""
    data = shard_data(corpus.features, corpus.quality, {}, Compute())
    objective = WeightedObjective(build_terms(Selection(**selection)))
    return lambda mask: objective.join(raw_values(objective.terms, data, torch.from_numpy(mask)))


def of_random(
    value: Callable[[np.ndarray], float], documents: int, kept: int = 0, draws: int = 8
) -> float:
    """The mean objective of random selections of so many documents, by default a tenth."""
    values = []
    for seed in range(draws):
        mask = np.zeros(documents, bool)
        drawn = np.random.default_rng(seed).permutation(documents)
        mask[drawn[: kept or documents // 10]] = True
        values.append(value(mask))
    return float(np.mean(values))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=4000, help="of each of 20 shards")
    parser.add_argument("--dimension", type=int, default=64, help="of `planted`")
    parser.add_argument("--data", default="planted", choices=("planted", "semantic"))
    parser.add_argument("--only", nargs="*", help="objectives, as in the table's first column")
    parser.add_argument("--bench", type=Path, default=Path("runs/bench"), help="of `semantic`")
    arguments = parser.parse_args()
    if arguments.data == "semantic":
        corpus = semantic(arguments.bench, arguments.documents)
    else:
        corpus = planted(arguments.documents, arguments.dimension)
    heads = (
        "metric",
        "lambda",
        "way",
        "objective",
        "share of gain",
        "distance closed",
        "near-copies",
        "kept",
        "CPU s",
    )
    print(f"| {' | '.join(heads)} |")
    print("|:--|--:|:--|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for metric, weight, terms in CASES:
            names = " + ".join([metric, *(term["name"].rpartition(":")[2] for term in terms)])
            if arguments.only and names not in arguments.only:
                continue
            results = compare(
                corpus,
                Path(folder),
                arguments.documents,
                metric=metric,
                quality_weight=weight,
                more_terms=terms,
            )
            for result in results:
                print(
                    f"| {names} | {weight} | {result.name} | {result.objective:.6f} | "
                    f"{100 * result.gain:.2f} % | {100 * result.closed:.1f} % | "
                    f"{result.copies} | {result.least}–{result.most} | "
                    f"{result.seconds:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

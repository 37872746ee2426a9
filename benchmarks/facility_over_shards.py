"""Facility location over all shards: how close distributed ways come to one single shard.

Scope `corpus` refuses facility location, which depends on nearest neighbours and not on sums. This
compares, on shards that share near-copies and differ in quality (masks valued on all documents):

- `one price`: greedy in each shard, and the S largest gains of all shards;
- (a) the same in blocks of similar documents, dealt by the nearest of k centroids of a sample;
- (b) soft coverage of K shared probes, Σ_k log Σ_i p_i exp(β s_ik) / (K β), with rising β: sums
  that add up, learned in rounds; its mask, and greedy in each shard with the budgets it gives them;
- (c) bounds of the gains that include or exclude documents (arXiv 2402.16442);
- (d) GreeDi (Mirzasoleiman et al. 2013): shards select c times as many, then greedy over the union,
  in one place, or in blocks as in (a); and rounds of random blocks, without any large place.

    python -m benchmarks.facility_over_shards [--data docstrings] [--documents 2000] [--weights 0.5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy import sparse
from torch import Tensor

from benchmarks.global_selection import SHARDS, planted
from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.embedding import lexical
from datamask.learning.coverage import greedy_gains
from datamask.learning.learner import learn_mask, scale
from datamask.learning.neighbours import marginal_coverage
from datamask.learning.policy import solve_threshold, top_mask
from datamask.quality.heuristic import heuristic_scores
from examples.demo_corpus import write_corpus

RATIO, WIDTH, SAMPLE, CHUNK, LEAST = 0.1, 768, 4096, 512, 1e-30
MOST_WHOLE = 10_000
"""Documents up to which ways are tried that need all pairs several times."""
MOST_SHARE = 5
"""Most that a block selects, in multiples of its even share."""
SOFT, ROUNDS, STEPS = ((1000, (20.0, 80.0)), (4000, (20.0, 80.0))), 30, (0.0, 0.2, 1.0, 5.0)
"""Numbers of probes of soft coverage with their values of β, rounds at each β, and step sizes, in
multiples of the last one, which a step of 0 makes 0.04 times as long."""

Deal = Callable[[Tensor], Tensor]
"""The block of each of some rows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """S documents with the largest Σ `bonus_N` + `weight` · Σ_i max_j cos(x_i, x_j)."""

    features_ND: Tensor
    quality_N: Tensor
    quality_weight: float
    num_selected: int
    num_shards: int
    bonus_N: Tensor
    weight: float

    def value(self, mask_N: Tensor) -> float:
        """The objective of a mask."""
        chosen = self.features_ND[mask_N].T
        nearest = [(part @ chosen).amax(1) for part in torch.split(self.features_ND, CHUNK)]
        return float(self.bonus_N[mask_N].sum() + self.weight * torch.cat(nearest).sum())


def problem_of(features: np.ndarray, quality: np.ndarray, shards: int, weight: float) -> Problem:
    """A tenth of the documents, at this lambda and the scales of the terms over the corpus."""
    size = round(RATIO * len(features))
    selection = Selection(metric="facility_location", quality_weight=weight)
    terms = scale(features, quality, selection, size, 0, {}, Compute(device="cpu")).objective.terms
    share = terms[0].factor / sum(term.factor for term in terms)
    x, q = torch.from_numpy(features), torch.from_numpy(quality).float()
    return Problem(x, q, share, size, shards, share / size * q, (1 - share) / len(x))


def greedy(problem: Problem, rows: Tensor, depth: int, counts: Tensor) -> Tensor:
    """The library's greedy gains of rows that count *counts* times among those to cover."""
    features = problem.features_ND[rows]
    # Its similarities are relative to -1, so this multiplies what covers a document.
    similarity = (features @ features.T).add_(1).mul_(counts[rows]).sub_(1)
    number = len(rows)
    everyone, starts = np.arange(number, dtype=np.int32), np.arange(0, number**2 + 1, number)
    lists = (similarity.flatten().numpy(), np.tile(everyone, number), starts)
    uncovered = torch.full((number,), -1.0)
    return greedy_gains(
        sparse.csc_array(lists, (number, number)),
        uncovered,
        lambda mask, covered: uncovered,  # all documents are neighbours, so there is nothing to add
        problem.bonus_N[rows],
        problem.weight,
        depth,
    )


def stages(problem: Problem, *steps: tuple[float, Deal]) -> tuple[Tensor, int]:
    """Greedy in blocks, stage after stage; returns the mask and the size of the largest block.

    A stage keeps the documents with the largest gains of all blocks. Those that it drops are
    counted by the nearest kept document of their block.
    """
    rows, counts = torch.arange(len(problem.bonus_N)), torch.ones(len(problem.bonus_N))
    held = 0
    for times, deal in steps:
        size, labels = round(times * problem.num_selected), deal(rows)
        blocks = [rows[labels == label] for label in sorted(set(labels.tolist()))]
        held = max(held, *(len(block) for block in blocks))
        gains, passed = torch.full_like(counts, -torch.inf), torch.zeros_like(counts)
        for block in blocks:
            depth = min(size, MOST_SHARE * size * len(block) // len(rows) + 1)
            gains[block] = greedy(problem, block, depth, counts)
        kept = top_mask(gains, size)
        for block in blocks:
            inside = block[kept[block]]
            if len(inside):
                cosines = problem.features_ND[block] @ problem.features_ND[inside].T
                passed.index_add_(0, inside[cosines.argmax(1)], counts[block])
        rows, counts = kept.nonzero()[:, 0], passed
    return kept, held


def nearest_centroid(problem: Problem, number: int) -> Deal:
    """Blocks by spherical k-means on a sample."""
    order = torch.randperm(len(problem.bonus_N), generator=torch.Generator().manual_seed(0))
    drawn = problem.features_ND[order[:SAMPLE]]
    centroids = drawn[:number]
    for _ in range(20):
        sums = torch.zeros_like(centroids).index_add_(0, (drawn @ centroids.T).argmax(1), drawn)
        centroids = torch.nn.functional.normalize(sums, dim=1)
    return lambda rows: (problem.features_ND[rows] @ centroids.T).argmax(1)


def bounding(problem: Problem, sampled: float, given: int) -> tuple[Tensor, Tensor, int]:
    """What bounds of the gains include and exclude, and the passes; bool, shape N.

    The largest gain of a document is that next to those included, the least that next to all that
    are left as well, or next to a random share *sampled* of them. Before, greedy on a sample of the
    size of a shard includes *given* documents.
    """
    generator = torch.Generator().manual_seed(0)
    number = len(problem.bonus_N)
    included, excluded = torch.zeros(2, number, dtype=torch.bool)
    if given:
        rows = torch.randperm(number, generator=generator)[: number // problem.num_shards]
        gains = greedy(problem, rows, given, torch.full((number,), float(problem.num_shards)))
        included[rows[gains.topk(given).indices]] = True

    def margins(chosen: Tensor) -> Tensor:
        x = problem.features_ND
        parts = [marginal_coverage(part @ x.T, -1.0, chosen) for part in torch.split(x, CHUNK)]
        return problem.bonus_N + problem.weight * torch.stack(parts).sum(0)

    passes, decided = 0, True
    while decided:
        left = (~included & ~excluded).nonzero()[:, 0]
        wanted = problem.num_selected - int(included.sum())
        others = included.clone()
        others[left[torch.rand(len(left), generator=generator) < sampled]] = True
        least, most = margins(others)[left], margins(included)[left]
        into = least > most.topk(wanted + 1).values[-1]
        out = most < least.topk(wanted).values[-1]
        included[left[into]], excluded[left[out & ~into]] = True, True
        passes, decided = passes + 2, bool((into | out).any()) and int(into.sum()) < wanted
    return included, excluded, passes


def soft_coverage(problem: Problem, probes: int, schedule: Sequence[float]) -> Tensor:
    """Logits after rounds of mirror ascent on the expected soft coverage, at one β after another.

    A round reads the embeddings twice: K sums give the gradient, and K sums for each step size the
    best of them. It never lowers the value.
    """
    number, size = len(problem.bonus_N), problem.num_selected
    drawn = torch.randperm(number, generator=torch.Generator().manual_seed(0))[:probes]
    logits = torch.full((number,), RATIO).logit()
    for sharpness in schedule:
        kernel = problem.features_ND @ problem.features_ND[drawn].T
        kernel = kernel.sub_(1).mul_(sharpness).exp_()
        weight, step = (1 - problem.quality_weight) / (sharpness * len(drawn)), 1.0
        for _ in range(ROUNDS):
            sums = (logits.sigmoid() @ kernel).clamp(min=LEAST)
            gradient = problem.bonus_N + weight * (kernel @ sums.reciprocal())
            direction = step * (gradient - gradient.mean()) / gradient.std()
            moved = [logits + times * direction for times in STEPS]
            moved = [one - solve_threshold(one, size) for one in moved]
            inclusion = torch.stack(moved).sigmoid()
            coverage = (inclusion @ kernel).clamp(min=LEAST).log().sum(1)
            at = int((inclusion @ problem.bonus_N + weight * coverage).argmax())
            logits, step = moved[at], step * (STEPS[at] or STEPS[1] ** 2)
    return logits


def learnt(problem: Problem, rows: Tensor, size: int) -> Tensor:
    """The learner's mask of some documents, as in the pipeline."""
    weight = problem.quality_weight
    selection = Selection(metric="facility_location", quality_weight=weight, scale_terms=False)
    features, quality = problem.features_ND[rows].numpy(), problem.quality_N[rows].numpy()
    compute = Compute(device="cpu")
    mask = learn_mask(features, quality, selection, size, seed=0, compute=compute)
    return torch.from_numpy(mask.selected)


def rounded(numbers: Sequence[float]) -> list[int]:
    """Whole numbers whose running sums are those of *numbers*, rounded."""
    ends: list[int] = np.diff(np.cumsum(numbers).round(), prepend=0).astype(int).tolist()
    return ends


def ways(problem: Problem) -> Iterator[tuple[str, Tensor, float, int]]:
    """Name, mask, passes over all embeddings, and most documents in one place, of every way."""
    number, size, shards = len(problem.bonus_N), problem.num_selected, problem.num_shards
    per_shard = number // shards
    everything = torch.arange(number)
    each = [learnt(problem, rows, size // shards) for rows in everything.chunk(shards)]
    yield "shard", torch.cat(each), 1, per_shard
    yield "one single shard", learnt(problem, everything, size), 1, number
    yield "lazy greedy over everything", stages(problem, (1, torch.zeros_like))[0], 1, number
    apart: Deal = lambda rows: rows // per_shard  # noqa: E731
    similar = nearest_centroid(problem, shards)
    labels = similar(everything)
    blocks = torch.split(labels.argsort(), labels.bincount().tolist())
    mask = torch.zeros(number, dtype=torch.bool)
    for rows, budget in zip(blocks, rounded([RATIO * len(rows) for rows in blocks]), strict=True):
        mask[rows] = learnt(problem, rows, budget)
    yield "(a) blocks, a tenth of each", mask, 2, max(len(rows) for rows in blocks)
    for name, deal, passes in (("one price", apart, 1), ("(a) blocks, one price", similar, 2)):
        mask, held = stages(problem, (1, deal))
        yield name, mask, passes, held
    for times in (2, 3):
        for name, deal in (("(d) GreeDi", torch.zeros_like), ("(d) + (a)", similar)):
            mask, held = stages(problem, (times, apart), (1, deal))
            yield f"{name}, {times} S", mask, 1 + times * RATIO, held
    generator = torch.Generator().manual_seed(0)
    shuffled: Deal = lambda rows: torch.randperm(len(rows), generator=generator) % shards  # noqa: E731
    sizes = np.geomspace(1 / RATIO, 1, 5)[1:].tolist()
    mask, held = stages(problem, *((times, shuffled) for times in sizes))
    yield "(d) in 4 rounds of random blocks", mask, 1 + RATIO * sum(sizes[:-1]), held
    for probes, schedule in SOFT:
        logits = soft_coverage(problem, probes, schedule)
        name = f"(b) {probes} probes, β {', '.join(f'{one:g}' for one in schedule)}"
        passes = 2 * ROUNDS * len(schedule)
        yield name, top_mask(logits, size), passes, per_shard
        inclusion = (logits - solve_threshold(logits, size)).sigmoid()
        budgets = rounded([float(part.sum()) for part in inclusion.chunk(shards)])
        mask = torch.zeros(number, dtype=torch.bool)
        for rows, budget in zip(everything.chunk(shards), budgets, strict=True):
            gains = greedy(problem, rows, budget, torch.ones(number))
            mask[rows[gains.topk(budget).indices]] = True
        yield f"{name}; its budgets, greedy", mask, passes + 1, per_shard
    if number > MOST_WHOLE:
        return
    union, _ = stages(problem, (2, apart))
    only = replace(problem, bonus_N=problem.bonus_N.where(union, -torch.inf))
    gains = greedy(only, everything, size, torch.ones(number))
    yield "(d) GreeDi, 2 S, valued on all", top_mask(gains, size), 2, number
    for sampled, given in ((1.0, 0), (1.0, size // 2), (RATIO, size // 2)):
        included, excluded, passes = bounding(problem, sampled, given)
        shares = f"{int(included.sum()) - given} into S, {int(excluded.sum())} out"
        bonus = (problem.bonus_N + 1e3 * included).where(~excluded, -torch.inf)
        gains = greedy(replace(problem, bonus_N=bonus), everything, size, torch.ones(number))
        name = f"(c) {given} given, bounds by {sampled:.0%}: {shares}; greedy"
        yield name, top_mask(gains, size), passes, number


def docstrings(folder: Path, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Lexical vectors and quality of docstrings in the order of packages."""
    if not (folder / "docstrings").exists():
        write_corpus(folder / "docstrings")
    texts = pq.read_table(folder / "docstrings", columns=["text"])["text"].to_pylist()
    texts = [texts[row] for row in np.linspace(0, len(texts) - 1, documents).round().astype(int)]
    parts = [lexical.embed(texts[at : at + 1024], WIDTH) for at in range(0, documents, 1024)]
    return np.concatenate(parts), heuristic_scores(texts)[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="planted", choices=("planted", "docstrings"))
    parser.add_argument("--documents", type=int, default=2000, help="of each of 20 shards")
    parser.add_argument("--dimension", type=int, default=64, help="of `planted`")
    parser.add_argument("--bench", type=Path, default=Path("runs/bench"), help="of `docstrings`")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.5, 0.1, 0.0])
    arguments = parser.parse_args()
    if arguments.data == "planted":
        corpus = planted(arguments.documents, arguments.dimension)
        features, quality = corpus.features, corpus.quality
    else:
        features, quality = docstrings(arguments.bench, SHARDS * arguments.documents)
    print("| lambda | way | objective | distance closed | CPU seconds | passes | in one place |")
    print("|--:|:--|--:|--:|--:|--:|--:|")
    for weight in arguments.weights:
        problem = problem_of(features, quality, SHARDS, weight)
        values: list[float] = []
        start = time.process_time()
        for name, mask, passes, held in ways(problem):
            seconds = time.process_time() - start
            values.append(problem.value(mask))
            closed = (values[-1] - values[0]) / (values[1] - values[0]) if values[1:] else 0.0
            print(
                f"| {weight} | {name} | {values[-1]:.6f} | {closed:.1%} | {seconds:.0f} | "
                f"{passes:.3g} | {held:,} |",
                flush=True,
            )
            start = time.process_time()


if __name__ == "__main__":
    main()

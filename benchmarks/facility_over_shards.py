"""Facility location over all shards: how close distributed ways come to one single shard.

Scope `corpus` refuses facility location, which depends on nearest neighbours and not on sums. This
compares, on shards that share near-copies and differ in quality (masks valued on all documents):

- `one price`: greedy in each shard, and the S largest gains of all shards;
- (a) the same in blocks of similar documents, dealt by the nearest of k centroids of a sample;
- (b) soft coverage of K shared probes, Σ_k log Σ_i p_i exp(β s_ik) / (K β): sums that add up, so
  that the rounds of scope `corpus` learn it; β rises from round to round;
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
from torch import Tensor

from benchmarks.global_selection import SHARDS, planted
from datamask.cli.demo_corpus import write_corpus
from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.embedding import lexical
from datamask.learning import exchange
from datamask.learning.coverage import greedy_gains, marginal_coverage
from datamask.learning.data import ShardData, map_moments, moments_of, scaled_moments
from datamask.learning.expected import StepSize
from datamask.learning.learner import learn_mask, scale, shard_data
from datamask.learning.policy import solve_threshold, top_mask
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.quality import Quality
from datamask.objectives.weighted import WeightedTerm
from datamask.quality.heuristic import score_texts

RATIO, WIDTH, SAMPLE, CHUNK, LEAST = 0.1, 768, 4096, 512, 1e-30
MOST_WHOLE = 10_000
"""Documents up to which ways are tried that need all pairs several times."""
MOST_SHARE = 5
"""Most that a block selects, in multiples of its even share."""
ROUNDS = 5
SOFT = ((1000, (20.0,)), (4000, (20.0,)), (4000, (5.0, 20.0, 80.0)))
"""Numbers of probes of soft coverage, each with its values of β; `ROUNDS` rounds at each β."""

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

    def data(self, rows: Tensor, features_ND: Tensor | None = None) -> ShardData:
        """Some documents as a shard."""
        features = (self.features_ND if features_ND is None else features_ND)[rows].numpy()
        return shard_data(features, self.quality_N[rows].numpy(), {}, Compute(device="cpu"))


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
    return greedy_gains(similarity, problem.bonus_N[rows], problem.weight, depth)


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


class SoftCoverage(MomentObjective):
    """Σ_k log Σ_i p_i φ_k(x_i) / (K β), of features φ_k(x) = exp(β (cos(x, probe k) − 1))."""

    name, maximise, order, bounded = "soft_coverage", True, 1, True

    def __init__(self, sharpness: float) -> None:
        self.sharpness = sharpness

    def of_moments(self, moments: Moments) -> Tensor:
        """At most log(Σ p) / β above the mean cosine of a probe with its nearest, less 1."""
        return (moments.first_D + LEAST).log().mean() / self.sharpness

    def self_curvature(self, moments: Moments, features_BD: Tensor) -> Tensor:
        """−Σ_k (φ_k / Σ p φ_k)² / (K β); shape B."""
        return -(features_BD / (moments.first_D + LEAST)).square().mean(1) / self.sharpness


def soft_coverage(problem: Problem, probes: int, schedule: Sequence[float]) -> Tensor:
    """Logits after the rounds of scope `corpus` at each β."""
    generator = torch.Generator().manual_seed(0)
    number, size = len(problem.bonus_N), problem.num_selected
    at, drawn = (torch.randperm(number, generator=generator) for _ in range(2))
    logits = torch.full((number,), RATIO).logit()
    shards = torch.arange(number).chunk(problem.num_shards)

    def added(moments: Sequence[Moments]) -> Moments:
        return map_moments(lambda *sums: torch.stack(sums).sum(0), *moments)

    for sharpness in schedule:
        kernel = problem.features_ND @ problem.features_ND[at[:probes]].T
        kernel = kernel.sub_(1).mul_(sharpness).exp_()
        terms = (
            WeightedTerm(Quality(), problem.quality_weight),
            WeightedTerm(SoftCoverage(sharpness), 1 - problem.quality_weight),
        )
        parts = [problem.data(rows, kernel) for rows in shards]
        sample = problem.data(drawn[:SAMPLE], kernel)
        totals = added([moments_of(part, torch.ones(part.num_documents), 1) for part in parts])
        pairs = list(zip(parts, shards, strict=True))
        moments = added([moments_of(part, logits[rows].sigmoid(), 1) for part, rows in pairs])
        moments, share = scaled_moments(moments, size), None
        steps: list[StepSize | None] = [None] * len(parts)
        for _ in range(ROUNDS):
            price = exchange.dual_price_of(terms, moments, sample, RATIO)
            corpus = exchange.Corpus(terms, totals, moments, price, share)
            made = [
                exchange.propose(part, corpus, logits[rows], step, generator)
                for (part, rows), step in zip(pairs, steps, strict=True)
            ]
            steps = [one.step_size for one in made]
            proposed = added([one.moments for one in made])
            share, moments = exchange.agree(terms, moments, proposed, size)
            logits = exchange.taken(logits, torch.cat([one.logits_N for one in made]), share)
    return logits


def learnt(problem: Problem, rows: Tensor, size: int) -> Tensor:
    """The learner's mask of some documents, as in the pipeline."""
    weight = problem.quality_weight
    selection = Selection(metric="facility_location", quality_weight=weight, scale_terms=False)
    data = problem.data(rows)
    quality = problem.quality_N[rows].numpy()
    mask = learn_mask(
        data.features, quality, selection, size, seed=0, compute=Compute(device="cpu")
    )
    return torch.from_numpy(mask.selected)


def ways(problem: Problem) -> Iterator[tuple[str, Tensor | str, float, int]]:
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
        passes = len(schedule) * (1 + ROUNDS * exchange.PASSES)
        yield name, top_mask(logits, size), passes, per_shard
        inclusion = (logits - solve_threshold(logits, size)).sigmoid()
        ends = torch.stack([part.sum() for part in inclusion.chunk(shards)]).cumsum(0).round()
        budgets = ends.diff(prepend=ends.new_zeros(1)).int().tolist()
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
    for sampled, given in ((1.0, 0), (RATIO, 0), (1.0, size // 2), (RATIO, size // 2)):
        included, excluded, passes = bounding(problem, sampled, given)
        shares = f"includes {(int(included.sum()) - given) / size:.1%} of S, "
        shares += f"excludes {float(excluded.float().mean()):.1%}"
        yield f"(c) {given} given, {sampled:.0%} of the others", shares, passes, number


def docstrings(folder: Path, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Lexical vectors and quality of docstrings in the order of packages."""
    if not (folder / "docstrings").exists():
        write_corpus(folder / "docstrings")
    texts = pq.read_table(folder / "docstrings", columns=["text"])["text"].to_pylist()
    texts = [texts[row] for row in np.linspace(0, len(texts) - 1, documents).round().astype(int)]
    parts = [lexical.embed(texts[at : at + 1024], WIDTH) for at in range(0, documents, 1024)]
    return np.concatenate(parts), np.asarray(score_texts(texts), np.float64)


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
        for name, found, passes, held in ways(problem):
            seconds = time.process_time() - start
            shown = found if isinstance(found, str) else ""
            if isinstance(found, Tensor):
                values.append(problem.value(found))
                closed = (values[-1] - values[0]) / (values[1] - values[0]) if values[1:] else 0.0
                shown = f"{values[-1]:.6f} | {closed:.1%}"
            line = f"| {weight} | {name} | {shown} | {seconds:.0f} | {passes:.3g} | {held:,} |"
            print(line, flush=True)
            start = time.process_time()


if __name__ == "__main__":
    main()

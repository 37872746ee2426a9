"""The sample of the corpus that shards draw together, and its size.

In a sample of n, each shard has a part in proportion to its documents: the first ones of a
permutation of these. A larger sample therefore contains a smaller one:

    |-- stand-ins, 16,384 --|-- learned, 65,536 --|-- others, for sums over all documents --|

The stand-ins stand for the corpus in the rounds, and confirm what was learned. If the corpus has
too few documents for both, the learned ones begin with the first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange
from datamask.learning.data import ShardData, precision_of
from datamask.learning.learner import shard_data
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm, is_linear
from datamask.runs import budget
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import ShardDocuments
from datamask.selection.sums import level_of_quality, read_lists
from datamask.selection.terms import score_names

logger = logging.getLogger(__name__)

SAMPLE, STAND_INS = 65_536, 16_384
"""Number of documents that are learned, and of stand-ins for the corpus in the rounds, which
confirm what was learned (docs/log.md#rounds). Scales, the dual price and a model's threshold are
estimated from the stand-ins."""

SAMPLED = ("sample_features", "sample_quality", "sample_scores")


def sample_places(left: budget.Survivors, size: int | None = None) -> range:
    """Return the places of a shard's documents in a sample, by default the stand-ins."""
    whole = min(size or STAND_INS, left.kept_total)
    start = budget.shard_budget(whole, 0, left.kept_before, left.kept_total)
    number = budget.shard_budget(whole, left.kept_before, left.kept, left.kept_total)
    return range(start, start + number)


def drawn_rows(run: Run, documents: ShardDocuments) -> np.ndarray:
    """Draw documents of a shard, as places among its documents: `sampled_rows`, then the others."""
    most = len(sample_places(documents.left, SAMPLE + STAND_INS))
    sampled = sampled_rows(run, documents)
    return np.concatenate([sampled, _permuted(run, documents)[len(sampled) : most]])


def sampled_rows(run: Run, documents: ShardDocuments) -> np.ndarray:
    """Draw a shard's stand-ins for the corpus: places among its documents, ascending."""
    return np.sort(_permuted(run, documents)[: len(sample_places(documents.left))])


def _permuted(run: Run, documents: ShardDocuments) -> np.ndarray:
    seed = shard_seed(run.settings.seed, documents.shard)
    return np.random.Generator(np.random.PCG64(seed)).permutation(documents.left.kept)


def sample_columns(documents: ShardDocuments, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Put some documents of a shard into lists of one row; scores by name, then by document."""
    scores = [score[rows] for score in documents.scores.values()]
    return {
        "sample_features": np.asarray(documents.features[rows], np.float16).ravel(),
        "sample_quality": documents.quality[rows],
        "sample_scores": np.concatenate([*scores, np.zeros(0, np.float32)]),
    }


@dataclass(frozen=True, slots=True)
class Drawn:
    """The documents that all shards drew, each shard's in drawing order.

    Args:
        run: the run.
        parts: by shard and column: features (N x D), quality (N), scores (N x their number).
        left: by shard, how many documents survived.
    """

    run: Run
    parts: Sequence[Mapping[str, np.ndarray]]
    left: Sequence[budget.Survivors]

    @staticmethod
    def read(run: Run, stage: str = "corpus_statistics") -> Drawn:
        """Read what all shards wrote in a stage."""
        names, parts, left = score_names(run), [], []
        for shard in range(run.num_shards):
            part = read_lists(run, stage, SAMPLED, shard)
            features = part["sample_features"].reshape(-1, run.settings.embedding.dimension)
            scores = part["sample_scores"].reshape(len(names), -1).T
            parts.append(part | {"sample_features": features, "sample_scores": scores})
            left.append(budget.Survivors.of(run.receipt("quality", shard).metrics))
        return Drawn(run, parts, left)

    def columns(self, start: int, stop: int | None) -> dict[str, np.ndarray]:
        """Return the documents of the sample of *stop* without the sample of *start*.

        They are in the form of `sample_columns`. Without *stop*, all documents after *start* are
        returned.
        """
        some: dict[str, list[np.ndarray]] = {name: [] for name in SAMPLED}
        for sampled, left in zip(self.parts, self.left, strict=True):
            first = len(sample_places(left, start)) if start else 0
            last = len(sample_places(left, stop)) if stop else stop
            for name in SAMPLED:
                some[name].append(sampled[name][first:last])
        whole = {name: np.concatenate(values) for name, values in some.items()}
        scores, features = whole["sample_scores"].T.ravel(), whole["sample_features"].ravel()
        return whole | {"sample_features": features, "sample_scores": scores}

    def data(self, start: int, stop: int | None, compute: Compute) -> ShardData:
        """Return the same documents as one shard, on the CPU."""
        return corpus_sample(self.run, self.columns(start, stop), compute)


def with_known_sums(documents: ShardDocuments, moments: Moments) -> Moments:
    """Sum what needs no vectors over all documents of the shard, not only over the drawn ones."""

    def total(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values.astype(np.float32).sum(dtype=np.float64))

    scores = {name: total(documents.scores[name]) for name in moments.scores}
    count = torch.tensor(float(len(documents.ids)), dtype=torch.float64)
    quality = total(documents.level.learned(documents.quality))
    return replace(moments, count=count, quality=quality, scores=scores)


def estimated_totals(drawn: Drawn, moments: Moments) -> Moments:
    """Estimate the moments of the corpus from the shards' sums (`with_known_sums`)."""
    number = sum(len(part["sample_quality"]) for part in drawn.parts)
    share = float(moments.count) / number
    first, second = share * moments.first_D, share * moments.second_DD
    return replace(moments, first_D=first, second_DD=second)


def corpus_sample(run: Run, columns: Mapping[str, np.ndarray], compute: Compute) -> ShardData:
    """Make a sample of the corpus one shard, on the CPU, with exact products."""
    features, quality, scores = (columns[name] for name in SAMPLED)
    names = score_names(run)
    return shard_data(
        features.reshape(-1, run.settings.embedding.dimension).copy(),
        quality,
        dict(zip(names, scores.reshape(len(names), -1), strict=True)),
        compute.model_copy(update={"device": "cpu", "matmul": "float32"}),
        level_of_quality(run),
    )


def known_sample(run: Run, compute: Compute) -> ShardData:
    """Return the stand-ins for the corpus in the rounds, as total 0 has them."""
    return corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)


def _learned(candidates: int) -> tuple[int, int]:
    """Return where in the sample the learned documents begin, and how many they are.

    The stand-ins are before it, if there are enough documents. Otherwise learned documents also
    estimate the judge's threshold, and the judge values others higher.
    """
    size = min(SAMPLE, candidates - STAND_INS) if candidates > SAMPLE else SAMPLE
    return STAND_INS if size + STAND_INS <= candidates else 0, size


def not_learned(drawn: Drawn, compute: Compute) -> ShardData:
    """Return drawn documents that the judge has not learned from; all if there are few."""
    start, size = _learned(drawn.left[0].kept_total)
    others = drawn.data(0, start, compute) if start else drawn.data(size, None, compute)
    return others if others.num_documents else drawn.data(0, None, compute)


def learn_judge(
    drawn: Drawn,
    terms: Sequence[WeightedTerm],
    totals: Moments,
    num_selected: float,
    compute: Compute,
) -> tuple[exchange.Judge, dict[str, Any]]:
    """Learn a sample.

    Args:
        drawn: the shards' documents.
        terms: weighted and scaled.
        totals: moments of all documents of the corpus.
        num_selected: S, of the corpus.
        compute: memory.

    Returns:
        The judge, and its origin: `documents` of the sample, and the `shortfall` of the judge
        on a second sample (`exchange.shortfall`), null if too few documents remain for one.
    """
    run, active = drawn.run, [term for term in terms if term.weight]
    number = int(totals.count)
    start, size = _learned(number)
    generator = torch.Generator().manual_seed(run.settings.seed)
    sample = drawn.data(start, start + size, compute)
    fast = replace(sample, matmul=precision_of(compute, sample.device))
    judge = exchange.learn_sample(terms, totals, fast, num_selected, generator)
    origin: dict[str, Any] = {"documents": sample.num_documents, "shortfall": None}
    if is_linear(active):  # Every sample gives the same gains.
        return judge, origin | {"shortfall": 0.0}
    if size + STAND_INS > number:
        others = "too few others to confirm it" if size < number else "the whole corpus"
        logger.info("sample: %d documents; %s", origin["documents"], others)
        return judge, origin
    share, other = num_selected / number, 0 if start else size
    own, second = (drawn.data(at, at + STAND_INS, compute) for at in (start, other))
    # With one round, gains choose among the documents that the judge keeps.
    if start and run.settings.selection.num_rounds != 1:
        weight = (number - size) / second.num_documents
        judge = exchange.keeping(judge.slope, num_selected, (sample, 1.0), (second, weight))
    lost = exchange.shortfall(judge, active, num_selected, share, own, second)
    logger.info("sample: %d documents; %.1f %% of the gain lost on others", size, 100 * lost)
    return judge, origin | {"shortfall": lost}

"""Learn one shard's mask: the whole of mask learning behind one function.

`scale` divides the terms by their deviations, `learn` moves the logits, `refine` makes the best S
the mask and improves it by swaps, `judge` measures it, and every document's marginal gain at the
end is its published logit. The same input, settings and seed give the same bytes on the same
machine: all random numbers come from generators seeded here, and no figure depends on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.errors import InputError, SettingsError
from datamask.learning import expected, policy_gradient, published
from datamask.learning.data import ShardData, highest_order, moments_of, raw_values
from datamask.learning.optimality_gap import certified_gap
from datamask.learning.policy import initial_logits, top_s
from datamask.learning.resuming import Curve, Keeper
from datamask.learning.scales import Spread, random_subsets, scaled
from datamask.learning.swap_refinement import refine_by_swaps
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, build_terms

NORM_TOLERANCE = 0.01
"""How far a row's norm may be from 1: float16 alone moves it by up to 0.0005
(docs/log.md#numbers)."""

NORM_ROWS = 16_384
"""Rows whose norms are computed at once (docs/log.md#memory)."""


@dataclass(frozen=True, slots=True)
class LearnedMask:
    """What was learnt of a shard.

    Args:
        logits: float32, shape N: marginal gain less the threshold (`datamask.learning.published`);
            above 0 for the documents of the mask, which are the first by (logit, quality, id).
        selected: bool, shape N.
        curve: columns `step`, `seconds`, `objective` and one per term (raw values).
        metrics: JSON of what the mask achieves, beside random subsets and top quality.
    """

    logits: np.ndarray
    selected: np.ndarray
    curve: dict[str, list[float]]
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be selected from, and by which objective.

    Args:
        data: the shard on the learner's device.
        quality: float64, shape N.
        scores: further scores by name, shape N.
        id_order: each document's place in the order of ids, shape N.
        selection: what is maximised and how.
        num_selected: S, in [0, N].
        seed: every random choice follows from it.
        objective: the terms, weighted and scaled.
        random: what random S-subsets are worth, by term.
    """

    data: ShardData
    quality: np.ndarray
    scores: Mapping[str, np.ndarray]
    id_order: np.ndarray
    selection: Selection
    num_selected: int
    seed: int
    objective: WeightedObjective
    random: Mapping[str, Spread]

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one mask of S documents."""
        return 0 < self.num_selected < self.data.num_documents

    def top(self, values: np.ndarray) -> np.ndarray:
        """The mask of the S highest values, ties by quality, then id; bool, shape N."""
        return top_s(values, self.quality, self.id_order, self.num_selected)

    def put(self, values: np.ndarray) -> Tensor:
        """Values of the documents, on the learner's device."""
        return torch.from_numpy(values).to(self.data.device)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a method answers: logits, and how it came by them.

    Args:
        logits: float32, shape N, in a scale of their own.
        estimator: the estimator, or the method if it does not learn.
        steps: steps taken.
        stopped_by: what ended them: `steps`, `tolerance`, `complete` or `all selected`.
    """

    logits: np.ndarray
    estimator: str
    steps: int = 0
    stopped_by: str = "steps"


def learn_mask(
    features: np.ndarray,
    quality: np.ndarray,
    selection: Selection,
    num_selected: int,
    *,
    seed: int,
    ids: Sequence[str] | np.ndarray | None = None,
    scores: Mapping[str, np.ndarray] | None = None,
    compute: Compute | None = None,
    progress: Callable[[int, int], None] | None = None,
    keeper: Keeper | None = None,
) -> LearnedMask:
    """Select `num_selected` of N documents by the objective and method of the settings.

    Args:
        features: N x D, float16 or float32, unit rows; may be memory-mapped.
        quality: shape N, finite.
        selection: what is maximised and how.
        num_selected: S, in [0, N].
        seed: every random choice follows from it.
        ids: shape N, unique; they settle ties. Rows settle them if not given.
        scores: further scores by name, shape N, for terms that read them.
        compute: device and memory.
        progress: called with steps done and most steps.
        keeper: where an unfinished mask is kept, and gone on with after a kill.

    Raises:
        SettingsError: an objective or method cannot be had.
        InputError: a row of features is not of unit length.
        ValueError: shapes do not fit.
    """
    compute, scores = compute or Compute(), scores or {}
    _check(features, quality, num_selected, ids, scores)
    problem = scale(
        features,
        quality,
        selection,
        num_selected,
        seed=seed,
        ids=ids,
        scores=scores,
        compute=compute,
    )
    curve = Curve(problem.objective, selection.steps, progress, keeper)
    ranking = learn(problem, curve)
    selected = refine(problem, ranking)
    metrics = judge(problem, selected, ranking)
    curve.end(ranking.steps, {name: term["selected"] for name, term in metrics["terms"].items()})
    logits = published_logits(problem, selected, ranking)
    return LearnedMask(logits, selected, curve.columns, metrics)


def scale(
    features: np.ndarray,
    quality: np.ndarray,
    selection: Selection,
    num_selected: int,
    *,
    seed: int,
    ids: Sequence[str] | np.ndarray | None = None,
    scores: Mapping[str, np.ndarray],
    compute: Compute,
) -> Problem:
    """The shard on the device, each term divided by its deviation over random S-subsets."""
    data = shard_data(features, quality, scores, compute)
    id_order = np.arange(len(features))
    if ids is not None:
        id_order = np.argsort(np.argsort(np.asarray(ids, object), kind="stable"), kind="stable")
    objective, random = _scaled(selection, data, num_selected, seed)
    values = np.asarray(quality, np.float64)
    return Problem(data, values, scores, id_order, selection, num_selected, seed, objective, random)


def learn(problem: Problem, curve: Curve) -> Ranking:
    """Rank the documents: climb by an estimator, or ask the method that does not learn."""
    selection, data = problem.selection, problem.data
    logits = initial_logits(selection.init, problem.quality)
    if not problem.has_choice:
        return Ranking(logits, selection.method, stopped_by="all selected")
    if selection.method != "mask":
        from datamask.baselines import select

        logits = select(
            data.features,
            problem.quality,
            problem.num_selected,
            selection,
            problem.objective.terms,
            seed=problem.seed,
            ids=problem.id_order,
            scores=problem.scores,
        )
        return Ranking(logits, selection.method)
    estimator = estimator_of(selection, problem.objective)
    climb = expected.learn if estimator == "expected" else policy_gradient.learn
    learnt, steps, stopped_by = climb(
        data,
        problem.objective,
        selection,
        problem.num_selected,
        problem.put(logits),
        torch.Generator().manual_seed(problem.seed),
        curve.record,
        curve.resuming,
    )
    return Ranking(learnt.cpu().numpy(), estimator, steps, stopped_by)


def refine(problem: Problem, ranking: Ranking) -> np.ndarray:
    """The first S of the ranking; of a learnt one improved by the exchange pass; bool, shape N."""
    selected = problem.top(ranking.logits)
    if problem.selection.method != "mask" or not problem.has_choice:
        return selected
    mask, logits = problem.put(selected), problem.put(ranking.logits)
    swaps = problem.selection.swap_refinement
    refined = refine_by_swaps(problem.data, problem.objective, mask, logits, swaps)
    return np.asarray(refined.cpu().numpy())


def judge(problem: Problem, selected: np.ndarray, ranking: Ranking | None = None) -> dict[str, Any]:
    """Figures of a mask beside random subsets and top quality; with its ranking, also the gap."""
    objective, data = problem.objective, problem.data
    raw = raw_values(objective.terms, data, problem.put(selected))
    best = raw_values(objective.terms, data, problem.put(problem.top(problem.quality)))
    metrics = compared(objective.terms, raw, problem.random, best)
    metrics |= {"num_selected": problem.num_selected, "optimality_gap": None}
    if ranking is None:
        return metrics
    metrics |= {name: getattr(ranking, name) for name in ("estimator", "steps", "stopped_by")}
    if problem.selection.method == "mask" and problem.has_choice:
        value = metrics["objective"]["selected"]
        gain = value - metrics["objective"]["random"]
        relaxed = problem.put(ranking.logits)
        metrics["optimality_gap"] = certified_gap(
            data, objective, relaxed, problem.num_selected, value, gain
        )
    return metrics


def published_logits(problem: Problem, selected: np.ndarray, ranking: Ranking) -> np.ndarray:
    """Each document's marginal gain at the mask, less the threshold; else its rank; float32."""
    selection, data, objective = problem.selection, problem.data, problem.objective
    num_selected, number = problem.num_selected, problem.data.num_documents
    if selection.method != "mask" or not objective.has_expectation or not number:
        order = np.lexsort((problem.id_order, -problem.quality, -ranking.logits, ~selected))
        return published.by_rank(order, num_selected)
    # Where there was nothing to choose, a selection of one document more or less has a scale.
    size = min(max(num_selected, 1), max(number - 1, 1))
    if size != num_selected:
        objective, _ = _scaled(selection, data, size, problem.seed)
    values = published.gains(data, objective.active, problem.put(selected))
    values *= published.unit(size, number, selection.scale_terms)
    return published.beside_threshold(values, selected)


def shard_data(
    features: np.ndarray, quality: np.ndarray, scores: Mapping[str, np.ndarray], compute: Compute
) -> ShardData:
    """Put quality and scores on the device; embeddings stay where they are."""
    name = compute.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"compute.device: {name} asked for, this machine has no CUDA device")
    device = torch.device(name)

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)

    named = {name: put(score) for name, score in scores.items()}
    return ShardData(
        features, put(quality), named, device, compute.working_set_bytes, compute.matmul
    )


def _check(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    ids: Sequence[str] | np.ndarray | None,
    scores: Mapping[str, np.ndarray],
) -> None:
    lengths = {"quality": len(quality), **{name: len(score) for name, score in scores.items()}}
    if ids is not None:
        lengths["ids"] = len(ids)
    wrong = [name for name, length in lengths.items() if length != len(features)]
    if features.ndim != 2 or wrong:
        raise ValueError(f"features {features.shape} and {wrong or 'its rows'} do not fit")
    if not 0 <= num_selected <= len(features):
        raise ValueError(f"num_selected must be in [0, {len(features)}], got {num_selected}")
    if not np.isfinite(quality).all():
        raise ValueError("quality must be finite")
    for start in range(0, len(features), NORM_ROWS):
        part = np.asarray(features[start : start + NORM_ROWS], dtype=np.float32)
        norms = np.sqrt(np.einsum("nd,nd->n", part, part))
        wrong_rows = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
        if len(wrong_rows):
            first = int(wrong_rows[0])
            raise InputError(
                f"norm {norms[first]:.4g}, not 1 within {NORM_TOLERANCE:g}; divide each row by its "
                "norm (datamask.embedding.vectors.normalise)",
                row=start + first,
                column="features",
            )


def estimator_of(selection: Selection, objective: WeightedObjective) -> str:
    """The estimator in force: `auto` is `expected` where every active term supports it.

    Raises:
        SettingsError: `expected` is asked for and a term does not support it.
    """
    if selection.estimator == "auto":
        return "expected" if objective.has_expectation else "policy_gradient"
    if selection.estimator == "expected" and not objective.has_expectation:
        raise SettingsError(
            "selection.estimator: `expected` needs moment objectives or facility_location; use "
            "auto or policy_gradient"
        )
    return selection.estimator


def _scaled(
    selection: Selection, data: ShardData, num_selected: int, seed: int
) -> tuple[WeightedObjective, dict[str, Spread]]:
    """The objective, its terms scaled if so set, and what random subsets are worth."""
    terms = build_terms(selection)
    totals = moments_of(data, torch.ones_like(data.quality_N), max(highest_order(terms), 0))
    random = random_subsets(terms, totals, data, num_selected, seed ^ 0x5CA1E)
    return WeightedObjective(scaled(terms, random) if selection.scale_terms else terms), random


def compared(
    terms: Sequence[WeightedTerm],
    raw: Mapping[str, float],
    random: Mapping[str, Spread],
    best: Mapping[str, float],
) -> dict[str, Any]:
    """Figures of a selection beside random subsets and top quality, by term and joined.

    Args:
        terms: weighted and scaled.
        raw: values of the selection.
        random: of random subsets of the same size.
        best: values of top quality.
    """
    objective = WeightedObjective(tuple(terms))
    mean = {name: spread.mean for name, spread in random.items()}
    return {
        "terms": {
            term.objective.name: {
                "selected": raw[term.objective.name],
                "random": mean[term.objective.name],
                "random_std": random[term.objective.name].deviation,
                "top_quality": best[term.objective.name],
                "maximise": term.objective.maximise,
            }
            for term in terms
        },
        "objective": {
            "selected": objective.join(raw),
            "random": objective.join(mean),
            "top_quality": objective.join(best),
        },
        "scales": {term.objective.name: term.scale for term in terms},
    }

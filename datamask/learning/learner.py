"""Learn the mask of one shard.

`scale` divides each term by its range, `learn` moves the logits, `refine` takes the
best S and improves them by swaps, `judge` measures the mask, and `published_logits` computes the
marginal gain of every document. The same input, settings and seed give the same bytes on the same
machine: all random numbers come from generators seeded here, and no result depends on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.errors import InputError, SettingsError
from datamask.learning import coverage, expected, policy_gradient, published
from datamask.learning.data import (
    Progress,
    Reference,
    ShardData,
    by_document,
    cover_of_probes,
    highest_order,
    moments_of,
    precision_of,
    raw_values,
)
from datamask.learning.moment_gradient import marginal_gains
from datamask.learning.neighbours import Neighbours
from datamask.learning.norms import NORM_TOLERANCE, row_norms
from datamask.learning.optimality_gap import certified_gap
from datamask.learning.policy import initial_logits
from datamask.learning.problem import Curve, Keeper, Problem
from datamask.learning.ranked import LearnedMask, by_rank
from datamask.learning.scales import references, scaled
from datamask.learning.swap_refinement import refine_by_swaps
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.level import NATURAL, Level
from datamask.objectives.protocol import Objective
from datamask.objectives.weighted import (
    WeightedObjective,
    WeightedTerm,
    build_terms,
    coverage_factor,
    with_unit,
)

WEIGHING = ("mask", "greedy", "lazy_greedy")
"""Methods that weigh terms against each other, and so need their ranges."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of a method.

    Args:
        logits: float32, shape N, on a scale of their own.
        estimator: the estimator, or the method if it does not learn.
        steps: number of steps taken.
        stopped_by: `steps`, `tolerance`, `complete` or `all selected`.
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
    terms: Sequence[WeightedTerm] | None = None,
    compute: Compute | None = None,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
) -> LearnedMask:
    """Select `num_selected` of N documents by the objective and method of the settings.

    Args:
        features: N x D, float16 or float32, unit rows; may be memory-mapped.
        quality: shape N, finite.
        selection: objective and method.
        num_selected: S, in [0, N].
        seed: of every random choice.
        ids: shape N, unique; they break ties. None breaks ties by row.
        scores: further scores of shape N by name, for terms that read them.
        terms: the unscaled terms of *selection*; None makes them.
        compute: device and memory.
        progress: called while near documents are searched, and after each step.
        keeper: saves unfinished work, from which a later call resumes.

    Raises:
        SettingsError: an objective, method or device is not available.
        InputError: *features* or *quality* are not such arrays; or a row does not have length 1.
        ValueError: the shapes or *num_selected* do not fit, or *quality* is not finite.
    """
    compute, scores = compute or Compute(), scores or {}
    _check(features, quality, num_selected, ids, scores)
    inputs = (features, quality, selection, num_selected, seed, scores, compute)
    problem = scale(*inputs, ids, terms, progress=progress)
    curve = Curve(problem.objective, selection.steps, progress, keeper, problem.data.level)
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
    seed: int,
    scores: Mapping[str, np.ndarray],
    compute: Compute,
    ids: Sequence[str] | np.ndarray | None = None,
    terms: Sequence[WeightedTerm] | None = None,
    ranges: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Problem:
    """Put a shard on the device and divide each term by its range (`learning.scales`).

    Give *ranges* that were measured before if a mask is only judged: then facility location does
    not search neighbours.
    """
    values = np.asarray(quality, np.float64)
    data = shard_data(features, values, scores, compute, Level.of(values))
    id_order = np.arange(len(features))
    if ids is not None:
        known = ids if isinstance(ids, pa.ChunkedArray) else pa.array(ids)
        id_order = pc.rank(known).to_numpy().astype(np.int64)
    terms = with_unit(build_terms(selection) if terms is None else terms, 1 / data.level.unit)
    neighbours = None
    if ranges is None and selection.method not in WEIGHING:
        ranges = {}
    if ranges is None and selection.method == "mask" and 0 < num_selected < len(values):
        data, terms = by_document(data, terms)
        unscaled = WeightedObjective(tuple(terms))
        covers = [t.objective for t in unscaled.active if isinstance(t.objective, FacilityLocation)]
        if covers and estimator_of(selection, unscaled) == "expected":
            probes = covers[0].probe_rows(len(values)).to(data.device)
            neighbours = Neighbours.of(data, num_selected, probes, progress)
            data = replace(data, probes_NP=neighbours.probes_NP)
    totals = moments_of(data, torch.ones_like(data.quality_N), max(highest_order(terms), 0))
    measured = references(
        terms, totals, data.exact, num_selected, seed, neighbours=neighbours, ranges=ranges
    )
    objective = WeightedObjective(scaled(terms, measured if selection.scale_terms else {}))
    return Problem(
        *(data, values, id_order, selection, num_selected, seed),
        *(objective, totals, measured, neighbours),
    )


def learn(problem: Problem, curve: Curve) -> Ranking:
    """Rank the documents by an estimator, or by a method that does not learn."""
    selection = problem.selection
    logits = initial_logits(selection.init, problem.quality)
    if not problem.has_choice:
        return Ranking(logits, selection.method, stopped_by="all selected")
    if selection.method != "mask":
        from datamask.baselines import select

        logits = select(
            problem.data.features,
            problem.data.level.learned(problem.quality),
            problem.num_selected,
            selection,
            problem.objective.terms,
            seed=problem.seed,
            id_order=problem.id_order,
        )
        return Ranking(logits, selection.method)
    estimator = estimator_of(selection, problem.objective)
    if estimator == "policy_gradient":
        learnt, steps, stopped_by = policy_gradient.learn(problem, problem.put(logits), curve)
    elif problem.neighbours:
        learnt, steps, stopped_by = coverage.learn(problem, problem.neighbours, curve)
    else:
        learnt, steps, stopped_by = expected.learn(problem, problem.put(logits), curve)
    return Ranking(learnt.cpu().numpy(), estimator, steps, stopped_by)


def refine(problem: Problem, ranking: Ranking) -> np.ndarray:
    """Return the first S of the ranking, improved by swaps if it was learned; bool, shape N."""
    selected = problem.top(ranking.logits)
    if problem.selection.method != "mask" or not problem.has_choice:
        return selected
    refined = refine_by_swaps(problem, problem.put(selected), problem.put(ranking.logits))
    return np.asarray(refined.cpu().numpy())


def judge(problem: Problem, selected: np.ndarray, ranking: Ranking | None = None) -> dict[str, Any]:
    """Compare a mask with random subsets and top quality; given its ranking, also bound its gap."""
    objective, data = problem.objective, problem.data
    raw = raw_values(objective.terms, data, problem.put(selected))
    best = raw_values(objective.terms, data, problem.put(problem.top(problem.quality)))
    metrics = compared(objective.terms, raw, problem.references, best, data.level)
    for term in objective.terms:
        error = _error_of_probes(term.objective, problem, selected)
        metrics["terms"][term.objective.name]["error"] = error
    metrics |= {"num_selected": problem.num_selected, "optimality_gap": None}
    if ranking is None:
        return metrics
    metrics |= {name: getattr(ranking, name) for name in ("estimator", "steps", "stopped_by")}
    if problem.selection.method == "mask" and problem.has_choice:
        value = objective.join(raw)
        means = {name: known.random for name, known in problem.references.items()}
        gain = value - objective.join(means)
        relaxed = problem.put(ranking.logits)
        metrics["optimality_gap"] = certified_gap(problem, relaxed, value, gain)
    return metrics


def published_logits(problem: Problem, selected: np.ndarray, ranking: Ranking) -> np.ndarray:
    """Return the published logits (`learning.published`): gains minus the threshold; shape N.

    Methods and objectives without gains have their rank in place of them (`ranked.by_rank`).
    """
    selection, data, objective = problem.selection, problem.data, problem.objective
    num_selected, number = problem.num_selected, problem.data.num_documents
    if selection.method != "mask" or not objective.has_expectation or not number:
        order = np.lexsort((problem.id_order, -problem.quality, -ranking.logits, ~selected))
        return by_rank(order, num_selected)
    # An empty or complete selection has no scale, so use the scale with one document more or less.
    size = min(max(num_selected, 1), max(number - 1, 1))
    if size != num_selected and selection.scale_terms:
        known = references(objective.terms, problem.totals, data.exact, size, problem.seed)
        objective = WeightedObjective(scaled(objective.terms, known))
    neighbours = problem.neighbours
    if coverage_factor(objective.active) and not neighbours:
        neighbours = Neighbours.of(data, size)
    mask = problem.put(selected)
    values = marginal_gains(data, objective.active, mask, neighbours=neighbours)
    values *= size
    return published.on_side(values - published.threshold_of(values, num_selected), selected)


def shard_data(
    features: np.ndarray,
    quality: np.ndarray,
    scores: Mapping[str, np.ndarray],
    compute: Compute,
    level: Level = NATURAL,
) -> ShardData:
    """Put scores, and quality as it is learned, on the device; embeddings stay in host memory.

    Raises:
        SettingsError: the device is not available.
    """
    name = compute.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"compute.device: {name} is set, but this machine has no CUDA device")
    device = torch.device(name)

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)

    named = {name: put(score) for name, score in scores.items()}
    working_set, matmul = compute.working_set_bytes, precision_of(compute, device)
    learned = put(level.learned(quality))
    return ShardData(features, learned, named, device, working_set, matmul, level=level)


def _check(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    ids: Sequence[str] | np.ndarray | None,
    scores: Mapping[str, np.ndarray],
) -> None:
    kinds = (np.dtype(np.float16), np.dtype(np.float32))
    if getattr(features, "ndim", 0) != 2 or getattr(features, "dtype", None) not in kinds:
        problem = f"{type(features).__name__} of {getattr(features, 'dtype', 'objects')}; needed "
        problem += "an array, N x D, of float16 or float32 in native byte order"
        raise InputError(f"{problem} (see datamask.select)", column="features")
    for name, values in {"quality": quality, **scores}.items():
        if np.ndim(values) != 1 or np.asarray(values).dtype.kind not in "fiub":
            raise InputError(f"shape {np.shape(values)}; needed a number per document", column=name)
    columns = {"quality": quality, "ids": features if ids is None else ids, **scores}
    wrong = [name for name, values in columns.items() if len(values) != len(features)]
    if wrong:
        raise ValueError(f"features {features.shape} and {wrong} do not match")
    if not isinstance(num_selected, int | np.integer) or not 0 <= num_selected <= len(features):
        raise ValueError(f"num_selected must be in 0 to {len(features):,}, got {num_selected!r}")
    if not np.isfinite(quality).all():
        raise ValueError("quality must be finite")
    norms = row_norms(features, np.float32)
    wrong_rows = np.flatnonzero(~(np.abs(norms - 1) <= NORM_TOLERANCE))
    if len(wrong_rows):
        first = int(wrong_rows[0])
        problem = f"norm {norms[first]:.4g}, not 1 within {NORM_TOLERANCE:g}; divide each row by "
        problem += "its norm (datamask.embedding.vectors.normalise)"
        raise InputError(problem, row=first, column="features")


def check_terms(selection: Selection, terms: Sequence[WeightedTerm]) -> None:
    """Check that the estimator, or the method in its place, supports all terms.

    Raises:
        SettingsError: it does not.
    """
    from datamask.baselines import check_method

    estimator_of(selection, WeightedObjective(tuple(terms)))
    check_method(selection, terms)


def estimator_of(selection: Selection, objective: WeightedObjective) -> str:
    """Return the estimator in use: `auto` means `expected` if every active term supports it.

    Raises:
        SettingsError: `expected` is set, and a term does not support it.
    """
    if selection.estimator == "auto":
        return "expected" if objective.has_expectation else "policy_gradient"
    if selection.estimator == "expected" and not objective.has_expectation:
        raise SettingsError(
            "selection.estimator: `expected` needs moment objectives or facility_location; use "
            "auto or policy_gradient"
        )
    return selection.estimator


def _error_of_probes(objective: Objective, problem: Problem, selected: np.ndarray) -> float:
    """Return the standard error of facility location's gain over random, which few probes cause."""
    data = problem.data
    if not isinstance(objective, FacilityLocation) or not selected.any():
        return 0.0
    random = problem.references[objective.name].cover_P
    rows = objective.probe_rows(data.num_documents).to(data.device)
    if random is None or len(rows) == data.num_documents:
        return 0.0
    mask = problem.put(selected)
    gains = (cover_of_probes(objective, data, mask) - random)[~mask[rows]]
    return float(gains.std() / max(len(gains), 1) ** 0.5) if len(gains) > 1 else 0.0


def compared(
    terms: Sequence[WeightedTerm],
    raw: Mapping[str, float],
    known: Mapping[str, Reference],
    top_quality: Mapping[str, float],
    level: Level,
) -> dict[str, Any]:
    """Compare a selection with random, best and top quality, by term and jointly.

    Returns `terms`, `objective` and `scales`, as JSON. For each term, `best` is null if it was not
    learned, and `error` is the standard error of its gain over random.

    Args:
        terms: weighted and scaled.
        raw: the values of the selection, for quality as it is learned.
        known: random and best selections of the same size.
        top_quality: the values of equally many documents with the highest quality.
        level: of quality; everything returned is on the scale of the score.
    """
    objective = WeightedObjective(tuple(terms)).as_reported(level)
    values = {
        "selected": objective.at_level(raw, level),
        "random": objective.at_level({name: each.random for name, each in known.items()}, level),
        "top_quality": objective.at_level(top_quality, level),
    }
    best = {name: each.best for name, each in known.items() if each.best is not None}
    best = objective.at_level(best, level)
    return {
        "terms": {
            name: {kind: by_name[name] for kind, by_name in values.items()}
            | {"best": best.get(name), "error": 0.0, "maximise": sign}
            for name, sign in ((t.objective.name, t.objective.maximise) for t in terms)
        },
        "objective": {
            kind: objective.join(values[kind]) for kind in ("selected", "random", "top_quality")
        },
        "scales": {term.objective.name: term.scale for term in objective.terms},
    }

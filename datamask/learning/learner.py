"""Learn one shard's mask: the whole of mask learning behind one function.

Terms are scaled, an estimator moves the logits, the best S become the mask, the exchange pass
improves it, and every document's marginal gain at the end is its published logit. The same input,
settings and seed give the same bytes on the same machine: all random numbers come from generators
seeded here, and nothing in `figures` depends on the clock.
"""

from __future__ import annotations

import logging
import time
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
from datamask.learning.gap import certified_gap
from datamask.learning.policy import initial_logits, top_s
from datamask.learning.polish import polish
from datamask.learning.resuming import Keeper, Resuming, State
from datamask.learning.scales import Spread, random_subsets, scaled
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, build_terms

logger = logging.getLogger(__name__)

NORM_TOLERANCE = 0.01
"""How far a row's norm may be from 1: float16 alone moves it by up to 0.0005."""

NORM_ROWS = 16_384
"""Rows whose norms are computed at once."""


@dataclass(frozen=True, slots=True)
class LearnedMask:
    """What was learnt of a shard.

    Args:
        logits: float32, shape N: marginal gain less the threshold (`datamask.learning.published`);
            above 0 for the documents of the mask, which are the first by (logit, quality, id).
        selected: bool, shape N.
        curve: columns `step`, `seconds`, `objective` and one per term (raw values).
        figures: JSON of what the mask achieves, beside random subsets and top quality.
    """

    logits: np.ndarray
    selected: np.ndarray
    curve: dict[str, list[float]]
    figures: dict[str, Any]


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
    compute = compute or Compute()
    num_documents = len(features)
    _check(features, quality, num_selected, ids, scores or {})
    data = shard_data(features, quality, scores or {}, compute)
    id_order = np.arange(num_documents)
    if ids is not None:
        id_order = np.argsort(np.argsort(np.asarray(ids, object), kind="stable"), kind="stable")
    terms = build_terms(selection)
    top_quality = top_s(np.asarray(quality, np.float64), quality, id_order, num_selected)
    terms, random = _scaled(selection, data, num_selected, seed)
    objective = WeightedObjective(terms)
    curve: dict[str, list[float]] = {"step": [], "seconds": [], "objective": []}
    curve |= {term.objective.name: [] for term in terms}
    kept = (keeper.load("learner") or {}) if keeper is not None else {}
    resumed_curve = {name[6:]: kept.pop(name) for name in list(kept) if name.startswith("curve:")}
    if kept:
        curve = {name: values.tolist() for name, values in resumed_curve.items()}
        logger.info("going on from a checkpoint at step %d", max(curve["step"], default=0))
    start = time.perf_counter() - max(curve["seconds"], default=0.0)

    def keep(make: Callable[[], State]) -> None:
        if keeper is not None and keeper.due():
            columns = {f"curve:{name}": np.asarray(column) for name, column in curve.items()}
            keeper.save("learner", make() | columns)

    def record(step: int, raw: Mapping[str, float]) -> None:
        curve["step"].append(step)
        curve["seconds"].append(time.perf_counter() - start)
        curve["objective"].append(objective.join(raw))
        for name, value in raw.items():
            curve[name].append(value)
        if progress is not None:
            progress(int(step), selection.steps)

    logits = initial_logits(selection.init, np.asarray(quality, np.float64))
    estimator: str = selection.method
    steps, stopped_by = 0, "steps"
    if num_selected in (0, num_documents):
        stopped_by = "all selected"
    elif selection.method == "mask":
        estimator = estimator_of(selection, objective)
        learn = expected.learn if estimator == "expected" else policy_gradient.learn
        generator = torch.Generator().manual_seed(seed)
        start_logits = torch.from_numpy(logits).to(data.device)
        learnt, steps, stopped_by = learn(
            data,
            objective,
            selection,
            num_selected,
            start_logits,
            generator,
            record,
            Resuming(kept, keep),
        )
        logits = learnt.cpu().numpy()
    else:
        from datamask.baselines import select

        logits = select(
            features, quality, num_selected, selection, terms, seed=seed, ids=ids, scores=scores
        )
    selected = top_s(logits, quality, id_order, num_selected)
    if selection.method == "mask" and stopped_by != "all selected":
        relaxed = logits
        mended = polish(data, objective, _on(data, selected), _on(data, logits), selection.polish)
        selected = mended.cpu().numpy()
    else:
        relaxed = None
    raw = raw_values(terms, data, _on(data, selected))
    if not curve["step"] or curve["objective"][-1] != objective.join(raw):
        record(steps + 1 if curve["step"] else steps, raw)
    best = raw_values(terms, data, _on(data, top_quality))
    figures = compared(terms, raw, random, best)
    figures |= {
        "estimator": estimator,
        "steps": steps,
        "stopped_by": stopped_by,
        "num_selected": num_selected,
        "gap": None,
    }
    if relaxed is not None:
        gain = figures["objective"]["selected"] - figures["objective"]["random"]
        figures["gap"] = certified_gap(
            data, objective, _on(data, relaxed), num_selected, objective.join(raw), gain
        )
    if selection.method == "mask" and objective.has_expectation and num_documents:
        # Where there was nothing to choose, a selection of one document more or less has a scale.
        size = min(max(num_selected, 1), max(num_documents - 1, 1))
        if size != num_selected:
            terms, _ = _scaled(selection, data, size, seed)
            objective = WeightedObjective(terms)
        values = published.gains(data, objective.active, _on(data, selected))
        values *= published.unit(size, num_documents, selection.scale_terms)
        logits = published.beside_threshold(values, selected)
    else:
        order = np.lexsort((id_order, -np.asarray(quality, np.float64), -logits, ~selected))
        logits = published.by_rank(order, num_selected)
    return LearnedMask(logits, selected, curve, figures)


def judge_mask(
    features: np.ndarray,
    quality: np.ndarray,
    selection: Selection,
    selected: np.ndarray,
    *,
    seed: int,
    ids: np.ndarray,
    scores: Mapping[str, np.ndarray],
    compute: Compute,
) -> dict[str, Any]:
    """The figures of a mask that was not learnt here: as those of `learn_mask`, without a gap."""
    data = shard_data(features, quality, scores, compute)
    num_selected = int(selected.sum())
    terms, random = _scaled(selection, data, num_selected, seed)
    id_order = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    top_quality = top_s(np.asarray(quality, np.float64), quality, id_order, num_selected)
    raw = raw_values(terms, data, _on(data, selected))
    figures = compared(terms, raw, random, raw_values(terms, data, _on(data, top_quality)))
    return figures | {"num_selected": num_selected, "gap": None}


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


def _on(data: ShardData, values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).to(data.device)


def _scaled(
    selection: Selection, data: ShardData, num_selected: int, seed: int
) -> tuple[tuple[WeightedTerm, ...], dict[str, Spread]]:
    """The terms of the objective, scaled if so set, and what random subsets are worth."""
    terms = build_terms(selection)
    totals = moments_of(data, torch.ones_like(data.quality_N), max(highest_order(terms), 0))
    random = random_subsets(terms, totals, data, num_selected, seed ^ 0x5CA1E)
    return scaled(terms, random) if selection.scale_terms else terms, random


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

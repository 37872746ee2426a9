"""The scale of each term: how much its best selection gains over random documents.

A term is divided by its *range*, the value of the best selection by this term alone minus the mean
value of random selections of as many documents. So λ weighs shares of what is possible: with
λ = 0.5, one percent of the best quality is worth one percent of the best diversity, whatever the
number of documents, the metric, the embedder and the share that is selected.

The best selection by a linear term such as quality is known exactly. By facility location it is
learned from the neighbours that the joint objective needs anyway. By another function of moments it
is learned from at most `SAMPLE` random documents, and by an objective that has only values, from at
most `SAMPLE_OF_VALUES`. Random selections are drawn, so their mean is that of real subsets: DiSF of
a few documents is far from DiSF of their expected moments. What chance adds to a value falls with
the number of documents, so a gain measured on a sample is reduced as the value of random documents
is (`_share_without_chance`).

docs/method.md has the definition, benchmarks/lambda_by_size.py shows what it does at each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datamask.config.selection import Selection
from datamask.learning import coverage, expected, policy_gradient
from datamask.learning.data import (
    Reference,
    ShardData,
    cover_of_probes,
    moments_of,
    raw_values,
    value_of_cover,
)
from datamask.learning.moment_gradient import along, raw_slope
from datamask.learning.neighbours import Neighbours
from datamask.learning.policy import top_mask
from datamask.learning.problem import Curve, Problem
from datamask.learning.swap_refinement import refine_by_swaps
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments, Objective
from datamask.objectives.trial import tried
from datamask.objectives.weighted import WeightedObjective, WeightedTerm

SAMPLE, SAMPLE_OF_VALUES = 32_768, 512
"""Most documents from which the best selection by one term is learned (docs/log.md#scales)."""

ENOUGH_SELECTED, FEWEST_SUBSETS, MOST_SUBSETS = 8192, 2, 32
"""Random subsets are drawn until they hold ENOUGH_SELECTED documents together
(docs/log.md#scales)."""

STEPS_OF_VALUES = 200
"""Steps of the policy gradient that learns an objective that has only values
(docs/log.md#scales)."""

LEAST_RANGE = 1e-6
"""A range below this share of the mean is rounding: the term is the same for every subset
(docs/log.md#scales)."""

ALONE = Selection()
ALONE_BY_VALUES = Selection(steps=STEPS_OF_VALUES, batch_fraction=1.0, rollouts=64)
"""How the best selection by one term is learned, whatever the run's own settings of the learner:
else a range, and so λ, would change with them."""


def references(
    terms: Sequence[WeightedTerm],
    totals: Moments,
    data: ShardData,
    num_selected: float,
    seed: int,
    *,
    neighbours: Neighbours | None = None,
    ranges: Mapping[str, float] | None = None,
) -> dict[str, Reference]:
    """Measure random selections and the best ones, by name of the term.

    Args:
        terms: weights and scales are ignored.
        totals: moments of all N documents, of the highest order of the terms.
        data: all documents or a random sample. Terms that are not functions of moments need all
            documents and are left out of the result otherwise.
        num_selected: S, in [0, N].
        seed: of the subsets.
        neighbours: lists that facility location is learned from, if they are known.
        ranges: known ranges of terms that are not linear, by name; without one, a term has no best
            selection, and nothing is learned. None measures all.

    Raises:
        SettingsError: a term fails.
    """
    part = data.num_documents / (float(totals.count) or 1.0) if data.num_documents else 1.0
    if part < 1:
        terms = [term for term in terms if isinstance(term.objective, MomentObjective)]
    if num_selected <= 0 or not data.num_documents:
        return {term.objective.name: Reference(0.0) for term in terms}
    size = min(max(round(num_selected * part), 1), data.num_documents)
    generator = np.random.Generator(np.random.PCG64(seed))
    means, covers = _means_of_random(terms, data, size, generator)
    known = {}
    for term in terms:
        objective, name = term.objective, term.objective.name
        random = means.get(name, 0.0)
        if isinstance(objective, MomentObjective):
            random = _mean_of_all(objective, random, totals, data, num_selected, size)
        gain = None if ranges is None else ranges.get(name)
        if ranges is None or term.is_linear:
            best_known = _best_of(objective, data, size, seed, means.get(name, random), neighbours)
            gain = best_known.gain
            if not objective.maximise:
                gain *= _share_without_chance(best_known, random, num_selected)
        sign = 1 if objective.maximise else -1
        best = None if gain is None else random + sign * gain
        known[name] = Reference(random, best, covers.get(name))
    return known


def _mean_of_all(
    objective: MomentObjective,
    drawn: float,
    totals: Moments,
    data: ShardData,
    num_selected: float,
    size: int,
) -> float:
    """Return the mean value of random selections of S of all N documents.

    *drawn* is the mean over random selections of *size* documents of the sample.
    """
    expected = float(tried(objective, objective.of_moments, totals.scaled(num_selected)))
    part = data.num_documents / float(totals.count)
    if objective.linear:
        return expected
    if part >= 1:
        return drawn
    # What the chance of sums adds to the value at their mean is proportional to 1/S − 1/N.
    everything = torch.ones_like(data.quality_N)
    at_mean = objective.of_moments(moments_of(data, everything, totals.order).scaled(size))
    return expected + part * (drawn - float(at_mean))


def scaled(
    terms: Sequence[WeightedTerm], known: Mapping[str, Reference]
) -> tuple[WeightedTerm, ...]:
    """Terms divided by their range; a term without one is not scaled."""
    return tuple(
        replace(term, scale=reference.range)
        if (reference := known.get(term.objective.name)) and reference.range
        else term
        for term in terms
    )


def _means_of_random(
    terms: Sequence[WeightedTerm], data: ShardData, size: int, generator: np.random.Generator
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Draw random subsets of *size* documents; return by name the mean raw values of terms.

    The second dictionary has the mean cosine of each probe of facility location. Linear terms are
    left out, because their mean is known exactly (`_mean_of_all`).
    """
    subsets = min(max(-(-ENOUGH_SELECTED // size), FEWEST_SUBSETS), MOST_SUBSETS)
    masks: list[Tensor] = []
    while len(masks) < subsets:
        # Subsets that share no document say more about the mean than as many independent ones.
        order = torch.from_numpy(generator.permutation(data.num_documents))
        for rows in torch.split(order, size)[: min(len(order) // size, subsets - len(masks))]:
            mask = torch.zeros(data.num_documents, dtype=torch.bool)
            mask[rows] = True
            masks.append(mask.to(data.device))
    drawn = [
        term
        for term in terms
        if not isinstance(term.objective, FacilityLocation) and not term.is_linear
    ]
    values = [raw_values(drawn, data, mask) for mask in masks if drawn]
    names = [term.objective.name for term in drawn]
    means = {name: float(np.mean([each[name] for each in values])) for name in names}
    covers = {}
    for objective in (term.objective for term in terms):
        if isinstance(objective, FacilityLocation):
            each = torch.stack([cover_of_probes(objective, data, mask) for mask in masks])
            of_masks = value_of_cover(objective, data, torch.stack([*masks]), each)
            means[objective.name] = float(np.mean(of_masks.cpu().numpy()))
            covers[objective.name] = each.mean(0)
    return means, covers


class _Best(NamedTuple):
    """The best selection by one term, of all documents at hand or of a sample."""

    gain: float
    """Its value over the mean of random selections of as many documents; 0 if it is rounding."""
    random: float
    """Mean value of these random selections."""
    num_selected: int


def _share_without_chance(best: _Best, random: float, num_selected: float) -> float:
    """Return the factor that turns a gain in the sample into the gain among all; in (0, 1].

    Where nothing is clustered, what a minimised value such as DiSF has in random documents is
    chance: it is proportional to 1/S, and so is what the best selection gains. The best is
    assumed to remove the same share of *random*, the value of random documents, at every size.

    Args:
        best: measured on the sample.
        random: mean value of random selections of *num_selected* of all documents.
        num_selected: S among all documents.
    """
    if best.random <= 0 or random <= 0:
        return 1.0
    return float(np.clip(random / best.random, best.num_selected / num_selected, 1.0))


def _best_of(
    objective: Objective,
    data: ShardData,
    size: int,
    seed: int,
    random: float,
    neighbours: Neighbours | None,
) -> _Best:
    """Learn the best selection by one term; *random* is the mean value of random ones."""
    sign = 1.0 if objective.maximise else -1.0
    term = WeightedTerm(objective, 1.0)
    most = data.num_documents
    if isinstance(objective, MomentObjective) and not objective.linear:
        most = SAMPLE
    elif not isinstance(objective, MomentObjective | FacilityLocation):
        most = SAMPLE_OF_VALUES
    generator = np.random.Generator(np.random.PCG64(seed + 1))
    if data.num_documents > most:
        rows = np.sort(generator.permutation(data.num_documents)[:most])
        size = min(max(round(size * most / data.num_documents), 1), most)
        data = data.part(torch.from_numpy(rows).to(data.device))
        means, _ = _means_of_random([term], data, size, generator)
        random = means[objective.name]
    if size == data.num_documents:
        return _Best(0.0, random, size)
    mask = _best_mask(term, data, size, seed, neighbours)
    gain = sign * (raw_values([term], data, mask)[objective.name] - random)
    is_rounding = gain <= LEAST_RANGE * max(abs(random), 1e-9)
    return _Best(0.0 if is_rounding else gain, random, size)


def _best_mask(
    term: WeightedTerm, data: ShardData, size: int, seed: int, neighbours: Neighbours | None
) -> Tensor:
    """Select by one term alone; bool, shape N."""
    objective, alone = term.objective, WeightedObjective((term,))
    order = objective.order if isinstance(objective, MomentObjective) else 0
    totals = moments_of(data, torch.ones_like(data.quality_N), order)
    if isinstance(objective, MomentObjective) and objective.linear:
        gains = along(raw_slope(objective, totals.scaled(size)), data)
        return top_mask(gains if objective.maximise else -gains, size)
    has_expectation = isinstance(objective, MomentObjective | FacilityLocation)
    selection = ALONE if has_expectation else ALONE_BY_VALUES
    start = torch.zeros_like(data.quality_N)
    ids = np.arange(data.num_documents)
    quality = data.quality_N.cpu().numpy().astype(np.float64)
    problem = Problem(data, quality, ids, selection, size, seed, alone, totals, {}, neighbours)
    curve = Curve(alone, selection.steps)
    if isinstance(objective, FacilityLocation):
        near = neighbours or Neighbours.of(data, size)
        logits, _, _ = coverage.learn(problem, near, curve)
    elif isinstance(objective, MomentObjective):
        logits, _, _ = expected.learn(problem, start, curve)
    else:
        logits, _, _ = policy_gradient.learn(problem, start, curve)
    return refine_by_swaps(problem, top_mask(logits, size), logits)

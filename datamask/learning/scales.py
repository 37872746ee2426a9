"""What random subsets of a given size are worth: the scale of each term, and what to compare with.

A term is divided by the standard deviation of its value over random S-subsets, drawn without
replacement. Both scopes measure it here: of a shard all documents are seen, of a corpus its moments
and a sample.

To first order a subset's value is a constant plus Σ g_j over its documents, g the gradient at the
expected moments (the delta method). The variance of that sum is S (1 − S/N) Var g in closed form,
Var with N − 1: all there is for a mean such as quality. What a value adds to its linear part is
measured on random subsets (the linear part is a control variate), until the deviation's standard
error is `PRECISION`: a few subsets where the first order says nearly all, thousands where it says
nothing, as for DiSF of about as many documents as dimensions. There `MOST_PASSES` ends it first, at
an error of 3 to 6 %: a weight of 0.5 is then off by 0.01 to 0.015. Where only a sample is at hand,
smaller subsets of it are drawn, and what is beyond the linear part shrinks with (1 − S/N) / S.

Facility location is linearised as if each document were drawn independently: of a probe's documents
in order of similarity, the k-th is the nearest drawn with probability p (1 − p)^k. Objectives of
the user's own that are no function of moments have no linear part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import ShardData, moments_of, sampled_rows, scaled_moments
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments, Objective
from datamask.objectives.trial import failed
from datamask.objectives.weighted import WeightedTerm

PRECISION = 0.0125
"""Relative standard error of a deviation at which no more subsets are drawn
(docs/log.md#scales)."""

FEWEST_SUBSETS, MOST_SUBSETS = 16, 10_000
"""Without a linear part, 3,200 are enough for normally distributed values: 1 / √(2n)
(docs/log.md#scales)."""

MOST_PASSES, FREE_OPERATIONS = 16, 10**10
"""Subsets of a moment term hold at most so many times the documents that they are drawn from, or
cost so many multiplications: measuring stays cheaper than learning (docs/log.md#scales)."""

MOST_DOCUMENTS = 16_384
"""Subsets for what is beyond the linear part are drawn from at most so many documents
(docs/log.md#scales)."""

ROWS_AT_ONCE, MASKS_AT_ONCE = 2048, 128
"""Documents of small subsets that are evaluated together; masks of objectives that see a mask
(docs/log.md#memory)."""

MISSED = 1e-4
"""Share of probes whose nearest selected document may be beyond the neighbours that are kept
(docs/log.md#scales)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of a raw value over random subsets."""

    mean: float
    deviation: float


def random_subsets(
    terms: Sequence[WeightedTerm],
    totals: Moments,
    data: ShardData,
    num_selected: float,
    seed: int,
) -> dict[str, Spread]:
    """How the terms' raw values spread over random S-subsets, by name.

    Args:
        terms: weights and scales do not matter.
        totals: moments of all N documents, of the highest order of the terms.
        data: all of them, or a random sample. Terms that are no function of moments need all, and
            are left out otherwise.
        num_selected: S, in [0, N].
        seed: of the subsets.

    Raises:
        SettingsError: a term fails.
    """
    found = {}
    whole = float(totals.count) == data.num_documents
    for term in terms:
        objective = term.objective
        generator = np.random.Generator(np.random.PCG64(seed))
        if num_selected <= 0 or data.num_documents == 0:
            found[objective.name] = Spread(0.0, 0.0)
        elif isinstance(objective, MomentObjective):
            found[objective.name] = _of_moments(objective, totals, data, num_selected, generator)
        elif whole and isinstance(objective, FacilityLocation):
            found[objective.name] = _of_coverage(objective, data, int(num_selected), generator)
        elif whole:
            found[objective.name] = _of_masks(objective, data, int(num_selected), generator)
    return found


def scaled(
    terms: Sequence[WeightedTerm], spreads: Mapping[str, Spread]
) -> tuple[WeightedTerm, ...]:
    """Terms divided by their deviation; a term that is the same for every subset as it is."""
    return tuple(
        replace(term, scale=spread.deviation)
        if (spread := spreads.get(term.objective.name)) and spread.deviation
        else term
        for term in terms
    )


Draw = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""So many random subsets: their linear parts, and their values less the centre."""


def _measured(
    draw: Draw,
    centre: float = 0.0,
    linear_variance: float = 0.0,
    shrink: float = 1.0,
    most: int = MOST_SUBSETS,
) -> Spread:
    """Mean and deviation of the value, from as many subsets as that takes.

    Args:
        draw: draws subsets.
        centre: the value to which linear parts and values are relative.
        linear_variance: variance of the linear part, exact.
        shrink: variance of the linear part over that among the subsets drawn.
        most: subsets, at least 2.
    """
    linear, rest = np.zeros(0), np.zeros(0)
    variance = linear_variance
    while len(rest) < most:
        more = max(FEWEST_SUBSETS, len(rest) // 4)
        some, values = draw(min(more, most - len(rest)))
        linear, rest = np.append(linear, some), np.append(rest, values - some)
        beyond = rest - rest.mean()
        parts = (2 * shrink**1.5 * linear + shrink**2 * beyond) * beyond
        variance = linear_variance + float(parts.sum()) / (len(rest) - 1)
        error = float(parts.std(ddof=1)) / len(rest) ** 0.5
        if error <= 2 * PRECISION * variance:  # of a variance it is twice that of a deviation
            break
    mean = centre + shrink * float(rest.mean())
    deviation = max(variance, 0.0) ** 0.5
    # A deviation at the level of rounding is none: the term is the same for every subset.
    return Spread(mean, deviation if deviation > 1e-6 * max(abs(mean), 1e-9) else 0.0)


def _of_moments(
    objective: MomentObjective,
    totals: Moments,
    data: ShardData,
    num_selected: float,
    generator: np.random.Generator,
) -> Spread:
    number = float(totals.count)
    expected = scaled_moments(totals, num_selected)
    centre = _value(objective, expected)
    everything = np.arange(data.num_documents)
    if num_selected >= number or data.num_documents < 2:
        return Spread(centre, 0.0)
    spread = num_selected * (1 - num_selected / number)
    linear_variance = spread * float(gradient(objective, expected, data, everything).var(ddof=1))
    rows, size, reference, shrink = everything, round(num_selected), expected, 1.0
    if number > MOST_DOCUMENTS:
        if len(rows) > MOST_DOCUMENTS:
            rows = np.sort(generator.choice(len(rows), MOST_DOCUMENTS, replace=False))
        size = max(1, min(size, len(rows) // 8))
        weights = torch.zeros(data.num_documents, device=data.device)
        weights[torch.from_numpy(rows).to(data.device)] = 1.0
        order = 2 if len(totals.second_DD) else 1 if len(totals.first_D) else 0
        reference = scaled_moments(moments_of(data, weights, order), size)
        shrink = (1 / num_selected - 1 / number) / (1 / size - 1 / len(rows))
    slope = gradient(objective, reference, data, rows)
    slope -= slope.mean()
    at = _value(objective, reference)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = [_subset(generator, len(rows), size) for _ in range(count)]
        # Small subsets are evaluated together: a batch of all their documents, a mask for each.
        group = max(1, ROWS_AT_ONCE // size)
        values = []
        for start in range(0, count, group):
            some = chosen[start : start + group]
            taken = torch.from_numpy(rows[np.concatenate(some)]).to(data.device)
            masks = torch.eye(len(some), dtype=torch.bool, device=data.device)
            masks = masks.repeat_interleave(size, 1)
            values.append(_tried(objective, objective.values, masks, data.batch(taken)))
        linear = np.array([slope[one].sum() for one in chosen])
        return linear, torch.cat(values).cpu().numpy().astype(np.float64) - at

    operations = size * max(len(totals.first_D), 1) ** objective.order
    most = max(MOST_PASSES * len(rows) // size, FREE_OPERATIONS // operations, FEWEST_SUBSETS)
    return _measured(draw, centre, linear_variance, shrink, min(most, MOST_SUBSETS))


def _subset(generator: np.random.Generator, number: int, size: int) -> np.ndarray:
    return generator.choice(number, size, replace=False, shuffle=False)


def gradient(
    objective: MomentObjective, moments: Moments, data: ShardData, rows: np.ndarray
) -> np.ndarray:
    """<∇F, δ_j> of a raw value for some documents; float64, on the CPU."""
    term = WeightedTerm(objective, 1.0 if objective.maximise else -1.0)  # the value as it is
    slope = slopes([term], moments)
    if objective.order < 2:  # moments may be of a higher order, for the sake of other terms
        slope = replace(slope, second_DD=slope.second_DD[:0])
    if objective.order < 1:
        slope = replace(slope, first_D=slope.first_D[:0])
    parts = []
    for some in torch.split(torch.from_numpy(rows), data.chunk_rows):
        part = some.to(data.device)
        none = data.quality_N.new_zeros(len(part), 0)
        features = data.rows(part) if objective.order else none
        parts.append(along(slope, data, part, features).cpu().numpy().astype(np.float64))
    return np.concatenate(parts)


def _value(objective: MomentObjective, moments: Moments) -> float:
    term = WeightedTerm(objective, 1.0 if objective.maximise else -1.0)
    return float(_tried(objective, joint_value, [term], moments))


def _tried(objective: Objective, work: Callable[..., Tensor], *given: object) -> Tensor:
    try:
        return work(*given)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a user's class may raise anything
        raise failed(objective, error) from error


def _of_coverage(
    objective: FacilityLocation, data: ShardData, num_selected: int, generator: np.random.Generator
) -> Spread:
    number = data.num_documents
    share = num_selected / number
    depth = number
    if share < 1:
        depth = min(number, math.ceil(math.log(MISSED) / math.log1p(-share)))
    similarity, rows = _nearest(objective, data, depth)
    if share >= 1:
        return Spread(float(similarity[:, 0].mean()), 0.0)
    # Backwards: what a probe expects of its documents from the k-th on, and what the k-th adds.
    expected = similarity[:, -1].copy()
    added = np.empty_like(similarity)
    for place in range(similarity.shape[1] - 1, -1, -1):
        added[:, place] = (1 - share) ** place * (similarity[:, place] - expected)
        expected = share * similarity[:, place] + (1 - share) * expected
    slope = np.bincount(rows.ravel(), added.ravel(), minlength=number) / len(rows)
    slope -= slope.mean()
    centre = float(expected.mean())
    number_of_probes = len(rows)
    block = np.zeros((0, 0), np.float32)
    if num_selected < depth and 8 * number * number_of_probes <= data.working_set_bytes:
        # Of so few documents all similarities are looked at sooner than all near neighbours.
        probes = data.rows(objective.probe_rows(number))
        block = torch.cat([x @ probes.T for _, x in data.chunks()]).cpu().numpy()
    selected = np.zeros(number, bool)

    def value(chosen: np.ndarray) -> float:
        if len(block):
            return float(block[chosen].max(0).mean(dtype=np.float64))
        selected[chosen] = True
        found = selected[rows]
        selected[chosen] = False
        first = np.where(found.any(1), found.argmax(1), depth - 1)
        return float(similarity[np.arange(number_of_probes), first].mean())

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = [_subset(generator, number, num_selected) for _ in range(count)]
        linear = np.array([slope[one].sum() for one in chosen])
        return linear, np.array([value(one) for one in chosen]) - centre

    variance = num_selected * (1 - share) * float(slope.var(ddof=1))
    return _measured(draw, centre, variance)


def _nearest(
    objective: FacilityLocation, data: ShardData, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines (float64) and rows of the documents nearest to each probe, in order; P x depth."""
    probes = data.rows(objective.probe_rows(data.num_documents))
    values = probes.new_zeros(len(probes), 0)
    rows = torch.zeros(len(probes), 0, dtype=torch.int64, device=data.device)
    size = max(64, min(data.chunk_rows, data.working_set_bytes // (16 * len(probes))))
    for start in range(0, data.num_documents, size):
        features = data.rows(slice(start, start + size))
        here = torch.arange(start, start + len(features), device=data.device)
        values = torch.cat([values, probes @ features.T], 1)
        rows = torch.cat([rows, here.expand(len(probes), -1)], 1)
        values, order = values.topk(min(depth, values.shape[1]), 1)
        rows = rows.gather(1, order)
    return values.cpu().numpy().astype(np.float64), rows.cpu().numpy()


def _of_masks(
    objective: Objective, data: ShardData, num_selected: int, generator: np.random.Generator
) -> Spread:
    batch = data.batch(sampled_rows(data))
    number = len(batch.quality_B)
    size = min(number, max(1, round(num_selected * number / data.num_documents)))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        masks = torch.zeros(count, number, dtype=torch.bool)
        for mask in masks:
            mask[torch.from_numpy(_subset(generator, number, size))] = True
        parts = torch.split(masks.to(data.device), MASKS_AT_ONCE)
        values = torch.cat([_tried(objective, objective.values, part, batch) for part in parts])
        return np.zeros(count), values.cpu().numpy().astype(np.float64)

    return _measured(draw)

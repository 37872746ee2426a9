"""The scale of each term: the standard deviation of its value over random subsets.

A term is divided by its standard deviation over random S-subsets, drawn without replacement. For a
shard, all documents are available; for a corpus, its moments and a sample.

By the delta method, the value of a subset is to first order a constant plus Σ g_j over its
documents, g the gradient at the expected moments. The variance of that sum is S (1 − S/N) Var g,
Var with N − 1, and is complete for a mean such as quality. The rest of the variance is measured on
random subsets, with the linear part as a control variate, until the relative standard error of the
deviation is `PRECISION`. That takes a few subsets if the first order explains nearly everything,
and thousands if it explains nothing, as for DiSF of about as many documents as dimensions. There
`MOST_PASSES` stops earlier, at an error of 3 to 6 %, which shifts a weight of 0.5 by 0.01 to 0.015.
Of more than `MOST_DOCUMENTS` documents, gradient and subsets are those of a random sample. Of a
sample, and of functions of proportions such as DiSF, smaller subsets are drawn. The rest of
the variance then shrinks with the square of (1 − S/N) / S, as that of a quadratic form of the sums.

Facility location is linearised as if each document were drawn independently: of the documents in
order of similarity to a probe, the k-th is the nearest drawn with probability p (1 − p)^k. Custom
objectives that are not functions of moments have no linear part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from datamask.learning.data import ShardData, Spread, moments_of, sampled_rows
from datamask.learning.moment_gradient import along, raw_slope
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments, Objective
from datamask.objectives.trial import tried
from datamask.objectives.weighted import WeightedTerm

PRECISION = 0.0125
"""Relative standard error of a deviation at which measuring stops (docs/log.md#scales)."""

FEWEST_SUBSETS, MOST_SUBSETS = 16, 10_000
"""Subsets per deviation. Without a linear part, normally distributed values need 3,200: 1 / √(2n)
(docs/log.md#scales)."""

MOST_PASSES, FREE_OPERATIONS = 16, 10**10
"""All subsets of a moment term together hold at most this many times the documents they are drawn
from, or cost at most this many multiplications, so that measuring is cheaper than learning
(docs/log.md#scales)."""

MOST_DOCUMENTS = 16_384
"""Most documents whose gradient is measured and from which subsets are drawn, for moment terms that
are not linear (docs/log.md#scales)."""

LARGEST = 128
"""Documents of the largest subsets by which a function of proportions, such as DiSF, is measured
(docs/log.md#scales)."""

ROWS_AT_ONCE, MASKS_AT_ONCE = 2048, 128
"""Documents of small subsets, and masks of other objectives, that are evaluated together
(docs/log.md#memory)."""

MISSED = 1e-4
"""Share of probes whose nearest selected document may lie beyond the stored neighbours
(docs/log.md#scales)."""


def random_subsets(
    terms: Sequence[WeightedTerm],
    totals: Moments,
    data: ShardData,
    num_selected: float,
    seed: int,
    most: int = MOST_SUBSETS,
) -> dict[str, Spread]:
    """Mean and standard deviation of the raw values over random S-subsets, by name of the term.

    Args:
        terms: weights and scales are ignored.
        totals: moments of all N documents, of the highest order of the terms.
        data: all documents or a random sample. Terms that are not functions of moments need all
            documents and are left out of the result otherwise.
        num_selected: S, in [0, N].
        seed: of the subsets.
        most: maximum number of subsets.

    Raises:
        SettingsError: a term fails.
    """
    spreads = {}
    for objective in (term.objective for term in terms):
        generator = np.random.Generator(np.random.PCG64(seed))
        if num_selected <= 0 or data.num_documents == 0:
            spread = Spread(0.0, 0.0)
        elif isinstance(objective, MomentObjective):
            spread = _of_moments(objective, totals, data, num_selected, generator, most)
        elif float(totals.count) != data.num_documents:
            continue
        elif isinstance(objective, FacilityLocation):
            spread = _of_coverage(objective, data, int(num_selected), generator, most)
        else:
            spread = _of_masks(objective, data, int(num_selected), generator, most)
        spreads[objective.name] = spread
    return spreads


def scaled(
    terms: Sequence[WeightedTerm], spreads: Mapping[str, Spread]
) -> tuple[WeightedTerm, ...]:
    """Terms divided by their deviation; a term without deviation is not scaled."""
    return tuple(
        replace(term, scale=spread.deviation)
        if (spread := spreads.get(term.objective.name)) and spread.deviation
        else term
        for term in terms
    )


def _measured(
    values_of: Callable[[list[np.ndarray]], np.ndarray],
    slope: np.ndarray,
    size: int,
    generator: np.random.Generator,
    centre: float = 0.0,
    linear_variance: float = 0.0,
    shrink: float = 1.0,
    most: int = MOST_SUBSETS,
) -> Spread:
    """Mean and deviation of a value, from as many subsets as `PRECISION` needs, at least 2.

    *values_of* gives the values of subsets, each as its rows, minus the centre; *slope* is what
    each document adds to the linear part of these, whose exact variance is *linear_variance*;
    *shrink* is the variance of the linear part, divided by that among the subsets drawn.
    """
    linear, rest = np.zeros(0), np.zeros(0)
    variance = linear_variance
    while len(rest) < most:
        more = max(FEWEST_SUBSETS, len(rest) // 4)
        chosen = [
            generator.choice(len(slope), size, replace=False, shuffle=False)
            for _ in range(min(more, most - len(rest)))
        ]
        some = np.array([slope[rows].sum() for rows in chosen])
        linear, rest = np.append(linear, some), np.append(rest, values_of(chosen) - some)
        beyond = rest - rest.mean()
        parts = (2 * shrink**1.5 * linear + shrink**2 * beyond) * beyond
        variance = linear_variance + float(parts.sum()) / (len(rest) - 1)
        error = float(parts.std(ddof=1)) / len(rest) ** 0.5
        if error <= 2 * PRECISION * variance:  # twice, because it is the error of a variance
            break
    mean = centre + shrink * float(rest.mean())
    deviation = max(variance, 0.0) ** 0.5
    # A deviation at the level of rounding means that the term is the same for every subset.
    return Spread(mean, deviation if deviation > 1e-6 * max(abs(mean), 1e-9) else 0.0)


def _of_moments(
    objective: MomentObjective,
    totals: Moments,
    data: ShardData,
    num_selected: float,
    generator: np.random.Generator,
    most: int,
) -> Spread:
    number = float(totals.count)
    expected = totals.scaled(num_selected)
    centre = float(tried(objective, objective.of_moments, expected))
    if num_selected >= number or data.num_documents < 2:
        return Spread(centre, 0.0)
    spread = num_selected * (1 - num_selected / number)
    is_sample = number > min(MOST_DOCUMENTS, data.num_documents)
    # The gradient of a sample has the same variance, but for an error of about 1 %.
    if data.num_documents > MOST_DOCUMENTS and not objective.linear:
        rows = np.sort(generator.choice(data.num_documents, MOST_DOCUMENTS, replace=False))
        data = data.part(torch.from_numpy(rows).to(data.device))
    gradient = _gradient(objective, expected, data)
    linear_variance = spread * float(gradient.var(ddof=1))
    if objective.linear:
        # Values that differ by rounding alone are the same: compared with the values, not their
        # mean, which a constant would change.
        differs = bool(np.ptp(gradient) > 1e-6 * np.abs(gradient).max())
        return Spread(centre, linear_variance**0.5 if differs else 0.0)
    size = round(num_selected)
    if objective.of_proportions:
        size = min(size, LARGEST)
    reference, shrink, slope = expected, 1.0, gradient
    if is_sample:
        size = max(1, min(size, data.num_documents // 8))
        totals = moments_of(data, torch.ones_like(data.quality_N), totals.order)
    if is_sample or size < round(num_selected):
        reference = totals.scaled(size)
        shrink = (1 / num_selected - 1 / number) / (1 / size - 1 / data.num_documents)
        # Without a sample, fewer documents are drawn only of a function of proportions.
        slope = _gradient(objective, reference, data) if is_sample else slope * num_selected / size
    slope -= slope.mean()
    at = float(tried(objective, objective.of_moments, reference))

    def values_of(chosen: list[np.ndarray]) -> np.ndarray:
        # Small subsets are evaluated together: one batch of their documents, one mask for each.
        group = max(1, ROWS_AT_ONCE // size)
        values = []
        for start in range(0, len(chosen), group):
            some = chosen[start : start + group]
            taken = torch.from_numpy(np.concatenate(some)).to(data.device)
            masks = torch.eye(len(some), dtype=torch.bool, device=data.device)
            masks = masks.repeat_interleave(size, 1)
            values.append(tried(objective, objective.values, masks, data.batch(taken)))
        return np.asarray(torch.cat(values).cpu().numpy().astype(np.float64) - at)

    operations = size * max(len(totals.first_D), 1) ** objective.order
    affordable = max(MOST_PASSES * data.num_documents // size, FREE_OPERATIONS // operations)
    most = min(most, max(affordable, FEWEST_SUBSETS))
    return _measured(values_of, slope, size, generator, centre, linear_variance, shrink, most)


def _gradient(objective: MomentObjective, moments: Moments, data: ShardData) -> np.ndarray:
    """<∇F, δ_j> of a raw value; float64, shape N."""
    values = along(raw_slope(objective, moments), data)
    return values.cpu().numpy().astype(np.float64)


def _of_coverage(
    objective: FacilityLocation,
    data: ShardData,
    num_selected: int,
    generator: np.random.Generator,
    most: int,
) -> Spread:
    number = data.num_documents
    share = num_selected / number
    if share >= 1:
        return Spread(float(_nearest(objective, data, 1)[0][:, 0].mean()), 0.0)
    depth = min(number, math.ceil(math.log(MISSED) / math.log1p(-share)))
    similarity, rows = _nearest(objective, data, depth)
    # From the last neighbour backwards: the expected similarity of a probe from its k-th neighbour
    # on, and what the k-th adds to it.
    expected = similarity[:, -1].copy()
    added = np.empty_like(similarity)
    for column in range(similarity.shape[1] - 1, -1, -1):
        added[:, column] = (1 - share) ** column * (similarity[:, column] - expected)
        expected = share * similarity[:, column] + (1 - share) * expected
    slope = np.bincount(rows.ravel(), added.ravel(), minlength=number) / len(rows)
    slope -= slope.mean()
    centre = float(expected.mean())
    block = np.zeros((0, 0), np.float32)
    if num_selected < depth and 8 * number * len(rows) <= data.working_set_bytes:
        # All similarities of so few documents are faster to search than all near neighbours.
        block_PN = data.probes_PN
        if block_PN is None:
            probes = data.rows(objective.probe_rows(number))
            block_PN = torch.cat([probes @ x.T for _, x in data.blocks()], 1)
        block = block_PN.T.contiguous().cpu().numpy()
    selected, every = np.zeros(number, bool), np.arange(len(rows))
    # In most subsets, one of these is selected.
    close = np.ascontiguousarray(rows[:, : math.ceil(2 / share)])

    def value(chosen: np.ndarray) -> float:
        if len(block):
            return float(block[chosen].max(0).mean(dtype=np.float64))
        selected[chosen] = True
        first = selected.take(close).argmax(1)
        unsure = np.flatnonzero(~selected[rows[every, first]])
        beyond = selected[rows[unsure]]
        first[unsure] = np.where(beyond.any(1), beyond.argmax(1), depth - 1)
        selected[chosen] = False
        return float(similarity[every, first].mean())

    def values_of(chosen: list[np.ndarray]) -> np.ndarray:
        return np.array([value(rows) for rows in chosen]) - centre

    variance = num_selected * (1 - share) * float(slope.var(ddof=1))
    return _measured(values_of, slope, num_selected, generator, centre, variance, most=most)


def _nearest(
    objective: FacilityLocation, data: ShardData, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines (float64) and rows of the documents nearest to each probe, in order; P x depth."""
    if data.probes_PN is not None:
        values, rows = data.probes_PN.topk(depth, 1)
        return values.cpu().numpy().astype(np.float64), rows.cpu().numpy()
    probes = data.rows(objective.probe_rows(data.num_documents))
    values = probes.new_zeros(len(probes), 0)
    rows = torch.zeros(len(probes), 0, dtype=torch.int64, device=data.device)
    size = max(64, min(data.chunk_rows, data.working_set_bytes // (16 * len(probes))))
    for start in range(0, data.num_documents, size):
        features = data.rows(slice(start, start + size))
        new = torch.arange(start, start + len(features), device=data.device)
        values = torch.cat([values, probes @ features.T], 1)
        rows = torch.cat([rows, new.expand(len(probes), -1)], 1)
        values, order = values.topk(min(depth, values.shape[1]), 1)
        rows = rows.gather(1, order)
    return values.cpu().numpy().astype(np.float64), rows.cpu().numpy()


def _of_masks(
    objective: Objective,
    data: ShardData,
    num_selected: int,
    generator: np.random.Generator,
    most: int,
) -> Spread:
    batch = data.batch(sampled_rows(data))
    number = len(batch.quality_B)
    size = min(number, max(1, round(num_selected * number / data.num_documents)))

    def values_of(chosen: list[np.ndarray]) -> np.ndarray:
        masks = torch.zeros(len(chosen), number, dtype=torch.bool)
        masks.scatter_(1, torch.from_numpy(np.stack(chosen)), True)
        parts = torch.split(masks.to(data.device), MASKS_AT_ONCE)
        values = torch.cat([tried(objective, objective.values, part, batch) for part in parts])
        return np.asarray(values.cpu().numpy().astype(np.float64))

    return _measured(values_of, np.zeros(number), size, generator, most=most)

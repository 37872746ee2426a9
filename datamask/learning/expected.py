"""The mean-field estimator: the gradient of the expected objective, without drawing any mask.

Every document is in the subset independently with probability p_i = sigmoid(L_i − tau), Σ p = S.
Moment objectives are taken at the expected moments of the WHOLE shard, which are kept as state: a
step looks at a batch, adds its gradient to its logits and its change of p to the moments. The
gradient for document j is half of f(with j) − f(without j) to second order,
<∇F, δ_j> + (1/2 − p_j) δ_jᵀ ∇²F δ_j with δ_j its own contribution to the moments; the second part,
by which a document is no pair with itself, matters for small subsets and is left out where it
would cost more than the gradient. Facility location uses `FacilityLocation.expected_gains` with
fresh probes per step, on all documents. Steps are mirror ascent: L accumulates gradients in units
of their deviation over the shard, in equal measure for every document of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from datamask.config import Selection
from datamask.learning.data import ShardData, add_moments, highest_order, moments_of, raw_values
from datamask.learning.policy import solve_threshold
from datamask.learning.policy_gradient import Record
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm

# Batches below this size cost more in fixed work (D x D per step) than they save.
LEAST_BATCH = 1024
PROBES_PER_STEP = 512
# Floats that the second-order part may take for one batch, by the order of the moments.
CURVATURE_LIMIT = 2**16
FIRST_STEP = 3.0
# Changes of p below this wait.
LEAST_CHANGE = 1e-6
WINDOW = 4
# With facility location a step is a pass, and its value costs about as much as a step.
EPOCHS_PER_VALUE = 5


def joint_value(terms: Sequence[WeightedTerm], moments: Moments) -> Tensor:
    """Sum of the moment terms at some moments, weighted and scaled; a scalar."""
    total = moments.quality * 0.0
    for term in terms:
        if isinstance(term.objective, MomentObjective):
            total = total + term.factor * term.objective.of_moments(moments)
    return total


def slopes(terms: Sequence[WeightedTerm], moments: Moments) -> Moments:
    """∇F with the count held fixed, as the subset's size is; in the shape of the moments."""
    names = list(moments.scores)
    inputs = [moments.quality, *moments.scores.values(), moments.first_D, moments.second_DD]
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    scores = dict(zip(names, leaves[1:-2], strict=True))
    value = joint_value(terms, Moments(moments.count, leaves[0], scores, leaves[-2], leaves[-1]))
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if slope is None else slope
        for leaf, slope in zip(leaves, found, strict=True)
    ]
    named = dict(zip(names, filled[1:-2], strict=True))
    return Moments(moments.count, filled[0], named, filled[-2], filled[-1])


def along(slope: Moments, data: ShardData, rows: Tensor | slice, features_BD: Tensor) -> Tensor:
    """<∇F, δ_j> for some documents; float32, shape B."""
    total = slope.quality.to(torch.float32) * data.quality_N[rows]
    for name, value in slope.scores.items():
        total = total + value.to(torch.float32) * data.scores[name][rows]
    if len(slope.first_D):
        total = total + features_BD @ slope.first_D.to(torch.float32)
    if len(slope.second_DD):
        symmetric = ((slope.second_DD + slope.second_DD.T) / 2).to(torch.float32)
        total = total + ((features_BD @ symmetric) * features_BD).sum(1)
    return total


def mean_along(slope: Moments, totals: Moments) -> float:
    """<∇F, mean δ> over all documents, from the moments of the whole shard."""
    value = slope.quality * totals.quality
    value = value + (slope.first_D * totals.first_D).sum()
    value = value + (slope.second_DD * totals.second_DD).sum()
    for name, score in slope.scores.items():
        value = value + score * totals.scores[name]
    return float(value / totals.count)


def curvatures(
    terms: Sequence[WeightedTerm], moments: Moments, features_BD: Tensor
) -> dict[str, Tensor]:
    """δ_jᵀ ∇²F δ_j of each raw term for some documents, shape B; only of terms that have one."""
    found = {}
    for term in terms:
        objective = term.objective
        if not isinstance(objective, MomentObjective) or objective.order == 0:
            continue
        bend = objective.self_curvature(moments, features_BD)
        if bend is None and features_BD.numel() <= CURVATURE_LIMIT // features_BD.shape[1]:
            bend = _by_autograd(objective, moments, features_BD)
        if bend is not None:
            found[objective.name] = bend
    return found


def _by_autograd(objective: MomentObjective, moments: Moments, features_BD: Tensor) -> Tensor:
    def second_derivative(x: Tensor) -> Tensor:
        zero, one = torch.zeros_like(moments.count), torch.ones_like(moments.count)

        def value(amount: Tensor) -> Tensor:
            first, second = moments.first_D + amount * x, moments.second_DD
            if len(second):
                second = second + amount * x[:, None] * x[None, :]
            return objective.of_moments(
                Moments(moments.count, moments.quality, moments.scores, first, second)
            )

        def slope(at: Tensor) -> Tensor:
            derivative: Tensor = torch.func.jvp(value, (at,), (one,))[1]
            return derivative

        result: Tensor = torch.func.jvp(slope, (zero,), (one,))[1]
        return result

    wide = features_BD.to(torch.float64)
    return torch.func.vmap(second_derivative)(wide).to(torch.float32)


def moment_gradient(
    terms: Sequence[WeightedTerm],
    moments: Moments,
    data: ShardData,
    rows: Tensor | slice,
    features_BD: Tensor,
    inclusion_B: Tensor,
) -> Tensor:
    """Gradient of the expectation of the moment terms for some documents, shape B."""
    gradient = along(slopes(terms, moments), data, rows, features_BD)
    bends = curvatures(terms, moments, features_BD)
    for term in terms:
        if term.objective.name in bends:
            gradient += (0.5 - inclusion_B) * term.factor * bends[term.objective.name]
    return gradient


def facility_gradient(
    terms: Sequence[WeightedTerm],
    data: ShardData,
    inclusion_N: Tensor,
    probes: Tensor,
    own_N: Tensor,
) -> Tensor:
    """Gradient of the expectation of the facility-location terms for all documents, shape N.

    What a document gains by representing itself is large and known only when it is a probe. It is
    kept in `own_N` (NaN until then, the mean of the known stands in), so that being drawn as a
    probe favours nobody; what it gains for others is the mean over the probes.
    """
    total = torch.zeros(data.num_documents, device=data.device)
    size = max(1, data.working_set_bytes // (40 * max(data.num_documents, 1)))
    for term in terms:
        if not isinstance(term.objective, FacilityLocation):
            continue
        gains = torch.zeros(data.num_documents, device=data.device)
        for some in torch.split(probes, size):
            seen = data.rows(some)
            similarity = torch.empty(len(some), data.num_documents, device=data.device)
            for part, features in data.chunks():
                similarity[:, part] = seen @ features.T
            gains_RN = term.objective.expected_gains(similarity, inclusion_N)
            own = gains_RN[torch.arange(len(some), device=data.device), some]
            own_N[some] = own
            gains += gains_RN.sum(0)
            gains[some] -= own
        asked = torch.full_like(gains, float(len(probes)))
        asked[probes] -= 1
        others = gains / asked.clamp(min=1) * (data.num_documents - 1)
        self_gain = torch.where(own_N.isnan(), own_N.nanmean(), own_N)
        total += term.factor * (others + self_gain) / data.num_documents
    return total


def learn(
    data: ShardData,
    objective: WeightedObjective,
    selection: Selection,
    num_selected: int,
    logits_N: Tensor,
    generator: torch.Generator,
    record: Record,
) -> tuple[Tensor, int, str]:
    """Learn logits; returns them, the steps taken and what ended them."""
    terms = objective.active
    moment_terms = [t for t in terms if isinstance(t.objective, MomentObjective)]
    has_facility = len(moment_terms) < len(terms)
    num_documents = data.num_documents
    order = highest_order(objective.terms)
    totals = moments_of(data, torch.ones(num_documents, device=data.device), order)
    tau = solve_threshold(logits_N, num_selected)
    inclusion_N = torch.sigmoid(logits_N - tau)
    if bool((logits_N == logits_N[0]).all()):
        share = num_selected / num_documents
        moments = _scaled(totals, share)
    else:
        moments = moments_of(data, inclusion_N, order)
    size = min(num_documents, max(round(selection.partial * num_documents), LEAST_BATCH))
    if has_facility:
        size = num_documents
    size = min(size, data.chunk_rows) if not has_facility else size
    gradient_N = torch.zeros(num_documents, device=data.device)
    own_N = torch.full((num_documents,), torch.nan, device=data.device)
    gains: list[float] = []
    scale = 0.0
    step = epoch = 0
    while step < selection.steps:
        rate = FIRST_STEP / (1 + epoch) ** 0.5
        permutation = torch.randperm(num_documents, generator=generator)
        # The value at the expected moments lacks Σ p (1 − p) δᵀ∇²F δ / 2, which a mask will have.
        variance = dict.fromkeys((term.objective.name for term in moment_terms), 0.0)
        for rows in torch.split(permutation, size):
            if step == selection.steps:
                break
            rows = rows.sort().values.to(data.device)
            gradient = torch.zeros(len(rows), device=data.device)
            if has_facility:
                probes = permutation[:PROBES_PER_STEP].sort().values.to(data.device)
                gradient[:] = facility_gradient(terms, data, inclusion_N, probes, own_N)[rows]
            before = inclusion_N[rows]
            # A part of p is older than tau, so that its sum strays from S by a little.
            level = _scaled(moments, num_selected / float(moments.count))
            slope = slopes(moment_terms, level) if moment_terms else None
            centre = mean_along(slope, totals) if slope is not None else 0.0
            for part in torch.split(torch.arange(len(rows), device=data.device), data.chunk_rows):
                if slope is None:
                    break
                features = data.rows(rows[part])
                gradient[part] += along(slope, data, rows[part], features) - centre
                bends = curvatures(moment_terms, level, features)
                spread = before[part] * (1 - before[part])
                for term in moment_terms:
                    if term.objective.name in bends:
                        bend = bends[term.objective.name]
                        gradient[part] += (0.5 - before[part]) * term.factor * bend
                        variance[term.objective.name] += float((spread * bend).sum()) / 2
            if has_facility:
                gradient -= gradient.mean()
            if scale == 0.0:
                scale = float(gradient.std()) if len(gradient) > 1 else 1.0
                scale = scale or 1.0
            gradient_N[rows] = gradient
            logits_N[rows] += rate / scale * gradient
            tau = solve_threshold(logits_N, num_selected, tau)
            change = torch.sigmoid(logits_N[rows] - tau) - before
            # Most documents are soon settled; their tiny changes would cost as much as large
            # ones, and as denormal numbers far more. They stay pending until they add up.
            moved = change.abs() > LEAST_CHANGE
            rows, change = rows[moved], change[moved]
            inclusion_N[rows] += change
            parts = torch.split(torch.arange(len(rows), device=data.device), data.chunk_rows)
            for some, amount in ((rows[part], change[part]) for part in parts):
                features = data.rows(some) if order > 0 else data.quality_N.new_zeros(len(some), 0)
                moments = add_moments(moments, data, some, features, amount)
            step += 1
        scale = float(gradient_N.std()) or 1.0
        epoch += 1
        if has_facility and epoch % EPOCHS_PER_VALUE and step < selection.steps:
            continue
        if has_facility:
            mask = torch.zeros_like(logits_N, dtype=torch.bool)
            mask[logits_N.topk(num_selected).indices] = True
            raw = raw_values(objective.terms, data, mask)
        else:
            level = _scaled(moments, num_selected / float(moments.count))
            raw = _expected_values(objective.terms, level, data, logits_N, num_selected)
            raw = {name: value + variance.get(name, 0.0) for name, value in raw.items()}
        record(step, raw)
        gains.append(objective.join(raw))
        if _has_settled(gains, selection.tolerance):
            return logits_N, step, "tolerance"
    return logits_N, step, "steps"


def _has_settled(values: list[float], tolerance: float) -> bool:
    # The best of the last window against the best before it: single values may swing.
    if tolerance <= 0 or len(values) <= WINDOW:
        return False
    gain = max(values) - values[0]
    return max(values) - max(values[:-WINDOW]) <= tolerance * gain


def _scaled(moments: Moments, share: float) -> Moments:
    return Moments(
        moments.count * share,
        moments.quality * share,
        {name: score * share for name, score in moments.scores.items()},
        moments.first_D * share,
        moments.second_DD * share,
    )


def _expected_values(
    terms: Sequence[WeightedTerm],
    moments: Moments,
    data: ShardData,
    logits_N: Tensor,
    num_selected: int,
) -> dict[str, float]:
    # Terms of weight 0 may be of any kind; those without moments are valued at the current mask.
    values = {}
    others = []
    for term in terms:
        if isinstance(term.objective, MomentObjective):
            values[term.objective.name] = float(term.objective.of_moments(moments))
        else:
            others.append(term)
    if others:
        mask = torch.zeros_like(logits_N, dtype=torch.bool)
        mask[logits_N.topk(num_selected).indices] = True
        values |= raw_values(others, data, mask)
    return {term.objective.name: values[term.objective.name] for term in terms}

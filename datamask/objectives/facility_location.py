"""Facility location: (1/|P|) Σ_{i in P} max_{j in U} cos(x_i, x_j), to be maximised.

P is the whole batch, or a fixed pseudo-random sample of `probes` of its documents where it is
larger. Source: arXiv 2512.24265; the normalisation and the sample are this project's choices.

Its expectation has a gradient without sampling. Let every document be in U independently with
probability p_j. For probe i the expected gain of document j is ∫_{-1}^{s_ij} P(best_i ≤ u) du and
log P(best_i ≤ u) = Σ_{j: s_ij > u} log(1 − p_j): one histogram of −log(1 − p_j) over similarity
bins per probe, cumulated from above, then integrated from below and looked up at s_ij. The product
holds j itself, so this is the derivative times 1 − p_j: what choosing j adds to what is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.objectives.protocol import Batch

LARGEST_SURPRISE = 30.0


class FacilityLocation:
    """How well every document is represented by its nearest selected one.

    Args:
        probes: most documents that are asked for their nearest selected one.
        bins: bins of the expected gradient's histogram of similarities.
    """

    name = "facility_location"
    maximise = True

    def __init__(self, probes: int = 2048, bins: int = 512) -> None:
        if probes < 1 or bins < 2:
            raise ValueError(f"probes must be >= 1 and bins >= 2, got {probes} and {bins}")
        self.probes = probes
        self.bins = bins

    def probe_rows(self, num_documents: int) -> Tensor:
        """Rows of the probes, ascending; the same for the same number of documents."""
        if num_documents <= self.probes:
            return torch.arange(num_documents)
        generator = torch.Generator().manual_seed(num_documents)
        return torch.randperm(num_documents, generator=generator)[: self.probes].sort().values

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Evaluate masks: one similarity matrix, then the maximum over each mask's columns."""
        num_masks = masks_GB.shape[0]
        features = batch.features_BD
        count = int(masks_GB[0].sum()) if num_masks else 0
        if count == 0:
            return features.new_zeros(num_masks)
        rows_GS = masks_GB.nonzero()[:, 1].view(num_masks, count)
        probes = self.probe_rows(features.shape[0]).to(features.device)
        total = features.new_zeros(num_masks)
        per_probe = 4 * (features.shape[0] + num_masks * count)
        for some in torch.split(probes, max(1, batch.working_set_bytes // per_probe)):
            similarity_BR = features @ features[some].T
            total += similarity_BR[rows_GS].amax(1).sum(1)
        return total / max(len(probes), 1)

    def expected_gains(self, similarity_RN: Tensor, inclusion_N: Tensor) -> Tensor:
        """Expected gain of each document for each probe; shape R x N.

        Args:
            similarity_RN: cosines of the probes with all documents.
            inclusion_N: probability of each document, in [0, 1].
        """
        low, high = similarity_RN.min(), similarity_RN.max()
        width = ((high - low) / self.bins).clamp(min=1e-12)
        # Positions are cut at the last bin, so that the largest similarity stays inside it.
        position = ((similarity_RN - low) / width).clamp(0, self.bins - 1e-3)
        index = position.long().clamp(max=self.bins - 1)
        surprise = -torch.log1p(-inclusion_N.clamp(max=1 - 1e-7)).clamp(max=LARGEST_SURPRISE)
        histogram = torch.zeros(
            similarity_RN.shape[0], self.bins, device=similarity_RN.device
        ).scatter_add_(1, index, surprise.expand_as(similarity_RN))
        above = histogram.flip(1).cumsum(1).flip(1) - 0.5 * histogram
        below = torch.exp(-above) * width
        integral = below.cumsum(1) - below
        gain = integral.gather(1, index) + below.gather(1, index) * (position - index)
        # Below `low` no document lies: there the best is certain to be higher, unless U is empty.
        return gain

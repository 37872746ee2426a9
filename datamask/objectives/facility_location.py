"""Facility location: (1/|P|) Σ_{i in P} max_{j in U} cos(x_i, x_j), to be maximised.

P is the whole batch or, if it is larger, a fixed pseudo-random sample of `probes` of its documents.
A selected document covers itself. How many probes happen to be selected is chance, so probes in U
and outside of U are averaged separately, and weighted with the documents that they stand for
(`stratified_mean`). Source: arXiv 2512.24265; the normalisation and the sample are this project's
choices.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from datamask.objectives.protocol import Batch

MASKS = 128
"""Number of masks that are averaged together, so that their float64 stays small
(docs/log.md#memory)."""


@lru_cache(maxsize=4)
def fixed_sample(number: int, most: int) -> Tensor:
    """Return rows of a random sample, ascending; they depend on the numbers alone.

    The result is shared between calls: do not change it in place.
    """
    generator = torch.Generator().manual_seed(number)
    return torch.randperm(number, generator=generator)[:most].sort().values


def stratified_mean(cosines_GP: Tensor, is_selected_GP: Tensor, share: float | Tensor) -> Tensor:
    """Estimate the mean cosine of all documents with their nearest selected one; float64, shape G.

    Args:
        cosines_GP: of the probes with each of G masks; without G, of one mask.
        is_selected_GP: bool; True for a probe that is selected itself.
        share: fraction of all documents that is selected, in (0, 1].
    """
    cosines, inside = cosines_GP.to(torch.float64), is_selected_GP.to(torch.float64)
    number = inside.sum(-1)
    # Without a selected probe, a document that covers itself has cosine 1.
    own = torch.where(number > 0, (cosines * inside).sum(-1) / number.clamp(min=1), 1.0)
    others = (cosines * (1 - inside)).sum(-1) / (cosines.shape[-1] - number).clamp(min=1)
    return share * own + (1 - share) * others


class FacilityLocation:
    """Mean cosine of each document with its nearest selected document.

    Args:
        probes: maximum number of documents in P, >= 1.

    Raises:
        ValueError: *probes* is below 1.
    """

    name = "facility_location"
    maximise = True

    def __init__(self, probes: int = 4096) -> None:
        if probes < 1:
            raise ValueError(f"probes must be >= 1, got {probes}")
        self.probes = probes

    def probe_rows(self, num_documents: int) -> Tensor:
        """Return the rows of P, ascending; they depend only on the number of documents."""
        return fixed_sample(num_documents, self.probes)

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Return the values of masks (bool, G x B, the same S in each row); shape G."""
        num_masks = masks_GB.shape[0]
        features = batch.features_BD
        count = int(masks_GB[0].sum()) if num_masks else 0
        if count == 0:
            return features.new_zeros(num_masks)
        rows_GS = masks_GB.nonzero()[:, 1].view(num_masks, count)
        probes = self.probe_rows(features.shape[0]).to(features.device)
        parts = []
        per_probe = 4 * (features.shape[0] + num_masks + count)
        for some in torch.split(probes, max(1, batch.working_set_bytes // per_probe)):
            similarity_BR = features @ features[some].T
            # Take one mask at a time: its rows fit in the processor's cache.
            parts.append(torch.stack([similarity_BR[rows].amax(0) for rows in rows_GS]))
        cosines_GP, share = torch.cat(parts, 1), count / features.shape[0]
        split = (torch.split(of_masks, MASKS) for of_masks in (cosines_GP, masks_GB[:, probes]))
        pairs = zip(*split, strict=True)
        means = [stratified_mean(cosines, inside, share) for cosines, inside in pairs]
        return torch.cat(means).to(features.dtype)

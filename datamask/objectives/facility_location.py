"""Facility location: (1/|P|) Σ_{i in P} max_{j in U} cos(x_i, x_j), to be maximised.

P is the whole batch or, if it is larger, a fixed pseudo-random sample of `probes` of its documents.
Source: arXiv 2512.24265; the normalisation and the sample are this project's choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.objectives.protocol import Batch


def fixed_sample(number: int, most: int) -> Tensor:
    """Rows of a random sample, ascending; they depend on the numbers alone."""
    generator = torch.Generator().manual_seed(number)
    return torch.randperm(number, generator=generator)[:most].sort().values


class FacilityLocation:
    """Mean cosine of each document with its nearest selected document.

    Args:
        probes: maximum number of documents in P, >= 1.

    Raises:
        ValueError: *probes* is below 1.
    """

    name = "facility_location"
    maximise = True

    def __init__(self, probes: int = 2048) -> None:
        if probes < 1:
            raise ValueError(f"probes must be >= 1, got {probes}")
        self.probes = probes

    def probe_rows(self, num_documents: int) -> Tensor:
        """Rows of P, ascending; they depend only on the number of documents."""
        return fixed_sample(num_documents, self.probes)

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """The values of masks (bool, G x B, the same S in each row); shape G."""
        num_masks = masks_GB.shape[0]
        features = batch.features_BD
        count = int(masks_GB[0].sum()) if num_masks else 0
        if count == 0:
            return features.new_zeros(num_masks)
        rows_GS = masks_GB.nonzero()[:, 1].view(num_masks, count)
        probes = self.probe_rows(features.shape[0]).to(features.device)
        total = features.new_zeros(num_masks)
        per_probe = 4 * (features.shape[0] + num_masks + count)
        for some in torch.split(probes, max(1, batch.working_set_bytes // per_probe)):
            similarity_BR = features @ features[some].T
            # One mask at a time: its rows fit in the processor's cache.
            total += torch.stack([similarity_BR[rows].amax(0) for rows in rows_GS]).sum(1)
        return total / max(len(probes), 1)

"""A shard, and the objective by which documents are selected from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamask.config.selection import Selection
from datamask.learning.data import ShardData, Spread
from datamask.learning.neighbours import Neighbours
from datamask.learning.policy import top_s
from datamask.objectives.weighted import WeightedObjective


@dataclass(frozen=True, slots=True)
class Problem:
    """A shard, and the objective by which documents are selected from it.

    Args:
        data: the shard on the learner's device.
        quality: float64, shape N.
        id_order: the rank of each document by id, shape N.
        selection: objective and method.
        num_selected: S, in [0, N].
        seed: of every random choice.
        objective: the terms, weighted and scaled.
        random: mean and deviation of random S-subsets, by term.
        neighbours: by which facility location is learned, if it is.
    """

    data: ShardData
    quality: np.ndarray
    id_order: np.ndarray
    selection: Selection
    num_selected: int
    seed: int
    objective: WeightedObjective
    random: Mapping[str, Spread]
    neighbours: Neighbours | None = None

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one mask of S documents."""
        return 0 < self.num_selected < self.data.num_documents

    def top(self, values: np.ndarray) -> np.ndarray:
        """The mask of the S highest values, ties by quality, then by id; bool, shape N."""
        return top_s(values, self.quality, self.id_order, self.num_selected)

    def put(self, values: np.ndarray) -> Tensor:
        """Values of the documents as a tensor on the learner's device."""
        return torch.from_numpy(values).to(self.data.device)

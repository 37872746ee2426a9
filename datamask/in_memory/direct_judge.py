"""Judge new embeddings by a mask that was learned in memory, without a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.in_memory.documents import Documents
from datamask.learning.data import highest_order, moments_of
from datamask.learning.exchange import check_scope
from datamask.learning.learner import shard_data
from datamask.learning.mask_model import MaskModel, mask_model
from datamask.learning.published import threshold_of
from datamask.learning.ranked import LearnedMask
from datamask.objectives.level import Level
from datamask.objectives.weighted import build_terms, with_unit


@dataclass(frozen=True, slots=True, eq=False)
class DirectJudge:
    """The mask of embeddings as a function of a document."""

    model: MaskModel
    level: Level
    has_quality: bool
    compute: Compute
    of_texts: bool = False

    @classmethod
    def of(
        cls, given: Documents, selection: Selection, learned: LearnedMask, compute: Compute
    ) -> DirectJudge | None:
        """Make the judge of a learned mask; None if it is no function of a document."""
        terms, number = build_terms(selection), int(learned.selected.sum())
        try:
            check_scope(terms)
        except SettingsError:
            return None
        if selection.method != "mask" or given.scores or not 0 < number < len(learned.selected):
            return None
        assert isinstance(given.content, np.ndarray)
        values = np.zeros(len(given.content)) if given.quality is None else given.quality
        level = Level.of(values)
        data = shard_data(given.content, values, {}, compute, level)
        scales = learned.metrics["scales"]
        scaled = [replace(term, scale=scales[term.objective.name]) for term in terms]
        weights = torch.from_numpy(learned.selected).to(data.quality_N)
        terms = with_unit(scaled, 1 / level.unit)
        moments = moments_of(data, weights, highest_order(terms)).to(torch.device("cpu"))
        model = mask_model(terms, moments, float(number))
        own = model.judge(data, learned.selected).logits
        model = replace(model, threshold=threshold_of(own, number))
        return cls(model, level, given.quality is not None, compute)

    def __call__(self, documents: Documents) -> np.ndarray:
        """Return the logits of embeddings, float32, shape N."""
        assert isinstance(documents.content, np.ndarray)
        values = documents.quality
        if (values is not None) != self.has_quality:
            raise SettingsError("quality: give it if, and only if, the selection had one")
        values = np.zeros(len(documents.content)) if values is None else values
        data = shard_data(documents.content, values, {}, self.compute, self.level)
        return self.model.judge(data).logits.astype(np.float32)

"""Judge new embeddings by a mask that was learned in memory, without a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.in_memory.documents import QUALITY_AS_BEFORE, Documents
from datamask.learning.data import ShardData, highest_order, moments_of
from datamask.learning.exchange import check_scope
from datamask.learning.learner import shard_data
from datamask.learning.mask_model import mask_model
from datamask.learning.published import threshold_of
from datamask.learning.ranked import LearnedMask
from datamask.objectives.level import Level
from datamask.objectives.weighted import build_terms, with_unit


def is_function_of_document(selection: Selection) -> bool:
    """Return True if the learned mask can be written as a function of one document."""
    try:
        check_scope(build_terms(selection))
    except SettingsError:
        return False
    return True


def direct_judge(
    given: Documents, selection: Selection, learned: LearnedMask, compute: Compute
) -> Callable[[Documents], np.ndarray] | None:
    """Return the learned mask as a function of embeddings, to logits; None if it is not one."""
    terms, number = build_terms(selection), int(learned.selected.sum())
    if not is_function_of_document(selection):
        return None
    publishes_gains = selection.method == "mask" and selection.estimator != "policy_gradient"
    if not publishes_gains or given.scores or not 0 < number < len(learned.selected):
        return None
    has_quality = given.quality is not None
    level = Level.of(np.zeros(1) if given.quality is None else given.quality)

    def data_of(documents: Documents) -> ShardData:
        assert isinstance(documents.content, np.ndarray)
        if (documents.quality is not None) != has_quality:
            raise SettingsError(QUALITY_AS_BEFORE)
        zeros = np.zeros(len(documents.content))
        values = zeros if documents.quality is None else documents.quality
        return shard_data(documents.content, values, {}, compute, level)

    data, scales = data_of(given), learned.metrics["scales"]
    scaled = [replace(term, scale=scales[term.objective.name]) for term in terms]
    weights = torch.from_numpy(learned.selected).to(data.quality_N)
    terms = with_unit(scaled, 1 / level.unit)
    moments = moments_of(data, weights, highest_order(terms)).to(torch.device("cpu"))
    model = mask_model(terms, moments, float(number))
    own = model.judge(data, learned.selected).logits
    model = replace(model, threshold=threshold_of(own, number))
    return lambda documents: model.judge(data_of(documents)).logits.astype(np.float32)

"""Method `odis`: the best documents along each of the orthogonal axes of several scores.

After ODiS (arXiv 2510.18909): scores are standardised and decorrelated by principal components, and
each axis gives its best documents in turn, so that no axis is lost to one that most scores share.
The paper fits a model to each axis; here the axes are of the scores themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from datamask.errors import SettingsError


def odis(scores: Mapping[str, np.ndarray], quality: np.ndarray) -> np.ndarray:
    """Minus the rank of each document on the axis that ranks it highest; float64, shape N.

    A missing score counts as the mean, and a score that is the same for all documents counts for
    nothing. Each axis points to where *quality* rises.

    Raises:
        SettingsError: there are fewer than two scores.
    """
    if len(scores) < 2:
        raise SettingsError("selection.method: odis needs two scores or more; give more scores")
    columns = np.ma.masked_invalid(np.stack([*scores.values()], 1).astype(np.float64))
    centred = (columns - columns.mean(0)).filled(0.0)
    varied = centred[:, np.ma.filled(np.ma.ptp(columns, 0), 0.0) > 0]
    number = varied.shape[1]
    if not number:
        return np.asarray(quality, np.float64)
    table = varied / varied.std(0)
    _, axes = np.linalg.eigh(table.T @ table)
    along = table @ axes
    along *= np.where((quality - quality.mean()) @ along < 0, -1, 1)
    ranks = np.argsort(np.argsort(-along, axis=0, kind="stable"), axis=0, kind="stable")
    # Axes take turns, that of the largest variance first.
    turns = (ranks * number + np.arange(number)[::-1]).min(axis=1)
    result: np.ndarray = -turns.astype(np.float64)
    return result

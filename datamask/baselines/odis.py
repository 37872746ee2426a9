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

    A missing score counts as the mean. Each axis points to where *quality* rises.

    Raises:
        SettingsError: fewer than two scores differ between documents.
    """
    columns = [np.asarray(column, np.float64) for column in scores.values()]
    filled = [np.where(np.isnan(column), np.nanmean(column), column) for column in columns]
    varied = [(column - column.mean()) / column.std() for column in filled if column.std() > 0]
    if len(varied) < 2:
        raise SettingsError("selection.method: odis needs two scores; add some to quality.scores")
    table = np.stack(varied, 1)
    _, axes = np.linalg.eigh(table.T @ table)
    along = table @ axes
    along *= np.where((quality - quality.mean()) @ along < 0, -1, 1)
    ranks = np.argsort(np.argsort(-along, axis=0, kind="stable"), axis=0, kind="stable")
    # Axes take turns, that of the largest variance first.
    turns = (ranks * len(varied) + np.arange(len(varied))[::-1]).min(axis=1)
    result: np.ndarray = -turns.astype(np.float64)
    return result

"""Limits of several columns: how many documents of each cell obey all of them.

A cell is a group by all limited columns together, and a limited group is a set of cells. So limits
are linear constraints on the numbers of documents (or tokens) that are kept of the cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from datamask.runs.budget import LimitedGroup


def memberships(groups: Sequence[LimitedGroup], cells: Sequence[str]) -> Any:
    """Return a sparse matrix, groups x cells: 1 if the cell is part of the group."""
    index = {cell: number for number, cell in enumerate(cells)}
    columns = [index[cell] for group in groups for cell in group.cells]
    rows = np.repeat(np.arange(len(groups)), [len(group.cells) for group in groups])
    shape = (len(groups), len(cells))
    return sparse.csr_array((np.ones(len(columns)), (rows, columns)), shape=shape)


def shortages(
    groups: Sequence[LimitedGroup], total: int, cells: Mapping[str, int]
) -> Iterator[tuple[LimitedGroup | None, int]]:
    """Yield what limits that contradict each other leave: nothing if all can be met together.

    Caps hold, and as little as possible is missing from the floors and the total. Yields each
    group that misses its floor (None: the total), and the most that it can have then.

    Args:
        groups: with limits.
        total: what is to be kept.
        cells: what is there of each cell.
    """
    inside, number, many = memberships(groups, [*cells]), len(cells), len(groups)
    floors = np.array([group.floor for group in groups])
    none = sparse.csr_array((many, many + 1))
    missing = sparse.hstack([sparse.eye_array(many), sparse.csr_array((many, 1))])
    found = linprog(
        np.r_[np.zeros(number), np.ones(many + 1)],
        A_ub=sparse.vstack([sparse.hstack([inside, none]), sparse.hstack([-inside, -missing])]),
        b_ub=np.r_[[group.cap for group in groups], -floors],
        A_eq=np.r_[np.ones(number), np.zeros(many), 1.0][None],
        b_eq=[total],
        bounds=np.c_[np.zeros(number + many + 1), np.r_[[*cells.values()], floors, total]],
    )
    for group, short in zip([*groups, None], found.x[number:], strict=True):
        if short > 0.5:
            yield group, int((group.floor if group else total) - np.ceil(short - 1e-6))

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

from datamask.errors import SettingsError

MOST_CELLS = 5000
"""Maximum number of cells; each is a part of a linear programme (docs/log.md#limits)."""


def too_many_cells(number: int) -> Iterator[SettingsError]:
    """Yield an error if there are more than `MOST_CELLS` cells.

    *number* counts the cells, or the groups by some of the limited columns, which are no more.
    """
    if number > MOST_CELLS:
        yield SettingsError(
            f"selection.limits: their columns make {number:,} groups together, at most "
            f"{MOST_CELLS:,} are possible; name the groups to limit by `value`"
        )


def memberships(groups: Sequence[Sequence[str]], cells: Sequence[str]) -> Any:
    """Return a sparse matrix, groups x cells: 1 if the cell is part of the group."""
    index = {cell: number for number, cell in enumerate(cells)}
    columns = [index[cell] for group in groups for cell in group]
    rows = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    shape = (len(groups), len(cells))
    return sparse.csr_array((np.ones(len(columns)), (rows, columns)), shape=shape)


def shortages(
    groups: Sequence[Sequence[str]], bounds: np.ndarray, total: int, cells: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Find the floors that limits cannot meet together; yield nothing if they meet all.

    Caps hold, and as little as possible is missing from the floors and the total. Yields the number
    of each group that misses its floor, and what the group has then. A total that is missed has the
    number after the last group.

    Args:
        groups: the cells of each group with limits.
        bounds: the floor and the cap of each group.
        total: what is to be kept.
        cells: what is there of each cell.
    """
    inside, number, many = memberships(groups, [*cells]), len(cells), len(groups)
    floors, caps = bounds.T
    none = sparse.csr_array((many, many + 1))
    missing = sparse.hstack([sparse.eye_array(many), sparse.csr_array((many, 1))])
    solution = linprog(
        np.r_[np.zeros(number), np.ones(many + 1)],
        A_ub=sparse.vstack([sparse.hstack([inside, none]), sparse.hstack([-inside, -missing])]),
        b_ub=np.r_[caps, -floors],
        A_eq=np.r_[np.ones(number), np.zeros(many), 1.0][None],
        b_eq=[total],
        bounds=np.c_[np.zeros(number + many + 1), np.r_[[*cells.values()], floors, total]],
    )
    for group, (short, asked) in enumerate(zip(solution.x[number:], [*floors, total], strict=True)):
        if short > 0.5:
            yield group, int(asked - np.ceil(short - 1e-6))

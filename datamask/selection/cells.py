"""Limits of several columns at once: the documents of each cell that are kept.

A cell is a group by all limited columns together (`threshold.name_of`). Within a cell, documents
are kept in their order, so what remains to be found is how many of each cell. Of all numbers that
obey the limits, the best have the largest sum of logits (times tokens, in a budget of tokens). They
solve a linear programme, because each further document of a cell adds less than the one before. The
programme has pieces of cells. A piece is divided where a price of the solution lies between the
logits of its documents, and the programme is solved again, until no price cuts a piece. Then the
bound by these prices shows that no selection has a larger sum.

With limits of two columns (or of two lists, one within the other) the solution has whole documents,
because such limits describe a flow in a network. With more columns, the nearest whole numbers are
searched (`scipy.optimize.milp`), and the receipt says by what fraction the best sum can be larger
(`short_of_best`). In tokens, the last document of a cell is left out if it does not fit, and other
documents that fit take its place. So budget and floors are met within one document of each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.optimize import LinearConstraint, linprog, milp

from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.runs.budget import limited_groups, memberships
from datamask.selection.order import ORDER
from datamask.storage.duckdb_scratch import execute, execute_with

# Sizes and accuracy of the linear programme (docs/log.md#limits).
PIECES, PARTS = 50_000, 8
SPAN = 1000.0
MOST_NODES = 1000
NEAR = 64

_PLACES = pa.list_(pa.int64())


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates, cell by cell and in the order of their cell: its number, logit and units."""

    cell: np.ndarray
    logit: np.ndarray
    units: np.ndarray

    def starts(self, cells: int) -> np.ndarray:
        """Return the first row of each of so many cells, and the number of rows."""
        return np.searchsorted(self.cell, np.arange(cells + 1))


def cut_cells(
    connection: Any, selection: Selection, total: int
) -> tuple[dict[str, int], dict[str, float]]:
    """Apply limits of several columns to `candidates`; make the view `kept`.

    Returns the caps of the cells by name, and metrics: `threshold`, the price in logits of a unit
    in no group whose limit is reached, and `short_of_best`.

    Args:
        connection: DuckDB, with `candidates` and `bounds` (`threshold.check_limits`).
        selection: the limits, which can be met.
        total: the budget.

    Raises:
        SettingsError: no whole numbers of documents obey the limits.
    """
    caps = dict(execute(connection, "SELECT name, cap FROM bounds ORDER BY name"))
    execute(
        connection,
        "CREATE TEMP TABLE ranked AS SELECT shard, name, cell, logit, quality, id, units, "
        f"row_number() OVER (PARTITION BY cell ORDER BY {ORDER}) AS place FROM candidates JOIN "
        "(SELECT name, cap, (row_number() OVER (ORDER BY name) - 1)::INT AS cell FROM bounds) "
        "USING (name) WHERE units <= cap",
    )
    ranked = connection.sql("SELECT cell, logit, units FROM ranked ORDER BY cell, place")
    candidates = Candidates(**ranked.fetchnumpy())
    groups = limited_groups(selection, total, caps)
    inside = memberships([group.cells for group in groups], [*caps])
    bounds = np.array([(group.floor, group.cap) for group in groups], float)
    is_whole = selection.tokens is None
    numbers, price, short = most_of_cells(candidates, inside, bounds, total, is_whole)
    taken, beyond = fill_cells(candidates, numbers, inside, bounds, total)
    places = {"cell": range(len(caps)), "last": taken, "also": pa.array(beyond, _PLACES)}
    execute_with(connection, pa.table(places), "CREATE TEMP TABLE taken AS FROM arriving")
    connection.execute(
        "CREATE TEMP VIEW kept AS SELECT ranked.*, place > last AS beyond FROM ranked "
        "JOIN taken USING (cell) WHERE place <= last OR list_contains(also, place)"
    )
    return caps, {"threshold": price, "short_of_best": short}


def most_of_cells(
    candidates: Candidates, inside: Any, bounds: np.ndarray, total: int, is_whole: bool
) -> tuple[np.ndarray, float, float]:
    """Return how many units of each cell make the sum of logits times units largest.

    Args:
        candidates: of all cells.
        inside: groups x cells, sparse: 1 if a cell is part of a group.
        bounds: the floor and the cap of each group.
        total: units to keep.
        is_whole: True if the numbers must be whole.

    Returns:
        the numbers, float64; the price in logits of a unit in no group whose limit is reached; and
        how much larger the best sum may be, as a fraction.
    """
    cell_of, logits, units = candidates.cell, candidates.logit, candidates.units
    scale = SPAN / max(float(np.abs(logits).max(initial=0.0)), 1e-30)
    values, (lows, highs) = logits.astype(np.float64) * scale, bounds.T
    cells = inside.shape[1]
    starts = candidates.starts(cells)
    each = max(2, PIECES // cells)
    ends = [np.linspace(*pair, each).astype(int) for pair in pairwise(starts)]
    cuts = np.unique(np.concatenate(ends))
    while True:
        first = cuts[:-1]
        sizes = np.add.reduceat(units, first).astype(float)
        worth = np.add.reduceat(values * units, first) / np.maximum(sizes, 1.0)
        of_piece = inside[:, cell_of[first]]
        solution = linprog(
            -worth,
            A_ub=sparse.vstack([of_piece, -of_piece]),
            b_ub=np.r_[highs, -lows],
            A_eq=np.ones((1, len(first))),
            b_eq=[total],
            bounds=np.c_[np.zeros(len(first)), sizes],
            method="highs-ds",
        )
        if solution.x is None:
            raise SettingsError("selection.limits: they cannot be met together; widen them")
        high, low = np.split(solution.ineqlin.marginals, 2)
        prices = -(inside.T @ (high - low) + solution.eqlin.marginals[0])
        new = np.setdiff1d(_where_cut(values, starts, prices), cuts)
        if not len(new):
            break
        at = np.searchsorted(cuts, new)
        steps = np.arange(1, PARTS)[:, None] / PARTS
        between = (cuts[at - 1] + steps * (cuts[at] - cuts[at - 1])).astype(int).ravel()
        cuts = np.union1d(cuts, np.r_[new, between])
    pieces, short = solution.x, 0.0
    if is_whole and np.abs(pieces - pieces.round()).max() > 1e-6:
        pieces, value = _whole_pieces(worth, sizes, of_piece, bounds, total)
        short = max(0.0, (value - solution.fun) / max(abs(solution.fun), 1e-30))
    numbers, price = np.bincount(cell_of[first], pieces, cells), -float(solution.eqlin.marginals[0])
    return numbers.round() if is_whole else numbers, price / scale, short


def _whole_pieces(
    worth: np.ndarray, sizes: np.ndarray, of_piece: Any, bounds: np.ndarray, total: int
) -> tuple[np.ndarray, float]:
    """Return the best whole numbers that the search finds, and their negative sum."""
    solution = milp(
        -worth,
        integrality=np.ones(len(worth)),
        bounds=(0, sizes),
        constraints=[
            LinearConstraint(of_piece, *bounds.T),
            LinearConstraint(np.ones((1, len(worth))), total, total),
        ],
        options={"node_limit": MOST_NODES},
    )
    if solution.x is None:
        raise SettingsError("selection.limits: no whole documents meet them; widen them")
    return solution.x, float(solution.fun)


def _where_cut(values: np.ndarray, starts: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Return the rows at which the values of each cell fall to, and below, its price."""
    rows = []
    for (first, beyond), price in zip(pairwise(starts), prices, strict=True):
        falling = -values[first:beyond]
        rows += [first + np.searchsorted(falling, -price - 1e-6 * side, "left") for side in (1, -1)]
    return np.array(rows)


def fill_cells(
    candidates: Candidates, numbers: np.ndarray, inside: Any, bounds: np.ndarray, total: int
) -> tuple[np.ndarray, list[list[int]]]:
    """Keep whole documents, from the first of each cell, within its number of units.

    Returns how many documents of each cell these are, and the places of later documents that fit:
    those fill what the total lacks, highest logits first, and exceed no cap.
    """
    units, upto = candidates.units, np.r_[0, np.cumsum(candidates.units)]
    starts = candidates.starts(len(numbers))
    begins = upto[starts[:-1]]
    last = np.searchsorted(upto, begins + numbers + 1e-3, "right") - 1
    kept = upto[last] - begins
    room, spare = bounds[:, 1] - inside @ kept, total - kept.sum()
    beyond: list[list[int]] = [[] for _ in numbers]
    ranges = zip(last, np.minimum(last + NEAR, starts[1:]), strict=True)
    near = np.concatenate([np.arange(*ends) for ends in ranges])
    near = near[np.argsort(-candidates.logit[near], kind="stable")]
    group_of, cell_of = inside.nonzero()
    while True:
        most = np.full(len(numbers), spare, float)
        np.minimum.at(most, cell_of, room[group_of])
        near = near[units[near] <= most[candidates.cell[near]]]
        if not len(near):
            return last - starts[:-1], beyond
        row, near = int(near[0]), near[1:]
        cell, spare = int(candidates.cell[row]), spare - units[row]
        room[group_of[cell_of == cell]] -= units[row]
        beyond[cell].append(row - int(starts[cell]) + 1)

"""Count the documents to keep in corpus and shards, and say if there are so many.

`budget_problems` is the only place that compares what the settings ask for with the documents that
there are: planning and stages give it what they have counted.

Budgets, and limits of one column, are integer arithmetic, so that the same corpus gives the same
numbers on every machine and however its files are split. A budget of documents is met exactly;
`datamask.selection.threshold` meets a budget of tokens within one document.

With limits of several columns, a cell is a group by all limited columns together, and a limited
group is a set of cells. So limits are linear constraints on what is kept of the cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from datamask.config.selection import AND, NO_GROUP, Selection
from datamask.errors import SettingsError, together

MOST_CELLS = 5000
"""Maximum number of cells; each is a part of a linear programme (docs/log.md#limits)."""


def total_budget(selection: Selection, num_documents: int) -> int:
    """Return the number of documents to keep of *num_documents*: at least 1, rounded half up."""
    if selection.documents is not None:
        return selection.documents
    return max(1, int(Fraction(str(selection.ratio)) * num_documents + Fraction(1, 2)))


def unit_of(selection: Selection) -> str:
    """Return the unit of the budget: documents or tokens."""
    return "documents" if selection.tokens is None else "tokens"


def total_units(selection: Selection, num_documents: int) -> int:
    """Return the budget in its own unit: tokens if the settings give tokens, else documents."""
    return selection.tokens or total_budget(selection, num_documents)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the documents that a budget is compared with, as far as they are known.

    Args:
        documents: in the source.
        left: those that can be selected, at most; None: all.
        reason: why the others cannot.
        tokens: of the documents that can be selected; None: not counted.
        groups: documents or tokens of each group, like the budget, without documents that exceed
            the group's cap; None: not counted.
        epoch: least and most documents or tokens of a selection, like the training's total; None:
            not known, or the budget says it.
        repeated: the same with all repeats that `selection.repeat_caps` allow; None: not known.
    """

    documents: int
    left: int | None = None
    reason: str = ""
    tokens: int | None = None
    groups: Mapping[str, int] | None = None
    epoch: tuple[int, int] | None = None
    repeated: int | None = None


def budget_problems(selection: Selection, counts: Counts) -> Iterator[SettingsError]:
    """Yield an error for each thing that the settings ask for and these documents cannot give.

    Nothing is asked of a run that a mask model judges: its threshold decides.
    """
    if selection.mask_model:
        return
    total = total_units(selection, counts.documents)
    if problem := too_few(selection, counts):
        yield problem
    elif selection.limits and counts.groups is not None:
        yield from limit_problems(selection, total, counts.groups)
    yield from _training_problems(selection, total, counts)


def too_few(selection: Selection, counts: Counts) -> SettingsError | None:
    """Return the error that fewer documents or tokens are there than the budget needs, or None."""
    total, unit = total_units(selection, counts.documents), unit_of(selection)
    there: int | None = counts.documents if counts.left is None else counts.left
    those = f"there are only {there:,} documents"
    if counts.left is not None:
        those = f"of {counts.documents:,} documents {there:,} are left ({counts.reason})"
    if selection.tokens is not None:
        there, those = counts.tokens, f"{those} with {counts.tokens or 0:,} tokens"
    if there is None or total <= there:
        return None
    is_ratio = selection.tokens is None and selection.documents is None
    setting = f"selection.{'ratio' if is_ratio else unit}"
    also = "" if counts.left is None else ", or quality.prune_fraction"
    return SettingsError(f"{setting}: {total:,} {unit} are to be kept, but {those}; lower it{also}")


def check_budget(selection: Selection, counts: Counts) -> None:
    """Raise what `budget_problems` yields, as one SettingsError."""
    if problems := list(budget_problems(selection, counts)):
        raise together(problems)


def _training_problems(selection: Selection, total: int, counts: Counts) -> Iterator[SettingsError]:
    """Yield an error if training cannot see what the settings ask for, with documents repeated.

    An epoch sees every selected document once.
    """
    epoch = counts.epoch
    if epoch is None and (selection.tokens is None) == (selection.training_tokens is None):
        epoch = (total, total)
    if selection.training is None or epoch is None:
        return
    least, most = epoch
    repeated = selection.max_repeat * most if counts.repeated is None else counts.repeated
    if not least <= selection.training <= repeated:
        name = "training_documents" if selection.training_documents else "training_tokens"
        there = f"{most:,}" if least == most else f"from {least:,} to {most:,}"
        yield SettingsError(
            f"selection.{name}: {selection.training:,}, but the subset has {there}, or "
            f"{repeated:,} with repeats (selection.max_repeat); set a number from {least} to "
            f"{repeated}"
        )


def group_bounds(
    selection: Selection, total: int, names: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return floor and cap of the groups that have limits; documents or tokens, as *total*.

    With limits of several columns, every cell has a cap: the least of the groups that it is in.
    """
    if selection.has_cells:
        caps = dict.fromkeys(names, total)
        for group in limited_groups(selection, total, caps):
            caps |= {cell: min(caps[cell], group.cap) for cell in group.cells}
        return {cell: (0, cap) for cell, cap in caps.items()}
    own = {
        limit.value: (round(limit.floor * total), round(limit.cap * total))
        for limit in selection.limits
    }
    bounds_of = {name: own.get(name, own.get(None)) for name in names}
    return {name: bounds for name, bounds in bounds_of.items() if bounds is not None}


def limit_problems(
    selection: Selection, total: int, groups: Mapping[str, int]
) -> Iterator[SettingsError]:
    """Yield an error for each floor that a group cannot meet, and if floors or caps do not add up.

    Floors of small budgets may exceed the budget by rounding.
    """
    if selection.has_cells:
        yield from _problems_of_cells(selection, total, groups)
        return
    column, unit = selection.limits[0].column, unit_of(selection)
    named = (limit.value for limit in selection.limits if limit.value is not None)
    bounds = group_bounds(selection, total, {*groups, *named})
    for name, (floor, _) in sorted(bounds.items()):
        if (there := groups.get(name, 0)) < floor:
            yield SettingsError(
                f"selection.limits: the floor of {column} {name} asks for {floor:,} {unit}, but "
                f"only {there:,} are left; lower the floor"
            )
    floors = sum(floor for floor, _ in bounds.values())
    if floors > total:
        yield SettingsError(
            f"selection.limits: the floors add up to {floors:,} {unit}, but only {total:,} are to "
            "be kept; lower them"
        )
    caps = {name: cap for name, (_, cap) in bounds.items()}
    most = sum(min(there, caps.get(name, there)) for name, there in groups.items())
    if most < total:
        yield too_little(selection, most, total, caps)


@dataclass(frozen=True, slots=True)
class LimitedGroup:
    """A group with limits, and the cells that it consists of (`selection.threshold.name_of`)."""

    column: str
    name: str
    floor: int
    cap: int
    cells: list[str]


def limited_groups(selection: Selection, total: int, cells: Collection[str]) -> list[LimitedGroup]:
    """List the groups that limits of several columns concern, among these cells."""
    return [
        LimitedGroup(alone.limits[0].column, name, floor, cap, inside[name])
        for alone, inside in _groups_of_cells(selection, cells)
        for name, (floor, cap) in group_bounds(alone, total, inside).items()
    ]


def _groups_of_cells(
    selection: Selection, cells: Collection[str]
) -> Iterator[tuple[Selection, dict[str, list[str]]]]:
    """Yield the limits of each column alone, with the cells of each group by this column."""
    for column in dict.fromkeys(limit.column for limit in selection.limits):
        alone = selection.with_limits_of(column)
        at = [selection.limited.index(name) for name in alone.limited]
        inside: dict[str, list[str]] = {}
        for cell in cells:
            names = cell.split(AND)
            inside.setdefault(AND.join(names[index] for index in at), []).append(cell)
        yield alone, inside


def _problems_of_cells(
    selection: Selection, total: int, cells: Mapping[str, int]
) -> Iterator[SettingsError]:
    """Yield the problems of each column's limits alone or, if there are none, of all together."""
    problems = list(too_many_cells(len(cells)))
    for alone, inside in _groups_of_cells(selection, cells):
        groups = {name: sum(map(cells.__getitem__, some)) for name, some in inside.items()}
        problems += limit_problems(alone, total, groups)
    yield from problems
    if problems:
        return
    unit, limited = unit_of(selection), limited_groups(selection, total, cells)
    bounds = np.array([(group.floor, group.cap) for group in limited])
    asked = [f"the floor of {g.column} {g.name} asks for {g.floor:,} {unit}" for g in limited]
    asked.append(f"{total:,} {unit} are to be kept")
    for number, most in shortages([group.cells for group in limited], bounds, total, cells):
        yield SettingsError(
            f"selection.limits: {asked[number]}, but the limits together leave {most:,}; lower "
            "floors or raise caps"
        )


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
    from scipy import sparse

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
    from scipy import sparse
    from scipy.optimize import linprog

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


def too_little(
    selection: Selection, most: int, total: int, limited: Iterable[str]
) -> SettingsError:
    """Return the error that the caps leave less than the budget."""
    column, remedy = selection.limits[0].column, f"raise them, or keep {most:,}"
    if NO_GROUP in limited:
        remedy += f"; documents without a {column} form the group {NO_GROUP}, which has its own cap"
    return SettingsError(
        f"selection.limits: the caps leave {most:,} {unit_of(selection)}, but {total:,} are to be "
        f"kept; {remedy}"
    )


@dataclass(frozen=True, slots=True)
class Survivors:
    """Documents that are neither dropped nor pruned (`kept`), and their `tokens`.

    Each is counted in the shard, in the shards before it, and in the corpus. Tokens are 0 if the
    source has no token counts.
    """

    kept: int
    kept_before: int
    kept_total: int
    tokens: int
    tokens_before: int
    tokens_total: int

    @staticmethod
    def of(metrics: Mapping[str, int]) -> Survivors:
        """Read the counts from the receipt of a shard of stage `quality`."""
        return Survivors(**{name: metrics[name] for name in Survivors.__slots__})


def corpus_units(selection: Selection, num_documents: int, left: Survivors) -> int:
    """Return the budget of the corpus, in documents or tokens like `total_units`.

    Raises:
        SettingsError: fewer documents (or tokens) survive than the budget needs.
    """
    kept, tokens, why = left.kept_total, left.tokens_total, "others are dropped"
    if problem := too_few(selection, Counts(num_documents, kept, why, tokens)):
        raise problem
    return total_units(selection, num_documents)


def shard_units(selection: Selection, num_documents: int, left: Survivors) -> int:
    """Return the shard's part of `corpus_units`.

    Raises:
        SettingsError: fewer documents (or tokens) survive than the budget needs.
    """
    total = corpus_units(selection, num_documents, left)
    if selection.tokens is None:
        return shard_budget(total, left.kept_before, left.kept, left.kept_total)
    return shard_budget(total, left.tokens_before, left.tokens, left.tokens_total)


def shard_budget(total: int, kept_before: int, kept: int, kept_total: int) -> int:
    """Return a shard's part of the budget, proportional to its documents that survive pruning.

    The corpus keeps *total* documents (or tokens) of its *kept_total* survivors; for *kept* and
    *kept_before* see `Survivors`. Rounding is cumulative: the parts add up to *total* exactly, and
    no part exceeds *kept*.
    """
    whole = max(kept_total, 1)
    return total * (kept_before + kept) // whole - total * kept_before // whole

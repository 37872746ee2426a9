"""Count the documents to keep in corpus, shards and published files, and say if there are so many.

`budget_problems` is the only place that compares what the settings ask for with the documents that
there are: planning and stages give it what they have counted.

This is pure integer arithmetic, so that the same corpus gives the same numbers on every machine and
however its files are split. A budget of documents is met exactly; `datamask.selection.threshold`
meets a budget of tokens within one document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from datamask.config.selection import AND, NO_GROUP, Selection
from datamask.errors import SettingsError, together


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
    """A group with limits, and the cells that it consists of.

    A cell is a group by all limited columns together (`selection.threshold.name_of`).
    """

    column: str
    name: str
    floor: int
    cap: int
    cells: list[str]


def limited_groups(selection: Selection, total: int, cells: Iterable[str]) -> list[LimitedGroup]:
    """List the groups that limits of several columns concern, among these cells."""
    groups, parts = [], {cell: cell.split(AND) for cell in cells}
    for column in dict.fromkeys(limit.column for limit in selection.limits):
        alone = selection.with_limits_of(column)
        at = [selection.limited.index(name) for name in alone.limited]
        inside: dict[str, list[str]] = {}
        for cell, names in parts.items():
            inside.setdefault(AND.join(names[index] for index in at), []).append(cell)
        for name, (floor, cap) in group_bounds(alone, total, inside).items():
            groups.append(LimitedGroup(column, name, floor, cap, inside[name]))
    return groups


def _problems_of_cells(
    selection: Selection, total: int, cells: Mapping[str, int]
) -> Iterator[SettingsError]:
    """Yield the problems of each column's limits alone or, if there are none, of all together."""
    from datamask.runs.cell_counts import shortages, too_many_cells  # This imports scipy.

    problems = list(too_many_cells(len(cells)))
    for column in dict.fromkeys(limit.column for limit in selection.limits):
        alone = selection.with_limits_of(column)
        at, groups = [selection.limited.index(name) for name in alone.limited], Counter[str]()
        for cell, there in cells.items():
            groups[AND.join(cell.split(AND)[index] for index in at)] += there
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


BYTES_PER_TOKEN = 4


def expected_documents(selection: Selection, num_documents: int, num_bytes: int) -> int:
    """Return the number of documents to keep; for a budget of tokens, estimate it from bytes."""
    if selection.tokens is None:
        return total_budget(selection, num_documents)
    kept = num_documents * selection.tokens * BYTES_PER_TOKEN // max(num_bytes, 1)
    return max(1, min(kept, num_documents))


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


@dataclass(frozen=True, slots=True)
class SubsetFile:
    """One published file: whole consecutive shards, or one part of a large shard.

    Part `p` of `n` holds a shard's selected documents from floor(p·S/n) to floor((p+1)·S/n). If
    `dump` is set, the file holds only the selected documents of that dump.
    """

    shards: tuple[int, ...]
    part: int = 0
    parts: int = 1
    dump: str = ""


def subset_files(
    shard_rows: list[int],
    shard_bytes: list[int],
    total: int,
    file_bytes: int,
    shard_dumps: list[dict[str, int]] | None = None,
) -> list[SubsetFile]:
    """Group shards into files of about *file_bytes*, from the plan alone.

    The estimate multiplies the planned bytes by the fraction of the corpus that is kept, and does
    not read the mask. So a shard that is learned again changes only the files that contain it.

    *shard_rows* and *shard_bytes* describe the source; *total* of its documents are kept. With
    *shard_dumps* (the documents of each shard by dump) no file holds two dumps, and the dumps are
    in the source's order.
    """
    num_rows = max(sum(shard_rows), 1)
    files: list[SubsetFile] = []
    shard_dumps = shard_dumps or [{"": rows} for rows in shard_rows]
    for dump in dict.fromkeys(name for dumps in shard_dumps for name in dumps):
        estimates = [
            (shard, shard_bytes[shard] * dumps[dump] * total // (shard_rows[shard] * num_rows))
            for shard, dumps in enumerate(shard_dumps)
            if dump in dumps
        ]
        files += _group(estimates, file_bytes, dump)
    return files


def _group(estimates: list[tuple[int, int]], file_bytes: int, dump: str = "") -> list[SubsetFile]:
    """Fill files with shards, given as pairs of a shard and its estimated bytes."""
    files: list[SubsetFile] = []
    group: list[int] = []
    size = 0
    for shard, estimate in estimates:
        if group and size + estimate > file_bytes:
            files.append(SubsetFile(tuple(group), dump=dump))
            group, size = [], 0
        if estimate > file_bytes:
            parts = -(-estimate // file_bytes)
            files.extend(SubsetFile((shard,), part, parts, dump) for part in range(parts))
            continue
        group.append(shard)
        size += estimate
    if group:
        files.append(SubsetFile(tuple(group), dump=dump))
    return files


MOST_OPEN = 16
"""Maximum number of files written in one pass over the source; each keeps up to a row group in
memory."""


def file_groups(files: list[SubsetFile]) -> list[int]:
    """Return the group of each file: one pass over the source writes all files of a group.

    A group's number is the index of its first file. A group has at most `MOST_OPEN` files. More
    than half of a file's shards are also in earlier files of its group. Parts of a large shard are
    groups of their own, because they are mostly in different row groups.
    """
    groups, group, covered, size = list(range(len(files))), 0, set[int](), 0
    for index in sorted(groups, key=lambda index: (files[index].shards[0], index)):
        shards = files[index].shards
        shared = sum(shard in covered for shard in shards)
        if files[index].parts > 1:
            continue
        if size == MOST_OPEN or 2 * shared <= len(shards):
            group, covered, size = index, set(), 0
        groups[index] = group
        covered.update(shards)
        size += 1
    return groups

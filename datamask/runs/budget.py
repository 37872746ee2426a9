"""Count the documents to keep in the corpus, in each shard and in each published file.

This is pure integer arithmetic, so that the same corpus gives the same numbers on every machine and
however its files are split. A budget of documents is met exactly; `datamask.selection.threshold`
meets a budget of tokens within one document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from datamask.config.selection import Selection
from datamask.errors import SettingsError


def total_budget(selection: Selection, num_documents: int) -> int:
    """Return the number of documents to keep of *num_documents*: at least 1, rounded half up.

    Raises:
        SettingsError: `selection.documents` exceeds the source.
    """
    wanted = selection.documents
    if wanted is None:
        return max(1, int(Fraction(str(selection.ratio)) * num_documents + Fraction(1, 2)))
    if wanted > num_documents:
        raise SettingsError(
            f"selection.documents: {wanted:,} set, but the source has only {num_documents:,}"
        )
    return wanted


def setting_of_documents(selection: Selection) -> str:
    """Name the setting that says how many documents are kept; for messages."""
    return "selection.ratio" if selection.documents is None else "selection.documents"


def total_units(selection: Selection, num_documents: int) -> int:
    """Return the budget in its own unit: tokens if the settings give tokens, else documents."""
    return selection.tokens or total_budget(selection, num_documents)


def check_training(selection: Selection, least: int, most: int) -> None:
    """Check that training can see what the settings ask for, with documents repeated if necessary.

    An epoch sees every selected document once. It has from *least* to *most* documents or tokens,
    in the same unit as the total that training sees.

    Raises:
        SettingsError: the total is less than any epoch, or more than `max_repeat` epochs.
    """
    total, repeated = selection.training, selection.max_repeat * most
    if total is not None and not least <= total <= repeated:
        name = "training_documents" if selection.training_documents else "training_tokens"
        epoch = f"{most:,}" if least == most else f"from {least:,} to {most:,}"
        raise SettingsError(
            f"selection.{name}: {total:,}, but the subset has {epoch}, or {repeated:,} with "
            f"repeats (selection.max_repeat); set a number from {least} to {repeated}"
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
    total = total_units(selection, num_documents)
    in_tokens = selection.tokens is not None
    there = left.tokens_total if in_tokens else left.kept_total
    if total > there:
        raise SettingsError(
            f"selection: {total:,} {'tokens' if in_tokens else 'documents'} are to be kept, but "
            f"pruning (quality.prune_fraction) and dropped documents leave {there:,}"
        )
    return total


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

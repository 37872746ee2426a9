"""Estimate the published subset and choose its files, from the plan and the settings alone.

This is pure integer arithmetic, so that equal plans give equal files on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datamask.config.outputs import MOST_DUMPS, OTHER_DUMPS
from datamask.config.selection import Selection
from datamask.runs.budget import total_budget
from datamask.storage.contents import parse_json

DUMPS_KEY = b"datamask-dumps"
"""Key in plan.parquet's metadata for the number of documents of each dump in each shard (JSON)."""

BYTES_PER_TOKEN = 4


def expected_documents(selection: Selection, num_documents: int, num_bytes: int) -> int:
    """Return the number of documents to keep; for a budget of tokens, estimate it from bytes."""
    if selection.tokens is None:
        return total_budget(selection, num_documents)
    kept = num_documents * selection.tokens * BYTES_PER_TOKEN // max(num_bytes, 1)
    return max(1, min(kept, num_documents))


def planned_dumps(notes: Mapping[bytes, bytes]) -> list[dict[str, int]]:
    """Read the documents of each shard by dump from what plan.parquet says besides its rows.

    The list is empty if the subset is not divided by dump.

    Raises:
        ValueError: the plan is damaged.
    """
    by_shard: list[dict[str, int]] = parse_json(notes.get(DUMPS_KEY, b"[]"))
    names = {name for dumps in by_shard for name in dumps}
    return by_shard if names - {OTHER_DUMPS} and len(names) <= MOST_DUMPS else []


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

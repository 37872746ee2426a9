"""Budgets: exact to the document, whatever the split."""

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.config.selection import Selection
from datamask.runs.budget import total_budget
from datamask.runs.subset_files import SubsetFile, file_groups, subset_files


def test_a_ratio_is_taken_as_written():
    """0.1 of 15 is 1.5, rounded half up; binary floating point would blur the tie."""
    assert total_budget(Selection(ratio=0.1), 15) == 2
    assert total_budget(Selection(ratio=0.1), 14) == 1
    assert total_budget(Selection(ratio=0.001), 10) == 1
    assert total_budget(Selection(documents=7), 10) == 7


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.integers(1, 1000), min_size=1),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
    st.integers(1, 10),
    st.integers(10_000, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_every_shard_is_in_the_files_once_and_in_order(shard_dumps, has_dumps, tenths, file_bytes):
    """Files hold consecutive shards of one dump; a large shard is cut into all of its parts."""
    rows = [sum(dumps.values()) for dumps in shard_dumps]
    sizes, total = [number * 1000 for number in rows], max(1, sum(rows) * tenths // 10)
    files = subset_files(rows, sizes, total, file_bytes, shard_dumps if has_dumps else None)
    shard_dumps = shard_dumps if has_dumps else [{"": number} for number in rows]
    names = [file.dump for file in files]
    assert list(dict.fromkeys(names)) == list(dict.fromkeys(n for d in shard_dumps for n in d))
    assert sum(a != b for a, b in pairwise(names)) == len(set(names)) - 1
    for name in names:
        first_parts = [file.shards for file in files if file.dump == name and file.part == 0]
        having = [shard for shard, dumps in enumerate(shard_dumps) if name in dumps]
        assert [shard for shards in first_parts for shard in shards] == having
    parts: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for file in files:
        if file.parts > 1:
            parts.setdefault((file.dump, file.shards, file.parts), []).append(file.part)
    for (_, shards, number), cut in parts.items():
        assert len(shards) == 1 and cut == list(range(number))


def test_files_that_share_shards_are_in_one_group():
    """Dumps mixed in all shards together, dumps of their own shards and parts of a shard alone."""
    mixed = [{"a": 10, "b": 5, "c": 1} for _ in range(10)]
    files = subset_files([16] * 10, [16_000] * 10, 160, 20_000, mixed)
    assert [len(file.shards) for file in files] == [2] * 5 + [4, 4, 2, 10]
    groups = file_groups(files)
    pairs = zip(files, groups, strict=True)
    assert len({(group, shard) for file, group in pairs for shard in file.shards}) < 20
    assert sum(len(file.shards) for file in files) == 30

    alone = [SubsetFile(tuple(range(n, n + 3))) for n in range(0, 40, 2)]
    assert file_groups(alone) == list(range(20))
    parts = [SubsetFile((7,), part, 4) for part in range(4)]
    assert file_groups(parts) == list(range(4))
    many = [SubsetFile((0, 1), dump=f"d{n}") for n in range(40)]
    assert Counter(file_groups(many)) == {0: 16, 16: 16, 32: 8}

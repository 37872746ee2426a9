"""The cut over all shards with limits, against the oracle and brute force."""

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datamask.config.selection import NO_GROUP, Limit, Selection
from datamask.errors import SettingsError
from datamask.runs import schemas
from datamask.runs.budget import Counts, budget_problems, group_bounds
from datamask.selection.threshold import apply_cut, cut_table
from tests import oracle

# Few values, so that there are ties; large and tiny ones, so that bands differ.
LOGITS = st.sampled_from([-3.0e38, -2000.5, -1.0, -0.0, 0.0, 1e-45, 1.0, 1.0009765625, 3.0e38])
DOCUMENT = st.tuples(
    LOGITS,
    st.sampled_from([-1.5, -0.0, 0.0, 0.1]),
    st.sampled_from(["de", "en", NO_GROUP]),
    st.integers(1, 9),
)


UNITS = ("documents", "tokens")


def as_rows(documents):
    """Documents (logit, quality, group, tokens) in the columns of the cut's candidates."""
    return [
        (shard, name, float(np.float32(logit)), quality, f"d{shard:04d}", tokens)
        for shard, (logit, quality, name, tokens) in enumerate(documents)
    ]


def cut(documents, selection, total):
    """Run the cut on documents (logit, quality, group, tokens); what is kept, and its table."""
    rows = as_rows(documents)
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE candidates (shard INTEGER, name VARCHAR, logit FLOAT, quality DOUBLE, "
            "id VARCHAR, units BIGINT)"
        )
        connection.executemany("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?)", rows)
        table, _ = cut_table(connection, selection, total)
        kept = sorted(row[0] for row in connection.execute("SELECT shard FROM kept").fetchall())
        applied = apply_cut(connection, pa.Table.from_pylist(table, schema=schemas.CUT))
        assert np.flatnonzero(applied).tolist() == kept
    return kept, table, rows


def order(rows):
    """Documents from the first to be kept to the last."""
    return sorted(rows, key=lambda row: (-row[2], -row[3], row[4]))


@settings(max_examples=12, deadline=None)
@given(st.lists(DOCUMENT, min_size=3, max_size=30), st.data())
def test_limits_give_the_best_selection_that_respects_them(documents, data):
    """Against all numbers of kept documents per group, by the sum of places in the order."""
    documents = [(*d[:3], 1) for d in documents]
    total = data.draw(st.integers(1, len(documents)))
    there = {name: sum(d[2] == name for d in documents) for name in ("de", "en", NO_GROUP)}
    cap = data.draw(st.integers(0, total))
    floor = data.draw(st.integers(0, min(there["de"], total)))
    limits = (
        Limit(column="language", value="de", floor=floor / total),
        Limit(column="language", value=NO_GROUP),
        Limit(column="language", cap=cap / total),
    )
    selection = Selection(limits=limits)
    # A limit that names its group wins over the cap of "each group".
    caps = {"de": total, "en": cap, NO_GROUP: total}
    best = None
    for de in range(floor, min(there["de"], caps["de"], total) + 1):
        for en in range(min(there["en"], caps["en"], total - de) + 1):
            rest = total - de - en
            if rest > there[NO_GROUP]:
                continue
            chosen = choose(documents, {"de": de, "en": en, NO_GROUP: rest})
            best = chosen if best is None else min(best, chosen)
    if best is None:
        with pytest.raises(SettingsError, match=r"selection\.limits: the caps leave"):
            cut(documents, selection, total)
        return
    kept, _, rows = cut(documents, selection, total)
    places = {row[0]: place for place, row in enumerate(order(rows))}
    assert sorted(places[shard] for shard in kept) == best[1]


def choose(documents, numbers):
    """The first so many of each group: how far back the last is, then their places."""
    rows = [(i, d[2], float(np.float32(d[0])), d[1], f"d{i:03d}") for i, d in enumerate(documents)]
    places, left = [], dict(numbers)
    for place, row in enumerate(order(rows)):
        if left[row[1]]:
            left[row[1]] -= 1
            places.append(place)
    return sum(places), places


@settings(max_examples=40, deadline=None)
@given(st.lists(DOCUMENT, min_size=3, max_size=30), st.sampled_from([1, 1, 1, 0]), st.data())
def test_what_is_kept_is_what_the_oracle_keeps(documents, in_tokens, data):
    """With and without limits, in documents and tokens: to the document, ties by quality and id."""
    documents = [(*d[:3], d[3] if in_tokens else 1) for d in documents]
    share = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
    total = data.draw(st.integers(1, sum(d[3] for d in documents)))
    limits = [{"column": "language", "cap": data.draw(share)}] * data.draw(st.integers(0, 1))
    for name in data.draw(st.sets(st.sampled_from(["de", "en", NO_GROUP]))):
        floor, cap = sorted([data.draw(share), data.draw(share)])
        limits.append({"column": "language", "value": name, "floor": floor, "cap": cap})
    assume(sum(limit.get("floor", 0) for limit in limits) <= 1)
    chosen = {"scope": "corpus", UNITS[in_tokens]: total, "limits": limits}
    columns = ["shard", "language", "logit", "quality", "id", "tokens"]
    frame = pd.DataFrame(as_rows(documents), columns=columns).assign(dropped=None)
    try:
        oracle.check_groups({"selection": chosen}, frame)
        expected = oracle.keep({"selection": chosen}, frame)
    except oracle.Refused:
        with pytest.raises(SettingsError, match=r"selection\.limits"):
            cut(documents, Selection(**chosen), total)
        return
    kept, table, rows = cut(documents, Selection(**chosen), total)
    assert {rows[shard][4] for shard in kept} == expected
    assert sum(group["units"] for group in table) == sum(rows[shard][5] for shard in kept)


def test_a_budget_that_caps_do_not_fill_is_refused_with_what_they_leave():
    """Caps that add up to the budget, and documents that leave 40 % of each of them."""
    documents = [(-row / 10, 0.0, f"dump-{dump}", 60) for dump in range(10) for row in range(9)]
    selection = Selection(tokens=1000, limits=(Limit(column="dump", cap=0.1),))
    with pytest.raises(SettingsError, match="caps leave 600 tokens, but 1,000 are to be kept"):
        cut(documents, selection, 1000)


def test_floors_that_rounding_makes_too_many_are_refused():
    """Two halves of three documents would be four."""
    limits = tuple(Limit(column="language", value=name, floor=0.5) for name in ("de", "en"))
    groups = {"de": 9, "en": 9}
    counts = {number: Counts(18, groups=groups) for number in (3, 4)}
    problems = {
        number: list(budget_problems(Selection(documents=number, limits=limits), counts[number]))
        for number in counts
    }
    assert [len(problems[number]) for number in (3, 4)] == [1, 0]
    assert "floors add up to 4 documents, but only 3" in str(problems[3][0])


def test_a_named_group_goes_before_each_group():
    """`value` beats "each by itself", which documents without a group are as well."""
    selection = Selection(
        limits=(Limit(column="domain", cap=0.01), Limit(column="domain", value="a.org", cap=0.5))
    )
    found = group_bounds(selection, 1000, ["a.org", "b.org", NO_GROUP])
    assert [cap for _, cap in found.values()] == [500, 10, 10]
    only = Selection(limits=(Limit(column="domain", value=NO_GROUP, cap=0.5),))
    assert group_bounds(only, 1000, ["a.org", NO_GROUP]) == {NO_GROUP: (0, 500)}

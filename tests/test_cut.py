"""The cut over all shards, against sorting everything in Python."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask import schemas
from datamask.config import Limit, Selection
from datamask.cut import check_limits, cut_table, group_bounds
from datamask.errors import SettingsError

# Few values, so that there are ties; large and tiny ones, so that bands differ.
LOGITS = st.sampled_from([-3.0e38, -2000.5, -1.0, -0.001, 0.0, 0.001, 1.0, 1.0009765625, 3.0e38])
DOCUMENT = st.tuples(
    LOGITS,
    st.sampled_from([-1.5, 0.0, 0.1]),
    st.sampled_from(["de", "en", None]),
    st.integers(1, 9),
)


def cut(documents, selection, total):
    """Run the cut on documents (logit, quality, group, tokens); what is kept, and its table."""
    rows = [
        (shard, name, float(np.float32(logit)), quality, f"d{shard:03d}", tokens)
        for shard, (logit, quality, name, tokens) in enumerate(documents)
    ]
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE candidates (shard INTEGER, name VARCHAR, logit FLOAT, quality DOUBLE, "
            "id VARCHAR, units BIGINT)"
        )
        connection.executemany("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?)", rows)
        table = cut_table(connection, selection, total)
        kept = connection.execute("SELECT shard FROM kept").fetchall()
    return sorted(shard for (shard,) in kept), table, rows


def order(rows):
    """Documents from the first to be kept to the last."""
    return sorted(rows, key=lambda row: (-row[2], -row[3], row[4]))


def is_kept_by(table, row):
    """Whether a row is kept, from the table of last documents alone."""
    last = {found["group"]: found for found in table}
    found = last.get(row[1], last[None])
    return (-row[2], -row[3], row[4]) <= (-found["logit"], -found["quality"], found["id"])


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=40), st.data())
def test_the_best_documents_are_kept_until_the_budget_is_met(documents, data):
    """Documents to the document, tokens within one, ties by quality and id."""
    in_tokens = data.draw(st.booleans())
    selection = Selection(tokens=1) if in_tokens else Selection()
    documents = [(*d[:3], d[3] if in_tokens else 1) for d in documents]
    total = data.draw(st.integers(1, sum(d[3] for d in documents)))
    kept, table, rows = cut(documents, selection, total)
    expected, units = [], 0
    for row in order(rows):
        if units >= total:
            break
        expected.append(row[0])
        units += row[5]
    assert kept == sorted(expected)
    assert [row[0] for row in rows if is_kept_by(table, row)] == kept
    assert sum(found["units"] for found in table) == units
    assert sum(found["documents"] for found in table) == len(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENT, min_size=3, max_size=30), st.data())
def test_limits_give_the_best_selection_that_respects_them(documents, data):
    """Against all numbers of kept documents per group, by the sum of places in the order."""
    documents = [(*d[:3], 1) for d in documents]
    total = data.draw(st.integers(1, len(documents)))
    there = {name: sum(d[2] == name for d in documents) for name in ("de", "en", None)}
    cap = data.draw(st.integers(0, total))
    floor = data.draw(st.integers(0, min(there["de"], total)))
    limits = (
        Limit(column="language", value="de", floor=floor / total),
        Limit(column="language", cap=cap / total),
    )
    selection = Selection(limits=limits)
    # A floor wins over the cap of "each group", because it names its group.
    caps = {"de": total, "en": cap, None: total}
    best = None
    for de in range(floor, min(there["de"], caps["de"], total) + 1):
        for en in range(min(there["en"], caps["en"], total - de) + 1):
            rest = total - de - en
            if rest > there[None]:
                continue
            chosen = choose(documents, {"de": de, "en": en, None: rest})
            best = chosen if best is None else min(best, chosen)
    if best is None:
        with pytest.raises(SettingsError, match=r"selection\.limits: the caps leave"):
            cut(documents, selection, total)
        return
    kept, table, rows = cut(documents, selection, total)
    places = {row[0]: place for place, row in enumerate(order(rows))}
    assert sorted(places[shard] for shard in kept) == best[1]
    assert [row[0] for row in rows if is_kept_by(table, row)] == kept


def choose(documents, numbers):
    """The first so many of each group: how far back the last is, then their places."""
    rows = [(i, d[2], float(np.float32(d[0])), d[1], f"d{i:03d}") for i, d in enumerate(documents)]
    places, left = [], dict(numbers)
    for place, row in enumerate(order(rows)):
        if left[row[1]]:
            left[row[1]] -= 1
            places.append(place)
    return sum(places), places


def test_a_floor_that_cannot_be_met_is_one_line():
    """Before anything is learnt: the group, what is asked, what is there."""
    selection = Selection(limits=(Limit(column="language", value="fi", floor=0.5),))
    with pytest.raises(SettingsError, match=r"language fi asks for 5 documents, only 2 are left"):
        check_limits(selection, 10, {"fi": 2, "en": 30})


def test_floors_that_rounding_makes_too_many_are_refused():
    """Two halves of three documents would be four."""
    limits = tuple(Limit(column="language", value=name, floor=0.5) for name in ("de", "en"))
    with pytest.raises(SettingsError, match="floors add up to 4 documents, 3 are to be kept"):
        check_limits(Selection(limits=limits), 3, {"de": 9, "en": 9})
    check_limits(Selection(limits=limits), 4, {"de": 9, "en": 9})


def test_a_named_group_goes_before_each_group():
    """`value` beats "each by itself", and documents without a group are free."""
    selection = Selection(
        limits=(Limit(column="domain", cap=0.01), Limit(column="domain", value="a.org", cap=0.5))
    )
    caps = [group_bounds(selection, 1000, name) for name in ("a.org", "b.org", None)]
    assert [None if bounds is None else bounds.cap for bounds in caps] == [500, 10, None]


def test_the_tables_schema_is_the_declared_one():
    """One row for the corpus, in the columns of `schemas.CUT`."""
    _, table, _ = cut([(0.5, 0.0, None, 1), (0.25, 0.0, None, 1)], Selection(), 1)
    assert [list(row) for row in table] == [schemas.CUT.names]
    assert table[0]["group"] is None and table[0]["documents"] == 1

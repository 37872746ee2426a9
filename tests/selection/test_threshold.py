"""The cut over all shards with limits, against sorting everything in Python."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datamask.config.selection import NO_GROUP, Limit, Selection
from datamask.errors import SettingsError
from datamask.runs import schemas
from datamask.selection.limits import Bounds, check_limits, group_bounds
from datamask.selection.threshold import apply_cut, cut_table

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
        table = cut_table(connection, selection, total)
        kept = sorted(row[0] for row in connection.execute("SELECT shard FROM kept").fetchall())
        applied = apply_cut(connection, pa.Table.from_pylist(table, schema=schemas.CUT))
        assert np.flatnonzero(applied).tolist() == kept
    return kept, table, rows


def order(rows):
    """Documents from the first to be kept to the last."""
    return sorted(rows, key=lambda row: (-row[2], -row[3], row[4]))


@settings(max_examples=12, deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=40), st.booleans(), st.data())
def test_without_limits_the_best_are_kept_until_the_budget_is_met(documents, in_tokens, data):
    """Documents to the document, tokens within one, ties by quality and id."""
    documents = [(*d[:3], d[3] if in_tokens else 1) for d in documents]
    total = data.draw(st.integers(1, sum(d[3] for d in documents)))
    kept, table, rows = cut(documents, Selection(**{UNITS[in_tokens]: total}), total)
    ordered = order(rows)
    upto = np.cumsum([row[5] for row in ordered])
    number = int(np.searchsorted(upto, total)) + 1
    assert kept == sorted(row[0] for row in ordered[:number])
    (row,), last = table, ordered[number - 1]
    assert (row["logit"], row["quality"], row["id"]) == last[2:5]
    assert row["units"] == upto[number - 1]


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


def walk(rows, limits, total):
    """The rules of limits in tokens, a document at a time; shards kept, and the longest skipped."""
    named = {limit.value: limit for limit in limits}
    taken, forced, crossing, free, skipped = {}, [], [], [], [0]
    for row in order(rows):
        limit = named.get(row[1], named.get(None))
        if limit is None:
            free.append(row)
            continue
        floor, cap, before = (
            round(limit.floor * total),
            round(limit.cap * total),
            taken.get(row[1], 0),
        )
        if before + row[5] > cap:
            skipped += [row[5]] if row[5] <= cap else []
            continue
        taken[row[1]] = before + row[5]
        if before >= floor:
            free.append(row)
        else:
            (crossing if before + row[5] > floor else forced).append(row)
    if sum(row[5] for row in forced + crossing) <= total:
        forced, crossing = forced + crossing, []
    kept, units = list(forced), sum(row[5] for row in forced)
    for row in order(free + crossing):
        if units >= total:
            break
        kept.append(row)
        units += row[5]
    return sorted(row[0] for row in kept), units, max(skipped)


@settings(max_examples=12, deadline=None)
@given(st.lists(DOCUMENT, min_size=3, max_size=30), st.data())
def test_what_does_not_fit_into_a_cap_of_tokens_is_skipped(documents, data):
    """Against the rules a document at a time; a shard needs nothing but the table."""
    share = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
    total = data.draw(st.integers(1, sum(d[3] for d in documents)))
    limits = [Limit(column="language", cap=data.draw(share))]
    for name in data.draw(st.sets(st.sampled_from(["de", "en", NO_GROUP]))):
        floor, cap = sorted([data.draw(share), data.draw(share)])
        limits.append(Limit(column="language", value=name, floor=floor, cap=cap))
    limits = limits[data.draw(st.integers(0, 1)) :] or limits
    assume(sum(limit.floor for limit in limits) <= 1)
    selection = Selection(tokens=total, limits=tuple(limits))
    try:
        kept, table, rows = cut(documents, selection, total)
    except SettingsError as error:
        rows = as_rows(documents)
        _, units, longest = walk(rows, limits, total)
        named = str(error).partition("the caps leave ")[2].startswith(f"{units} ")
        if not (named and total - units >= longest):
            assert_bounds_too_narrow(rows, limits, total)
        return
    expected, units, longest = walk(rows, limits, total)
    assert kept == expected
    assert sum(found["units"] for found in table) == units
    assert units >= total or total - units < longest


def assert_bounds_too_narrow(rows, limits, total):
    """Some floor or the caps cannot be met by any order of the documents."""
    named = {limit.value: limit for limit in limits}
    there = {limit.value: 0 for limit in limits if limit.value} | {row[1]: 0 for row in rows}
    bounds = {name: named.get(name, named.get(None)) for name in there}
    for row in rows:
        limit = bounds[row[1]]
        there[row[1]] += row[5] * (limit is None or row[5] <= round(limit.cap * total))
    most = sum(
        min(units, round(bounds[name].cap * total)) if bounds[name] else units
        for name, units in there.items()
    )
    floors = {name: round(named[name].floor * total) for name in named if name}
    short = any(there[name] < floor for name, floor in floors.items())
    assert short or most < total or sum(floors.values()) > total


def test_a_budget_that_caps_do_not_fill_is_refused_with_what_they_leave():
    """Caps that add up to the budget, and documents that leave 40 % of each of them."""
    documents = [(-row / 10, 0.0, f"dump-{dump}", 60) for dump in range(10) for row in range(9)]
    selection = Selection(tokens=1000, limits=(Limit(column="dump", cap=0.1),))
    with pytest.raises(SettingsError, match="caps leave 600 tokens, 1000 are to be kept"):
        cut(documents, selection, 1000)


def test_floors_that_rounding_makes_too_many_are_refused():
    """Two halves of three documents would be four."""
    limits = tuple(Limit(column="language", value=name, floor=0.5) for name in ("de", "en"))
    with pytest.raises(SettingsError, match="floors add up to 4 documents, 3 are to be kept"):
        check_limits(Selection(limits=limits), 3, {"de": 9, "en": 9})
    check_limits(Selection(limits=limits), 4, {"de": 9, "en": 9})


def test_a_named_group_goes_before_each_group():
    """`value` beats "each by itself", which documents without a group are as well."""
    selection = Selection(
        limits=(Limit(column="domain", cap=0.01), Limit(column="domain", value="a.org", cap=0.5))
    )
    found = group_bounds(selection, 1000, ["a.org", "b.org", NO_GROUP])
    assert [bounds.cap for bounds in found.values()] == [500, 10, 10]
    only = Selection(limits=(Limit(column="domain", value=NO_GROUP, cap=0.5),))
    assert group_bounds(only, 1000, ["a.org", NO_GROUP]) == {NO_GROUP: Bounds(0, 500)}

"""Benchmarks in documents through real runs, against sets of n-grams in plain Python."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from datamask.runs import schemas
from tests.conftest import mostly_nightly
from tests.hygiene.screened import columns_of, judged, prose, screened, texts_of, write
from tests.hygiene.test_words import words_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@dataclass(frozen=True)
class Item:
    """A row of a benchmark: its n-grams in order, and those inside a column."""

    name: str
    ngrams: list[tuple[str, ...]]
    inside: set[tuple[str, ...]]


def ngrams_of(words: list[str], n: int) -> list[tuple[str, ...]]:
    """All n-grams, in order."""
    return [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]


def items_of(sets: list[dict[str, Any]], n: int) -> list[Item]:
    """The items of benchmarks; one of 5 to n - 1 words is a single n-gram."""
    return [
        Item(
            one["name"],
            ngrams_of(words, size),
            {ngram for text in columns for ngram in ngrams_of(words_of(text), size)},
        )
        for one in sets
        for columns in columns_of(one)
        for words in [[word for text in columns for word in words_of(text)]]
        for size in [len(words) if 5 <= len(words) < n else n]
    ]


Verdict = tuple[str, int, str, float] | None


def verdict(text: str, items: list[Item], common: set[tuple[str, ...]], covered: float) -> Verdict:
    """Name, place, words and share of the item of which a text holds most, item by item."""
    words = words_of(text)
    best: Verdict = None
    for item in items:
        counted = {*item.ngrams} - common
        n = len(item.ngrams[0]) if item.ngrams else len(words) + 1
        at = {ngram: place for place, ngram in reversed([*enumerate(ngrams_of(words, n))])}
        held = counted.intersection(at)
        share = len(held) / max(len(counted), 1)
        counts = share >= covered or held & item.inside
        if held and counts and (best is None or share > best[3]):
            first = min(held, key=at.__getitem__)
            best = (item.name, at[first], " ".join(first), share)
    return best


@pytest.mark.parametrize(
    ("ngram", "action"),
    mostly_nightly(
        [(13, "drop_covered"), (4, "drop"), (13, "flag")],
        product((4, 13), ("drop_covered", "drop", "flag")),
    ),
)
def test_items_are_covered_or_quoted_exactly(tmp_path, benchmarks, ngram, action):
    """Each document's item, share, first n-gram and its place; n-grams that are common aside."""
    generator = random.Random(ngram)
    known = [" ".join(words_of(text)) for one in benchmarks for text in texts_of(one)]
    documents, domains = [], []
    for number in range(160):
        words = prose(generator, generator.randrange(1, 80)).split()
        # Two items in 40 documents each, of which those of the second are of one domain.
        many = {0: known[-1:], 1: known[-2:-1]}
        leak = generator.choice(many.get(number % 4, known[:-2])).split()
        size = generator.choice([ngram - 1, ngram, ngram + 3, 40])
        start = generator.randrange(max(len(leak) - size // 2, 1)) if number % 4 > 1 else 0
        place = generator.randrange(len(words))
        words[place:place] = [
            word.title() + generator.choice(",.- ") for word in leak[start : start + size]
        ]
        documents.append(" ".join(words))
        others = ["https://a.org/", "https://b.org/", None]
        domains.append("https://c.org/" if number % 4 == 1 else generator.choice(others))
    write(tmp_path / "source" / "a.parquet", documents, url=domains)
    chosen = {"sets": benchmarks, "ngram": ngram, "action": action, "common": 6, "covered": 0.6}
    run = screened(tmp_path / "run", tmp_path / "source", contamination=chosen)
    items = items_of(benchmarks, ngram)
    holders: dict[tuple[str, ...], set[int]] = {}
    for number, text in enumerate(documents):
        for size, words in product({ngram, *range(5, ngram)}, [words_of(text)]):
            for shared in ngrams_of(words, size):
                holders.setdefault(shared, set()).add(number)
    common = {
        shared
        for shared, of in holders.items()
        if len(of) > 6 and len({domains[number] or number for number in of}) > 1
    }
    names: Counter[str] = Counter()
    for row, text in zip(judged(run).values(), documents, strict=True):
        expected = verdict(text, items, common, 0.6)
        assert tuple(row[name] for name in schemas.CONTAMINATION.names) == (
            expected or (None, None, None, None)
        )
        is_covered = expected is not None and expected[3] >= 0.6
        is_dropped = (action == "drop" and expected) or (action == "drop_covered" and is_covered)
        assert row["dropped"] == ("contaminated" if is_dropped else None)
        names["covered" if is_covered else "quoted" if expected else "none"] += 1
    assert min(names.values()) > 10
    metrics = run.receipt("benchmark_ngrams").metrics
    counted = run.receipt("quality", 0).metrics["common_ngrams"]
    for one in benchmarks:
        lengths = [len(words_of(text)) for text in texts_of(one)]
        assert metrics[one["name"]]["texts"] == len(lengths)
        assert metrics[one["name"]]["short"] == sum(length < min(5, ngram) for length in lengths)
        of_set = {ngram for item in items if item.name == one["name"] for ngram in item.ngrams}
        assert counted[one["name"]] == len(of_set & common)
    assert sum(counted.values()) > 0

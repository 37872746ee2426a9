"""Benchmarks in documents through real runs, against sets of n-grams in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.hygiene.screened import judged, prose, screened, texts_of, write
from tests.hygiene.test_words import words_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.mark.parametrize("action", ["drop", "flag"])
@pytest.mark.parametrize("ngram", [4, 13])
def test_shared_ngrams_are_found_exactly(
    tmp_path: Path, benchmarks: list[dict[str, Any]], ngram: int, action: str
) -> None:
    """The first n-gram of each document that a set has, the set and its place, and no other."""
    generator = random.Random(ngram)
    known = [" ".join(words_of(text)) for one in benchmarks for text in texts_of(one)]
    documents = []
    for _ in range(120):
        words = prose(generator, generator.randrange(1, 80)).split()
        leak = generator.choice(known).split()
        start = generator.randrange(max(len(leak), 1))
        part = leak[start : start + generator.choice([ngram - 1, ngram, ngram + 3])]
        place = generator.randrange(len(words))
        words[place:place] = [word.title() + generator.choice(",.- ") for word in part]
        documents.append(" ".join(words))
    write(tmp_path / "source" / "a.parquet", documents)
    chosen = {"sets": benchmarks, "ngram": ngram, "action": action}
    run = screened(tmp_path / "run", tmp_path / "source", contamination=chosen)
    sets = {
        one["name"]: {
            tuple(words[i : i + ngram])
            for text in texts_of(one)
            for words in [words_of(text)]
            for i in range(len(words) - ngram + 1)
        }
        for one in benchmarks
    }
    hits = 0
    for row, text in zip(judged(run).values(), documents, strict=True):
        words = words_of(text)
        expected: tuple[Any, ...] = (None, None, None)
        for place in range(len(words) - ngram + 1):
            shared = tuple(words[place : place + ngram])
            of = [name for name in sets if shared in sets[name]]
            if of:
                expected = (of[0], place, " ".join(shared))
                break
        found = (row["contaminated_by"], row["contaminated_at"], row["contaminated_ngram"])
        assert found == expected
        is_dropped = expected[0] is not None and action == "drop"
        assert row["dropped"] == ("contaminated" if is_dropped else None)
        hits += expected[0] is not None
    assert 20 < hits < 110
    metrics = run.receipt("benchmark_ngrams").metrics
    for one in benchmarks:
        lengths = [len(words_of(text)) for text in texts_of(one)]
        assert metrics[one["name"]]["texts"] == len(lengths)
        assert metrics[one["name"]]["short"] == sum(length < ngram for length in lengths)

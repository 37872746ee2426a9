"""Comparators that read texts, and exact near-copies, against their definitions."""

import hashlib
import itertools
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.debian_texts import _pieces, _Sections, is_prose
from benchmarks.near_copies import kept_copies, ngrams_of, overlapping, similar_pairs
from benchmarks.text_sampling import dsir, quadmix, qurating


def texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of a small vocabulary, each second one with a word changed."""
    generator = np.random.default_rng(seed)
    words = [f"word{number}" for number in range(30)]
    found: list[str] = []
    for number in range(count):
        line = generator.choice(words, 40).tolist()
        if number % 2:
            line = found[-1].split()
            line[int(generator.integers(40))] = "changed"
        found.append(" ".join(line))
    return found


def test_dsir_is_importance_resampling():
    """Weights from counts in dictionaries, by the formula of the paper, plus the same noise."""
    raw, target = texts(20), texts(5, seed=1)

    def grams(text: str) -> Counter[int]:
        words = re.findall(r"[a-z0-9]+", text)
        some = words + [f"{words[i]} {words[i + 1]}" for i in range(len(words) - 1)]
        return Counter(
            int.from_bytes(hashlib.sha256(g.encode()).digest(), "big") % 10_000 for g in some
        )

    wanted, present = Counter[int](), Counter[int]()
    for some, into in ((target, wanted), (raw, present)):
        for text in some:
            into.update(grams(text))
    noise = np.random.default_rng(3).gumbel(size=20)
    found = dsir(raw, target, np.random.default_rng(3)) - noise
    for text, weight in zip(raw, found, strict=True):
        expected = sum(
            number
            * (
                np.log(wanted[bucket] / wanted.total() + 1e-8)
                - np.log(present[bucket] / present.total() + 1e-8)
            )
            for bucket, number in grams(text).items()
        )
        assert weight == pytest.approx(expected)


def test_quadmix_follows_equation_3():
    """Expected numbers of two domains: equal ranks have equal numbers, and the worse have ε."""
    quality = np.arange(40.0)
    domains = np.arange(40) % 2
    noise = np.random.default_rng(3).gumbel(size=40)
    found = quadmix(quality, domains, 0.25, np.random.default_rng(3), steepness=10, floor=0.01)
    expected = np.exp(found - noise)
    assert np.allclose(expected[::2], expected[1::2])
    for place in range(20):  # best first
        rank = (place + 1) / 20
        inside = 2 / (1 + np.exp(-10 * (0.25 - rank))) + 0.01 if rank <= 0.25 else 0.01
        assert expected[::2][19 - place] == pytest.approx(inside)


def test_qurating_draws_by_temperature():
    """The first draw has the chances exp(z / τ), over many draws; no document has a chance of 0."""
    quality = np.array([0.0, 1.0, 4.0])
    z = (quality - quality.mean()) / quality.std()
    for temperature in (0.5, 2.0):
        generator = np.random.default_rng(0)
        drawn = [qurating(quality, generator, temperature=temperature) for _ in range(20_000)]
        shares = np.bincount(np.argmax(drawn, axis=1), minlength=3) / 20_000
        expected = np.exp(z / temperature) / np.exp(z / temperature).sum()
        assert shares == pytest.approx(expected, abs=0.015)


def test_near_copies_are_those_of_all_pairs():
    """Pairs, against sets of word 5-grams of every pair; and documents kept twice."""
    some = texts(30)

    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    expected = [
        (a, b)
        for a, b in itertools.combinations(range(30), 2)
        if len(grams(some[a]) & grams(some[b])) >= 0.7 * len(grams(some[a]) | grams(some[b]))
    ]
    ngrams = ngrams_of(pa.chunked_array([[*some, "again " * 20]]))
    before = ngrams[1].copy()
    pairs = overlapping(ngrams, 0.7)
    assert np.array_equal(ngrams[1], before)
    assert 10 < len(expected) < 20
    assert sorted(map(tuple, pairs.tolist())) == expected
    selected = np.ones(31, bool)
    selected[expected[0][0]] = False
    assert kept_copies(pairs, selected) == len({b for _, b in expected}) - 1


def test_similar_pairs_are_those_of_all_cosines():
    """Pairs and cosines, against every pair, across more than one block."""
    vectors = np.random.default_rng(0).standard_normal((1100, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs, cosines = similar_pairs(vectors, 0.999)
    whole = vectors @ vectors.T
    expected = np.argwhere(np.triu(whole >= 0.999, 1))
    assert {*map(tuple, pairs.tolist())} >= {*map(tuple, expected[:50].tolist())}
    assert abs(len(pairs) - len(expected)) <= 2  # rounding of products of other shapes
    assert np.allclose(cosines, whole[pairs[:, 0], pairs[:, 1]])


def test_pages_become_prose():
    """Sections of HTML without scripts; long ones in pieces of paragraphs; tables are not prose."""
    reader = _Sections()
    reader.feed("<h1>One</h1><p>first<script>no</script> text</p><h2>Two</h2><p>second</p>")
    parts = [" ".join("".join(part).split()) for part in reader.sections]
    assert parts == ["", "One first text", "Two second"]
    paragraph = "It is a sentence of the kind that is in the text of a page. " * 10
    pieces = list(_pieces("\n\n".join([paragraph] * 10)))
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 4000
    assert all(is_prose(piece) for piece in pieces)
    assert not is_prose("name value unit " * 30)

"""Signatures and clusters against exact Jaccard similarities in plain Python."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from datamask.errors import RunError
from datamask.hygiene import minhash, words
from datamask.hygiene.words import hash_ngrams, split_words

VOCABULARY = [f"word{number}" for number in range(3000)]


def sign(texts: list[str], n: int = 5) -> minhash.Signatures:
    """Signatures as screening makes them."""
    return minhash.sign(hash_ngrams(split_words(pa.array(texts, pa.large_string())), n))


def jaccard(first: str, second: str, n: int = 5) -> float:
    """The similarity of the sets of n-grams, by definition."""
    sets = []
    for text in (first, second):
        words = text.split()
        sets.append({tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def edited(generator: random.Random, text: str, edits: int) -> str:
    """Copy a text, and replace, leave out or add so many words."""
    words = text.split()
    for _ in range(edits):
        place, kind = generator.randrange(len(words)), generator.randrange(3)
        words[place : place + (kind < 2)] = [generator.choice(VOCABULARY)] * (kind > 0)
    return " ".join(words)


def components(pairs: list[tuple[int, int]], count: int) -> list[int]:
    """The smallest document of each one's component, by repeated passes over all pairs."""
    least = list(range(count))
    changed = True
    while changed:
        changed = False
        for a, b in pairs:
            low = min(least[a], least[b])
            changed |= (least[a], least[b]) != (low, low)
            least[a] = least[b] = low
    return least


def estimate(first: np.ndarray, second: np.ndarray) -> float:
    """Compute similarity by the low 4 bits of the values; one in sixteen different ones agree."""
    return float((np.mean(first % 16 == second % 16) - 1 / 16) / (15 / 16))


def named(labels: np.ndarray) -> list[int]:
    """Labels of clusters as the smallest document of each."""
    first: dict[int, int] = {}
    return [first.setdefault(label, place) for place, label in enumerate(labels.tolist())]


def test_signatures_stay_what_they_were():
    """Another version of rensa, or of the hashes, would make signatures of old runs useless."""
    signature = sign(["The quick brown fox jumps over the lazy dog, again and again."])[0]
    assert signature[:6].tolist() == GOLDEN


GOLDEN = [14013, 47728, 55701, 21725, 17789, 49344]


def test_another_algorithm_is_refused(monkeypatch):
    """Its signatures could not be compared with another machine's."""
    monkeypatch.setattr(words, "_ALGORITHM", 1)
    with pytest.raises(RunError, match=r"version 2, but version 1 is needed; install rensa"):
        sign(["a"])


@pytest.mark.parametrize("length", [6, 30, 300])
def test_estimates_are_jaccard_similarities(length):
    """Without bias, within the errors that the code states."""
    generator = random.Random(length)
    errors: list[list[float]] = []
    for _ in range(150):
        text = " ".join(generator.choices(VOCABULARY, k=length))
        other = edited(generator, text, generator.randrange(1 + length // 15))
        first, second = sign([text, other])
        exact = jaccard(text, other)
        errors.append([float(np.mean(first == second)) - exact, estimate(first, second) - exact])
    largest = np.array([0.044, 0.047])
    assert (np.abs(np.mean(errors, axis=0)) < 3 * largest / math.sqrt(len(errors))).all()
    assert (np.std(errors, axis=0) < largest).all()


@pytest.mark.parametrize("similarity", [0.5, 0.63, 0.8, 0.9, 0.97, 1.0])
def test_a_pair_that_is_just_similar_enough_shares_a_band(similarity):
    """In 99 % of draws at least; wider bands would miss more."""
    width = minhash.band_width(similarity)
    generator = np.random.default_rng(0)
    agrees = generator.random((20_000, minhash.NUMBERS)) < similarity

    def found(width: int) -> float:
        bands = minhash.NUMBERS // width
        return float(agrees[:, : bands * width].reshape(-1, bands, width).all(2).any(1).mean())

    assert found(width) >= 0.987
    assert width == minhash.NUMBERS or found(width + 1) < 0.993


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_all_pairs(seed):
    """Of pairs whose signatures agree enough, compared one by one; hardly any is missed."""
    generator = random.Random(seed)
    texts: list[str] = []
    for _ in range(60):
        text = " ".join(generator.choices(VOCABULARY, k=generator.randrange(10, 200)))
        copies = generator.choice([0, 0, 1, 2, 5])
        texts += [text] + [edited(generator, text, generator.randrange(6)) for _ in range(copies)]
    generator.shuffle(texts)
    signatures = sign(texts)
    count = len(texts)
    pairs = [
        (a, b)
        for a in range(count)
        for b in range(a)
        if estimate(signatures[a], signatures[b]) >= 0.7
    ]
    assert len(pairs) > 40
    assert named(minhash.cluster(signatures, 0.7)) == components(pairs, count)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_buckets_one_by_one(seed, monkeypatch):
    """Exactly: chains, copies, buckets that are larger than what is compared, earlier documents."""
    generator = np.random.default_rng(seed)
    count, near = 150, 3
    rows = generator.integers(0, 2**16, (count, minhash.NUMBERS)).astype("<u2")
    for place in range(1, count):
        if place % 10:
            rows[place] = rows[place - generator.integers(1, min(place, 4) + 1)]
            changed = generator.integers(0, minhash.NUMBERS, generator.choice([0, 8, 28]))
            rows[place, changed] = generator.integers(0, 2**16, len(changed))
    sketches = minhash.sketch(rows)
    buckets = np.sort(generator.integers(0, 12, count))
    is_earlier = generator.random(count) < 0.3 * (seed % 2)
    order = np.lexsort((~is_earlier, *sketches.T, buckets))
    rows, sketches, is_earlier = rows[order], sketches[order], is_earlier[order]
    monkeypatch.setattr(minhash, "NEIGHBOURS", near)
    labels, lasts = minhash.join_similar(buckets, sketches, 0.8, is_earlier)
    pairs: list[tuple[int, int]] = []
    expected_lasts = []
    for bucket in range(12):
        groups: dict[bytes, list[int]] = {}
        for place in np.flatnonzero(buckets == bucket).tolist():
            groups.setdefault((rows[place] % 16).tobytes(), []).append(place)
        equal = list(groups.values())
        expected_lasts += [group[-1] for group in equal]
        for index, group in enumerate(equal):
            pairs += [(group[0], place) for place in group[1:]]
            for other in equal[max(index - near, 0) : index]:
                are_earlier = all(is_earlier[[*group, *other]])
                if not are_earlier and estimate(rows[group[0]], rows[other[0]]) >= 0.8:
                    pairs.append((group[0], other[0]))
    assert 0 < len(pairs) < count
    assert lasts.tolist() == expected_lasts
    assert labels.tolist() == components(pairs, count)
    assert len(minhash.join_similar(buckets[:0], sketches[:0], 0.8)[0]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_divided_one_document_after_the_other(seed):
    """By plain loops over all that is kept: chains, copies, earlier documents."""
    generator, count = np.random.default_rng(seed), 150
    rows = generator.integers(0, 2**16, (count, minhash.NUMBERS)).astype("<u2")
    for place in range(1, count):
        rows[place] = rows[place - generator.integers(1, min(place, 4) + 1)]
        changed = generator.integers(0, minhash.NUMBERS, generator.choice([0, 8, 14, 28]))
        rows[place, changed] = generator.integers(0, 2**16, len(changed))
    rows = generator.permutation(rows)
    clusters = np.sort(generator.integers(0, 3, count))
    is_earlier = np.concatenate([np.arange(c) < 3 for c in np.bincount(clusters)])
    exact = generator.random((count, count))

    def compare(document: int, other: int) -> tuple[bool, float, float]:
        return exact[document, other] > 0.3, exact[document, other], 0.5

    others_of, dropped, figures = minhash.resembled(
        clusters, minhash.sketch(rows), is_earlier, 0.8, compare
    )
    expected, copied = list(range(count)), list[int]()
    in_band: dict[tuple[int, int, bytes], list[int]] = {}
    for place in range(count):
        bands = [
            (clusters[place], start, (rows[place, start : start + 6] % 16).tobytes())
            for start in range(0, 126, 6)
        ]
        others = {other for band in bands for other in in_band.get(band, [])}
        near = [k for k in others if estimate(rows[place], rows[k]) > 0.7 + 1e-9]
        similar = [k for k in near if exact[place, k] > 0.3]
        if near and not is_earlier[place]:
            expected[place] = min(similar, default=max(near, key=lambda k: exact[place, k]))
        if similar and not is_earlier[place]:
            copied.append(place)
            continue
        for band in bands:
            in_band.setdefault(band, []).append(place)
    assert 20 < len(copied) < count - 20
    assert others_of.tolist() == expected and np.flatnonzero(dropped).tolist() == copied
    pairs = [row for row, other in enumerate(expected) if other != row]
    assert len(pairs) > len(copied)
    for row in pairs:
        estimated = estimate(rows[row], rows[expected[row]])
        assert figures[row] == pytest.approx([estimated, exact[row, expected[row]], 0.5])


def test_only_the_first_of_a_crowded_band_are_compared(monkeypatch):
    """Two documents fill all bands of a third, which its own copy is then not compared with."""
    rows = np.random.default_rng(0).integers(0, 2**16, (4, minhash.NUMBERS)).astype("<u2")
    rows[0, :66], rows[1, 66:] = rows[2, :66], rows[2, 66:]
    rows[3, 8:] = rows[2, 8:]
    for most, expected in ((1, [0, 1, 2, 3]), (2, [0, 1, 2, 2])):
        monkeypatch.setattr(minhash, "NEIGHBOURS", most)
        one_cluster, none = np.zeros(4, np.int64), np.zeros(4, bool)
        others_of, *_ = minhash.resembled(
            one_cluster, minhash.sketch(rows), none, 0.8, lambda *pair: (True, 1.0, 1.0)
        )
        assert others_of.tolist() == expected

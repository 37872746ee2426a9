"""MinHash signatures, locality-sensitive hashing in bands, and similar documents.

A signature has 128 hash values (Fast Similarity Sketching, Dahlgaard et al. 2017, as implemented in
`rensa`). The probability that two documents agree in a value is their Jaccard similarity. Only the
low 16 bits of each value are kept, which adds at most 2⁻¹⁶ to this probability (b-bit minwise
hashing, Li and König 2010). Candidate pairs come from bands (Broder 1997; Leskovec et al., ch. 3):
documents that agree in all values of a band are compared by sketches, the low 4 bits of all values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from datamask.hygiene.words import FACTOR, Hashes, hash_functions
from datamask.runs.schemas import SIGNATURE_BYTES

NUMBERS = SIGNATURE_BYTES // 2
"""Number of hash values in a signature."""

_BY_CHANCE = 2.0**-4
"""Probability that values which differ agree in a sketch. With p = s + (1 − s) / 16, the standard
error of a similarity s is 16/15 √(p (1 − p) / 128): 0.037 at 0.8, and 0.047 at 0.5."""

_LOWEST_BITS = np.uint64(0x1111_1111_1111_1111)

_SEED, SIGNED_AT_ONCE = 1, 32

RECALL = 0.99
"""Minimum probability that a pair at the similarity threshold shares a band."""

MARGIN = 0.1
"""Pairs are compared exactly if their estimated similarity is at least the threshold less this: 2.7
standard errors at 0.8, and 2.1 at 0.5."""

NEIGHBOURS = 32
"""Maximum number of sketches of a bucket that each sketch is compared with: the preceding ones
where clusters are formed, so that the similar documents of a large bucket form a chain; the first
kept ones where a cluster is divided. The work is linear in the size of a bucket."""

Signatures = npt.NDArray[np.uint16]
"""Shape [documents, NUMBERS]."""

Sketches = npt.NDArray[np.uint64]
"""Shape [documents, 8]."""

Places = npt.NDArray[np.int64]
"""Indices of documents."""


def sign(ngrams: Hashes) -> Signatures:
    """Compute the signature of each text's set of n-grams; undefined for a text without any."""
    hashes, offsets = ngrams
    signatures = np.empty((len(offsets) - 1, NUMBERS), "<u2")
    # `rensa` gives lists of numbers, which take a third longer where they leave the cache.
    for start in range(0, len(signatures), SIGNED_AT_ONCE):
        ends = offsets[start : start + SIGNED_AT_ONCE + 1].astype(np.uint64)
        matrix = hash_functions().digest_matrix_from_flat_token_hashes(
            hashes[ends[0] : ends[-1]], ends - ends[0], NUMBERS, _SEED
        )
        rows = np.array(matrix.to_rows(), np.uint32).reshape(-1, NUMBERS)
        signatures[start : start + SIGNED_AT_ONCE] = rows & 0xFFFF
    return signatures


def sketch(signatures: Signatures) -> Sketches:
    """Return the low 4 bits of all values, 16 values in a number."""
    low = (signatures & 15).astype(np.uint8)
    return (low[:, ::2] | low[:, 1::2] << 4).view("<u8")


def band_width(similarity: float) -> int:
    """Return how many hash values form a band: the most with which similar pairs share one.

    They do with a probability of at least `RECALL`.
    """

    def recall(width: int) -> float:
        return float(1 - (1 - similarity**width) ** (NUMBERS // width))

    return max((w for w in range(1, NUMBERS + 1) if recall(w) >= RECALL), default=1)


def bands_of(similarity: float) -> list[slice]:
    """Return the values of a signature that make up each band."""
    width = band_width(similarity)
    return [slice(start, start + width) for start in range(0, NUMBERS - width + 1, width)]


def cluster(signatures: Signatures, similarity: float) -> Places:
    """Return the first document of each one's cluster: components of sufficiently similar pairs.

    All is in memory; *signatures* and the result are by document.
    """
    labels, sketches = np.arange(len(signatures)), sketch(signatures)
    for band in bands_of(similarity):
        buckets = np.unique(signatures[:, band], axis=0, return_inverse=True)[1].ravel()
        order = np.lexsort((*sketches.T, buckets))
        joined, _ = join_similar(buckets[order], sketches[order], similarity)
        _join(labels, order, order[joined])
    return _firsts(labels, np.arange(len(labels)))


def join_similar(
    buckets: npt.NDArray[np.integer[Any]],
    sketches: Sketches,
    similarity: float,
    is_earlier: npt.NDArray[np.bool_] | None = None,
) -> tuple[Places, Places]:
    """Cluster the documents of each bucket by a minimum estimated similarity, in [0, 1].

    Documents with equal sketches count as one: a document is compared with other sketches only.

    Args:
        buckets: ascending, shape [documents].
        sketches: ordered so that equal ones of a bucket are together, shape [documents, 8].
        similarity: of a pair.
        is_earlier: documents that are not compared with each other, first among equal ones.

    Returns:
        The first document of each one's cluster, shape [documents]; and the last document of each
        sketch of a bucket.
    """
    least = _least_agreeing(similarity)
    positions = np.arange(len(buckets))
    ends = np.ones(len(buckets) + 1, bool)
    ends[1:-1] = (buckets[1:] != buckets[:-1]) | (sketches[1:] != sketches[:-1]).any(axis=1)
    labels = np.maximum.accumulate(np.where(ends[:-1], positions, 0))
    lasts = np.flatnonzero(ends[1:])
    left = np.arange(len(lasts))
    for step in range(1, NEIGHBOURS + 1):
        left = left[: np.searchsorted(left, len(lasts) - step)]
        left = left[buckets[lasts[left]] == buckets[lasts[left + step]]]
        if not len(left):
            break
        pairs = np.stack([lasts[left], lasts[left + step]])
        pairs = pairs[:, _firsts(labels, pairs[0]) != _firsts(labels, pairs[1])]
        if is_earlier is not None:
            pairs = pairs[:, ~is_earlier[pairs].all(axis=0)]
        differing = sketches[pairs[0]] ^ sketches[pairs[1]]
        differing |= differing >> 1
        differing |= differing >> 2
        agreeing = NUMBERS - np.bitwise_count(differing & _LOWEST_BITS).sum(axis=1)
        _join(labels, *pairs[:, agreeing >= least])
    return _firsts(labels, positions), lasts


def resembled(
    clusters: Places,
    sketches: Sketches,
    is_earlier: npt.NDArray[np.bool_],
    similarity: float,
    compare: Callable[[int, int], tuple[bool, float, float]],
) -> tuple[Places, npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Divide clusters: find the documents that are dropped because another one is kept.

    In the order of a cluster, a document is kept unless *compare* finds that it copies one that is
    kept already. It is compared with those that share a band of sketches with it, if the estimated
    similarity is near enough (`MARGIN`). Only the first `NEIGHBOURS` of a band are compared.

    Args:
        clusters: ascending, shape [documents].
        sketches: in order of preference within a cluster; shape [documents, 8].
        is_earlier: documents that are kept in any case, first in each cluster.
        similarity: minimum similarity of a pair, in [0, 1].
        compare: returns for a document and a kept one if the first is a copy, their similarity, and
            the fraction of the first one's n-grams that the second has.

    Returns:
        For each document, the kept one that it copies or, if it is kept, the most similar one that
        it was compared with (itself if none); if it is dropped; and the estimated similarity and
        the two numbers of *compare*, shape [documents, 3].
    """
    least, mask = _least_agreeing(similarity - MARGIN), int.from_bytes(b"\x11" * (NUMBERS // 2))
    numbers = [int.from_bytes(row.tobytes(), "little") for row in sketches]
    other_of, is_dropped = np.arange(len(clusters)), np.zeros(len(clusters), bool)
    figures = np.ones((len(clusters), 3))
    buckets, number = _shared_buckets(clusters, sketches, similarity)
    kept_in: list[list[int]] = [[] for _ in range(number)]
    for document, row in enumerate(buckets.tolist()):
        lists = [kept_in[bucket] for bucket in row if bucket >= 0]
        others = [] if is_earlier[document] else sorted(set().union(*lists))
        nearest = -1.0
        for other in others:
            differing = numbers[document] ^ numbers[other]
            differing |= differing >> 1
            differing |= differing >> 2
            agreeing = NUMBERS - (differing & mask).bit_count()
            if agreeing < least:
                continue
            is_dropped[document], exact, held = compare(document, other)
            if exact > nearest or is_dropped[document]:
                nearest, other_of[document] = exact, other
                estimate = (agreeing / NUMBERS - _BY_CHANCE) / (1 - _BY_CHANCE)
                figures[document] = estimate, exact, held
            if is_dropped[document]:
                break
        else:
            for of_bucket in lists:
                if len(of_bucket) < NEIGHBOURS:
                    of_bucket.append(document)
    return other_of, is_dropped, figures


def _least_agreeing(similarity: float) -> float:
    """Return how many values of two sketches, of `NUMBERS`, must agree at a similarity."""
    return NUMBERS * (similarity + (1 - similarity) * _BY_CHANCE)


def _shared_buckets(clusters: Places, sketches: Sketches, similarity: float) -> tuple[Places, int]:
    """Return the bucket of each document and band of sketches, −1 if alone; and their number."""
    bytes_, bands = np.ascontiguousarray(sketches).view(np.uint8), bands_of(similarity)
    values = np.stack([bytes_ & 15, bytes_ >> 4], axis=2).reshape(-1, NUMBERS)
    keys = (clusters.astype(np.uint64) * len(bands))[:, None] + np.arange(len(bands), dtype="u8")
    for offset in range(bands[0].stop):
        keys = keys * FACTOR + values[:, [band.start + offset for band in bands]]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    is_shared = counts > 1
    buckets = np.where(is_shared, np.cumsum(is_shared) - 1, -1)
    return buckets[inverse].reshape(keys.shape), int(is_shared.sum())


def _firsts(labels: Places, positions: Places) -> Places:
    """Return the first document of each one's cluster, which becomes its label."""
    firsts = labels[positions]
    while np.any(firsts != labels[firsts]):
        firsts = labels[firsts]
    labels[positions] = firsts
    return firsts


def _join(labels: Places, left: Places, right: Places) -> None:
    """Merge the clusters of each pair: its first document becomes the label of all others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(left):
        return
    ends = np.concatenate([_firsts(labels, left), _firsts(labels, right)])
    nodes, ends = np.unique(ends, return_inverse=True)
    edges = coo_array((np.ones(len(left), bool), tuple(ends.reshape(2, -1))), (len(nodes),) * 2)
    component = connected_components(edges, directed=False)[1]
    labels[nodes] = nodes[np.unique(component, return_index=True)[1]][component]

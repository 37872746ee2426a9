"""MinHash signatures, locality-sensitive hashing in bands, and clusters of similar documents.

A signature has 128 hash values (Fast Similarity Sketching, Dahlgaard et al. 2017, as implemented in
`rensa`). The probability that two documents agree in a value is their Jaccard similarity. Only the
low 16 bits of each value are kept, which adds at most 2⁻¹⁶ to this probability (b-bit minwise
hashing, Li and König 2010). Candidate pairs come from bands (Broder 1997; Leskovec et al., ch. 3):
documents that agree in all values of a band are compared by their whole signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datamask.errors import RunError
from datamask.hygiene.words import Hashes
from datamask.runs.files import read_columns
from datamask.runs.schemas import SIGNATURE_BYTES

NUMBERS = SIGNATURE_BYTES // 2
"""Hash values in a signature; the standard error of a similarity s is √(s (1 − s) / 128)."""

_SEED = 1
_ALGORITHM = 2
"""Version of the algorithm in `rensa`. If you change it, raise the versions of the stages."""

RECALL = 0.99
"""Minimum probability that a pair at the similarity threshold shares a band."""

NEIGHBOURS = 32
"""Number of preceding documents in a bucket that a document is compared with. The work is linear in
the size of a bucket, and the similar documents of a large bucket still form a chain."""

AT_ONCE = 2**16
"""Number of signatures per block of work."""

Signatures = npt.NDArray[np.uint16]
"""Shape [documents, NUMBERS]."""


def sign(ngrams: Hashes) -> Signatures:
    """The signature of each text's set of n-grams; undefined for a text without n-grams.

    Raises:
        RunError: the installed `rensa` implements another version of the algorithm.
    """
    from rensa import RMinHash

    if RMinHash.ALGORITHM_VERSION != _ALGORITHM:
        raise RunError(
            f"rensa computes signatures of version {RMinHash.ALGORITHM_VERSION}, but version "
            f"{_ALGORITHM} is needed; install rensa 0.5"
        )
    hashes, offsets = ngrams
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), NUMBERS, _SEED
    )
    rows = np.array(matrix.to_rows(), np.uint32).reshape(-1, NUMBERS)
    return (rows & 0xFFFF).astype("<u2")


def read_signatures(path: Path) -> tuple[Signatures, npt.NDArray[np.bool_]]:
    """Read the signatures of a file of the run, and which documents have one; shape [documents].

    Raises:
        CorruptFileError: the file is damaged.
    """
    column = read_columns(path, ["signature"])["signature"].combine_chunks()
    numbers = np.frombuffer(column.buffers()[1], "<u2", len(column) * NUMBERS)
    return numbers.reshape(-1, NUMBERS), column.is_valid().to_numpy(zero_copy_only=False)


def band_width(similarity: float) -> int:
    """Hash values per band: the maximum at which similar pairs share a band (`RECALL`)."""

    def found(width: int) -> float:
        return float(1 - (1 - similarity**width) ** (NUMBERS // width))

    return max((w for w in range(1, NUMBERS + 1) if found(w) >= RECALL), default=1)


def cluster(signatures: Signatures, similarity: float, earlier: int = 0) -> npt.NDArray[np.int64]:
    """Cluster documents: the connected components of pairs that are similar enough.

    Memory is about 100 bytes per document, without the signatures, which may be a file
    (`numpy.memmap`) and are read in blocks.

    Args:
        signatures: shape [documents, NUMBERS].
        similarity: minimum share of hash values in which a pair agrees, in [0, 1].
        earlier: number of documents at the start that are not compared with each other.

    Returns:
        The cluster's number for each document; shape [documents].
    """
    labels = places = np.arange(len(signatures))
    width = band_width(similarity)
    bands = (slice(start, start + width) for start in range(0, NUMBERS - width + 1, width))
    for band in (slice(0, NUMBERS), *bands):
        for left, right in _candidates(signatures, places, band, earlier):
            apart = labels[left] != labels[right]
            left, right = left[apart], right[apart]
            similar = _agreeing(signatures, left, right) >= similarity * NUMBERS
            labels = _joined(labels, left[similar], right[similar])
        if band == slice(0, NUMBERS):
            # Of documents with equal signatures, only the first is compared further.
            places = np.unique(labels, return_index=True)[1]
    return labels


def _candidates(
    signatures: Signatures, places: npt.NDArray[np.int64], band: slice, earlier: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Pairs of *places* that agree in a band, by increasing distance within their bucket."""
    hashes = np.empty(len(places), np.uint64)
    for start in range(0, len(places), AT_ONCE):
        part = signatures[places[start : start + AT_ONCE], band].astype(np.uint64)
        mixed = np.zeros(len(part), np.uint64)
        for column in part.T:
            mixed = (mixed + column + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        hashes[start : start + AT_ONCE] = mixed
    order = np.argsort(hashes, kind="stable")
    hashes, ordered = hashes[order], places[order]
    # Leave out documents that are alone in their bucket.
    equal = hashes[1:] == hashes[:-1]
    shared = np.append(equal, False) | np.append(False, equal)
    hashes, ordered = hashes[shared], ordered[shared]
    for step in range(1, NEIGHBOURS + 1):
        firsts = np.flatnonzero(hashes[step:] == hashes[:-step])
        if not len(firsts):
            return
        firsts = firsts[np.maximum(ordered[firsts], ordered[firsts + step]) >= earlier]
        yield ordered[firsts], ordered[firsts + step]


def _agreeing(
    signatures: Signatures, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The number of hash values in which each pair agrees; shape [pairs]."""
    counts = np.empty(len(left), np.int64)
    for start in range(0, len(left), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        equal = signatures[left[part]] == signatures[right[part]]
        counts[part] = np.count_nonzero(equal, axis=1)
    return counts


def _joined(
    labels: npt.NDArray[np.int64], left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Labels after merging the clusters of each pair; numbered from 0."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(left):
        return labels
    size = int(labels.max()) + 1
    edges = coo_array((np.ones(len(left), bool), (labels[left], labels[right])), (size, size))
    joined: npt.NDArray[np.int64] = connected_components(edges, directed=False)[1]
    return joined[labels].astype(np.int64)

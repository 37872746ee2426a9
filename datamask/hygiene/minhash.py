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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from datamask.errors import RunError
from datamask.hygiene.words import Hashes
from datamask.runs.files import reading
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
"""Number of signatures, or pairs of them, per block of work."""

SORTED_AT_ONCE = 2**24
"""Documents of a band that are sorted at once, about; up to 70 bytes of memory each."""

Signatures = npt.NDArray[np.uint16]
"""Shape [documents, NUMBERS]."""

Places = npt.NDArray[np.integer[Any]]
"""Positions of documents among all signatures."""


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


def read_signatures(path: Path) -> Iterator[tuple[Signatures, npt.NDArray[np.bool_]]]:
    """Read a file of the run in blocks of at most `AT_ONCE`: signatures, and which exist.

    Raises:
        CorruptFileError: the file is damaged.
    """
    with (
        reading(path),
        pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        for batch in file.iter_batches(AT_ONCE, columns=["signature"]):
            column = batch["signature"]
            start, count = column.offset * SIGNATURE_BYTES, len(column) * NUMBERS
            numbers = np.frombuffer(column.buffers()[1], "<u2", count, start)
            is_there = column.is_valid().to_numpy(zero_copy_only=False)
            yield numbers.reshape(-1, NUMBERS), is_there


def band_width(similarity: float) -> int:
    """Hash values per band: the maximum at which similar pairs share a band (`RECALL`)."""

    def found(width: int) -> float:
        return float(1 - (1 - similarity**width) ** (NUMBERS // width))

    return max((w for w in range(1, NUMBERS + 1) if found(w) >= RECALL), default=1)


def bands_of(similarity: float) -> list[slice]:
    """The values of a signature that each band consists of."""
    width = band_width(similarity)
    return [slice(start, start + width) for start in range(0, NUMBERS - width + 1, width)]


def hash_band(signatures: Signatures, band: slice) -> npt.NDArray[np.uint64]:
    """A hash of a band of each signature, which differs between bands; shape [documents]."""
    mixed = np.full(len(signatures), band.start, np.uint64)
    for column in signatures[:, band].astype(np.uint64).T:
        mixed = (mixed + column + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def cluster(
    signatures: Signatures, similarity: float, earlier: int = 0, bands: list[slice] | None = None
) -> Places:
    """Cluster documents: the connected components of pairs that are similar enough.

    Memory is 13 bytes per document (17 from 2³²) and at most 1.2 GiB, unless a bucket has more than
    `SORTED_AT_ONCE` documents. The signatures may be a file (`numpy.memmap`), read in blocks.

    Args:
        signatures: shape [documents, NUMBERS].
        similarity: minimum share of hash values in which a pair agrees, in [0, 1].
        earlier: number of documents at the start that are not compared with each other.
        bands: where candidates have to agree; None means in any of `bands_of`. The components of
            all bands together are those of the pairs that each band finds.

    Returns:
        The first document of each one's cluster; shape [documents].
    """
    labels = np.arange(len(signatures), dtype=np.min_scalar_type(len(signatures)))
    is_compared = np.ones(len(signatures), bool)
    for band in (slice(0, NUMBERS), *(bands_of(similarity) if bands is None else bands)):
        for left, right in _candidates(signatures, is_compared, band, earlier):
            apart = _firsts(labels, left) != _firsts(labels, right)
            left, right = left[apart], right[apart]
            agreeing = np.count_nonzero(signatures[left] == signatures[right], axis=1)
            similar = agreeing >= similarity * NUMBERS
            _join(labels, left[similar], right[similar])
        if band == slice(0, NUMBERS):
            # Of documents with equal signatures, only the first is compared further.
            is_compared = labels == np.arange(len(labels), dtype=labels.dtype)
    for block in _blocks(len(labels)):
        _firsts(labels, block)
    return labels


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + AT_ONCE) for start in range(0, max(count, 1), AT_ONCE)]


def _candidates(
    signatures: Signatures, is_compared: npt.NDArray[np.bool_], band: slice, earlier: int
) -> Iterator[tuple[Places, Places]]:
    """At most `AT_ONCE` pairs that agree in a band, nearest in their bucket first."""
    blocks = _blocks(len(signatures))
    hashes = np.empty(len(signatures), np.uint64)
    for block in blocks:
        hashes[block] = hash_band(signatures[block], band)
    low_bits = np.uint64(2 ** (len(signatures) // SORTED_AT_ONCE).bit_length() - 1)
    for low in range(int(low_bits) + 1):
        chosen = ((hashes[block] & low_bits == low) & is_compared[block] for block in blocks)
        places = np.concatenate(
            [block.start + np.flatnonzero(c) for block, c in zip(blocks, chosen, strict=True)]
        )
        places = places[np.argsort(hashes[places])]
        bucket = hashes[places]
        is_shared = np.zeros(len(places), bool)
        is_shared[1:] = bucket[1:] == bucket[:-1]
        is_shared[:-1] |= is_shared[1:]
        places = places[is_shared]
        places = places[np.lexsort((places, hashes[places]))]
        bucket = hashes[places]
        firsts = np.flatnonzero(bucket[1:] == bucket[:-1])
        for step in range(1, NEIGHBOURS + 1):
            firsts = firsts[: np.searchsorted(firsts, len(bucket) - step)]
            firsts = firsts[bucket[firsts] == bucket[firsts + step]]
            for block in _blocks(len(firsts)):
                left, right = places[firsts[block]], places[firsts[block] + step]
                yield left[right >= earlier], right[right >= earlier]


def _firsts(labels: Places, places: Places | slice) -> Places:
    """The first document of each one's cluster, which becomes its label."""
    firsts = labels[places]
    while np.any(firsts != labels[firsts]):
        firsts = labels[firsts]
    labels[places] = firsts
    return firsts


def _join(labels: Places, left: Places, right: Places) -> None:
    """Merge the clusters of each pair: the label of all but the first document of the new one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(left):
        return
    ends = np.concatenate([_firsts(labels, left), _firsts(labels, right)])
    nodes, ends = np.unique(ends, return_inverse=True)
    edges = coo_array((np.ones(len(left), bool), tuple(ends.reshape(2, -1))), (len(nodes),) * 2)
    component = connected_components(edges, directed=False)[1]
    labels[nodes] = nodes[np.unique(component, return_index=True)[1]][component]

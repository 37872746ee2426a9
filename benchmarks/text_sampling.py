"""Comparators that sample: DSIR reads texts, QuaDMix domains, QuRating quality alone.

They are no `selection.method`, because the selection of a run draws nothing. All draw without
replacement: the S largest of logarithmic weights with Gumbel noise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

BUCKETS = 10_000
"""As published, for words and pairs of words (`nltk.WordPunctTokenizer`, lower case)."""


def buckets(text: str) -> np.ndarray:
    """The bucket of each word and of each pair of words."""
    words = re.findall(r"\w+|[^\w\s]+", text.lower())
    grams = [*words, *(f"{one} {two}" for one, two in pairwise(words))]
    numbers = (int(hashlib.sha256(gram.encode()).hexdigest(), 16) % BUCKETS for gram in grams)
    return np.fromiter(numbers, np.int64)


def dsir(texts: Sequence[str], target: Iterable[str], generator: np.random.Generator) -> np.ndarray:
    """DSIR (arXiv 2302.03169): hashed n-grams, importance weights, Gumbel top-k.

    Args:
        texts: N documents.
        target: texts whose distribution the selection shall have.
        generator: draws the noise.

    Returns:
        Log importance weights with Gumbel noise, shape N.
    """
    numbers = [buckets(text) for text in texts]
    wanted, present = (
        np.bincount(np.concatenate(some), minlength=BUCKETS)
        for some in ([buckets(text) for text in target], numbers)
    )
    # The smoothing of the authors' package.
    ratio = np.log(wanted / wanted.sum() + 1e-8) - np.log(present / present.sum() + 1e-8)
    weights = np.array([ratio[some].sum() for some in numbers])
    return weights + generator.gumbel(size=len(weights))


def quadmix(
    quality: np.ndarray,
    domains: np.ndarray,
    ratio: float,
    generator: np.random.Generator,
    *,
    steepness: float = 100.0,
    power: float = 1.0,
    floor: float = 0.001,
) -> np.ndarray:
    """Sampling like QuaDMix (arXiv 2504.16511, equations 2 and 3), the same in all domains.

    The expected number of copies of a document with quality rank r in its domain (0 is best) is
    (2 / (1 + exp(-λ (ω - r))))^η + ε up to ω, and ε beyond. The paper finds the parameters of each
    domain by training proxy models. Here ω is the ratio, the others are within the paper's ranges,
    and ranks count documents, not tokens.

    Args:
        quality: shape N.
        domains: shape N, any values.
        ratio: ω, the share that is kept.
        generator: draws the noise.
        steepness: λ, in [1, 1000].
        power: η, in [0, 1].
        floor: ε, in [0, 0.001].

    Returns:
        Logarithms of the expected numbers with Gumbel noise, shape N.
    """
    ranks = np.empty(len(quality))
    for domain in np.unique(domains):
        rows = np.flatnonzero(domains == domain)
        ordered = np.sort(-quality[rows])
        ranks[rows] = np.searchsorted(ordered, -quality[rows], side="right") / len(rows)
    inside = (2 / (1 + np.exp(-steepness * (ratio - ranks)))) ** power
    expected = np.where(ranks <= ratio, inside, 0.0) + floor
    result: np.ndarray = np.log(expected) + generator.gumbel(size=len(quality))
    return result


def qurating(
    quality: np.ndarray, generator: np.random.Generator, *, temperature: float = 2.0
) -> np.ndarray:
    """Sampling like QuRating (arXiv 2402.09739): chances that grow with quality, by a temperature.

    The chance of a document at each draw is proportional to exp(z / τ), z its quality in
    deviations. At τ = 0 it would be the best by quality, and with a large τ a random choice.

    Args:
        quality: shape N.
        generator: draws the noise.
        temperature: τ, above 0; 2 is the paper's choice for its best rater.

    Returns:
        z / τ with Gumbel noise, shape N.
    """
    weights = (quality - quality.mean()) / quality.std() / temperature
    drawn: np.ndarray = weights + generator.gumbel(size=len(quality))
    return drawn

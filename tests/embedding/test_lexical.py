"""The lexical embedder: the same bytes everywhere, and close texts close."""

import hashlib
import subprocess
import sys

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from datamask.embedding import lexical
from datamask.embedding.lexical import Lexical

TEXTS = ["Return the sorted list of keys.", "Return a sorted list of keys.", "Open a socket.", ""]


def test_same_bytes_in_another_process():
    """Another process, with another hash seed, gives the same bytes."""
    code = (
        "import hashlib; from datamask.embedding.lexical import Lexical; "
        f"print(hashlib.sha256(Lexical().embed({TEXTS!r}, 64).tobytes()).hexdigest())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine = hashlib.sha256(Lexical().embed(TEXTS, 64).tobytes()).hexdigest()
    assert told.stdout.strip() == mine


def test_features_are_those_of_scikit_learn():
    """Counts by HashingVectorizer, projected by scipy, give the same bytes in many scripts."""
    odd = [
        "a",
        "a b",
        " é à ü — “quoted” words",
        "日本語のテキスト です",
        "x\ty\n\nz",
        "😀 smile 😀😀",
    ]
    odd += ["Straße İstanbul DŽ", "a" * 99 + " b", "a\x1fb\u2028c\xa0d", "١٢٣ abc", *TEXTS, "  "]
    words = HashingVectorizer(n_features=2**16, ngram_range=(1, 2), norm=None)
    characters = HashingVectorizer(
        n_features=2**15, ngram_range=(4, 4), norm=None, analyzer="char_wb"
    )
    counts = sparse.hstack([words.transform(odd), characters.transform(odd)], format="csr")
    counts.data = np.sign(counts.data) * np.log1p(np.abs(counts.data))
    generator = np.random.Generator(np.random.PCG64(lexical.PROJECTION_SEED))
    places = generator.integers(0, 48, (2**16 + 2**15, 8)), generator.integers(0, 2, (98304, 8))
    rows = np.repeat(np.arange(98304), 8)
    projection = sparse.csr_array((places[1].ravel() * 2.0 - 1, (rows, places[0].ravel())))
    expected = (counts @ projection).toarray().astype(np.float32)
    expected[~expected.any(1)] = 1
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_array_equal(Lexical().embed(odd, 48), expected)

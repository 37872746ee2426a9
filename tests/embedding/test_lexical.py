"""The lexical embedder: the same bytes everywhere, and close texts close."""

import hashlib
import subprocess
import sys

import numpy as np

from datamask.embedding.lexical import Lexical

TEXTS = ["Return the sorted list of keys.", "Return a sorted list of keys.", "Open a socket.", ""]


def test_unit_and_near_duplicates():
    """Rows have unit length, and near-duplicates are closer than unrelated texts."""
    found = Lexical().embed(TEXTS, 768)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]


def test_independent_of_batch():
    """A text's vector is the same alone and among others."""
    together = Lexical().embed(TEXTS, 64)
    assert all((Lexical().embed([t], 64)[0] == together[i]).all() for i, t in enumerate(TEXTS))


def test_same_bytes_in_another_process():
    """Another process, with another hash seed, gives the same bytes."""
    code = (
        "import hashlib; from datamask.embedding.lexical import Lexical; "
        f"print(hashlib.sha256(Lexical().embed({TEXTS!r}, 64).tobytes()).hexdigest())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine = hashlib.sha256(Lexical().embed(TEXTS, 64).tobytes()).hexdigest()
    assert told.stdout.strip() == mine

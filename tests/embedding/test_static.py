"""Distilling a static embedder, against the model's own vectors and plain numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA

from benchmarks.embedding import random_bert
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.loose_texts import embed_texts
from datamask.embedding.static import distil
from datamask.errors import SettingsError

TEXTS = ["river stone market", "stone river window garden", "a winter morning by the river"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights, whose tokenizer pads."""
    return random_bert(tmp_path_factory.mktemp("model"), TEXTS, hidden=32, layers=2)


def test_a_text_is_the_weighted_mean_of_its_tokens(model: Path, tmp_path: Path) -> None:
    """As a run embeds with it: each token's own vector, reduced, times ln(1 + rank)."""
    distil(str(model), tmp_path / "static", 8)
    settings = Embedding(model=str(tmp_path / "static"), dimension=8, prefix="")
    found = embed_texts(TEXTS, settings, Compute(device="cpu"))
    whole = SentenceTransformer(str(model), device="cpu")
    vocabulary = whole.tokenizer.get_vocab()
    # The model's vector of a text of one token is that of the token between its special tokens.
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    plain = [word for word in words if word.isalpha()]
    own = {word: whole.encode(word) for word in plain}
    assert found.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    static = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    table = static[0].embedding.weight.detach().numpy()
    ranks = np.log1p(np.arange(1, len(table) + 1))
    rows = [vocabulary[word] for word in plain]
    reduced = table[rows] / ranks[rows][:, None]
    # Reduction keeps distances between tokens as far as principal components do.
    originals = np.stack([own[word] for word in plain])
    gram = (reduced - reduced.mean(0)) @ (reduced - reduced.mean(0)).T
    centred = originals - originals.mean(0)
    expected = PCA(8, svd_solver="full").fit(centred).transform(centred)
    assert np.corrcoef(gram.ravel(), (expected @ expected.T).ravel())[0, 1] > 0.9
    for text, vector in zip(TEXTS, found, strict=True):
        mean = table[[vocabulary[word] for word in text.split()]].mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-3)


def test_the_same_model_gives_the_same_weights(model: Path, tmp_path: Path) -> None:
    """Byte for byte, and a folder that exists is never overwritten."""
    for name in ("one", "two"):
        distil(str(model), tmp_path / name, 8)
    paths = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(SettingsError, match="exists already"):
        distil(str(model), tmp_path / "one", 8)
    with pytest.raises(SettingsError, match="above the 32"):
        distil(str(model), tmp_path / "three", 64)

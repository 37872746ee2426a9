"""Distilling a static embedder, against the model's own vectors and plain numpy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

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


def test_a_text_is_the_mean_of_its_weighted_tokens(model: Path, tmp_path: Path) -> None:
    """As a run embeds with it, against the recipe worked out here from the model's own vectors."""
    distil(str(model), TEXTS, tmp_path / "static", 8)
    settings = Embedding(model=str(tmp_path / "static"), dimension=8, prefix="")
    found = embed_texts(TEXTS, settings, Compute(device="cpu"))
    assert found.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    whole = SentenceTransformer(str(model), device="cpu")
    vocabulary = whole.tokenizer.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    # A text of one word is that token between the special tokens; words stand for themselves.
    own = {word: whole.encode(word) for word in words if word.isalpha()}
    static = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    table = static[0].embedding.weight.detach().numpy().astype(np.float64)
    for text, vector in zip(TEXTS, found, strict=True):
        mean = table[[vocabulary[word] for word in text.split()]].mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-3)
    # The texts' means have no common direction any more.
    counts = Counter(word for text in TEXTS for word in text.split())
    total = sum(counts.values())
    weight = {word: 1e-3 / (1e-3 + counts[word] / total) for word in own}
    rows = np.stack([table[vocabulary[word]] / weight[word] for word in own])
    centred = np.stack(list(own.values())) - np.mean(list(own.values()), axis=0)
    kept = rows - rows.mean(0)
    # Distances of tokens are the model's, but for the lost dimensions and the common direction.
    gram, expected = kept @ kept.T, centred @ centred.T
    assert np.corrcoef(gram.ravel(), expected.ravel())[0, 1] > 0.6


def test_the_same_model_gives_the_same_weights(model: Path, tmp_path: Path) -> None:
    """Byte for byte, and a folder that exists is never overwritten."""
    for name in ("one", "two"):
        distil(str(model), TEXTS, tmp_path / name, 8)
    paths = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(SettingsError, match="exists already"):
        distil(str(model), TEXTS, tmp_path / "one", 8)
    with pytest.raises(SettingsError, match="above the 32"):
        distil(str(model), TEXTS, tmp_path / "three", 64)

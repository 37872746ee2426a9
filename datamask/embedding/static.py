"""Distil a static embedder from a transformer: a vector per token, a text is their mean.

Each token of the vocabulary goes through the model alone, and principal components reduce the
vectors. Texts of the corpus then give smooth inverse frequency: weights a / (a + p) for a token of
frequency p, and without the texts' common direction (Arora et al. 2017, "A simple but
tough-to-beat baseline for sentence embeddings"). All of it is linear, so one table holds it. The
result is a folder that sentence-transformers loads as any other model, so `embedding.model` can
name it. It embeds much faster on a CPU, and knows no word order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datamask.errors import SettingsError

TOKENS_AT_ONCE = 1024
"""Tokens in a forward pass (docs/log.md#static)."""
MOST_TEXTS = 20_000
"""Texts that are read for frequencies (docs/log.md#static)."""
SMOOTHING = 1e-3
"""a of the weights, as in the paper (docs/log.md#static)."""


def distil(model: str, texts: Sequence[str], folder: Path, dimension: int = 256) -> None:
    """Write a static model made from a sentence-transformers model.

    Args:
        model: folder, or name on the Hub, of a model with a tokenizer of `tokenizers`.
        texts: a sample of the corpus; some thousands suffice.
        folder: where the static model is written; must not exist yet.
        dimension: width of its vectors, at most the model's own.

    Raises:
        SettingsError: the folder exists, the model has no such tokenizer, or is narrower.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from sklearn.decomposition import PCA

    if folder.exists():
        raise SettingsError(f"{folder}: exists already; name another folder")
    source = SentenceTransformer(model, device="cpu")
    tokenizer = getattr(source.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise SettingsError(f"{model}: has no fast tokenizer to take over")
    width = source.get_embedding_dimension() or 0
    if dimension > width:
        raise SettingsError(f"dimension {dimension} is above the {width} of {model}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vectors = _token_vectors(source, tokenizer)
    reduced = PCA(dimension, svd_solver="full").fit_transform(vectors)
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    weights = np.ascontiguousarray(_weighted(reduced, [one.ids for one in encoded]), np.float32)
    embedding = StaticEmbedding(tokenizer, embedding_weights=weights)
    temporary = folder.with_name(f".{folder.name}.tmp")
    SentenceTransformer(modules=[embedding, Normalize()], device="cpu").save(str(temporary))
    temporary.rename(folder)


def _token_vectors(source: Any, tokenizer: Any) -> np.ndarray:
    """The model's vector of each token alone, between its special tokens; V x D, float64."""
    import torch

    before, after = _special_tokens(tokenizer)
    found = []
    with torch.inference_mode():
        for start in range(0, tokenizer.get_vocab_size(), TOKENS_AT_ONCE):
            stop = min(start + TOKENS_AT_ONCE, tokenizer.get_vocab_size())
            ids = torch.tensor([[*before, token, *after] for token in range(start, stop)])
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            found.append(source(features)["sentence_embedding"].double().numpy())
    return np.concatenate(found)


def _weighted(vectors: np.ndarray, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Vectors by smooth inverse frequency, without the common direction of the texts' means."""
    counts = np.bincount(
        np.concatenate([*map(np.asarray, texts)]).astype(int), minlength=len(vectors)
    )
    weighted = vectors * (SMOOTHING / (SMOOTHING + counts / counts.sum()))[:, None]
    means = np.stack([weighted[ids].mean(0) for ids in texts if len(ids)])
    common = np.linalg.svd(means, full_matrices=False)[2][0]
    result: np.ndarray = weighted - np.outer(weighted @ common, common)
    return result


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text."""
    encoded = tokenizer.encode("a")
    inside = [place for place, mask in enumerate(encoded.special_tokens_mask) if not mask]
    return encoded.ids[: inside[0]], encoded.ids[inside[-1] + 1 :]

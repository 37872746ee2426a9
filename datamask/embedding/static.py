"""Distil a static embedder from a transformer: one vector per token; a text is the mean of its own.

The model embeds each token of the vocabulary alone, and PCA reduces the vectors. A sample of the
corpus then gives smooth inverse frequency: a token of frequency p has the weight a / (a + p), and
the common direction of the texts is removed (Arora et al. 2017, "A simple but tough-to-beat
baseline for sentence embeddings"). Both steps are linear, so one table of token vectors holds the
result. A static model ignores word order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datamask.embedding.pinning import loading, model_revision
from datamask.errors import SettingsError

TOKENS_AT_ONCE = 1024
"""Tokens per forward pass (docs/log.md#static)."""
MOST_TEXTS = 20_000
"""Maximum number of texts for the token frequencies (docs/log.md#static)."""
SMOOTHING = 1e-3
"""The paper's parameter a (docs/log.md#static)."""


def distil(model: str, texts: Sequence[str], folder: Path, dimension: int = 256) -> None:
    """Distil a sentence-transformers model into a static model.

    Args:
        model: folder, or name on the Hub, of a model with a fast tokenizer.
        texts: a sample of the corpus; a few thousand are enough.
        folder: output folder; must not exist.
        dimension: width of the vectors, at most the model's own.

    Raises:
        SettingsError: *folder* exists, the model cannot be loaded, has no fast tokenizer or is
            narrower than *dimension*, or its tokenizer finds no token in the texts.
        HubUnavailableError: the Hub does not answer.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from sklearn.decomposition import PCA

    if folder.exists():
        raise SettingsError(f"{folder}: exists already; name another folder")
    found = model_revision(model, None, "model to distil")
    commit = None if Path(model).is_dir() else found
    with loading(f"{model}: cannot be loaded ("):
        source = SentenceTransformer(model, revision=commit, device="cpu")
    tokenizer = getattr(source.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise SettingsError(f"{model}: has no fast tokenizer; choose another model")
    width = source.get_embedding_dimension() or 0
    if dimension > width:
        raise SettingsError(f"dimension {dimension} is above the {width} of {model}; lower it")
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
    """The model's vector of each token alone, between special tokens; V x D, float64."""
    import torch

    # The tokens that the tokenizer adds before and after a text.
    encoded = tokenizer.encode("a")
    inside = [place for place, mask in enumerate(encoded.special_tokens_mask) if not mask]
    before, after = encoded.ids[: inside[0]], encoded.ids[inside[-1] + 1 :]
    found = []
    with torch.inference_mode():
        for start in range(0, tokenizer.get_vocab_size(), TOKENS_AT_ONCE):
            stop = min(start + TOKENS_AT_ONCE, tokenizer.get_vocab_size())
            ids = torch.tensor([[*before, token, *after] for token in range(start, stop)])
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            found.append(source(features)["sentence_embedding"].double().numpy())
    return np.concatenate(found)


def _weighted(vectors: np.ndarray, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Weight token vectors by smooth inverse frequency and remove the texts' common direction.

    *vectors* are V x D; *texts* the token ids of each text.
    """
    used = [ids for ids in texts if len(ids)]
    if not used:
        raise SettingsError("the model's tokenizer finds no token in the texts; give other texts")
    counts = np.bincount(np.concatenate(used), minlength=len(vectors))
    weighted = vectors * (SMOOTHING / (SMOOTHING + counts / counts.sum()))[:, None]
    means = np.stack([weighted[ids].mean(0) for ids in used])
    common = np.linalg.svd(means, full_matrices=False)[2][0]
    result: np.ndarray = weighted - np.outer(weighted @ common, common)
    return result

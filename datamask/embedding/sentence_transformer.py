"""Embedder `sentence-transformer`, at the pinned revision.

The model is loaded once per process and device, so shards on different GPUs do not wait for each
other. `tokenise` runs on the host, so that the next chunk of texts is prepared while `embed` works
on the device. Vectors that are not finite are computed again, alone and in float32; if that does
not help, the documents are named.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding import forward
from datamask.embedding.pinning import PIN, loading, pin_model, planned_folder
from datamask.errors import InputError, SettingsError
from datamask.source.windows import cut

logger = logging.getLogger(__name__)

UNPADDED = {"text": {"padding": False}, "common": {"return_tensors": None}}
TEXTS_PER_BATCH = 32
"""Texts per forward pass by default, for models that do not take tokens."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A `SentenceTransformer` on its device, shared by all shards that this process embeds there.

    Locks: of the tokeniser, which only one thread may use, and of the model, whose precision a
    retry changes temporarily.
    """

    model: Any
    tokenising: threading.Lock = field(default_factory=threading.Lock)
    encoding: threading.Lock = field(default_factory=threading.Lock)


def with_own_width(embedding: Embedding, compute: Compute) -> Embedding:
    """Return the settings with the model's own commit and dimension. Loads the model."""
    revision = pin_model(embedding)[PIN]
    width = _loaded(embedding, revision, compute).model.get_embedding_dimension()
    return embedding.model_copy(update={"dimension": width, "revision": revision})


def load_model(embedding: Embedding, revision: str, compute: Compute) -> Encoder:
    """Put the model on its device, from this process's cache if it was loaded before.

    Raises:
        InputError: the local folder is not *revision*, its digest when the run was planned.
        SettingsError: the model cannot be loaded, or its vectors have another width.
    """
    encoder = _loaded(embedding, revision, compute)
    width = encoder.model.get_embedding_dimension() or 0
    if width != embedding.dimension and not (embedding.truncate and width > embedding.dimension):
        shorter = "" if embedding.dimension > width else " (or embedding.truncate=true)"
        problem = f"embedding.dimension: {embedding.dimension}, but {embedding.model} gives {width}"
        raise SettingsError(f"{problem}; use --set embedding.dimension={width}{shorter}")
    return encoder


def _loaded(embedding: Embedding, revision: str, compute: Compute) -> Encoder:
    device = forward.device_name(compute)
    key = (embedding.model, revision, embedding.dtype, device, str(embedding.max_tokens))
    encoder: Encoder = forward.load_once(key, lambda: _load(embedding, revision, device))
    return encoder


def _load(embedding: Embedding, revision: str, device: str) -> Encoder:
    import torch
    from sentence_transformers import SentenceTransformer

    is_folder = Path(embedding.model).is_dir()
    about = f"embedding.model: {embedding.model} cannot be loaded ("
    with loading(about), planned_folder(embedding.model, revision):
        model = SentenceTransformer(
            embedding.model,
            revision=None if is_folder else revision,
            device=device,
            trust_remote_code=embedding.trust_remote_code,
            model_kwargs={"dtype": getattr(torch, embedding.dtype)},
        )
    limit = model.max_seq_length or embedding.max_tokens
    if limit != math.inf:  # A static model reads texts of any length.
        model.max_seq_length = min(embedding.max_tokens, limit)
    model.eval()
    logger.info("loaded %s@%.12s on %s, %s", embedding.model, revision, device, embedding.dtype)
    return Encoder(model)


def tokenise(
    encoder: Encoder, texts: Sequence[str], embedding: Embedding, batch: int | None, windows: int
) -> forward.Tokenised:
    """Prepare the texts of one chunk for the model, on the host, in at most *windows* windows each.

    *batch*: windows of maximum length in a forward pass; more if they are shorter.
    """
    model = encoder.model
    prompt = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
    ahead = len(prompt or "") + len(embedding.prefix)

    def token_lists(some: Sequence[str]) -> forward.TokenLists:
        whole = [embedding.prefix + text for text in some]
        lists: forward.TokenLists = model.preprocess(
            whole, prompt=prompt, processing_kwargs=UNPADDED
        )
        return lists

    with encoder.tokenising:
        if not _takes_tokens(model, token_lists):
            return _untokenised(encoder, texts, embedding.prefix, prompt, batch or TEXTS_PER_BATCH)
        most = model.max_seq_length or embedding.max_tokens
        rest = (model.tokenizer, batch, most, model.device)
        return forward.tokenise_windows(token_lists, texts, windows, ahead, *rest)


def _takes_tokens(model: Any, token_lists: Callable[[Sequence[str]], forward.TokenLists]) -> bool:
    """Return True if the model's input has a list of tokens for each text."""
    if not hasattr(getattr(model, "tokenizer", None), "pad"):
        return False
    ids = token_lists(["two", "texts"]).get("input_ids")
    return isinstance(ids, list) and len(ids) == 2


def _untokenised(
    encoder: Encoder, texts: Sequence[str], prefix: str, prompt: str | None, batch: int
) -> forward.Tokenised:
    """Prepare texts for models that take whole texts: *batch* at a time, longest first."""
    model, lengths = encoder.model, np.array([len(text) for text in texts], np.float64)
    order = np.argsort(-lengths, kind="stable")
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    features = [
        dict(model.preprocess([prefix + texts[row] for row in rows], prompt=prompt))
        for rows in batches
    ]
    read = lengths if model.max_seq_length == math.inf else np.full(len(texts), np.nan)
    return forward.Tokenised(cut(texts, lengths, 1), read, batches, features)


def embed(
    encoder: Encoder, tokenised: forward.Tokenised, embedding: Embedding, names: Sequence[str]
) -> np.ndarray:
    """Embed the N texts of one chunk; unit rows, float32, N x D; messages show their ids, *names*.

    Raises:
        DeviceMemoryError: even one text does not fit.
        InputError: a vector is zero or not finite even in float32; names the documents.
    """
    with encoder.encoding:
        matrix = _encode(encoder.model, tokenised, embedding.dimension)
        offenders = np.flatnonzero(~_usable(matrix))
        if len(offenders):
            _embed_alone(encoder, matrix, offenders, tokenised.windows.texts, embedding)
    wrong = tokenised.windows.owners[offenders[~_usable(matrix[offenders])]]
    if still := [names[text] for text in np.unique(wrong).tolist()]:
        names_shown = forward.shown_names(still)
        problem = f"{embedding.model} gives no finite vector for document {names_shown}"
        raise InputError(f"{problem}, alone and in float32; drop or fix the text")
    unit: np.ndarray = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return tokenised.windows.direction(unit)


def _usable(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1))


def _encode(model: Any, tokenised: forward.Tokenised, width: int) -> np.ndarray:
    of_batch = functools.partial(_forward, model)
    return forward.compute_batches(of_batch, tokenised, width, model.device, "embedding.max_tokens")


def _forward(model: Any, features: dict[str, Any]) -> Any:
    return model(features)["sentence_embedding"]


def _embed_alone(
    encoder: Encoder, matrix: np.ndarray, rows: np.ndarray, texts: list[str], embedding: Embedding
) -> None:
    import torch

    logger.warning("%d vectors are not finite; embedding them alone in float32", len(rows))
    encoder.model.to(torch.float32)
    try:
        for row in rows.tolist():
            alone = tokenise(encoder, [texts[row]], embedding, 1, 1)
            matrix[row] = _encode(encoder.model, alone, embedding.dimension)[0]
    finally:
        encoder.model.to(getattr(torch, embedding.dtype))

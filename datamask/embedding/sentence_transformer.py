"""Embeddings by a sentence-transformers model, at the revision that was pinned.

The model is loaded once per process. Texts of a chunk are sorted by length, so that a batch holds
texts of one length and little padding; the order is restored afterwards. No vector leaves that is
not finite: offenders are embedded again, alone and in float32, and named if that does not help.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datamask.config import Compute, Embedding
from datamask.embedding.pinning import folder_digest
from datamask.errors import DeviceMemoryError, InputError, RunError, SettingsError, is_transient

logger = logging.getLogger(__name__)

_models: dict[tuple[str, ...], Any] = {}
_lock = threading.Lock()
_encoding = threading.Lock()


def load_model(embedding: Embedding, pin: str, compute: Compute) -> Any:
    """The model, from this process's cache if it was loaded before.

    Args:
        embedding: which model.
        pin: commit, or digest of the local folder, found when the run was planned.
        compute: the device.

    Raises:
        RunError: the local folder is not the one that was planned with.
        SettingsError: the model cannot be loaded, or its vectors have another width.
    """
    import torch

    device = compute.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    key = (embedding.model, pin, embedding.dtype, device, str(embedding.max_tokens))
    with _lock:
        if key not in _models:
            _models[key] = _load(embedding, pin, device)
        return _models[key]


def _load(embedding: Embedding, pin: str, device: str) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    folder = Path(embedding.model)
    if folder.is_dir() and folder_digest(folder) != pin:
        raise RunError(
            f"embedding.model: {folder} has changed since the run was planned; restore it, or "
            "relaunch `datamask rebuild` to embed everything again"
        )
    try:
        model = SentenceTransformer(
            embedding.model,
            revision=None if folder.is_dir() else pin,
            device=device,
            trust_remote_code=embedding.trust_remote_code,
            model_kwargs={"dtype": getattr(torch, embedding.dtype)},
        )
    except (OSError, ValueError, ImportError) as error:
        if is_transient(error):
            raise
        raise SettingsError(
            f"embedding.model: {embedding.model} cannot be loaded "
            f"({' '.join(str(error).split())[:300]})"
        ) from None
    width = model.get_embedding_dimension()
    if width != embedding.dimension:
        raise SettingsError(
            f"embedding.dimension: {embedding.model} gives {width} numbers, {embedding.dimension} "
            f"set; use --set embedding.dimension={width}"
        )
    model.max_seq_length = min(embedding.max_tokens, model.max_seq_length or embedding.max_tokens)
    model.eval()
    logger.info("loaded %s (%s) on %s in %s", embedding.model, pin[:12], device, embedding.dtype)
    return model


def embed(
    model: Any, texts: Sequence[str], embedding: Embedding, batch: int, names: Sequence[str]
) -> np.ndarray:
    """Embed the texts of one chunk.

    Args:
        model: from `load_model`.
        texts: N texts.
        embedding: prefix and width.
        batch: texts per forward pass; halved as long as the device runs out of memory.
        names: N ids, for messages.

    Returns:
        Unit rows, float32, N x D, in the order of *texts*.

    Raises:
        DeviceMemoryError: even one text does not fit.
        InputError: naming the documents whose vector is not finite or zero even in float32.
    """
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
    ordered = [embedding.prefix + texts[row] for row in order]
    matrix = np.empty((len(texts), embedding.dimension), dtype=np.float32)
    # One chunk at a time: the retry changes the shared model's precision for a moment.
    with _encoding:
        matrix[order] = _encode(model, ordered, batch)
        offenders = np.flatnonzero(~_usable(matrix))
        if len(offenders):
            _embed_alone(model, matrix, offenders, texts, embedding)
    if len(offenders):
        still = [names[row] for row in offenders.tolist() if not _usable(matrix[row : row + 1])[0]]
        if still:
            shown = ", ".join(still[:5]) + (f" and {len(still) - 5} more" if still[5:] else "")
            raise InputError(
                f"{embedding.model} gives no finite vector for document {shown}, alone and in "
                "float32; drop or mend the text"
            )
    unit: np.ndarray = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return unit


def _usable(matrix: np.ndarray) -> np.ndarray:
    finite: np.ndarray = np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1)
    return finite


def _encode(model: Any, texts: Sequence[str], batch: int) -> np.ndarray:
    import torch

    while True:
        try:
            with torch.inference_mode():
                found = model.encode(
                    list(texts),
                    batch_size=batch,
                    convert_to_tensor=True,
                    show_progress_bar=False,
                )
            result: np.ndarray = found.float().cpu().numpy()
            return result
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            if batch == 1:
                raise DeviceMemoryError(
                    "one text does not fit on the device; lower embedding.max_tokens"
                ) from None
            batch = max(1, batch // 2)
            logger.warning("out of device memory; going on with batches of %d", batch)


def _embed_alone(
    model: Any,
    matrix: np.ndarray,
    rows: np.ndarray,
    texts: Sequence[str],
    embedding: Embedding,
) -> None:
    import torch

    logger.warning("%d vectors are not finite; embedding them alone in float32", len(rows))
    dtype = getattr(torch, embedding.dtype)
    model.to(torch.float32)
    try:
        for row in rows.tolist():
            matrix[row] = _encode(model, [embedding.prefix + texts[row]], 1)[0]
    finally:
        model.to(dtype)

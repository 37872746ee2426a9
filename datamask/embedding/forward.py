"""Batches of tokens through a model on its device: padding, transfer, and what does not fit.

Encoders and classifiers share this. A batch is as wide as its longest text, and shorter texts are
padded with tokens that the model computes for nothing. Texts are therefore sorted by token count,
and a batch is filled up to a number of tokens, padding included: short texts make large batches,
long ones small batches, and the memory of a batch stays the same. The batches depend on the counts
alone. A batch that does not fit on the device is halved.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.errors import DeviceMemoryError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The texts of a chunk as the model takes them, on the host.

    Args:
        texts: N texts with their prefix.
        batches: places of the texts of each forward pass.
        features: the model's input of each.
        counts: `token_metrics`; empty where the model's input is no sequence of tokens.
    """

    texts: list[str]
    batches: list[np.ndarray]
    features: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)


TOKENS_PER_BATCH = {"cuda": 16_384, "cpu": 1024}
"""Tokens of a forward pass by default (CPU: benchmarks/results/embedding.md; GPU: not measured)."""

TOKENS_AT = {length: f"tokens_at_{length}" for length in (64, 128, 256, 512)}
"""Metrics of the tokens at values of max_tokens whose cost the report compares."""

_loaded: dict[tuple[str, ...], Any] = {}
_loading = threading.Lock()


def load_once(key: tuple[str, ...], load: Callable[[], Any]) -> Any:
    """A model from the cache of this process, or loaded; one thread loads at a time.

    *key* is all that determines the loaded model, its device included; first, its name.
    """
    with _loading:
        if key not in _loaded:
            from transformers.utils.logging import disable_progress_bar

            disable_progress_bar()  # type: ignore[no-untyped-call]
            logger.info("loading %s", key[0])
            _loaded[key] = load()
        return _loaded[key]


def device_name(compute: Compute) -> str:
    """The device, where `auto` is CUDA if there is one."""
    import torch

    if compute.device != "auto":
        return compute.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def token_batches(counts: np.ndarray, most_tokens: int) -> list[np.ndarray]:
    """Sort texts into batches of at most *most_tokens*, padding included.

    Args:
        counts: tokens of each text, at least 1; shape N.
        most_tokens: maximum per batch. A longer text is a batch of its own.

    Returns:
        The places of the texts of each batch, longest texts first, so that a batch that does not
        fit on the device is found at once.
    """
    order = np.argsort(-counts, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        # The first text of a batch is its longest.
        size = max(1, most_tokens // max(int(counts[order[start]]), 1))
        batches.append(order[start : start + size])
        start += size
    return batches


def token_metrics(
    counts: np.ndarray, whole: np.ndarray, batches: list[np.ndarray]
) -> dict[str, int]:
    """Tokens of texts: computed, with padding, before cutting, and at other maximum lengths.

    Args:
        counts: tokens of each text after it was cut; shape N.
        whole: tokens of each text before; shape N.
        batches: places of the texts of each batch.

    Returns:
        `speed.TOKEN_METRICS`; `cut` counts the texts that were cut.
    """
    at_lengths = {name: np.minimum(whole, length).sum() for length, name in TOKENS_AT.items()}
    sums = {"tokens": counts.sum(), "whole_tokens": whole.sum(), "cut": (whole > counts).sum()}
    sums["padded_tokens"] = sum(len(batch) * counts[batch].max() for batch in batches)
    return {name: int(value) for name, value in (sums | at_lengths).items()}


def pad_batches(
    tokenizer: Any,
    columns: Mapping[str, Any],
    texts: list[str],
    batch: int | None,
    max_tokens: int,
    device: Any,
) -> Tokenised:
    """Sort token lists into batches of about the same number of tokens, and pad each.

    Args:
        tokenizer: of transformers; pads.
        columns: `input_ids` and what goes with them, a list for each text; other values are part of
            every batch.
        texts: N texts.
        batch: texts of *max_tokens* tokens in a batch; None: `TOKENS_PER_BATCH` of the device.
        max_tokens: at which texts were cut.
        device: of the model.
    """
    most_tokens = batch * max_tokens if batch else TOKENS_PER_BATCH.get(device.type, 16_384)
    sequences = {name: lists for name, lists in columns.items() if isinstance(lists, list)}
    rest = {name: value for name, value in columns.items() if name not in sequences}
    counts = np.asarray([len(ids) for ids in sequences["input_ids"]])
    batches = token_batches(counts, most_tokens)
    features = []
    for rows in batches:
        part = {name: [lists[row] for row in rows] for name, lists in sequences.items()}
        padded = dict(tokenizer.pad(part, padding=True, return_tensors="pt"))
        if device.type == "cuda":  # in memory that a GPU can fetch by itself
            padded = {name: tensor.pin_memory() for name, tensor in padded.items()}
        features.append({**rest, **padded})
    found = token_metrics(counts, _whole_counts(tokenizer, columns, counts), batches)
    return Tokenised(texts, batches, features, found)


def _whole_counts(tokenizer: Any, columns: Mapping[str, Any], counts: np.ndarray) -> np.ndarray:
    """Tokens of each text before it was cut; a tokeniser in Python does not know them."""
    encodings = getattr(columns, "encodings", None)
    if not encodings:
        return counts
    special = tokenizer.num_special_tokens_to_add()
    rest = [sum(len(part) - special for part in one.overflowing) for one in encodings]
    whole: np.ndarray = counts + np.asarray(rest)
    return whole


def compute_batches(
    forward: Callable[[dict[str, Any]], Any],
    tokenised: Tokenised,
    width: int,
    device: Any,
    setting: str,
) -> np.ndarray:
    """What a model gives for N texts; the host waits for the device once, at the end.

    Args:
        forward: a batch's features on the device to a tensor, a row for each text.
        tokenised: N texts.
        width: how many numbers of a row, its first, are kept.
        device: of the model.
        setting: what to lower where one text does not fit, for the message.

    Returns:
        float32, N x *width*.

    Raises:
        DeviceMemoryError: even one text does not fit.
    """
    import torch

    rows: list[np.ndarray] = []
    found: list[torch.Tensor] = []
    waiting = list(zip(tokenised.batches, tokenised.features, strict=True))[::-1]
    while waiting:
        batch, features = waiting.pop()
        try:
            with torch.inference_mode():
                found.append(forward(_on_device(features, device))[:, :width])
            rows.append(batch)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            if len(batch) == 1:
                raise DeviceMemoryError(
                    f"one text does not fit on the device; lower {setting}"
                ) from None
            half = len(batch) // 2
            logger.warning("out of device memory; going on with batches of %d", half)
            for part in (slice(half, None), slice(None, half)):
                waiting.append((batch[part], _part(features, part, len(batch))))
    matrix = np.empty((len(tokenised.texts), width), dtype=np.float32)
    matrix[np.concatenate(rows)] = torch.cat(found).float().cpu().numpy()
    return matrix


def _on_device(features: dict[str, Any], device: Any) -> dict[str, Any]:
    import torch

    return {
        name: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
        for name, value in features.items()
    }


def _part(features: dict[str, Any], rows: slice, size: int) -> dict[str, Any]:
    """Some texts of a batch of *size*."""
    import torch

    return {
        name: value[rows] if torch.is_tensor(value) and len(value) == size else value
        for name, value in features.items()
    }


def shown_names(names: Sequence[str], most: int = 5) -> str:
    """Some ids for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")

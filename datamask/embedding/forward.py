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
from datamask.runs.checkpoints import Checkpoints
from datamask.source.windows import Windows, cut

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partial:
    """Windows of a chunk that a CPU may need minutes for, kept while it is computed.

    Args:
        checkpoints: where rows are kept, if anywhere.
        name: name of the checkpoint.
        report: called with the number of windows done, and of all windows.
    """

    checkpoints: Checkpoints | None
    name: str
    report: Callable[[int, int], None]

    def load(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Load the places of windows that were computed before, and their rows; None if none."""
        kept = self.checkpoints.load(self.name) if self.checkpoints else None
        return (kept["places"], kept["rows"]) if kept else None

    def keep(self, places: Sequence[np.ndarray], rows: Sequence[Any], total: int) -> None:
        """Save these windows, if it is time to, and report them."""
        if self.checkpoints and self.checkpoints.due():
            matrix = np.concatenate([np.asarray(part.float()) for part in rows])
            state = {"places": np.concatenate(places), "rows": matrix}
            self.checkpoints.save(self.name, state)
        self.report(sum(map(len, places)), total)


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The texts of a chunk in the form that the model takes, on the host.

    `windows` of the texts are rows of the model's output; `characters` are how many of each window
    the model reads (float64, NaN where it is unknown). `batches` and `features` are the places of
    the windows and the model's input of each forward pass. `counts` are `token_metrics`, if any.
    `partial` keeps what is computed of the chunk, and reports it.
    """

    windows: Windows
    characters: np.ndarray
    batches: list[np.ndarray]
    features: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)
    partial: Partial | None = None

    def share_read(self) -> np.ndarray:
        """Return the fraction of each text that the model reads; float32, in [0, 1] or NaN."""
        return self.windows.share_read(self.characters)


TOKENS_PER_BATCH = {"cuda": 16_384, "cpu": 1024}
"""Tokens of a forward pass by default (CPU: benchmarks/results/embedding.md; GPU: not measured)."""

TOKENS_AT = {length: f"tokens_at_{length}" for length in (64, 128, 256, 512)}
"""Metrics of the tokens at values of max_tokens whose cost the report compares."""

_loaded: dict[tuple[str, ...], Any] = {}
_loading = threading.Lock()


def load_once(key: tuple[str, ...], load: Callable[[], Any]) -> Any:
    """Return a model from the cache of this process, or load it; one thread loads at a time.

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
    """Return the device; `auto` is CUDA if there is one."""
    import torch

    if compute.device != "auto":
        return compute.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def token_batches(counts: np.ndarray, most_tokens: int) -> list[np.ndarray]:
    """Sort texts, by their numbers of tokens, into batches of at most *most_tokens* with padding.

    A longer text is a batch of its own. The longest come first, so that a batch that does not fit
    on the device is found at once. Batches are places of texts.
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
    counts: np.ndarray, whole: np.ndarray, batches: list[np.ndarray], windows: int
) -> dict[str, int]:
    """Return `speed.TOKEN_METRICS`; *counts* are tokens of each text when cut, *whole* before."""
    at_lengths = {n: np.minimum(whole, windows * length).sum() for length, n in TOKENS_AT.items()}
    sums = {"tokens": counts.sum(), "whole_tokens": whole.sum(), "cut": (whole > counts).sum()}
    sums["padded_tokens"] = sum(len(batch) * counts[batch].max() for batch in batches)
    return {name: int(value) for name, value in (sums | at_lengths).items()}


TokenLists = Mapping[str, Any]
"""`input_ids` and similar columns have a list for each text; other values apply to every batch."""


def tokenise_windows(
    token_lists: Callable[[Sequence[str]], TokenLists],
    texts: Sequence[str],
    most: int,
    ahead: int,
    tokenizer: Any,
    batch: int | None,
    max_tokens: int,
    device: Any,
) -> Tokenised:
    """Tokenise windows of texts; their size is what the tokeniser keeps of each text's beginning.

    The beginnings have batches of their own: other windows do not change the vectors of short
    texts, not even by rounding. *token_lists* cuts each text at *max_tokens*, after *ahead* other
    characters; *most* is the number of windows of a text, *batch* the number of whole windows in a
    forward pass (None: `TOKENS_PER_BATCH`). The *tokenizer* of transformers pads.
    """
    first = token_lists(texts)
    characters = _characters_held(first, texts, ahead, max_tokens)
    sizes = [len(text) for text in texts]
    windows = cut(texts, np.where(np.isnan(characters), sizes, characters), most)
    batches, features, counts = _pad_batches(tokenizer, first, batch, most, max_tokens, device)
    if later := windows.texts[len(texts) :]:
        rest = token_lists(later)
        held = _characters_held(rest, later, ahead, max_tokens)
        characters = np.concatenate([characters, held])
        others, more, added = _pad_batches(tokenizer, rest, batch, 1, max_tokens, device)
        batches += [rows + len(texts) for rows in others]
        features += more
        counts |= {name: counts[name] + added[name] for name in ("tokens", "padded_tokens")}
    return Tokenised(windows, characters, batches, features, counts)


def _characters_held(
    columns: TokenLists, texts: Sequence[str], ahead: int, max_tokens: int
) -> np.ndarray:
    """Count the characters of each text that its tokens hold; NaN if Python code cut it."""
    held = np.array([len(text) for text in texts], np.float64)
    encodings = getattr(columns, "encodings", None)
    if not encodings:
        held[[len(ids) >= max_tokens for ids in columns["input_ids"]]] = np.nan
        return held
    for text, encoding in enumerate(encodings):
        if encoding.overflowing:
            stop = max(stop for _, stop in encoding.offsets) - ahead
            held[text] = min(max(stop, 1), held[text])
    return held


def _pad_batches(
    tokenizer: Any,
    columns: TokenLists,
    batch: int | None,
    windows: int,
    max_tokens: int,
    device: Any,
) -> tuple[list[np.ndarray], list[dict[str, Any]], dict[str, int]]:
    """Return batches, features and counts of `Tokenised`, with about equal tokens a batch."""
    most_tokens = batch * max_tokens if batch else TOKENS_PER_BATCH.get(device.type, 16_384)
    sequences = {name: lists for name, lists in columns.items() if isinstance(lists, list)}
    rest = {name: value for name, value in columns.items() if name not in sequences}
    counts = np.asarray([len(ids) for ids in sequences["input_ids"]])
    batches = token_batches(counts, most_tokens)
    features = []
    for rows in batches:
        of_batch = {name: [lists[row] for row in rows] for name, lists in sequences.items()}
        padded = dict(tokenizer.pad(of_batch, padding=True, return_tensors="pt"))
        if device.type == "cuda":  # A GPU can fetch pinned memory by itself.
            padded = {name: tensor.pin_memory() for name, tensor in padded.items()}
        features.append({**rest, **padded})
    whole = counts  # These counts precede the cut; a tokeniser in Python does not know them.
    if encodings := getattr(columns, "encodings", None):
        special = tokenizer.num_special_tokens_to_add()
        whole = counts + [sum(len(p) - special for p in text.overflowing) for text in encodings]
    return batches, features, token_metrics(counts, whole, batches, windows)


def compute_batches(
    forward: Callable[[dict[str, Any]], Any],
    tokenised: Tokenised,
    width: int,
    device: Any,
    setting: str,
) -> np.ndarray:
    """Run W windows through a model, float32; the host waits for the device once, at the end.

    *forward* turns a batch's features on the device into a tensor with a row for each window; the
    first *width* numbers of a row are kept. A batch that does not fit is halved.

    Raises:
        DeviceMemoryError: one text does not fit; the message says to lower *setting*.
    """
    import torch

    done: list[np.ndarray] = []
    outputs: list[torch.Tensor] = []
    waiting = list(zip(tokenised.batches, tokenised.features, strict=True))[::-1]
    total = len(tokenised.windows.texts)
    # Other devices compute while the host goes on, and take seconds for a chunk.
    partial = tokenised.partial if torch.device(device).type == "cpu" else None
    if partial and (kept := partial.load()):
        done.append(kept[0])
        outputs.append(torch.from_numpy(kept[1]))
        waiting = [(rows, of) for rows, of in waiting if not np.isin(rows, kept[0]).all()]
    while waiting:
        batch, features = waiting.pop()
        try:
            with torch.inference_mode():
                on_device = {
                    name: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
                    for name, value in features.items()
                }
                outputs.append(forward(on_device)[:, :width])
            done.append(batch)
            if partial:
                partial.keep(done, outputs, total)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            if len(batch) == 1:
                raise DeviceMemoryError(
                    f"one text does not fit on the device; lower {setting}"
                ) from None
            half = len(batch) // 2
            logger.warning("out of device memory; going on with batches of %d", half)
            for rows in (slice(half, None), slice(None, half)):
                half_of = {
                    name: value[rows]
                    if torch.is_tensor(value) and len(value) == len(batch)
                    else value
                    for name, value in features.items()
                }
                waiting.append((batch[rows], half_of))
    matrix = np.empty((total, width), dtype=np.float32)
    matrix[np.concatenate(done)] = torch.cat([rows.float() for rows in outputs]).cpu().numpy()
    return matrix


def shown_names(names: Sequence[str], most: int = 5) -> str:
    """Name some ids in a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")

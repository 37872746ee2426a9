"""Counting tokens with a tokenizer, for sources without token counts."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.errors import SettingsError, one_line
from datamask.storage.unchanged import State, not_as_planned, state_of

TEXTS_AT_ONCE = 1024


def load_tokenizer(name: str, setting: str = "source.tokenizer", planned: str | None = None) -> Any:
    """The tokenizer of a file (tokenizer.json, or a folder with one) or of a model on the Hub.

    Args:
        name: of the file, folder or model.
        setting: named in messages.
        planned: the digest of its definition when the run was planned, if it is.

    Raises:
        SettingsError: it does not exist or cannot be read.
        InputError: its definition is not the planned one.
    """
    tokenizer, digest = _loaded(name, setting)
    if planned not in (None, digest):
        raise not_as_planned(name)
    return tokenizer


def _loaded(name: str, setting: str) -> tuple[Any, str]:
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    state = state_of(path.stat()) if path.exists() else None
    return _load(str(path) if state else name, state, setting)


@functools.lru_cache(maxsize=2)
def _load(name: str, state: State | None, setting: str) -> tuple[Any, str]:
    """A tokenizer and the hash of its whole definition."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(name) if state else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises plain Exception
        problem = f"{setting}: {name} cannot be loaded ({one_line(error)}); name a"
        raise SettingsError(f"{problem} tokenizer.json or a model on the Hub") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:32]


def tokenizer_digest(name: str, setting: str = "source.tokenizer") -> str:
    """The hash of a tokenizer's whole definition. Raises as `load_tokenizer`."""
    return _loaded(name, setting)[1]


def count_tokens(tokenizer: Any, text: pa.Array) -> pa.Array:
    """Tokens of each text without special tokens; 0 for null."""
    counts: list[int] = []
    for start in range(0, len(text), TEXTS_AT_ONCE):
        texts = [value or "" for value in text.slice(start, TEXTS_AT_ONCE).to_pylist()]
        counts += [len(found) for found in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return pa.array(counts, pa.int64())

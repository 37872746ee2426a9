"""Counting tokens with a tokenizer, for sources without token counts."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.errors import SettingsError, one_line

TEXTS_AT_ONCE = 1024


def load_tokenizer(name: str, setting: str = "source.tokenizer") -> Any:
    """The tokenizer of a file (tokenizer.json, or a folder with one) or of a model on the Hub.

    Raises:
        SettingsError: it does not exist or cannot be read; the message names *setting*.
    """
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    changed = path.stat().st_mtime_ns if path.exists() else 0
    return _load(str(path) if changed else name, changed, setting)


@functools.lru_cache(maxsize=2)
def _load(name: str, changed: int, setting: str) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(name) if changed else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises plain Exception
        problem = f"{setting}: {name} cannot be loaded ({one_line(error)}); name a"
        raise SettingsError(f"{problem} tokenizer.json or a model on the Hub") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_digest(name: str, setting: str = "source.tokenizer") -> str:
    """The hash of a tokenizer's whole definition. Raises as `load_tokenizer`."""
    return hashlib.sha256(load_tokenizer(name, setting).to_str().encode()).hexdigest()[:32]


def count_tokens(name: str, text: pa.Array) -> pa.Array:
    """Tokens of each text without special tokens; 0 for null."""
    tokenizer = load_tokenizer(name)
    counts: list[int] = []
    for start in range(0, len(text), TEXTS_AT_ONCE):
        texts = [value or "" for value in text.slice(start, TEXTS_AT_ONCE).to_pylist()]
        counts += [len(found) for found in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return pa.array(counts, pa.int64())

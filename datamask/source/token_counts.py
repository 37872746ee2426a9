"""Tokenizers by name: counting the tokens of texts, and encoding them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.errors import SettingsError, one_line
from datamask.storage.unchanged import State, not_as_planned, state_of

TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1024, 2**22
"""Most texts that are encoded together, and the characters that end a batch: bounds of memory."""

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|bos|>")
"""Names of the token between documents, in the order in which they are tried."""

LARGEST_TOKEN = 2**31 - 1
"""Trainers read tokens as signed 32-bit integers if 16 bits do not suffice."""


def load_tokenizer(name: str, setting: str = "source.tokenizer", planned: str | None = None) -> Any:
    """The tokenizer of a file (tokenizer.json, or a folder with one) or of a model on the Hub.

    Messages name the *setting*; *planned* is the digest of its definition when the run was planned.

    Raises:
        SettingsError: it does not exist or cannot be read.
        InputError: its definition is not the planned one.
    """
    tokenizer, digest = _loaded(name, setting)
    if planned not in (None, digest):
        raise not_as_planned(_definition(name))
    return tokenizer


def _definition(name: str) -> Path:
    """The file that defines a tokenizer, if *name* is no model on the Hub."""
    path = Path(name)
    return path / "tokenizer.json" if path.is_dir() else path


def _loaded(name: str, setting: str) -> tuple[Any, str]:
    path = _definition(name)
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


def end_of_document(tokenizer: Any, name: str, wanted: str) -> int:
    """The token after each document: the one called *wanted*, or if empty the first of `ENDS`.

    Raises:
        SettingsError: the tokenizer *name* has none, or has tokens above `LARGEST_TOKEN`.
    """
    vocabulary = tokenizer.get_vocab()
    if (largest := max(vocabulary.values(), default=0)) > LARGEST_TOKEN:
        problem = f"{name} has token {largest}, and 32 bits hold at most {LARGEST_TOKEN}"
        raise SettingsError(f"tokens.tokenizer: {problem}; name another")
    for token in (wanted,) if wanted else ENDS:
        if token in vocabulary:
            return int(vocabulary[token])
    problem = f"{name} has no token {wanted or ' or '.join(ENDS)}"
    raise SettingsError(f"tokens.end_of_document: {problem}; name one that it has")


def token_type(tokenizer: Any) -> str:
    """The type of a trainer's tokens: uint16 if all tokens fit, else uint32."""
    return "uint16" if max(tokenizer.get_vocab().values(), default=0) < 2**16 else "uint32"


def encode(tokenizer: Any, texts: list[str]) -> Iterator[list[int]]:
    """The tokens of texts without special tokens, encoded in batches of bounded size."""
    first = size = 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if end == len(texts) or end - first == TEXTS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            batch = tokenizer.encode_batch_fast(texts[first:end], add_special_tokens=False)
            yield from (encoding.ids for encoding in batch)
            first, size = end, 0


def count_tokens(tokenizer: Any, text: pa.Array) -> pa.Array:
    """Tokens of each text without special tokens; 0 for null."""
    texts = [value or "" for value in text.to_pylist()]
    return pa.array(map(len, encode(tokenizer, texts)), pa.int64())

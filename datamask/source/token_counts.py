"""Load tokenizers by name, count the tokens of texts, and encode texts.

The name of a special token in a text, such as `<|endoftext|>`, is encoded as ordinary characters.
Otherwise a trainer would end a document there.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.errors import SettingsError, one_line
from datamask.storage.unchanged import State, not_as_planned, state_of

TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1024, 2**22
"""Maximum number of texts that are encoded together, and of characters that end a batch: they limit
memory."""

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|bos|>")
"""Names of the token between documents, in the order in which they are tried."""

LARGEST_TOKEN = 2**31 - 1
"""Trainers read tokens as signed 32-bit integers if 16 bits do not suffice."""


def load_tokenizer(name: str, setting: str = "source.tokenizer", planned: str | None = None) -> Any:
    """Load the tokenizer of a file (tokenizer.json, or a folder with one) or of a model on the Hub.

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
    """Return the file that defines a tokenizer; *name* is not a model on the Hub."""
    path = Path(name)
    return path / "tokenizer.json" if path.is_dir() else path


def _loaded(name: str, setting: str) -> tuple[Any, str]:
    path = _definition(name)
    state = state_of(path.stat()) if path.exists() else None
    return _load(str(path) if state else name, state, setting)


@functools.lru_cache(maxsize=2)
def _load(name: str, state: State | None, setting: str) -> tuple[Any, str]:
    """Return a tokenizer and the hash of its whole definition."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(name) if state else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises plain Exception
        problem = f"{setting}: {name} cannot be loaded ({one_line(error)}); name a"
        raise SettingsError(f"{problem} tokenizer.json or a model on the Hub") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:32]
    return as_text(tokenizer), digest


def as_text(tokenizer: Any) -> Any:
    """Set a tokenizer to encode names of special tokens as text; white space may stay a token.

    Tokens that were added without the mark of a special one, such as `<tool_call>`, are special
    too: tokenizers with the same tokens differ in which of them have the mark.
    """
    from tokenizers import AddedToken

    names = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names if name.strip()])
    tokenizer.encode_special_tokens = True
    return tokenizer


def special_tokens(tokenizer: Any, more: str = "") -> dict[str, int]:
    """Return names and numbers of special tokens: `ENDS`, added tokens, and *more*.

    The token for unknown text is not among them, because it stands for text.
    """
    added = tokenizer.get_added_tokens_decoder().items()
    names = {token.content: number for number, token in added if token.content.strip()}
    ends = {name: tokenizer.token_to_id(name) for name in (*ENDS, more)}
    names |= {name: number for name, number in ends.items() if number is not None}
    names.pop(getattr(tokenizer.model, "unk_token", None), None)
    return names


def tokenizer_digest(name: str, setting: str = "source.tokenizer") -> str:
    """Return the hash of a tokenizer's whole definition. Errors are as in `load_tokenizer`."""
    return _loaded(name, setting)[1]


def end_of_document(tokenizer: Any, name: str, wanted: str) -> int:
    """Return the token after each document: *wanted*, or if that is empty the first of `ENDS`.

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
    """Return the type of a trainer's tokens: uint16 if all tokens fit, else uint32."""
    return "uint16" if max(tokenizer.get_vocab().values(), default=0) < 2**16 else "uint32"


def encode(tokenizer: Any, texts: list[str], end: str = "") -> Iterator[list[int]]:
    """Yield the tokens of texts, without special tokens and *end*, encoded in limited batches."""
    special = special_tokens(tokenizer, end)
    numbers = frozenset(special.values())
    first = size = 0
    for stop, text in enumerate(texts, 1):
        size += len(text)
        if stop == len(texts) or stop - first == TEXTS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            batch = tokenizer.encode_batch_fast(texts[first:stop], add_special_tokens=False)
            for number, encoding in enumerate(batch, first):
                ids = encoding.ids
                yield ids if numbers.isdisjoint(ids) else _apart(tokenizer, texts[number], special)
            first, size = stop, 0


def _apart(tokenizer: Any, text: str, special: dict[str, int]) -> list[int]:
    """Encode a text with the names of special tokens cut in two.

    A model that has such names in its own vocabulary, as word-level and SentencePiece models do,
    gives their tokens in spite of `as_text`.
    """
    names = {number: name for name, number in special.items()}
    encoding = tokenizer.encode(text, add_special_tokens=False)
    cuts = [
        (first + stop) // 2
        for number, (first, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        if number in names and names[number].strip() in text[first:stop] and stop - first > 1
    ]
    if not cuts:
        return list(encoding.ids)
    parts = [text[first:stop] for first, stop in itertools.pairwise([0, *cuts, len(text)])]
    return [number for part in parts for number in _apart(tokenizer, part, special)]


def count_tokens(tokenizer: Any, text: pa.Array, end: str = "") -> pa.Array:
    """Count the tokens of each text as from `encode`; 0 for null."""
    texts = [value or "" for value in text.to_pylist()]
    return pa.array(map(len, encode(tokenizer, texts, end)), pa.int64())

"""Decide which documents are held out for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fractions import Fraction

from datamask.config.settings import Settings
from datamask.storage.duckdb_scratch import hash_of


def is_drawn(settings: Settings) -> str:
    """Return SQL that is true if the document with column `id` is held out; equal on every machine.

    It is held out if the last 8 bytes of the MD5 of seed and id, little-endian, are below
    `evaluation.hold_out` times 2⁶⁴.
    """
    if not settings.evaluation.hold_out:
        return "false"
    text = f"'{settings.seed}/' || id"
    return f"{hash_of(text)} < {_share(settings)}"


def are_drawn(settings: Settings, ids: Iterable[str]) -> list[bool]:
    """Return True for each id that is held out, as `is_drawn` decides, for a few ids."""
    if not settings.evaluation.hold_out:  # The seed does not matter then.
        return [False for _ in ids]
    share = _share(settings)
    keys = (hashlib.md5(f"{settings.seed}/{name}".encode()).digest()[8:] for name in ids)
    return [int.from_bytes(key, "little") < share for key in keys]


def _share(settings: Settings) -> int:
    return int(Fraction(str(settings.evaluation.hold_out)) * 2**64)

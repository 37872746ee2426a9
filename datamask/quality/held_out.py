"""Which documents are held out for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fractions import Fraction

from datamask.config.settings import Settings
from datamask.storage.duckdb_scratch import hash_of


def is_drawn(settings: Settings) -> str:
    """Whether the document of a column `id` is held out: SQL, and the same on every machine.

    The last 8 bytes of the MD5 of seed and id, little-endian, are below the share of 2⁶⁴.
    """
    if not settings.evaluation.hold_out:
        return "false"
    text = f"'{settings.seed}/' || id"
    return f"{hash_of(text)} < {_share(settings)}"


def are_drawn(settings: Settings, ids: Iterable[str]) -> list[bool]:
    """Which documents are held out, as `is_drawn` says, for a few ids."""
    if not settings.evaluation.hold_out:  # the seed does not matter then
        return [False for _ in ids]
    share = _share(settings)
    keys = (hashlib.md5(f"{settings.seed}/{name}".encode()).digest()[8:] for name in ids)
    return [int.from_bytes(key, "little") < share for key in keys]


def _share(settings: Settings) -> int:
    return int(Fraction(str(settings.evaluation.hold_out)) * 2**64)

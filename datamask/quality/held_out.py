"""Which documents are held out for evaluation."""

from __future__ import annotations

from fractions import Fraction

from datamask.config.settings import Settings


def is_drawn(settings: Settings) -> str:
    """Whether the document of a column `id` is held out: SQL, and the same on every machine.

    The last 8 bytes of the MD5 of seed and id, little-endian, are below the share of 2⁶⁴.
    """
    if not settings.evaluation.hold_out:
        return "false"
    share = int(Fraction(str(settings.evaluation.hold_out)) * 2**64)
    return f"md5_number_lower('{settings.seed}/' || id) < {share}"

"""Canonical JSON, from which fingerprints are computed."""

from __future__ import annotations

import json
from operator import methodcaller
from typing import Any

_PLAIN = methodcaller("model_dump", mode="json")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_PLAIN)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, settings as their plain data."""
    return _ENCODER.encode(value)

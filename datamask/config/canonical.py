"""Canonical JSON, from which fingerprints are computed."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel


def _plain(settings: BaseModel) -> Any:
    return settings.model_dump(mode="json")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, settings as their plain data."""
    return _ENCODER.encode(value)

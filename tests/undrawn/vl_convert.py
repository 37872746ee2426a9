"""Takes vl-convert's place where charts are not looked at: they are specified, and not drawn."""

import json
from typing import Any


def vegalite_to_svg(specification: dict[str, Any], **options: object) -> str:
    """An empty drawing of a specification that JSON can hold."""
    json.dumps(specification, allow_nan=False)
    return "<svg></svg>"


def vegalite_to_png(specification: dict[str, Any], **options: object) -> bytes:
    """The beginning of every PNG file."""
    json.dumps(specification, allow_nan=False)
    return b"\x89PNG\r\n\x1a\n"

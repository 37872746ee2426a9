"""Show texts without secrets and with escapes for control characters; numbers with separators."""

from __future__ import annotations

import functools
import os
import re
from urllib.parse import quote, unquote

LARGEST_IN_FULL = 10**15
"""Numbers with a point are written with a power of ten from here on."""


def figure(value: float, digits: int = 4) -> str:
    """Write a number with thousands separators: integers in full, others with *digits* digits."""
    if isinstance(value, int) or (abs(value) < LARGEST_IN_FULL and value.is_integer()):
        return f"{int(value):,d}"
    if 10**digits <= abs(value) < LARGEST_IN_FULL:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Environment variables whose values are never shown."""

LEAST_SECRET, LEAST_INSIDE = 8, 16
"""Length from which a secret is searched for at all, and from which it is searched inside words:
`test` and `minioadmin`, in common use on development machines, are parts of honest paths."""

# In abfs://container@account the first name is not a user. A colon that is not followed by a port
# begins a password, which may contain any character.
_USER = re.compile(
    r"\b(?P<container>(?:abfss?|wasbs?)://[^/:@\s]+@)"
    r"|://(?:[^/?#\s]*@|[^/?#\s@\[]*:(?!\d*(?:[/?#\s'\"`]|$))[^\s'\"]*@)"
)
_PARAMETER = re.compile(r"(?P<name>[?&;#][\w.%-]+=)[^&;#\s'\"`]+")
_SECRET_NAME = re.compile(
    r"signature|token|secret|passw|pwd|credential|(api|access|account)[_-]?key|\W(sig|key|auth)=",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Replace secrets in a text by ***.

    These are the values of `SECRETS` as they are, escaped or in part, user and password in a URL,
    and signatures, tokens and keys in its query.
    """
    if pattern := _secrets(tuple(os.environ.get(name, "").strip() for name in SECRETS)):
        text = pattern.sub("***", text)
    text = _USER.sub(lambda match: match["container"] or "://***@", text)
    return _PARAMETER.sub(
        lambda match: (
            f"{match['name']}***" if _SECRET_NAME.search(unquote(match["name"])) else match[0]
        ),
        text,
    )


@functools.lru_cache
def _secrets(values: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return a pattern of all forms of secrets that libraries and servers repeat, or None."""
    forms = set[str]()
    for value in values:
        parts = re.findall(
            r"[\x21-\x7e]+", value
        )  # Clients join the lines of a token, or quote one of them.
        forms |= {value, *parts, "".join(parts), quote(value, safe=""), ascii(value)[1:-1]}
    hidden = sorted((form for form in forms if len(form) >= LEAST_SECRET), key=len, reverse=True)
    escaped = (
        re.escape(form)
        if len(form) >= LEAST_INSIDE
        else rf"(?<![\w./-]){re.escape(form)}(?![\w./-])"
        for form in hidden
    )
    return re.compile("|".join(escaped)) if hidden else None


# Without tab and line feed; with the characters that change the direction of what follows.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Escape control characters in a text, and bytes that are not UTF-8."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def printable(text: str) -> str:
    """Remove secrets from a text, and make it `visible`."""
    return visible(without_secrets(text))

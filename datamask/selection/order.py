"""The order in which documents are kept, as SQL.

Documents are kept in the order of higher logit, higher quality, smaller id. DuckDB sorts them, out
of core.
"""

from __future__ import annotations

from typing import Any

ORDER = "logit DESC, quality DESC, id"
"""SQL: the order in which documents are kept."""

Key = tuple[float, float, str]
NOTHING: Key = (float("inf"), 0.0, "")
"""The key before the first document, if nothing is kept."""


def not_after(logit: str, quality: str, name: str) -> str:
    """Return SQL that is true if a document has this key or comes before it in the order."""
    return (
        f"(logit > {logit} OR (logit = {logit} AND (quality > {quality} OR "
        f"(quality = {quality} AND id <= {name}))))"
    )


def is_kept(last: tuple[Any, ...]) -> str:
    """Return SQL that is true if a document is *last* or comes before it in the order."""
    if last == NOTHING:
        return "false"
    name = last[2].replace("'", "''")
    return not_after(f"{last[0]!r}::FLOAT", f"{last[1]!r}::DOUBLE", f"'{name}'")


def midway(last: float | None, following: float | None) -> float:
    """Return the middle of the last kept logit and the next; 1 beyond if only one exists."""
    if last is None:
        return 0.0 if following is None else following + 1
    return last - 1 if following is None else (last + following) / 2

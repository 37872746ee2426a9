"""A finding: a question about a selection, with a graded answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["good", "caution", "warning", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A question about a selection with its answer.

    Args:
        grade: `unknown` if the run cannot tell.
        name: what is asked, in a word or two.
        text: the answer with its figures.
        command: what to run next, with RUN in place of the run's folder; empty if nothing.
    """

    grade: Grade
    name: str
    text: str
    command: str = ""

    @property
    def mark(self) -> str:
        """The grade as a character, which does not depend on colour."""
        return {"good": "✓", "caution": "○", "warning": "⚠", "unknown": "?"}[self.grade]

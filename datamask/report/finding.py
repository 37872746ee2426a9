"""A graded finding, and constants that all findings about groups share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LEAST_EXPECTED = 20
"""Documents that a random selection would keep of a group. From a group of this size, a random
selection keeps less than half with a probability below 1 %."""

MOST_NAMED = 5

Grade = Literal["good", "caution", "warning", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A question about a selection with its answer.

    Args:
        grade: `unknown` if the run cannot answer.
        name: what is asked, in a word or two.
        headline: the answer in at most twelve words and two numbers.
        text: the answer with its figures.
        command: what to run next, with RUN in place of the run's folder; empty if nothing.
        takes: how long the command takes, if that is known to be more than the run took.
    """

    grade: Grade
    name: str
    headline: str
    text: str
    command: str = ""
    takes: str = ""

    @property
    def mark(self) -> str:
        """The grade as a character, which does not depend on colour."""
        return {"good": "✓", "caution": "○", "warning": "⚠", "unknown": "?"}[self.grade]

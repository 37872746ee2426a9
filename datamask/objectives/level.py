"""The scale on which the learner holds quality: float32 numbers in [-1, 1], whatever the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SMALLEST = 1e-300
"""Values that differ by less count as equal: float64 has few digits for numbers this small
(docs/log.md#numbers)."""


@dataclass(frozen=True, slots=True)
class Level:
    """Quality is learned as (q - centre) / unit, computed in float64 before it becomes float32.

    Both move with quality, so adding a constant to all values or multiplying them by a positive
    number changes nothing that is learned. Reported values are on the scale of the score.

    Args:
        centre: the lower median: a value, and so free of rounding.
        unit: the largest distance of a value from the centre; 1 if all are equal.
    """

    centre: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(cls, quality: np.ndarray) -> Level:
        """Return the level of quality (float64, shape N)."""
        if not len(quality):
            return cls()
        middle = (len(quality) - 1) // 2
        centre = float(np.partition(quality, middle)[middle])
        return cls.between(float(quality.min()), centre, float(quality.max()))

    @classmethod
    def between(cls, least: float, centre: float, largest: float) -> Level:
        """Return the level of quality with these extremes and this lower median."""
        farthest = max(largest - centre, centre - least)
        return cls(centre, farthest if farthest > SMALLEST else 1.0)

    def learned(self, quality: np.ndarray) -> np.ndarray:
        """Convert quality to learned quality; float64, in [-1, 1] for this level's documents."""
        return (np.asarray(quality, np.float64) - self.centre) / self.unit

    def reported(self, mean: float) -> float:
        """Convert a mean of learned quality to the scale of the score."""
        return mean * self.unit + self.centre


NATURAL = Level()
"""This level leaves quality as it is given."""

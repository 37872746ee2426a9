"""What an estimator goes on from after a kill, and how it leaves what it has.

The state holds everything that the next step depends on, exactly, so that a resumed learner takes
the steps it would have taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

State = dict[str, np.ndarray]


class Keeper(Protocol):
    """Keeps states by name; `datamask.runs.checkpoints.Checkpoints` is one."""

    def due(self) -> bool:
        """Whether it is time to keep something."""

    def save(self, name: str, state: State) -> None:
        """Keep a state."""

    def load(self, name: str) -> State | None:
        """What was kept last, if anything."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """Given to an estimator.

    Args:
        state: what it kept when it was killed; empty at the start.
        keep: called between steps with a function that makes the state, called if it is time.
    """

    state: State
    keep: Callable[[Callable[[], State]], None]


FROM_START = Resuming({}, lambda make: None)
"""Begin, and keep nothing."""


def generator_state(generator: torch.Generator) -> np.ndarray:
    """Where a random generator is."""
    state: np.ndarray = generator.get_state().numpy()
    return state


def restore_generator(generator: torch.Generator, state: np.ndarray) -> None:
    """Put a random generator where it was."""
    generator.set_state(torch.from_numpy(state))

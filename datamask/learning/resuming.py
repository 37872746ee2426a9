"""What an estimator records as it learns, and what it resumes from after a kill.

The state holds everything that the next step depends on, exactly, so that a resumed learner takes
the steps it would have taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from datamask.objectives.weighted import WeightedObjective

logger = logging.getLogger(__name__)

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


class Curve:
    """The values of the terms step by step, kept with the estimator's state.

    Args:
        objective: joins the terms.
        most_steps: for `progress`.
        progress: called with steps done and most steps.
        keeper: where an unfinished curve and state are kept; None keeps nothing.
    """

    def __init__(
        self,
        objective: WeightedObjective,
        most_steps: int,
        progress: Callable[[int, int], None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.objective, self.most_steps, self.progress = objective, most_steps, progress
        self.keeper = keeper
        names = ("step", "seconds", "objective", *(t.objective.name for t in objective.terms))
        self.columns: dict[str, list[float]] = {name: [] for name in names}
        state = (keeper.load("learner") or {}) if keeper is not None else {}
        kept = {name[6:]: state.pop(name) for name in list(state) if name.startswith("curve:")}
        if state:
            self.columns = {name: values.tolist() for name, values in kept.items()}
            step = max(self.columns["step"], default=0)
            logger.info("going on from a checkpoint at step %d", step)
        self.resuming = Resuming(state, self._keep)
        self._start = time.perf_counter() - max(self.columns["seconds"], default=0.0)

    def record(self, step: int, raw: Mapping[str, float]) -> None:
        """Add a point: the terms' raw values after a step."""
        columns = {"step": step, "seconds": time.perf_counter() - self._start}
        for name, value in {**columns, "objective": self.objective.join(raw), **raw}.items():
            self.columns[name].append(value)
        if self.progress is not None:
            self.progress(int(step), self.most_steps)

    def end(self, steps: int, raw: Mapping[str, float]) -> None:
        """Add the mask's values, unless the last point has them."""
        points = self.columns["objective"]
        if not points or points[-1] != self.objective.join(raw):
            self.record(steps + 1 if points else steps, raw)

    def _keep(self, make: Callable[[], State]) -> None:
        if self.keeper is not None and self.keeper.due():
            columns = {f"curve:{name}": np.asarray(c) for name, c in self.columns.items()}
            self.keeper.save("learner", make() | columns)


def generator_state(generator: torch.Generator) -> np.ndarray:
    """Where a random generator is."""
    state: np.ndarray = generator.get_state().numpy()
    return state


def restore_generator(generator: torch.Generator, state: np.ndarray) -> None:
    """Put a random generator where it was."""
    generator.set_state(torch.from_numpy(state))

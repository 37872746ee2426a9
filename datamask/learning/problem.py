"""The input of an estimator: a problem, and the curve with the state that it resumes from.

A state holds everything that the next step depends on, exactly, so a resumed learner takes the
steps that it would have taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from datamask.config.selection import Selection
from datamask.learning.data import Progress, Reference, ShardData
from datamask.learning.neighbours import Neighbours
from datamask.learning.policy import top_s
from datamask.objectives.level import NATURAL, Level
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective

logger = logging.getLogger(__name__)

State = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Problem:
    """A shard, and the objective that selects documents from it.

    Args:
        data: the shard on the learner's device.
        quality: float64, shape N.
        id_order: the rank of each document by id, shape N.
        selection: objective and method.
        num_selected: S, in [0, N].
        seed: of every random choice.
        objective: the terms, weighted and scaled.
        totals: moments of all documents.
        references: random and best selections, by term.
        neighbours: lists of near neighbours, if facility location is learned.
    """

    data: ShardData
    quality: np.ndarray
    id_order: np.ndarray
    selection: Selection
    num_selected: int
    seed: int
    objective: WeightedObjective
    totals: Moments
    references: Mapping[str, Reference]
    neighbours: Neighbours | None = None

    @property
    def has_choice(self) -> bool:
        """True if there is more than one mask of S documents."""
        return 0 < self.num_selected < self.data.num_documents

    def top(self, values: np.ndarray) -> np.ndarray:
        """Return the mask of the S highest values, ties by quality, then by id; bool, shape N."""
        return top_s(values, self.quality, self.id_order, self.num_selected)

    def put(self, values: np.ndarray) -> Tensor:
        """Copy values of the documents to the learner's device."""
        return torch.from_numpy(values).to(self.data.device)


class Keeper(Protocol):
    """Stores states by name; `datamask.runs.checkpoints.Checkpoints` is one."""

    def due(self) -> bool:
        """Return True if it is time to save."""

    def save(self, name: str, state: State) -> None:
        """Save a state."""

    def load(self, name: str) -> State | None:
        """Load the state that was saved last, or None."""


class Curve:
    """The values of the terms step by step, saved together with the state of the estimator.

    *progress* is called with the steps done and their maximum. The *keeper* saves the unfinished
    curve and *state*, from which a later call resumes. The objective is reported on the scale of
    the *level* of quality.
    """

    def __init__(
        self,
        objective: WeightedObjective,
        most_steps: int,
        progress: Progress | None = None,
        keeper: Keeper | None = None,
        level: Level = NATURAL,
    ) -> None:
        self.objective = objective.as_reported(level)
        self.most_steps, self.progress, self.keeper, self.level = (
            most_steps,
            progress,
            keeper,
            level,
        )
        names = ("step", "seconds", "objective", *(t.objective.name for t in objective.terms))
        self.columns: dict[str, list[float]] = {name: [] for name in names}
        self.state: State = (keeper.load("learner") or {}) if keeper is not None else {}
        saved = [name for name in self.state if name.startswith("curve:")]
        kept = {name.removeprefix("curve:"): self.state.pop(name) for name in saved}
        if self.state:
            self.columns = {name: values.tolist() for name, values in kept.items()}
            step = max(self.columns["step"], default=0)
            logger.info("resuming from a checkpoint at step %d", step)
        self._start = time.perf_counter() - max(self.columns["seconds"], default=0.0)

    def record(self, step: int, raw: Mapping[str, float]) -> None:
        """Add a point: the raw values of the terms after a step, for quality as it is learned."""
        self._add(step, self.objective.at_level(raw, self.level))

    def _add(self, step: int, raw: Mapping[str, float]) -> None:
        columns = {"step": step, "seconds": time.perf_counter() - self._start}
        for name, value in {**columns, "objective": self.objective.join(raw), **raw}.items():
            self.columns[name].append(value)
        if self.progress is not None:
            self.progress(int(step), self.most_steps, "steps at most")

    def end(self, steps: int, raw: Mapping[str, float]) -> None:
        """Add the values of the final mask as reported, unless the last point has them."""
        points = self.columns["objective"]
        if not points or points[-1] != self.objective.join(raw):
            self._add(steps + 1 if points else steps, raw)

    def keep(self, make: Callable[[], State]) -> None:
        """Save curve and state between steps, if it is time to; *make* makes the state."""
        if self.keeper is not None and self.keeper.due():
            columns = {f"curve:{name}": np.asarray(c) for name, c in self.columns.items()}
            self.keeper.save("learner", make() | columns)

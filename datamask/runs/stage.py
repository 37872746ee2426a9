"""What a stage of a run is, and a unit of its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from datamask.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of output: which settings determine it and which outputs it is made from.

    Args:
        name: also its folder, or the stem of its one file.
        version: raise it when the code makes different bytes from the same input.
        work: `module:function` that makes the output (see `each`).
        each: `shard` and `round`: the work is `function(run, unit, compute)`, once per unit;
            `run`: it is `function(run, compute)`, which makes all units that are left;
            `unit`: `function(run, unit, compute)`, once per unit that `units` lists;
            `file`: the same for a file of the subset, which also makes the rest of its group.
        settings: the part of the settings that determines the output.
        on_device: whether the work uses a GPU where there is one.
        after: stages whose outputs of the same shard it reads.
        after_all: stages whose outputs of every shard it reads.
        file: the one file it makes, or one file per round; empty for one file per shard.
        suffix: of the files of its units.
        where: the settings under which there is such a stage.
        units: `module:function` from the run to the `Unit`s that there are now.
        before: `module:function` of the run, called once before the units that are left are made.
        pinned_with: stages on whose pinned revisions it depends too.
        more_inputs: stages of whose outputs it reads some under some settings.
        reads_source: whether it reads the source's rows without another stage's word for them.
    """

    name: str
    version: int
    work: str
    each: Literal["shard", "round", "run", "unit", "file"] = "run"
    settings: Callable[[Settings], Any] = lambda settings: None
    on_device: bool = False
    after: tuple[str, ...] = ()
    after_all: tuple[str, ...] = ()
    file: str = ""
    suffix: str = ".parquet"
    where: Callable[[Settings], bool] = lambda settings: True
    units: str = ""
    before: str = ""
    more_inputs: Callable[[Settings], tuple[str, ...]] = lambda settings: ()
    reads_source: bool = False
    pinned_with: tuple[str, ...] = ()

    def uses_device(self, settings: Settings) -> bool:
        """Whether the work uses a GPU under these settings: ranks without vectors do not."""
        return self.on_device and ("embeddings" not in self.after or settings.has_vectors)

    @property
    def in_parallel(self) -> bool:
        """Whether its units can be made at the same time, by several workers."""
        return self.each in ("shard", "unit", "file")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work that is not a shard.

    Args:
        name: of its file within the run, without the suffix.
        settings: what determines its output besides the settings of the stage.
        after: stages and units whose outputs it reads.
        is_extra: whether it exists because of what other units showed.
    """

    name: str
    settings: Any
    after: tuple[tuple[str, int], ...] = ()
    is_extra: bool = False

"""Select pre-training data by quality and diversity at once (DATAMASK, arXiv 2512.24265).

`select` chooses among documents in memory, `rebuild` does a whole run on files:

    import datamask

    chosen = datamask.select(embeddings, quality, ratio=0.1)
    chosen.indices, chosen.summary(), chosen.plot()

A name is imported when it is first used, so that `import datamask` imports nothing else. The
library knows nothing of Prefect: every stage is a plain function on a run folder.
"""

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as _processor:
    # Intel's library, which torch multiplies with, divides sums between threads on Intel's
    # processors unless this is set before its first product. Other libraries need no such setting.
    if "GenuineIntel" in _processor.read(4096):
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from datamask.config.compute import Compute as Compute
    from datamask.config.inputs import Embedding as Embedding
    from datamask.config.selection import Selection as Selection
    from datamask.config.settings import Settings as Settings
    from datamask.errors import DatamaskError as DatamaskError
    from datamask.execution.pipeline import rebuild as rebuild
    from datamask.in_memory.select import select as select
    from datamask.in_memory.selected import Selected as Selected
    from datamask.learning.learner import learn_mask as learn_mask
    from datamask.learning.ranked import LearnedMask as LearnedMask
    from datamask.objectives.disf import DiSF as DiSF
    from datamask.objectives.facility_location import FacilityLocation as FacilityLocation
    from datamask.objectives.groups import GroupBalance as GroupBalance
    from datamask.objectives.groups import LengthBalance as LengthBalance
    from datamask.objectives.pairwise import PairwiseSimilarity as PairwiseSimilarity
    from datamask.objectives.protocol import MomentObjective as MomentObjective
    from datamask.objectives.protocol import Moments as Moments
    from datamask.objectives.protocol import Objective as Objective
    from datamask.objectives.target import TargetCoverage as TargetCoverage
    from datamask.runs.opening import open_run as open_run

_HOMES = {
    "config.compute": ("Compute",),
    "config.inputs": ("Embedding",),
    "config.selection": ("Selection",),
    "config.settings": ("Settings",),
    "errors": ("DatamaskError",),
    "execution.pipeline": ("rebuild",),
    "in_memory.select": ("select",),
    "in_memory.selected": ("Selected",),
    "learning.learner": ("learn_mask",),
    "learning.ranked": ("LearnedMask",),
    "objectives.disf": ("DiSF",),
    "objectives.facility_location": ("FacilityLocation",),
    "objectives.groups": ("GroupBalance", "LengthBalance"),
    "objectives.pairwise": ("PairwiseSimilarity",),
    "objectives.protocol": ("MomentObjective", "Moments", "Objective"),
    "objectives.target": ("TargetCoverage",),
    "runs.opening": ("open_run",),
}
_HOME = {name: f"datamask.{module}" for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

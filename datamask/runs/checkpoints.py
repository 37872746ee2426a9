"""Save unfinished work in `RUN/checkpoints`, so that it survives a kill.

Checkpoints are removed when the unit's output exists. Each carries a digest of all that determines
the work, so that work never resumes from other settings. Arrays are stored as .npz without pickle;
its checksums reveal damage, and a damaged checkpoint is ignored.
"""

from __future__ import annotations

import logging
import shutil
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from datamask.runs.files import replace_file
from datamask.runs.run import Run, digest
from datamask.storage import stopping
from datamask.storage.names import inside

logger = logging.getLogger(__name__)

State = Mapping[str, np.ndarray]

SECONDS = 60.0
"""Seconds between checkpoints of work that has no chunks: a kill loses a minute of work."""


class Checkpoints:
    """The checkpoints of one unit of work, by name.

    *how* are plain values that determine the work, such as the fingerprint of its output. Work
    resumes only from checkpoints with equal values.
    """

    def __init__(self, run: Run, work: str, unit: int, how: Iterable[object] = ()) -> None:
        self.root, self.home = run.root, inside(run.root, f"checkpoints/{work}/{unit:05d}")
        self.folder = self.home / digest(*how)
        self._saved = time.monotonic()

    def _path(self, name: str) -> Path:
        file = self.folder / f"{name}.npz"
        return inside(self.root, file.relative_to(self.root).as_posix())

    def due(self) -> bool:
        """Return True if the last save is a minute old, or the work must stop after one more."""
        return stopping.is_asked() or time.monotonic() - self._saved >= SECONDS

    def save(self, name: str, state: State) -> None:
        """Save these arrays under a name, whole or not at all.

        Raises:
            KeyboardInterrupt: the user has interrupted the work; the arrays are saved.
        """
        with (
            replace_file(self._path(name), root=self.root) as temporary,
            temporary.open("wb") as file,
        ):
            np.savez(file, **dict(state), allow_pickle=False)
        self._saved = time.monotonic()
        stopping.check()

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Load the arrays saved under a name; None if there are none, or they are damaged."""
        path = self._path(name)
        try:
            # Given a path, numpy leaves the file of a damaged archive open.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return {key: kept[key] for key in kept.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            # The header of an entry that asks for a password or a later version raises
            # RuntimeError.
            logger.warning("%s: damaged checkpoint (%s); not used", path, error)
            return None

    def clear(self) -> None:
        """Remove all checkpoints of the unit, also the checkpoints of other settings.

        The folder of the stage stays: another unit may be about to save there.
        """
        shutil.rmtree(self.home, ignore_errors=True)

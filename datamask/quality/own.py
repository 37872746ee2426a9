"""Scores by a class of the user's own: texts in, numbers out.

A run records the digest of the class's module, so that other code is not taken for the planned one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from datamask.config.scores import OwnScore
from datamask.config.user_class import import_class, user_code
from datamask.embedding.pinning import folder_digest
from datamask.embedding.protocol import TRIAL
from datamask.errors import SettingsError
from datamask.runs.run import Run, digest
from datamask.source.windows import Scorer
from datamask.storage.unchanged import content_digest, not_as_planned, pinned


class TextScore(ABC):
    """Scores texts by their content alone; made once per process and used by several threads.

    The class gets `path` and `options` of the score's settings as keyword arguments.
    """

    @abstractmethod
    def score(self, texts: Sequence[str]) -> Sequence[float] | np.ndarray:
        """Return one number for each text; NaN where there is none (see setting `missing`)."""


@lru_cache(maxsize=64)
def _imported(kind: str) -> tuple[type[TextScore], str, str]:
    """Import a class, once per process; return it, its module's file, and the file's digest.

    The digest is of the code that this process runs, even if the file changes later.
    """
    with user_code(f"score of kind `{kind}`: cannot be imported"):
        made = import_class(kind)
        path = importlib.import_module(made.__module__).__file__
    # Settings may come from others: call only what was written as a score.
    if not (isinstance(made, type) and issubclass(made, TextScore) and path):
        needed = "a subclass of datamask.quality.own.TextScore; see docs/scores.md"
        raise SettingsError(f"score of kind `{kind}`: needs {needed}")
    return made, path, content_digest(path)


_making = threading.Lock()


@lru_cache(maxsize=16)
def _made(kind: str, path: str, options: str, content: str) -> TextScore:
    """Make an object of a class, once per process for equal arguments and content of *path*."""
    given = {"path": path} if path else {}
    return _imported(kind)[0](**given, **json.loads(options))


def _load(score: OwnScore, planned: str | None = None) -> tuple[TextScore, str]:
    """Return the object that scores, and a digest of its code and of what is at `path`."""
    _, module, code = _imported(score.kind)
    path = score.path or module
    if not Path(path).exists():
        problem = f"path of score {score.name}: no file {path} on this machine"
        raise SettingsError(f"{problem}; correct the path, or copy the file there")
    digest_of = folder_digest if Path(path).is_dir() else content_digest
    with pinned(path, None, digest_of) as content, _one_line(score):
        if planned not in (None, pin := digest(code, content)):
            raise not_as_planned(path)
        options = json.dumps(score.options, sort_keys=True)
        with _making:  # Threads that begin together share the object.
            return _made(score.kind, score.path, options, content), pin


def _one_line(score: OwnScore) -> contextlib.AbstractContextManager[None]:
    return user_code(f"score {score.name}: `{score.kind}` failed")


def pin_own(score: OwnScore, before: Run | None = None) -> str:
    """Try a class on a few texts and return a digest of its code and of what is at `path`.

    Raises:
        SettingsError: it cannot be imported or made, fails, or does not give a number per text.
    """
    own, pin = _load(score)
    with _one_line(score):
        shape = np.asarray(own.score(TRIAL), np.float64).shape
    if shape != (len(TRIAL),):
        problem = f"made {shape} of {len(TRIAL)} texts, needed one number for each; correct it"
        raise SettingsError(f"score {score.name}: `{score.kind}` {problem}")
    return pin


def own_scorer(run: Run, score: OwnScore) -> Scorer:
    """Return the function that scores texts by the user's class, which reads them as a whole.

    Raises:
        InputError: the code, or what is at `path`, is not as planned.
    """
    own, _ = _load(score, run.pinned_revisions[score.pin_key])

    def scores(texts: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
        with _one_line(score):
            values = np.asarray(own.score([text or "" for text in texts]), np.float64)
        return values, np.ones(len(texts), np.float32)

    return scores

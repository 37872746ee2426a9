"""Scores by a fastText classifier: the probability of one label, read from the text on the CPU.

Its training saw a document as one line, so line breaks become spaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from datamask.config.inputs import Score
from datamask.errors import InputError, SettingsError, one_line


@lru_cache(maxsize=4)
def _load(path: str, size: int, modified: int) -> tuple[Any, str]:
    """A model and the SHA-256 of its file, once per process as long as the file stays the same."""
    try:
        import fasttext
    except ImportError:
        raise SettingsError(
            'kind `fasttext` needs the package of that name; pip install "datamask-pipeline'
            '[fasttext]"'
        ) from None
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        return fasttext.load_model(path), found
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = one_line(error)
        raise SettingsError(f"{path}: not a fastText model ({reason})") from None


def _model(score: Score) -> tuple[Any, str]:
    path = Path(score.path)
    if not path.is_file():
        raise SettingsError(f"path of score {score.name}: no file {score.path} on this machine")
    facts = path.stat()
    return _load(str(path), facts.st_size, facts.st_mtime_ns)


def pin_fasttext(score: Score) -> str:
    """The SHA-256 of the model's file, after a look at its labels.

    Raises:
        SettingsError: the package is missing, or the file is no model with the label.
    """
    model, found = _model(score)
    labels = model.get_labels()
    if score.label not in labels:
        raise SettingsError(
            f"label of score {score.name}: no {score.label} in {score.path}; it has "
            f"{', '.join(labels[:10])}{', …' if labels[10:] else ''}"
        )
    return found


def fasttext_scores(
    score: Score, texts: Iterable[str | None], pinned: str | None = None
) -> np.ndarray:
    """The probability of the score's label for each text; float64, in [0, 1].

    0 for a text in which the model knows nothing.

    Args:
        score: kind `fasttext`.
        texts: the documents.
        pinned: SHA-256 of the file that the run was planned with.

    Raises:
        InputError: the file has changed since.
    """
    model, found = _model(score)
    if pinned is not None and found != pinned:
        raise InputError(
            "not the model of the plan; bring that back, or begin a new run folder", path=score.path
        )

    def probability(text: str) -> float:
        labels, probabilities = model.predict(text.replace("\n", " "), k=-1)
        found = dict(zip(labels, probabilities, strict=True))
        # Rounding in single precision can give a little more than 1.
        return min(float(found.get(score.label, 0.0)), 1.0)

    return np.asarray([probability(text or "") for text in texts], dtype=np.float64)

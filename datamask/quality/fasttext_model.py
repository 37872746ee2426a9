"""Scores of a fastText classifier: the probability of one label, computed on the CPU.

fastText is trained on one document per line, so line breaks become spaces.
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
    """A model and the SHA-256 of its file; loaded once per process while the file is unchanged."""
    try:
        import fasttext
    except ImportError:
        raise SettingsError(
            "kind `fasttext` needs the package fasttext; run "
            '`pip install "datamask-pipeline[fasttext]"`'
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
    """Check that the model has the label; returns the SHA-256 of its file.

    Raises:
        SettingsError: the package is missing, the file is not a model, or it lacks the label.
    """
    model, found = _model(score)
    labels = model.get_labels()
    if score.label not in labels:
        raise SettingsError(
            f"label of score {score.name}: {score.path} has no label {score.label}; it has "
            f"{', '.join(labels[:10])}{', …' if labels[10:] else ''}"
        )
    return found


def fasttext_scores(score: Score, texts: Iterable[str | None], pinned: str) -> np.ndarray:
    """The probability of the score's label for each of N texts; None counts as empty.

    Returns:
        float64, shape N, in [0, 1]; 0 for a text without known words.

    Raises:
        InputError: the file's SHA-256 is not *pinned*, that of planning.
    """
    model, found = _model(score)
    if found != pinned:
        raise InputError(
            "the model has changed since planning; restore it, or run `datamask plan` again",
            path=score.path,
        )

    def probability(text: str) -> float:
        labels, probabilities = model.predict(text.replace("\n", " "), k=-1)
        found = dict(zip(labels, probabilities, strict=True))
        # Single precision can round to slightly above 1.
        return min(float(found.get(score.label, 0.0)), 1.0)

    return np.asarray([probability(text or "") for text in texts], dtype=np.float64)

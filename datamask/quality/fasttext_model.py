"""Scores of a fastText classifier: the probability of one label, computed on the CPU.

fastText is trained on one document per line, so line breaks become spaces.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from datamask.config.scores import FastTextScore
from datamask.errors import SettingsError, one_line
from datamask.runs.run import Run
from datamask.source.windows import Scorer
from datamask.storage.unchanged import pinned, sha256_at


@lru_cache(maxsize=4)
def _load(path: str, digest: str) -> Any:
    """Load a model once per process and SHA-256 of its file."""
    try:
        import fasttext
    except ModuleNotFoundError:
        remedy = 'run `pip install "datamask-pipeline[fasttext]"`'
        raise SettingsError(f"kind `fasttext` needs the package fasttext; {remedy}") from None
    try:
        return fasttext.load_model(path)
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = one_line(error)
        raise SettingsError(f"{path}: not a fastText model ({reason})") from None


def _model(score: FastTextScore, planned: str | None = None) -> tuple[Any, str]:
    """Return the model of a score and the SHA-256 of its file, which is compared with *planned*."""
    if not Path(score.path).is_file():
        raise SettingsError(f"path of score {score.name}: no file {score.path} on this machine")
    with pinned(score.path, planned, sha256_at) as digest:
        return _load(score.path, digest), digest


def pin_fasttext(score: FastTextScore, before: Run | None = None) -> str:
    """Return the SHA-256 of a model's file.

    Raises:
        SettingsError: the package is missing, the file is not a model, or it lacks the label.
    """
    model, digest = _model(score)
    labels = model.get_labels()
    if score.label not in labels:
        problem = f"label of score {score.name}: {score.path} has no label {score.label}; it has "
        raise SettingsError(f"{problem}{', '.join(labels[:10])}{', …' if labels[10:] else ''}")
    return digest


def fasttext_scorer(run: Run, score: FastTextScore) -> Scorer:
    """Return the function that scores texts by the probability of a label, 0 without known words.

    Raises:
        InputError: the SHA-256 of the model's file is not the planned one.
    """
    model, _ = _model(score, run.pinned_revisions[score.pin_key])

    def probability(text: str) -> float:
        labels, probabilities = model.predict(text.replace("\n", " "), k=-1)
        by_label = dict(zip(labels, probabilities, strict=True))
        # Single precision can round to slightly above 1.
        return min(float(by_label.get(score.label, 0.0)), 1.0)

    def scores(texts: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
        values = [probability(text or "") for text in texts]
        return np.asarray(values, np.float64), np.ones(len(texts), np.float32)

    return scores

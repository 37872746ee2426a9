"""fastText classifiers, computed on the CPU: the probability of one label, or the best label.

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

LABEL_PREFIX = "__label__"


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
        problem = (
            f"{path}: not a fastText model ({one_line(error)}); name the .bin or .ftz file of one"
        )
        raise SettingsError(problem) from None


def load_fasttext(path: str, used_by: str, planned: str | None = None) -> tuple[Any, str]:
    """Return a model and the SHA-256 of its file, which is compared with *planned*.

    *used_by* says in messages what names the file: `score hq`.

    Raises:
        SettingsError: the package or the file is missing, or the file is not a model.
        InputError: the SHA-256 is not the planned one.
    """
    if not Path(path).is_file():
        problem = f"path of {used_by}: no file {path} on this machine"
        raise SettingsError(f"{problem}; correct the path, or copy the file there")
    with pinned(path, planned, sha256_at) as digest:
        return _load(path, digest), digest


def pin_fasttext(score: FastTextScore, before: Run | None = None) -> str:
    """Return the SHA-256 of a model's file.

    Raises:
        SettingsError: as in `load_fasttext`, or the model lacks the label.
    """
    model, digest = load_fasttext(score.path, f"score {score.name}")
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
    planned = run.pinned_revisions[score.pin_key]
    model, _ = load_fasttext(score.path, f"score {score.name}", planned)

    def probability(text: str) -> float:
        labels, probabilities = model.predict(text.replace("\n", " "), k=-1)
        by_label = dict(zip(labels, probabilities, strict=True))
        # Single precision can round to slightly above 1.
        return min(float(by_label.get(score.label, 0.0)), 1.0)

    def scores(texts: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
        values = [probability(text or "") for text in texts]
        return np.asarray(values, np.float64), np.ones(len(texts), np.float32)

    return scores


def best_labels(model: Any, texts: list[str]) -> list[str]:
    """Return the most probable label of each text, without fastText's prefix; empty if unknown."""
    labels, _ = model.predict([text.replace("\n", " ") for text in texts], k=1)
    return [of[0].removeprefix(LABEL_PREFIX) if len(of) else "" for of in labels]

"""Labels of documents, from which scores are fitted: numbers by id, in files of the user."""

from __future__ import annotations

from datamask.config.inputs import Score
from datamask.errors import InputError
from datamask.source.columns import usable
from datamask.source.footers import SCORE_SUFFIXES
from datamask.source.opening import list_files
from datamask.source.score_files import read_scores

# See docs/log.md#probes.
LEAST_LABELS = 100


def read_labels(score: Score) -> dict[str, float]:
    """Read a score's labels by id, without those that are missing or not finite.

    Raises:
        InputError: a file is unreadable, an id occurs twice, or there are too few labels.
    """
    labels: dict[str, float] = {}
    for path in list_files(score.path, SCORE_SUFFIXES):
        for keys, values in read_scores(path, score):
            present = usable(values)
            ids = keys.filter(present).to_pylist()
            before = len(labels)
            labels |= zip(ids, values.filter(present).to_pylist(), strict=True)
            if len(labels) != before + len(ids):
                problem = "an id occurs more than once; keep one label per id"
                raise InputError(problem, path=path, column=score.id_column)
    if len(labels) < LEAST_LABELS:
        problem = f"only {len(labels)} labels; a fitted score needs at least {LEAST_LABELS}"
        raise InputError(problem, path=score.path, column=score.column)
    return labels

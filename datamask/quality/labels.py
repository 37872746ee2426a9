"""Labels of documents, from which scores are fitted: numbers by id, in files of the user."""

from __future__ import annotations

from datamask.config.inputs import Score
from datamask.errors import InputError
from datamask.source.columns import usable
from datamask.source.pinned import PlannedFiles
from datamask.source.score_files import read_scores

# See docs/log.md#probes.
LEAST_LABELS = 100


def read_labels(score: Score, planned: str | None = None) -> tuple[dict[str, float], str]:
    """A score's labels by id, without those that are missing or not finite; and the files' digest.

    Raises:
        InputError: a file is unreadable, an id occurs twice, there are too few labels, or the files
            have not the digest *planned*.
    """
    labels: dict[str, float] = {}
    files = PlannedFiles(score.path)
    with files.compared(planned):
        for path in files.names:
            for keys, values in read_scores(path, score, files):
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
        if len(kinds := {*labels.values()}) == 1:
            problem = f"all labels are {kinds.pop():g}; a fitted score needs two different ones"
            raise InputError(problem, path=score.path, column=score.column)
    return labels, files.digest()

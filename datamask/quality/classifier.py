"""Stage `classifier_scores`: scores of a shard's documents by sequence-classification models.

The stage runs before `scores`, so that bad documents are pruned before they are embedded, and reads
texts as the embedders do. Scores of the same model share its forward passes. If a score is added to
the settings, only the new one is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.scores import ClassifierScore
from datamask.errors import CorruptFileError, SettingsError
from datamask.quality.classifier_model import (
    ClassifierModel,
    classify,
    documents_of,
    labels_of,
    pin_classifier_model,
    probabilities,
    texts_key,
    valid_columns,
)
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, digest
from datamask.source.reading import read_ids
from datamask.source.windows import Windows

EXPECTED_VALUE = "expected_value"


def classify_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `classifier_scores/NNNNN.parquet`: the value of each classifier for each document.

    Raises:
        InputError: a value is not finite, the source cannot be read, or a local model has changed.
    """
    scores = _scores(run)
    keys = {score.name: _key(run, shard, score) for score in scores}
    valid = valid_columns(run, "classifier_scores", shard, keys, schemas.READ_BY)
    columns = {name: column.to_numpy() for name, column in valid.items()}
    how = [compute.device_kind, compute.embedding_batch]
    remaining = sorted(
        (s for s in scores if s.name not in columns), key=lambda s: _model_key(run, s)
    )
    for model_key, group in groupby(remaining, key=lambda s: _model_key(run, s)):
        of_model = (run.fingerprint("classifier_scores", shard), [*how, model_key])
        checkpoints = Checkpoints(run, "classifier_scores", shard, of_model)
        columns |= _classified(run, shard, list(group), compute, checkpoints)
    schema = schemas.classifier_scores(keys)
    values = (pa.array(columns[name], from_pandas=True) for name in schema.names[1:])
    table = pa.Table.from_arrays([read_ids(run, shard), *values], schema=schema)
    metrics = {"made_from": keys}
    return write_output(run, "classifier_scores", shard, table.schema, [table], metrics)


def read_classified(
    run: Run, shard: int, name: str, ids: pa.ChunkedArray
) -> tuple[pa.Array, pa.Array]:
    """Read a classifier's values for documents *ids* of a shard, and the text fractions it read.

    Raises:
        RunError: the output of the stage is missing or stale.
        CorruptFileError: the file holds other documents.
    """
    run.receipt("classifier_scores", shard)
    path = run.path("classifier_scores", shard)
    names = [name, schemas.READ_BY.format(name)]
    table = read_columns(path, ["id", *names])
    if not table["id"].combine_chunks().equals(ids.combine_chunks()):
        raise CorruptFileError(f"{path}: its ids differ from the source's; delete it and relaunch")
    values, read = (table[column].combine_chunks() for column in names)
    return values, read


def _scores(run: Run) -> list[ClassifierScore]:
    return [score for score in run.settings.scores if isinstance(score, ClassifierScore)]


def _model(run: Run, score: ClassifierScore) -> ClassifierModel:
    return ClassifierModel(score.model, run.pinned_revisions[score.pin_key], f"score {score.name}")


def _model_key(run: Run, score: ClassifierScore) -> str:
    return _model(run, score).key(run)


def _key(run: Run, shard: int, score: ClassifierScore) -> str:
    """Return a key of what determines a score's values: a stale column with this key is valid."""
    return digest(_model_key(run, score), score.label, texts_key(run, shard))


def _classified(
    run: Run,
    shard: int,
    scores: Sequence[ClassifierScore],
    compute: Compute,
    checkpoints: Checkpoints,
) -> dict[str, np.ndarray]:
    """Compute values and fractions read, for scores that share a model; float, shape N."""
    model, reads = _model(run, scores[0]), schemas.READ_BY.format
    every = [s for s in _scores(run) if _model_key(run, s) == model.key(run)]

    def values_of(config: Any, outputs: np.ndarray, windows: Windows) -> State:
        # Keep all scores of the model, because a checkpoint does not know which ones remain.
        values = {s.name: windows.mean(head_values(s, config, outputs)) for s in every}
        return values | dict.fromkeys(map(reads, values), windows.share_read())

    names = [column for score in scores for column in (score.name, reads(score.name))]
    parts_of: dict[str, list[np.ndarray]] = {name: [] for name in names}
    documents, total = documents_of(run, shard), run.shard_rows(shard)
    given = (documents, total, model, values_of, compute, checkpoints, shard)
    for _, made in classify(run, *given):
        for name, parts in parts_of.items():
            parts.append(made[name])
    return {name: np.concatenate([[], *parts]) for name, parts in parts_of.items()}


def head_values(score: ClassifierScore, config: Any, outputs: np.ndarray) -> np.ndarray:
    """Compute a score from a model's outputs (logits, N x outputs): float64, shape N.

    Without a label: the only output, unchanged. With a class: its probability. With
    `expected_value`: the mean class number.
    """
    if not score.label:
        return outputs.astype(np.float64)[:, 0]
    labels, _ = labels_of(config)
    made = probabilities(config, outputs)
    if score.label == EXPECTED_VALUE:
        return np.asarray((made * np.arange(len(labels))).sum(axis=1))
    index = labels.index(score.label) if score.label in labels else int(score.label)
    return made[:, index]


def check_head(score: ClassifierScore, config: Any) -> None:
    """Raise SettingsError unless a model has the output that a score names."""
    labels, is_exclusive = labels_of(config)
    known = f"its classes are {', '.join(labels[:10])}{', …' if labels[10:] else ''}"
    problem = ""
    if not score.label and len(labels) > 1:
        problem = f"{score.model} has {len(labels):,} outputs; set label to a class, or to "
        problem += f"{EXPECTED_VALUE} if class numbers are grades"
    elif score.label == EXPECTED_VALUE and not is_exclusive:
        problem = f"label {EXPECTED_VALUE} needs mutually exclusive classes; {score.model} has none"
    elif score.label not in ("", EXPECTED_VALUE, *labels) and not (
        score.label.isdecimal() and int(score.label) < len(labels)
    ):
        problem = f"{score.model} has no class {score.label}"
    if problem:
        raise SettingsError(f"score {score.name}: {problem}; {known}")


def pin_classifier(score: ClassifierScore, before: Run | None = None) -> str:
    """Return the commit of a classifier, or its folder's digest; its configuration is checked.

    A model on the Hub keeps the commit that was planned *before*.

    Raises:
        SettingsError: the model does not exist, is not a classifier, or lacks the label.
    """
    same = ("name", "model", "revision", "label")
    for was in _scores(before) if before and not Path(score.model).exists() else ():
        planned = before.pinned_revisions.get(score.pin_key) if before else None
        if planned and all(getattr(was, name) == getattr(score, name) for name in same):
            return planned
    revision, config = pin_classifier_model(score.model, score.revision, f"score {score.name}")
    check_head(score, config)
    return revision

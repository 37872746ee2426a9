"""Stage `classes`: the class that each classifier of `source.groups` gives every document.

A document's class is the most probable one, of a long text by the mean over its windows. A text of
white space alone has none. If a classifier is added to the settings, only its own column is
computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.classes import FastTextClasses, ModelClasses
from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.quality.classifier_model import (
    ClassifierModel,
    classify,
    documents_of,
    labels_of,
    load_classifier,
    pin_classifier_model,
    probabilities,
    texts_key,
    valid_columns,
)
from datamask.quality.fasttext_model import best_labels, load_fasttext
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, digest
from datamask.source.windows import Windows


def class_documents(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `classes/NNNNN.parquet`: each document's class by each classifier; null: none.

    Raises:
        InputError: an output is not finite, the source cannot be read, or a local model has
            changed.
        SettingsError: a model cannot be loaded.
    """
    classifiers = run.settings.source.classifiers
    models = {name: _model(run, name) for name in classifiers}
    keys = {name: digest(model.key(run), texts_key(run, shard)) for name, model in models.items()}
    columns = valid_columns(run, "classes", shard, keys)
    for name in classifiers:
        if name not in columns:
            of_model = [compute.device_kind, compute.embedding_batch, keys[name]]
            of_shard = (run.fingerprint("classes", shard), of_model)
            checkpoints = Checkpoints(run, "classes", shard, of_shard)
            given = (documents_of(run, shard), run.shard_rows(shard), name, compute)
            columns[name] = _classes(run, *given, checkpoints, shard)
    schema = pa.schema([(name, pa.string()) for name in classifiers])
    table = pa.table({name: columns[name] for name in classifiers}, schema=schema)
    return write_output(run, "classes", shard, schema, [table], {"made_from": keys})


def classes_of(run: Run, name: str, texts: Sequence[str], compute: Compute) -> pa.ChunkedArray:
    """Return the class that the classifier of a group gives each text; text, null for none.

    Errors are as in `class_documents`.
    """
    numbers = pa.array(map(str, range(len(texts))), pa.string())
    arrays = [numbers, pa.array(texts, pa.large_string())]
    batch = pa.RecordBatch.from_arrays(arrays, names=["id", "content"])
    return _classes(run, [batch], len(texts), name, compute)


def pin_key(name: str) -> str:
    """Return the key of what planning pins for the classifier of a group."""
    return f"classes:{name}"


def _used_by(name: str) -> str:
    return f"source.groups.{name}"


def _model(run: Run, name: str) -> ClassifierModel:
    by = run.settings.source.classifiers[name]
    where = by.path if isinstance(by, FastTextClasses) else by.model
    return ClassifierModel(where, run.pinned_revisions[pin_key(name)], _used_by(name))


def _classes(
    run: Run,
    documents: Iterable[pa.RecordBatch],
    total: int,
    name: str,
    compute: Compute,
    checkpoints: Checkpoints | None = None,
    shard: int | None = None,
) -> pa.ChunkedArray:
    """Return the class of each document; *documents* have `id` and `content`, the text."""
    model = _model(run, name)
    if isinstance(run.settings.source.classifiers[name], FastTextClasses):
        parts = _labels(documents, total, model)
    else:
        loaded, _, _ = load_classifier(model, run.settings.embedding.dtype, compute)
        labels = pa.array(labels_of(loaded.config)[0], pa.string())
        given = (documents, total, model, _best, compute, checkpoints, shard)
        parts = (
            _of_texts(labels.take(pa.array(made["best"])), batch.column("content"))
            for batch, made in classify(run, *given)
        )
    return pa.chunked_array(list(parts), pa.string())


def _best(config: Any, outputs: np.ndarray, windows: Windows) -> State:
    """Return the number of each text's most probable class."""
    return {"best": windows.mean(probabilities(config, outputs)).argmax(axis=1)}


def _labels(
    documents: Iterable[pa.RecordBatch], total: int, model: ClassifierModel
) -> Iterator[pa.Array]:
    """Yield the labels that a fastText model gives documents, some at a time."""
    loaded, _ = load_fasttext(model.name, model.used_by, model.revision)
    done = 0
    for batch in documents:
        texts = batch.column("content")
        yield _of_texts(pa.array(best_labels(loaded, texts.to_pylist()), pa.string()), texts)
        done += len(texts)
        advance(done, total)


def _of_texts(classes: pa.Array, texts: pa.Array) -> pa.Array:
    """Replace by null the classes of texts without characters, and empty classes."""
    has_text = pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False)
    return pc.if_else(pc.and_(has_text, pc.not_equal(classes, "")), classes, None)


def pin_classes(name: str, by: ModelClasses | FastTextClasses, before: Run | None = None) -> str:
    """Return the commit of a model, or the digest of its folder or file.

    A model on the Hub keeps the commit that was planned *before*.

    Raises:
        SettingsError: the model does not exist, or has no classes.
    """
    used_by = _used_by(name)
    if isinstance(by, FastTextClasses):
        return load_fasttext(by.path, used_by)[1]
    planned = before.pinned_revisions.get(pin_key(name)) if before else None
    is_same = before is not None and before.settings.source.groups.get(name) == by
    if planned and is_same and not Path(by.model).exists():
        return planned
    revision, config = pin_classifier_model(by.model, by.revision, used_by)
    if len(labels_of(config)[0]) == 1:
        problem = f"{used_by}: {by.model} has one output, so it has no classes"
        raise SettingsError(f"{problem}; name a classifier with two or more")
    return revision

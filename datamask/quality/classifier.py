"""Stage `classifier_scores`: scores of a shard's documents by sequence-classification models.

The stage runs before `scores`, so that bad documents are pruned before they are embedded, and reads
texts as the embedders do. Scores of the same model share its forward passes. If a score is added to
the settings, only the new one is computed.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.scores import ClassifierScore
from datamask.embedding import forward
from datamask.embedding.chunked import computed_chunks
from datamask.embedding.pinning import loading, model_revision, planned_folder
from datamask.errors import CorruptFileError, InputError, SettingsError
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run, digest
from datamask.source.reading import read_documents, read_ids

logger = logging.getLogger(__name__)

EXPECTED_VALUE = "expected_value"

MOST_TOKENS = 512
"""Model tokens of a window of the text: quality classifiers are trained on this length."""


Classifier = tuple[Any, Any, int]
"""A transformers model on its device, its tokenizer, and the tokens of a window."""

_tokenising = threading.Lock()
"""A tokenizer is not thread-safe."""


def classify_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `classifier_scores/NNNNN.parquet`: the value of each classifier for each document.

    Raises:
        InputError: a value is not finite, the source cannot be read, or a local model has changed.
    """
    scores = _scores(run)
    keys = {score.name: _key(run, shard, score) for score in scores}
    columns = _finished_columns(run, shard, keys)
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


def _model_key(run: Run, score: ClassifierScore) -> str:
    """Return a key of all that determines a score's model's outputs, except the texts."""
    pin = run.pinned_revisions[score.pin_key]
    return digest(score.model, pin, run.settings.embedding.dtype, run.settings.source.windows)


def _key(run: Run, shard: int, score: ClassifierScore) -> str:
    """Return a key of what determines a score's values: a stale column with this key is valid."""
    source = run.settings.source
    rows = schemas.identify_rows(run.shard_pieces[shard], run.settings, run.pinned_revisions)
    read = [source.id_column, source.columns.text, rows]
    # Columns that were computed before these settings existed are valid with their defaults.
    bound = source.model_dump(include={"most_characters", "longer"}, exclude_defaults=True)
    return digest(_model_key(run, score), score.label, [*read, bound] if bound else read)


def _finished_columns(run: Run, shard: int, keys: dict[str, str]) -> dict[str, np.ndarray]:
    """Return columns of a stale file that are still valid; none if the file is damaged."""
    path = run.path("classifier_scores", shard)
    try:
        receipt = read_receipt(path)
        if receipt.fingerprint == run.fingerprint("classifier_scores", shard):
            return {}  # The file is up to date: the caller wants everything computed again.
        made_from = receipt.metrics["made_from"]
        same = [name for name, key in keys.items() if made_from.get(name) == key]
        names = [*same, *map(schemas.READ_BY.format, same)]
        return {name: read_columns(path, [name])[name].to_numpy() for name in names}
    except (FileNotFoundError, CorruptFileError, KeyError):
        return {}


def _classified(
    run: Run,
    shard: int,
    scores: Sequence[ClassifierScore],
    compute: Compute,
    checkpoints: Checkpoints,
) -> dict[str, np.ndarray]:
    """Compute values and fractions read, for scores that share a model; float, shape N."""
    first, windows = scores[0], run.settings.source.windows
    every = [s for s in _scores(run) if _model_key(run, s) == _model_key(run, first)]
    revision = run.pinned_revisions[first.pin_key]
    dtype, reads = run.settings.embedding.dtype, schemas.READ_BY.format
    model, tokenizer, most = load_classifier(first, revision, dtype, compute)

    def prepare(batch: pa.RecordBatch) -> forward.Tokenised:
        texts, rest = batch.column(1).to_pylist(), (compute.embedding_batch, most, model.device)
        lists = functools.partial(tokenizer, truncation=True, max_length=most)
        with _tokenising:
            return forward.tokenise_windows(lists, texts, windows, 0, tokenizer, *rest)

    def outputs(batch: pa.RecordBatch, tokenised: forward.Tokenised) -> State:
        made = forward.compute_batches(
            lambda features: model(**features).logits,
            tokenised,
            model.config.num_labels,
            model.device,
            "its load, or set compute.device to cpu",
        )
        made_of = tokenised.windows
        if len(wrong := np.unique(made_of.owners[~np.isfinite(made).all(axis=1)])):
            ids = [batch.column(0)[row].as_py() for row in wrong.tolist()]
            problem = f"score {first.name}: output not finite for {forward.shown_names(ids)}; set "
            problem += "embedding.dtype to float32, or fix the text"
            raise InputError(problem, shard=shard)
        # Keep all scores of the model, because a checkpoint does not know which ones remain.
        values = {s.name: made_of.mean(head_values(s, model.config, made)) for s in every}
        return values | dict.fromkeys(map(reads, values), tokenised.share_read())

    names = [column for score in scores for column in (score.name, reads(score.name))]
    parts_of: dict[str, list[np.ndarray]] = {name: [] for name in names}
    total = run.shard_rows(shard)
    documents = (
        pa.RecordBatch.from_arrays([ids, texts.fill_null("")], names=["id", "content"])
        for _, ids, texts in read_documents(run, shard)
    )
    for _, made in computed_chunks(documents, total, prepare, outputs, checkpoints):
        for name, parts in parts_of.items():
            parts.append(made[name])
    return {name: np.concatenate([[], *parts]) for name, parts in parts_of.items()}


def load_classifier(
    score: ClassifierScore, revision: str, dtype: str, compute: Compute
) -> Classifier:
    """Put the model on its device, from the process's cache if it was loaded before.

    *revision* is the commit, or the digest of the local folder, from planning.

    Raises:
        InputError: the folder has changed.
        SettingsError: the model cannot be loaded or has no trained head.
    """
    device = forward.device_name(compute)
    key = (score.model, "classifier", revision, dtype, device)
    classifier: Classifier = forward.load_once(key, lambda: _load(score, revision, dtype, device))
    return classifier


def _load(score: ClassifierScore, revision: str, dtype: str, device: str) -> Classifier:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    commit = None if Path(score.model).is_dir() else revision
    about = f"score {score.name}: {score.model} cannot be loaded ("
    with loading(about), planned_folder(score.model, revision):
        tokenizer: Any = AutoTokenizer.from_pretrained(score.model, revision=commit)
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            score.model, revision=commit, dtype=getattr(torch, dtype), output_loading_info=True
        )
    if loaded["missing_keys"]:
        raise _without_head(score, f"no weights {', '.join(sorted(loaded['missing_keys'])[:3])}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id
    limits = (tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None))
    most = min(MOST_TOKENS, *(int(limit) for limit in limits if limit))
    logger.info("loaded %s@%.12s on %s, %s", score.model, revision, device, dtype)
    return model.to(device).eval(), tokenizer, most


def labels_of(config: Any) -> tuple[list[str], bool]:
    """Return the labels of a model's outputs, and True if a text has exactly one of them."""
    labels = [str(config.id2label.get(index, index)) for index in range(config.num_labels)]
    is_exclusive = len(labels) > 1 and config.problem_type != "multi_label_classification"
    return labels, is_exclusive


def head_values(score: ClassifierScore, config: Any, outputs: np.ndarray) -> np.ndarray:
    """Compute a score from a model's outputs (logits, N x outputs): float64, shape N.

    Without a label: the only output, unchanged. With a class: its probability (softmax, or the
    logistic function if a text may have several labels or the model has one output). With
    `expected_value`: the mean class number.
    """
    labels, is_exclusive = labels_of(config)
    values = outputs.astype(np.float64)
    if not score.label:
        return values[:, 0]
    from scipy.special import expit, softmax

    probabilities: np.ndarray = softmax(values, axis=1) if is_exclusive else expit(values)
    if score.label == EXPECTED_VALUE:
        return np.asarray((probabilities * np.arange(len(labels))).sum(axis=1))
    index = labels.index(score.label) if score.label in labels else int(score.label)
    return probabilities[:, index]


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
    from transformers import AutoConfig

    revision = model_revision(score.model, score.revision, f"model of score {score.name}")
    commit = None if Path(score.model).is_dir() else revision
    with loading(f"model of score {score.name}: {score.model}: ", ""):
        config = AutoConfig.from_pretrained(score.model, revision=commit)
    architectures = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise _without_head(score, f"architecture: {', '.join(architectures) or 'none'}")
    check_head(score, config)
    return revision


def _without_head(score: ClassifierScore, why: str) -> SettingsError:
    return SettingsError(
        f"score {score.name}: {score.model} has no trained head for sequence classification "
        f"({why}); name a classifier"
    )

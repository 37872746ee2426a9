"""Run transformers models for sequence classification over the texts of a shard.

Stage `classifier_scores` makes scores of their outputs, stage `classes` groups.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.embedding import forward
from datamask.embedding.chunked import computed_chunks
from datamask.embedding.pinning import loading, model_revision, planned_folder
from datamask.errors import CorruptFileError, InputError, SettingsError
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.files import read_columns
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run, digest
from datamask.source.reading import read_documents
from datamask.source.windows import Windows

logger = logging.getLogger(__name__)

MOST_TOKENS = 512
"""Model tokens of a window of the text: quality classifiers are trained on this length."""

Loaded = tuple[Any, Any, int]
"""A transformers model on its device, its tokenizer, and the tokens of a window."""

_tokenising = threading.Lock()
"""A tokenizer is not thread-safe."""


@dataclass(frozen=True, slots=True)
class ClassifierModel:
    """A model that planning has pinned.

    Args:
        name: on the Hub, or a local folder.
        revision: its commit, or the digest of the folder.
        used_by: what the user set, for messages: `score edu`.
    """

    name: str
    revision: str
    used_by: str

    def key(self, run: Run) -> str:
        """Return a key of all that determines the outputs, except the texts."""
        settings = run.settings
        return digest(self.name, self.revision, settings.embedding.dtype, settings.source.windows)


def texts_key(run: Run, shard: int) -> list[Any]:
    """Return what determines the ids and texts of a shard that a model reads."""
    source = run.settings.source
    rows = schemas.identify_rows(run.shard_pieces[shard], run.settings, run.pinned_revisions)
    # Columns that were computed before these settings existed are valid with their defaults.
    bound = source.model_dump(include={"most_characters", "longer"}, exclude_defaults=True)
    read: list[Any] = [source.id_column, source.columns.text, rows]
    return [*read, bound] if bound else read


def valid_columns(
    run: Run, stage: str, shard: int, keys: Mapping[str, str], beside: str = ""
) -> dict[str, pa.ChunkedArray]:
    """Return the columns of a stale file that are still valid; none if the file is damaged.

    A column is valid if the file's receipt has, as `made_from`, its key in *keys*, which stands for
    all that determines it. *beside* is the pattern of the name of a column that belongs to it.
    """
    path = run.path(stage, shard)
    try:
        receipt = read_receipt(path)
        if receipt.fingerprint == run.fingerprint(stage, shard):
            return {}  # The file is up to date: the caller wants everything computed again.
        made_from = receipt.metrics["made_from"]
        names = [name for name, key in keys.items() if made_from.get(name) == key]
        names += [beside.format(name) for name in names] if beside else []
        return {name: read_columns(path, [name])[name] for name in names}
    except (FileNotFoundError, CorruptFileError, KeyError):
        return {}


def documents_of(run: Run, shard: int) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard for `classify`: `id` and `content`, the text."""
    for _, ids, texts in read_documents(run, shard):
        yield pa.RecordBatch.from_arrays([ids, texts.fill_null("")], names=["id", "content"])


def classify(
    run: Run,
    documents: Iterable[pa.RecordBatch],
    total: int,
    model: ClassifierModel,
    values_of: Callable[[Any, np.ndarray, Windows], State],
    compute: Compute,
    checkpoints: Checkpoints | None = None,
    shard: int | None = None,
) -> Iterator[tuple[pa.RecordBatch, State]]:
    """Run a model over *total* documents; yield some of them at a time, and their arrays.

    The documents have `id` and `content`, the text. *values_of* makes the arrays from the model's
    configuration, the outputs of W windows (logits, W x outputs) and these windows. *shard* is the
    number of theirs, for messages.

    Raises:
        InputError: an output is not finite, or a local model has changed.
        SettingsError: the model cannot be loaded or has no trained head.
    """
    loaded, tokenizer, most = load_classifier(model, run.settings.embedding.dtype, compute)

    def prepare(batch: pa.RecordBatch) -> forward.Tokenised:
        texts, windows = batch.column(1).to_pylist(), run.settings.source.windows
        rest = (compute.embedding_batch, most, loaded.device)
        lists = functools.partial(tokenizer, truncation=True, max_length=most)
        with _tokenising:
            return forward.tokenise_windows(lists, texts, windows, 0, tokenizer, *rest)

    def values(batch: pa.RecordBatch, tokenised: forward.Tokenised) -> State:
        made = forward.compute_batches(
            lambda features: loaded(**features).logits,
            tokenised,
            loaded.config.num_labels,
            loaded.device,
            "its load, or set compute.device to cpu",
        )
        made_of = tokenised.windows
        if len(wrong := np.unique(made_of.owners[~np.isfinite(made).all(axis=1)])):
            ids = [batch.column(0)[row].as_py() for row in wrong.tolist()]
            problem = f"{model.used_by}: output not finite for {forward.shown_names(ids)}; set "
            problem += "embedding.dtype to float32, or fix the text"
            raise InputError(problem, shard=shard)
        return values_of(loaded.config, made, made_of)

    yield from computed_chunks(documents, total, prepare, values, checkpoints)


def load_classifier(model: ClassifierModel, dtype: str, compute: Compute) -> Loaded:
    """Put the model on its device, from the process's cache if it was loaded before.

    Raises:
        InputError: the folder has changed.
        SettingsError: the model cannot be loaded or has no trained head.
    """
    device = forward.device_name(compute)
    key = (model.name, "classifier", model.revision, dtype, device)
    loaded: Loaded = forward.load_once(key, lambda: _load(model, dtype, device))
    return loaded


def _load(model: ClassifierModel, dtype: str, device: str) -> Loaded:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    commit = None if Path(model.name).is_dir() else model.revision
    about = f"{model.used_by}: {model.name} cannot be loaded ("
    with loading(about), planned_folder(model.name, model.revision):
        tokenizer: Any = AutoTokenizer.from_pretrained(model.name, revision=commit)
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            model.name, revision=commit, dtype=getattr(torch, dtype), output_loading_info=True
        )
    if report["missing_keys"]:
        why = f"no weights {', '.join(sorted(report['missing_keys'])[:3])}"
        raise _without_head(model.used_by, model.name, why)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        loaded.config.pad_token_id = tokenizer.pad_token_id
    limits = (tokenizer.model_max_length, getattr(loaded.config, "max_position_embeddings", None))
    most = min(MOST_TOKENS, *(int(limit) for limit in limits if limit))
    logger.info("loaded %s@%.12s on %s, %s", model.name, model.revision, device, dtype)
    return loaded.to(device).eval(), tokenizer, most


def labels_of(config: Any) -> tuple[list[str], bool]:
    """Return the labels of a model's outputs, and True if a text has exactly one of them."""
    labels = [str(config.id2label.get(index, index)) for index in range(config.num_labels)]
    is_exclusive = len(labels) > 1 and config.problem_type != "multi_label_classification"
    return labels, is_exclusive


def probabilities(config: Any, outputs: np.ndarray) -> np.ndarray:
    """Return the probability of each class from outputs (logits); float64, N x classes.

    Softmax, or the logistic function if a text may have several labels or the model has one output.
    """
    from scipy.special import expit, softmax

    values = outputs.astype(np.float64)
    made: np.ndarray = softmax(values, axis=1) if labels_of(config)[1] else expit(values)
    return made


def pin_classifier_model(model: str, revision: str | None, used_by: str) -> tuple[str, Any]:
    """Return the commit of a classifier, or its folder's digest, and its configuration.

    Raises:
        SettingsError: the model does not exist or is not a classifier.
    """
    from transformers import AutoConfig

    pinned = model_revision(model, revision, f"model of {used_by}")
    commit = None if Path(model).is_dir() else pinned
    with loading(f"model of {used_by}: {model}: ", ""):
        config = AutoConfig.from_pretrained(model, revision=commit)
    architectures = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        why = f"architecture: {', '.join(architectures) or 'none'}"
        raise _without_head(used_by, model, why)
    return pinned, config


def _without_head(used_by: str, model: str, why: str) -> SettingsError:
    return SettingsError(
        f"{used_by}: {model} has no trained head for sequence classification ({why}); name a "
        "classifier"
    )

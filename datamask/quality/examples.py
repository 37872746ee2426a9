"""Scores from examples: a model of hashed words, fitted in seconds, before `scores`.

Stage `example_models` fits one model (`quality.word_model`) for each score of kind `examples`. It
separates the user's texts from random documents of the source (as in arXiv 2406.11794, section
4.2), or follows labels of documents. Stage `scores` applies the models, so these scores can prune
before anything is embedded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.group import SourceGroup
from datamask.config.recipe import following, wanted_share
from datamask.config.scores import LARGEST, ExamplesScore
from datamask.errors import InputError
from datamask.quality.held_out import are_drawn
from datamask.quality.resemblance import alike, resemblance
from datamask.quality.word_model import (
    FOLDS,
    WordModel,
    example_scores,
    features_of,
    fit_words,
)
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.run import Run, shard_seed
from datamask.source.columns import usable
from datamask.source.groups import SourceGroups
from datamask.source.opening import PlannedFiles
from datamask.source.reading import read_ids, read_shard, source_schema
from datamask.source.rows import ROW_SUFFIXES, read_rows, read_scores
from datamask.source.windows import Scorer

logger = logging.getLogger(__name__)

LEAST_LABELS = 100
"""Minimum number of labels, or of examples of a kind, that a score is fitted to
(docs/log.md#examples)."""

RANDOM_DOCUMENTS = 20_000
"""Number of random documents that examples are compared with (all of a smaller source), and maximum
number of examples from a group of the source (docs/log.md#examples)."""

MOST_SHARDS = 16
"""Maximum number of shards that random documents come from: a large source is not read whole
(docs/log.md#examples)."""


def pin_examples(score: ExamplesScore, before: Run | None = None) -> str:
    """Return the digest of a score's files; empty if a group of the source is the examples.

    Raises:
        InputError: as in `read_examples` and `read_labels`.
    """
    if score.where:
        return ""
    return (read_labels(score) if score.labels else read_examples(score))[1]


def read_examples(score: ExamplesScore, planned: str | None = None) -> tuple[dict[str, str], str]:
    """Read the distinct texts of a score's examples in the order of their files, and a digest.

    With `group_column`, each text has its first group. A text without one is a group of its own.

    Raises:
        InputError: a file is unreadable, has no such column, there are too few texts or groups, or
            the files are not the planned ones.
    """
    texts: dict[str, str] = {}
    columns = tuple(filter(None, (score.group_column, score.column)))
    files = PlannedFiles(score.path, ROW_SUFFIXES)
    with files.compared(planned):
        for path in files.names:
            for row in read_rows(path, columns, files):
                if (text := row.get(score.column)) and str(text).strip():
                    group = row.get(score.group_column) if score.group_column else None
                    own = f"text {len(texts)}" if group is None else f"group {group}"
                    texts.setdefault(str(text), own)
        _check_number(len(texts), score.path, score.column)
        if (number := len({*texts.values()})) < FOLDS:
            problem = f"only {number} groups of examples; {FOLDS} are needed to test a score"
            raise InputError(problem, path=score.path, column=score.group_column)
    return texts, files.digest()


def read_labels(score: ExamplesScore, planned: str | None = None) -> tuple[dict[str, float], str]:
    """Read a score's labels by id, without missing and non-finite ones, and the files' digest.

    Raises:
        InputError: a file is unreadable, an id occurs twice, there are too few labels, or the files
            do not have the digest *planned*.
    """
    labels: dict[str, float] = {}
    files = PlannedFiles(score.labels)
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
            problem = f"only {len(labels):,} labels; a fitted score needs at least {LEAST_LABELS}"
            raise InputError(problem, path=files.path, column=score.column)
        if len(kinds := {*labels.values()}) == 1:
            problem = f"all labels are {kinds.pop():g}; a fitted score needs two different ones"
            raise InputError(problem, path=files.path, column=score.column)
        if (most := max(map(abs, kinds))) > LARGEST:
            problem = f"a label of {most:g}; they may be up to {LARGEST:g}"
            raise InputError(problem, path=files.path, column=score.column)
    return labels, files.digest()


def _check_number(texts: int, path: str, column: str | None = None) -> None:
    if texts < LEAST_LABELS:
        problem = f"only {texts:,} different texts; examples need {LEAST_LABELS} of a kind"
        raise InputError(problem, path=path, column=column)


def _planned(run: Run, score: ExamplesScore) -> str:
    """Return the digest of the score's files that planning recorded."""
    return run.pinned_revisions[score.pin_key]


def _scores(run: Run) -> list[ExamplesScore]:
    return [score for score in run.settings.scores if isinstance(score, ExamplesScore)]


def example_texts(run: Run) -> set[str]:
    """Read the texts of the files of examples. Errors are as in `read_examples`."""
    scores = [score for score in _scores(run) if score.path]
    return {text for score in scores for text in read_examples(score, _planned(run, score))[0]}


def fit_examples(run: Run, compute: Compute) -> None:
    """Write `example_models.parquet`: the weights of each score of kind `examples`.

    Metrics of the receipt, by score: `kind` (logistic, or ridge for labels with more than two
    values), `examples` and `others` (texts of the two kinds; in a ridge all are examples), `copies`
    (random documents left out because they are an example), `auc` (`fitting.concordance`),
    `correlation` (Spearman's, of targets and cross-validated predictions) and, for files of texts
    without `group_column`, `groups` (`resemblance.resemblance`).

    Raises:
        InputError: there are too few texts, or they cannot be separated.
    """
    rows, metrics = [], {}
    for score in _scores(run):
        of_labels = score.labels != ""
        features, targets, groups, copies = (_labelled if of_labels else _contrasted)(run, score)
        model, figures = fit_words(features, targets, groups)
        measure, value = "rank correlation", figures["correlation"] or 0.0
        if figures["kind"] == "logistic":  # the AUC does not depend on how many texts each kind has
            measure, value = "2 AUC - 1", 2 * (figures["auc"] or 0.5) - 1
        if value < score.least_correlation:
            then = ": such a score decides little (docs/method.md)" if score.path else ""
            raise InputError(
                f"score {score.name}: {measure} of cross-validated predictions is {value:.3f} on "
                f"{len(targets)} texts, below least_correlation {score.least_correlation:g}; give "
                f"more examples, or examples that differ more from the source, or lower it{then}",
                path=score.labels or score.path or run.settings.source.path,
            )
        logger.info("score %s: %s", score.name, figures)
        if score.path:
            logger.info("score %s: %s", score.name, wanted_share(figures["auc"]))
            if not score.group_column:
                is_example = targets == 1
                figures["groups"] = resemblance(features[is_example], features[~is_example])
            if text := alike(figures.get("groups")):
                logger.warning("score %s: %s", score.name, text)
            pruned, weight = following(figures["auc"])
            told = f"the worst {pruned:.0%} are pruned and lambda is {weight:g}"
            logger.info("score %s: where these are not set, %s", score.name, told)
        metrics[score.name] = {**figures, "copies": copies}
        rows.append({"score": score.name, **asdict(model)})
    table = pa.Table.from_pylist(rows, schema=schemas.EXAMPLE_MODELS)
    write_output(run, "example_models", 0, schemas.EXAMPLE_MODELS, [table], metrics)


def _contrasted(run: Run, score: ExamplesScore) -> tuple[Any, np.ndarray, list[str], int]:
    """Return features of examples (target 1) and random documents (0), and the number left out.

    Third is the group of each example. Without `group_column`, examples are in the order of the
    files, where pieces of one text are neighbours, so they are divided into as many blocks as
    folds.
    """
    if score.where:
        inside = _random_texts(run, RANDOM_DOCUMENTS, score.where, is_inside=True)
        examples = list(dict.fromkeys(text for text in inside if text.strip()))
        groups = blocks(len(examples))
        group = f"{score.where.column} {score.where.value}"
        _check_number(len(examples), f"{run.settings.source.path} ({group})")
    else:
        texts, _ = read_examples(score, _planned(run, score))
        examples = list(texts)
        groups = list(texts.values()) if score.group_column else blocks(len(examples))
    known, copies = set(examples), 0

    def others() -> Iterator[str]:
        nonlocal copies
        for text in _random_texts(run, RANDOM_DOCUMENTS, score.where, is_inside=False):
            if text in known:
                copies += 1
            elif text.strip():
                yield text

    features, _ = features_of(chain(examples, others()), run.settings.source.windows)
    number = features.shape[0] - len(examples)
    _check_number(number, f"{run.settings.source.path} (texts that are no examples)")
    return features, np.repeat([1.0, 0.0], [len(examples), number]), groups, copies


def blocks(number: int) -> list[str]:
    """Name groups of neighbours: *number* texts in order, in `FOLDS` equal parts."""
    return [str(place * FOLDS // number) for place in range(number)]


def _random_texts(
    run: Run, number: int, group: SourceGroup | None, *, is_inside: bool
) -> Iterator[str]:
    """Yield texts of about *number* documents, drawn from some shards by the run's seed.

    With a *group*, documents inside or outside of it. Documents held out for evaluation are left
    out.
    """
    generator = np.random.default_rng(shard_seed(run.settings.seed, 0))
    shards = np.sort(generator.permutation(run.num_shards)[:MOST_SHARDS]).tolist()
    candidates = {
        shard: np.flatnonzero(_is_in(run, shard, group) == is_inside)
        if group
        else np.arange(run.shard_rows(shard), dtype=np.int32)
        for shard in shards
    }
    documents = sum(map(len, candidates.values()))
    for shard, rows in candidates.items():
        wanted = min(len(rows), -(-number * len(rows) // max(documents, 1)))
        drawn = np.sort(generator.choice(rows, wanted, replace=False)) if wanted else rows
        yield from read_texts(run, shard, drawn)


def _is_in(run: Run, shard: int, group: SourceGroup) -> np.ndarray:
    """Return which documents of a shard are in a group; bool."""
    groups = SourceGroups(run.settings.source, [group.column], source_schema(run).names)
    is_member = []
    for batch in read_shard(run, shard, groups.columns, has_text=False):
        names = groups.of(batch, run.settings.source.path)[group.column]
        is_member.append(pc.fill_null(pc.equal(names, group.value), False))
    return np.asarray(pa.chunked_array(is_member, pa.bool_()))


def read_texts(run: Run, shard: int, rows: np.ndarray) -> Iterator[str]:
    """Yield the texts of some documents of a shard that are not held out for evaluation."""
    source, held_out = run.settings.source, run.settings.evaluation.hold_out > 0
    names = [source.columns.text, *([source.id_column] if held_out else [])]
    for batch in read_shard(run, shard, names, rows):
        texts = batch.column(0).cast(pa.large_string())
        if held_out:
            ids = batch.column(1).cast(pa.string()).to_pylist()
            texts = texts.filter(~np.array(are_drawn(run.settings, ids), bool))
        yield from (text or "" for text in texts.to_pylist())


def _labelled(run: Run, score: ExamplesScore) -> tuple[Any, np.ndarray, list[str], int]:
    """Return features and labels of the documents with a label; no groups, and none is left out."""
    labels, _ = read_labels(score, _planned(run, score))
    held_out = are_drawn(run.settings, labels)
    labels = {key: labels[key] for key, out in zip(labels, held_out, strict=True) if not out}
    texts: list[str] = []
    targets: list[float] = []
    for shard in range(run.num_shards):
        ids = read_ids(run, shard)
        is_labelled = pc.is_in(ids, pa.array(labels, pa.string())).to_numpy()
        if is_labelled.any():
            rows = np.flatnonzero(is_labelled)
            texts += read_texts(run, shard, rows)
            targets += [labels[name] for name in ids.take(pa.array(rows)).to_pylist()]
    if len(texts) < LEAST_LABELS:
        problem = f"{len(texts):,} of {len(labels):,} labelled documents are in the source"
        problem += f"; {LEAST_LABELS} are needed"
        raise InputError(problem, path=score.labels, column=score.id_column)
    features, _ = features_of(texts, run.settings.source.windows)
    return features, np.asarray(targets), [], 0


def example_scorer(run: Run, score: ExamplesScore) -> Scorer:
    """Return the function that scores texts by the model that was fitted for a score."""
    run.receipt("example_models")
    rows = read_columns(run.path("example_models")).to_pylist()
    [row] = [row for row in rows if row["score"] == score.name]
    model = WordModel(
        np.array(row["weights"]),
        np.array(row["log_ratios"]),
        row["intercept"],
        np.array(row["predicted"]),
        np.array(row["expected"]),
    )
    return functools.partial(example_scores, model=model, most=run.settings.source.windows)


def example_figures(run: Run) -> dict[str, Any]:
    """Read the metrics of `fit_examples`, by score; none without such scores."""
    return run.receipt("example_models").metrics if _scores(run) else {}

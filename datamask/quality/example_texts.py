"""Read the texts that a score is fitted to: examples and random documents, or labelled documents.

If most examples come from one domain, a score learns the domain: random documents of the whole
source seldom have its words. So where the examples have the source's column, documents are drawn
with the examples' shares of domains, and only what distinguishes texts inside a domain counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.scores import LARGEST, ExamplesScore
from datamask.errors import InputError, one_line
from datamask.quality.classes import classes_of
from datamask.quality.held_out import are_drawn
from datamask.quality.word_model import FOLDS, features_of
from datamask.runs.run import Run, shard_seed
from datamask.source.columns import usable
from datamask.source.groups import SourceGroups, group_columns, read_groups
from datamask.source.opening import PlannedFiles
from datamask.source.reading import read_ids, read_shard, source_schema
from datamask.source.rows import ROW_SUFFIXES, read_rows, read_scores

Place = tuple[int, int]
"""Shard and row of a document; −1 and its number for a text of a file of examples."""

LEAST_LABELS = 100
"""Minimum number of labels, or of examples of a kind, that a score is fitted to
(docs/log.md#examples)."""

RANDOM_DOCUMENTS = 20_000
"""Number of random documents that examples are compared with (all of a smaller source), and maximum
number of examples from a group of the source (docs/log.md#examples)."""

LEAST_SHARE = 0.05
"""Fraction of the examples from which on a domain has its own fraction of the documents that the
examples are compared with (docs/log.md#examples)."""

MOST_SHARDS = 16
"""Maximum number of shards that random documents come from: a large source is not read whole
(docs/log.md#examples)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Texts that a score is fitted to and tested on.

    Args:
        features: of the texts (`word_model.features_of`).
        targets: float64; 1 for examples, which come first, and 0 for documents; or the labels.
        groups: the text that each example is a piece of; none for labelled documents.
        places: where each text is.
        copies: number of documents that were left out because they are an example.
        matched: the kind of groups whose shares are equal among examples and documents, or empty.
    """

    features: Any
    targets: np.ndarray
    groups: list[str]
    places: list[Place]
    copies: int = 0
    matched: str = ""


def pin_examples(score: ExamplesScore, before: Run | None = None) -> str:
    """Return the digest of a score's files; empty if a group of the source is the examples.

    Raises:
        InputError: as in `read_examples` and `read_labels`.
    """
    if score.where:
        return ""
    return (read_labels(score) if score.labels else read_examples(score))[1]


def read_examples(
    score: ExamplesScore, planned: str | None = None, more: Sequence[str] = ()
) -> tuple[dict[str, dict[str, Any]], str]:
    """Read the distinct texts of a score's examples in the order of their files, and a digest.

    Each text has values of its first row: of `group_column`, and of the columns *more*, None where
    the file lacks one.

    Raises:
        InputError: a file is unreadable, has no such column, there are too few texts or groups, or
            the files are not the planned ones.
    """
    texts: dict[str, dict[str, Any]] = {}
    columns = tuple(filter(None, (score.group_column, score.column)))
    files = PlannedFiles(score.path, ROW_SUFFIXES)
    with files.compared(planned):
        for path in files.names:
            for row in read_rows(path, columns, files, more):
                if (text := row.get(score.column)) and str(text).strip():
                    kept = {name: row.get(name) for name in (score.group_column, *more)}
                    texts.setdefault(str(text), kept)
        _check_number(len(texts), score.path, score.column)
        if (number := len({*_pieces_of(score, texts)})) < FOLDS:
            problem = f"only {number} groups of examples; give examples of {FOLDS} groups or more, "
            problem += "which testing a score needs"
            raise InputError(problem, path=score.path, column=score.group_column)
    return texts, files.digest()


def _pieces_of(score: ExamplesScore, texts: dict[str, dict[str, Any]]) -> list[str]:
    """Name the text that each example is a piece of; one without a name is a text of its own.

    Without `group_column`, examples are in the order of the files, where pieces of one text are
    neighbours, so they are divided into as many blocks as folds.
    """
    if not score.group_column:
        return blocks(len(texts))
    names = [row[score.group_column] for row in texts.values()]
    return [f"text {at}" if name is None else f"group {name}" for at, name in enumerate(names)]


def blocks(number: int) -> list[str]:
    """Name groups of neighbours: *number* texts in order, in `FOLDS` equal parts."""
    return [str(row * FOLDS // number) for row in range(number)]


def example_groups(
    run: Run, score: ExamplesScore, kinds: Sequence[str], compute: Compute
) -> tuple[dict[str, dict[str, Any]], dict[str, list[str | None]]]:
    """Read the examples (`read_examples`), and their groups of those *kinds* that they have.

    A kind's groups are in the order of the texts. Examples have a kind if they have all columns of
    the source that it is made of, or if it is that of a classifier.

    Raises:
        InputError: as in `read_examples` and `classes_of`, or a column has another type than in the
            source.
    """
    source, schema = run.settings.source, source_schema(run)
    of_columns = [kind for kind in kinds if kind not in source.classifiers]
    columns = {kind: group_columns(source, kind, schema.names) for kind in of_columns}
    wanted = [*dict.fromkeys(chain(*columns.values()))]
    wanted = [name for name in wanted if name in schema.names]
    texts, _ = read_examples(score, planned_digest(run, score), wanted)
    arrays = {}
    for name in wanted:
        values = [row[name] for row in texts.values()]
        if any(value is not None for value in values):
            try:
                arrays[name] = pa.array(values).cast(schema.field(name).type)
            except pa.ArrowException as error:
                problem = f"not as in the source ({one_line(error)}); give it the type of the "
                problem += "source's column, or another name"
                raise InputError(problem, path=score.path, column=name) from None
    known = [kind for kind, names in columns.items() if {*names} <= arrays.keys()]
    groups = SourceGroups(source, known, schema.names)
    batch = pa.RecordBatch.from_pydict({name: arrays[name] for name in groups.columns if known})
    names = {kind: of.to_pylist() for kind, of in groups.of(batch, score.path).items()}
    for kind in kinds:
        if kind in source.classifiers:
            names[kind] = classes_of(run, kind, [*texts], compute).to_pylist()
    return texts, names


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
            problem = f"only {len(labels):,} labels; label {LEAST_LABELS} documents or more, which "
            problem += "fitting a score needs"
            raise InputError(problem, path=files.path, column=score.column)
        if len(kinds := {*labels.values()}) == 1:
            problem = f"all labels are {kinds.pop():g}; give documents of another label too, which "
            problem += "fitting a score needs"
            raise InputError(problem, path=files.path, column=score.column)
        if (most := max(map(abs, kinds))) > LARGEST:
            problem = f"a label of {most:g}; rescale labels to at most {LARGEST:g}"
            raise InputError(problem, path=files.path, column=score.column)
    return labels, files.digest()


def _check_number(texts: int, path: str, column: str | None = None) -> None:
    if texts < LEAST_LABELS:
        problem = f"only {texts:,} different texts; give {LEAST_LABELS} or more of each kind"
        raise InputError(problem, path=path, column=column)


def planned_digest(run: Run, score: ExamplesScore) -> str:
    """Return the digest of the score's files that planning recorded."""
    return run.pinned_revisions[score.pin_key]


def contrasted(
    run: Run, score: ExamplesScore, compute: Compute, *, is_matched: bool = True
) -> Judged:
    """Read examples (target 1), and random documents (target 0) without copies of examples.

    If *is_matched*, groups of a kind (`ExamplesScore.matched_kind`) with `LEAST_SHARE` of the
    examples or more have the same share of the documents, if the source has `LEAST_LABELS` of each.

    Raises:
        InputError: there are too few texts, or the source cannot be read.
    """
    kind, names, shares = score.matched_kind, list[str](), np.ones(1)
    if group := score.where:
        kind, names, shares = group.column, [group.value], np.array([0.0, 1.0])
        strata = _strata(run, kind, names)
        known: dict[str, Place] = {}
        for place, text in _random_texts(run, strata, 1 - shares):
            if text.strip():
                known.setdefault(text, place)
        _check_number(len(known), f"{run.settings.source.path} ({kind} {group.value})")
        pieces = blocks(len(known))
    else:
        texts, of_kinds = example_groups(run, score, [kind] if is_matched else [], compute)
        known = {text: (-1, number) for number, text in enumerate(texts)}
        pieces = _pieces_of(score, texts)
        counts = Counter(filter(None, of_kinds.get(kind, ())))
        names = [name for name in counts if counts[name] >= LEAST_SHARE * len(texts)]
        strata = _strata(run, kind, names)
        if names:
            shares = np.array([counts[name] for name in names] + [0.0])
            shares[-1] = len(texts) - shares.sum()
            shares *= _sizes(strata, len(shares)) >= LEAST_LABELS
            if not shares.any():
                names, strata, shares = [], _strata(run, "", []), np.ones(1)
    copies, places = 0, [*known.values()]

    def others() -> Iterator[str]:
        nonlocal copies
        for place, text in _random_texts(run, strata, shares / shares.sum()):
            if text in known:
                copies += 1
            elif text.strip():
                places.append(place)
                yield text

    features, _ = features_of(chain(known, others()), run.settings.source.windows)
    number = features.shape[0] - len(known)
    _check_number(number, f"{run.settings.source.path} (texts that are no examples)")
    targets = np.repeat([1.0, 0.0], [len(known), number])
    return Judged(features, targets, pieces, places, copies, kind if names and score.path else "")


def _strata(run: Run, kind: str, names: Sequence[str]) -> dict[int, np.ndarray]:
    """Number the documents of some shards by their group: its index in *names*.

    Documents of other groups have the number after the last. The run's seed draws the shards.
    """
    generator = np.random.default_rng(shard_seed(run.settings.seed, 0))
    shards = np.sort(generator.permutation(run.num_shards)[:MOST_SHARDS]).tolist()
    if not names:
        return {shard: np.zeros(run.shard_rows(shard), np.int8) for shard in shards}
    values, strata = pa.array(names, pa.string()), {}
    for shard in shards:
        indices = pc.index_in(read_groups(run, shard, [kind])[kind], value_set=values)
        strata[shard] = pc.fill_null(indices, len(names)).to_numpy().astype(np.int8)
    return strata


def _sizes(strata: dict[int, np.ndarray], number: int) -> np.ndarray:
    counts = np.zeros(number, np.int64)
    for groups in strata.values():
        counts += np.bincount(groups, minlength=number)
    return counts


def _random_texts(
    run: Run, strata: dict[int, np.ndarray], shares: np.ndarray
) -> Iterator[tuple[Place, str]]:
    """Yield about `RANDOM_DOCUMENTS` documents of these *shares* by stratum, drawn by the seed.

    There are fewer if a stratum has too few for its share. Documents held out are left out.
    """
    generator = np.random.default_rng(shard_seed(run.settings.seed, 0))
    generator.permutation(run.num_shards)  # `_strata` has drawn the shards by the same seed.
    sizes, used = _sizes(strata, len(shares)), np.flatnonzero(shares)
    number = min(RANDOM_DOCUMENTS, (sizes[used] / shares[used]).min())
    for shard, groups in strata.items():
        drawn = []
        for group in used.tolist():
            rows = np.flatnonzero(groups == group)
            wanted = number * shares[group] * len(rows) / max(sizes[group], 1)
            wanted = min(len(rows), int(np.ceil(round(wanted, 6))))
            drawn.append(generator.choice(rows, wanted, replace=False) if wanted else rows[:0])
        yield from read_places(run, shard, np.sort(np.concatenate(drawn)))


def read_places(run: Run, shard: int, rows: np.ndarray) -> Iterator[tuple[Place, str]]:
    """Yield the texts of some documents of a shard that are not held out, with their places."""
    source, held_out = run.settings.source, run.settings.evaluation.hold_out > 0
    names = [source.columns.text, *([source.id_column] if held_out else [])]
    left = iter(rows.tolist())
    for batch in read_shard(run, shard, names, rows):
        texts = batch.column(0).cast(pa.large_string()).to_pylist()
        ids = batch.column(1).cast(pa.string()).to_pylist() if held_out else []
        out = are_drawn(run.settings, ids) if held_out else [False] * len(texts)
        for text, is_out in zip(texts, out, strict=True):
            row = next(left)
            if not is_out:
                yield (shard, row), text or ""


def read_texts(run: Run, shard: int, rows: np.ndarray) -> Iterator[str]:
    """Yield the texts of some documents of a shard that are not held out for evaluation."""
    return (text for _, text in read_places(run, shard, rows))


def labelled(run: Run, score: ExamplesScore) -> Judged:
    """Read the documents with a label.

    Raises:
        InputError: there are too few, or the source cannot be read.
    """
    labels, _ = read_labels(score, planned_digest(run, score))
    held_out = are_drawn(run.settings, labels)
    labels = {key: labels[key] for key, out in zip(labels, held_out, strict=True) if not out}
    texts: dict[Place, str] = {}
    targets: list[float] = []
    for shard in range(run.num_shards):
        ids = read_ids(run, shard)
        is_labelled = pc.is_in(ids, pa.array(labels, pa.string())).to_numpy()
        if is_labelled.any():
            rows = np.flatnonzero(is_labelled)
            texts |= read_places(run, shard, rows)
            targets += [labels[name] for name in ids.take(pa.array(rows)).to_pylist()]
    if len(texts) < LEAST_LABELS:
        problem = f"{len(texts):,} of {len(labels):,} labelled documents are in the source; label "
        problem += f"{LEAST_LABELS} of its documents or more"
        raise InputError(problem, path=score.labels, column=score.id_column)
    features, _ = features_of(texts.values(), run.settings.source.windows)
    return Judged(features, np.asarray(targets), [], [*texts])

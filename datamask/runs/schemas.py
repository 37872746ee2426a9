"""The Arrow schemas of a run's files: one per kind of file, the same in every shard.

Ids are text everywhere inside a run, whatever the source's type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datamask.config.settings import Settings


def _never_null(**kinds: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]


_TEXT, _BOOL, _INT, _WHOLE = pa.string(), pa.bool_(), pa.int32(), pa.int64()
_FLOAT, _DOUBLE = pa.float32(), pa.float64()
_FLOATS, _DOUBLES, _WHOLES = pa.list_(_FLOAT), pa.list_(_DOUBLE), pa.list_(_WHOLE)

PLAN = pa.schema(
    _never_null(shard=_INT, path=_TEXT, first_row_group=_INT, num_row_groups=_INT)
    + _never_null(skip_rows=_WHOLE, rows=_WHOLE, bytes=_WHOLE, digest=_TEXT)
)
"""`skip_rows`: rows of the first row group that belong to an earlier shard."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one source file in one shard: a row of `PLAN`."""

    shard: int
    path: str
    first_row_group: int
    num_row_groups: int
    skip_rows: int
    rows: int
    bytes: int
    digest: str


MADE_IDS, OF_PARQUET = "scores:made_ids", "file and row of Parquet"
"""Key of the pin of a run whose ids are made, and its value if no converted copy has them."""


def identify_rows(
    pieces: Iterable[Piece], settings: Settings, pins: Mapping[str, str]
) -> list[list[Any]]:
    """List what identifies the rows of pieces; also the names of files that ids are made of."""
    rows: list[list[Any]] = []
    for piece in pieces:
        rows.append([piece.digest, piece.first_row_group, piece.skip_rows, piece.rows])
        if pins.get(MADE_IDS) == OF_PARQUET:
            path = re.sub("^(hf://[^@]*)@[^/]*", r"\1", piece.path)  # without the commit
            rows[-1].append(path.removeprefix(f"{settings.source.path}/"))
    return rows


LOGITS = pa.schema(_never_null(logit=_FLOAT))
"""`learning/`: results of a shard's learning, before the threshold over all shards is known;
`judged/`: a mask model's results for the shard."""

MASK = pa.schema([*LOGITS, *_never_null(selected=_BOOL)])
"""`selection/`: one row per document that survived pruning, in the source's order. Their ids are in
`scores/` and `documents/`.

`logit` is the document's marginal gain at the end of learning minus the threshold, in standard
deviations over single documents (`datamask.learning.published`): above 0 for selected documents,
unless a limit decides otherwise."""

DROP_REASONS = (
    *("empty", "too_long", "held_out", "missing-score", "duplicate"),
    *("contaminated", "near_duplicate", "pruned"),
)
"""Reasons why a document is withheld from the learner, in the order of the checks."""

EXAMPLE_MODELS = pa.schema(
    _never_null(score=_TEXT, weights=_DOUBLES, log_ratios=_DOUBLES, intercept=_DOUBLE)
    + _never_null(predicted=_DOUBLES, expected=_DOUBLES, shards=_WHOLES, rows=_WHOLES)
    + _never_null(targets=_DOUBLES, tested=_DOUBLES)
)
"""`example_models.parquet`: a row for each score of kind `examples`, in the order of the settings;
the weights of a model (`quality.word_model.WordModel`), then the shard (−1 in files of examples),
row, target and cross-validated prediction of each text."""

MOMENTS = pa.schema(
    _never_null(count=_DOUBLE, quality=_DOUBLE, tokens=_DOUBLE)
    + _never_null(scores=_DOUBLES, first=_DOUBLES, second=_DOUBLES)
)
"""Sums over documents by inclusion probability; one row.

`scores` in the order of the settings; `first` is Σ p x, `second` the upper triangle of Σ p xxᵀ, row
by row; both are empty if no term reads them.
"""

TOPIC_MODEL = pa.schema(_never_null(topic=_TEXT, direction=_FLOATS))
"""`topic_model.parquet`: a row for each topic: its name, and the unit vector in its direction."""

TOPICS = pa.schema(_never_null(topic=_TEXT))
"""`topics/`: the topic of each document that survived pruning, in the source's order."""

_SAMPLE = {"sample_features": pa.list_(pa.float16()), "sample_quality": _DOUBLES}
CORPUS_STATISTICS = pa.schema([*MOMENTS, *_never_null(**_SAMPLE, sample_scores=_FLOATS)])
"""`corpus_statistics/` and `totals/00`: one row, a sample of the documents and estimated moments of
all; in `totals/00` a second row, what was learned from the sample (`exchange.Judge.slope`), and if
there is one round a third, the moments of the selection that the sample expects."""

ROUND_TOTAL = pa.schema([*MOMENTS, *_never_null(sample_logits=_FLOATS)])
"""`totals/` after a round: one row, moments of the selection, and the logits of the sample."""

_CHOSEN = _never_null(sample_selected=pa.list_(_BOOL))
OUTCOME = pa.schema([*_never_null(selection=_TEXT), *CORPUS_STATISTICS, *_CHOSEN])
"""`outcome/`: moments of a shard's `selected` documents, with a sample of all its documents; in
scope `corpus` a second row, of those in its `top_quality`."""

_LOGITS = {"present": _FLOATS, "proposed": _FLOATS, "sampled": _FLOATS}
ROUND = pa.schema([*MOMENTS, *_never_null(**_LOGITS, step_size=_DOUBLES, gains=_FLOATS)])
"""`round/NN/`: moments of the selection that a shard proposes, the logits before the round, the
proposed ones, those of its part of the sample, the step size, and (if the round is the only one)
the gains of the documents; a second row, the moments of all documents in the first round, and in
later ones those of the selection before."""

CUT = pa.schema(
    [
        *(("group", _TEXT), ("cap", _WHOLE)),
        *_never_null(logit=_FLOAT, quality=_DOUBLE, id=_TEXT, beyond=pa.list_(_TEXT)),
        *_never_null(documents=_WHOLE, units=_WHOLE),
    ]
)
"""The documents kept of each group with limits, and of all the others (null).

In order of higher logit, higher quality, smaller id, a group keeps its documents down to the given
one, except those longer than `cap` (null: no limits) and those whose ids `beyond` lists. Units are
documents or tokens, like the budget; `documents` and `units` count what is kept."""

LAST_EXPOSURE = pa.schema(_never_null(value=_DOUBLE, logit=_FLOAT, quality=_DOUBLE, id=_TEXT))
"""`repeats.parquet`: one row, the last exposure of a document that training sees (see
`datamask.selection.repeats`); an infinite value if every document is seen once."""

SIGNATURE_BYTES, SKETCH_BYTES = 256, 64
_FOURS = ((f"signature_{number:02d}", pa.uint64()) for number in range(SIGNATURE_BYTES // 8))
SIGNED = pa.schema([*_FOURS, ("sketch", pa.binary(SKETCH_BYTES))])
"""A MinHash signature, 128 unsigned 16-bit numbers, in columns of four (the first in the low bits),
so that a band is read without the others; `sketch`: the low 4 bits of each, packed likewise."""

NEAR_DUPLICATE = pa.schema([("near_duplicate_of", _TEXT), ("near_duplicate_similarity", _DOUBLE)])
"""For a dropped near-duplicate, the document that is kept instead; null for other documents."""

CONTAMINATION = pa.schema(
    [
        *(("contaminated_by", _TEXT), ("contaminated_at", _WHOLE), ("contaminated_ngram", _TEXT)),
        ("contaminated_share", _DOUBLE),
    ]
)
"""For a document that covers or quotes an item of a benchmark: the benchmark's name, the index of
the first shared word (from 0), the words of the first shared n-gram, and the fraction of the item's
n-grams that the document holds; null for other documents."""

EARLIER_SIGNATURES = pa.schema([*_never_null(id=_TEXT), *SIGNED])
"""`earlier_signatures.parquet`: documents of earlier datasets; see `SCREENING`."""

SCREENING = pa.schema(
    [
        *(*_never_null(id=_TEXT, row=_WHOLE), *SIGNED),
        *(("shared", pa.list_(pa.uint64())), ("shared_at", _WHOLES)),
    ]
)
"""`screening/`: for every document of a shard, its signature (null for a text without words or
without `near_duplicates`); the hashes of n-grams of benchmarks that it holds, ascending, and the
index of the first word of each (null if there are none)."""

BENCHMARK_NGRAMS = pa.schema(
    _never_null(benchmark=_INT, item=_WHOLE, words=pa.list_(_TEXT))
    + _never_null(hashes=pa.list_(pa.uint64()), inside=pa.list_(_BOOL))
)
"""`benchmark_ngrams.parquet`: the items (rows) of benchmarks that have an n-gram: the index of the
benchmark in the settings, the row, the words, the hash of each n-gram in the order of the words,
and whether the n-gram is inside one column."""

TOKENIZER = pa.schema(_never_null(definition=pa.large_string()))
"""`evaluation/tokenizer.parquet`: one row, the definition in JSON (of the library tokenizers)."""

_TOKENS = pa.list_(pa.field("element", pa.uint32(), nullable=False))

TOKENISED = pa.schema(
    _never_null(id=_TEXT, quality=_DOUBLE, repeat=_INT) + _never_null(start=_WHOLE, tokens=_WHOLE)
)
"""`tokenised/`: the documents of a file of the subset in its order. A document has `tokens` tokens,
its end included, from number `start` in the file of the same name with suffix .bin."""

ORDER = pa.schema(
    _never_null(id=_TEXT, exposure=_INT, phase=_INT, first_token=_WHOLE, tokens=_WHOLE)
    + _never_null(file=_INT, unit=_INT, start=_WHOLE)
)
"""`tokens/order.parquet`: every exposure of a document, in the order of training.

`exposure` and `phase` count from 1. An exposure's `tokens` begin at token `first_token` (from 0) of
the training and are in token file `file`; `unit` and `start` say where they are in `tokenised/`."""

HELD_OUT = pa.schema(
    [
        *_never_null(set=_TEXT, id=_TEXT, in_all=_BOOL, tokens=_TOKENS, prefix=_INT, bytes=_WHOLE),
        ("group", _TEXT),
        ("right", _BOOL),
        ("signature", pa.binary(SIGNATURE_BYTES)),
    ]
)
"""`evaluation/held_out.parquet`: texts that models are scored on.

`in_all`: part of the sample of all held-out documents; `prefix`: first tokens, which are not
scored; `bytes`: of the text that the other tokens encode; `group`: by `evaluation.hold_out_by`, or
by the `group_column` of its set; `right`: of an answer to choose, null for texts; `signature`: 128
unsigned 16-bit numbers, little-endian; null for a text without words and for wrong answers. The
answers to a question follow each other and have the same `id`.
"""

ARM = pa.schema(_never_null(id=_TEXT, shard=_INT, row=_WHOLE, tokens=_TOKENS))
"""`evaluation/arms/`: documents of an arm, in the source's order; shard -1 for an arm of texts."""

TRAINING = pa.schema(_never_null(set=_TEXT, id=_TEXT, bits=_DOUBLE))
"""`evaluation/training/`: the nats that a trained model needs for each row of `HELD_OUT`."""

OVER_GROUPS = pa.schema(
    [
        *(("groups", _INT), ("few", _INT)),
        *((name, _DOUBLE) for name in ("mean", "mean_low", "mean_high")),
        ("mean_verdict", _TEXT),
        *((name, _DOUBLE) for name in ("median", "median_low", "median_high")),
        ("worst_group", _TEXT),
        *((name, _DOUBLE) for name in ("worst", "worst_low", "worst_high")),
    ]
)

ACCURACY = pa.schema(
    [
        *((name, _DOUBLE) for name in ("accuracy", "accuracy_low", "accuracy_high", "chance")),
        ("accuracy_verdict", _TEXT),
    ]
)

EVALUATION = pa.schema(
    [
        *_never_null(set=_TEXT, arm=_TEXT),
        ("other", _TEXT),
        *_never_null(seeds=_INT, documents=_WHOLE, bits_per_byte=_DOUBLE),
        *((name, _DOUBLE) for name in ("low", "high", "p_value", "detectable", "ngram")),
        ("verdict", _TEXT),
        *OVER_GROUPS,
        *ACCURACY,
    ]
)
"""`evaluation.parquet`: for each set a row per arm, then a row per pair of arms.

Of an arm: the mean over seeds and learning rates, and `ngram`, the same of an n-gram model. Of a
pair: the difference (arm minus other: below 0, the arm is better), its 95 % interval, the p-value
with Holm's correction, the least difference that would be detected in four of five cases, and the
verdict on the arm: better, worse or undecided. These are of the mixture of the set's documents. The
rest is null unless the set has at least two groups with 30 documents: their number, and how many
have `few` documents (below 100); of an arm the `mean` over groups; of a pair the difference on the
mean, in the median and in the worst group with 95 % intervals, and the verdict on the mean. Of a
set of multiple choice: the share of questions answered rightly with its 95 % interval, the share
expected from guessing (`chance`), and of a pair the difference in accuracy and the verdict on it.
"""

READ_BY = "text_read:{}"
"""`classifier_scores/`: name of the column with the fraction of each text that a score's model
read."""


def scores(names: Iterable[str]) -> pa.Schema:
    """`scores/`: the facts of every document of a shard, in the source's order.

    `row` counts from 0 within the shard. Facts that the source lacks are null, and so are blank
    dumps, languages and domains. `characters` and `content`, the first 16 bytes of the text's
    SHA-256, are null for layout `features`; `content` also if no setting compares texts
    (`Settings.compares_texts`). `text_read` is the least fraction of the text's characters that a
    score has read; null if none reads texts. An empty document has 0 `tokens` if any are known.
    """
    facts = {"characters": _WHOLE, "tokens": _WHOLE, "text_read": _FLOAT}
    facts |= {"dump": _TEXT, "language": _TEXT, "domain": _TEXT, "content": pa.binary(16)}
    facts |= dict.fromkeys(names, _DOUBLE)
    return pa.schema([*_never_null(id=_TEXT, row=_WHOLE), *facts.items()])


def groups(names: Iterable[str]) -> pa.Schema:
    """`groups/`: each document's groups of `source.groups`, in the source's order; null: none."""
    return pa.schema([*_never_null(row=_WHOLE), *((name, _TEXT) for name in names)])


def classifier_scores(names: Iterable[str]) -> pa.Schema:
    """`classifier_scores/`: the scores that classifiers give every document, in the source's order.

    `text_read:` and the name of a score: the fraction of the text's characters that its model read;
    null if the tokeniser does not say.
    """
    scores = dict.fromkeys(names, _DOUBLE)
    read = {READ_BY.format(name): _FLOAT for name in scores}
    return pa.schema([*_never_null(id=_TEXT, **scores), *read.items()])


def file_scores(names: Iterable[str]) -> pa.Schema:
    """`file_scores/`: scores from separate files, a row per document, in the source's order.

    Absent, null and NaN scores are null.
    """
    return pa.schema([(name, _DOUBLE) for name in names])


VECTOR_PLACES = pa.schema([("file", _INT), ("row", _WHOLE)])
"""`vector_places/`: where a document's vector is, a row per document, in the source's order.

`file` is a number in the receipt's list `files`; null if no file has the document."""

COMBINED = pa.schema([("quality", _DOUBLE), ("reason", _TEXT)])
"""`combined/`: quality and reason of every document, in the source's order.

`reason` is null for documents that are not dropped yet; near-duplicates and the worst are dropped
later."""

SIMILAR_PAIRS = pa.schema(_never_null(shard=_INT, row=_WHOLE, first_shard=_INT, first_row=_WHOLE))
"""`similar_pairs/`: a document of a cluster that a unit finds, and the cluster's first document
(which has a row too), in the source's order; shard -1 means the documents of earlier datasets."""

CLUSTER_NGRAMS = pa.schema(_never_null(row=_WHOLE, ngrams=pa.list_(pa.uint32())))
"""`cluster_ngrams/`: the documents of a shard, or of earlier datasets, that are in a cluster, and
32-bit hashes of their word n-grams, distinct and ascending."""


def quality(names: Iterable[str]) -> pa.Schema:
    """`quality/`: normalised scores, combined quality and drop reason of a shard's documents.

    `quality` is null if a score is missing; `dropped` is null for documents that stay, otherwise
    one of `DROP_REASONS`. `near_duplicate_of` is the id of the document that is kept instead, with
    `earlier:` before the id if an earlier dataset has it; `near_duplicate_similarity` is the
    Jaccard similarity to it. For the columns of contamination see `CONTAMINATION`.
    """
    scores = [(name, _DOUBLE) for name in (*names, "quality")]
    reason = [("dropped", _TEXT), *NEAR_DUPLICATE, *CONTAMINATION]
    return pa.schema([*_never_null(id=_TEXT, row=_WHOLE), *scores, *reason])


def documents(settings: Settings) -> pa.Schema:
    """`documents/`: all that is known of a shard's documents, in the source's order.

    Facts and raw scores are as in `scores/`, and groups with "(none)" where one is missing; `topic`
    is "(none)" for a document that was not embedded or if the run has no topics; quality and what
    follows it are as in `quality/` and `selection/`. `text_read` is the least fraction of the text
    that a score or (if its vectors are kept) the embedder has read, null if unknown. `top_quality`:
    true if quality alone would select the document. `repeat`: how often training sees it.
    """
    facts = _never_null(shard=_INT, id=_TEXT, row=_WHOLE)
    facts += [("characters", _WHOLE), ("tokens", _WHOLE), ("text_read", _FLOAT)]
    facts += _never_null(**dict.fromkeys(settings.source.kinds, _TEXT))
    judged = [*((score.name, _DOUBLE) for score in settings.scores), *_never_null(topic=_TEXT)]
    judged += [("quality", _DOUBLE), ("dropped", _TEXT)]
    judged += [*NEAR_DUPLICATE, *CONTAMINATION, ("logit", _FLOAT)]
    judged += _never_null(selected=_BOOL, top_quality=_BOOL)
    repeats = [("repeat", _INT)] if settings.selection.max_repeat > 1 else []
    return pa.schema([*facts, *judged, *repeats])


TALLIES = pa.schema(
    [
        *_never_null(kind=_TEXT, name=_TEXT, fate=_TEXT, documents=_WHOLE),
        *((name, _WHOLE) for name in ("characters", "tokens", "scored", "quality")),
    ]
)
"""`tallies/`: the fate of a shard's documents, by `kind` (all, dump, language, domain, name in
`source.groups`, topic, length) and `name` of their group; documents without a topic are in none.
`fate` is `selected`, `left out`, or one of `DROP_REASONS`; `scored` counts the documents with a
quality, and `quality` is its sum in millionths. A length is a band of characters: its upper end is
twice the lower one."""


def embeddings(dimension: int, storage: str = "float16") -> pa.Schema:
    """`embeddings/`: unit vectors of the documents that survived pruning, in the source's order.

    `text_read`: the fraction of the text's characters that the embedder read; null if it is
    unknown. With storage `int8`, a vector is the signed bytes of `feature_arr` times `scale`.
    (Parquet would store a list of int8 in four bytes a number.)
    """
    if storage == "int8":
        columns = {"feature_arr": pa.binary(dimension), "scale": _FLOAT}
    else:
        vector = pa.list_(pa.field("element", pa.float16(), nullable=False), dimension)
        columns = {"feature_arr": vector}
    return pa.schema([*_never_null(chunk_id=_TEXT, **columns), ("text_read", _FLOAT)])


def added_columns(settings: Settings) -> pa.Schema:
    """The columns that `subset/` has after the source's own; `repeat` if there are repeats."""
    kinds = {"quality": _DOUBLE, "logit": _FLOAT, "shard": _INT}
    kinds |= {"repeat": _INT} if settings.selection.max_repeat > 1 else {}
    prefix = settings.subset.column_prefix
    return pa.schema([(f"{prefix}{name}", kind) for name, kind in kinds.items()])

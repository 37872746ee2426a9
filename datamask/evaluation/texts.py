"""Prepare what models read: the documents of the run as rows, the tokenizer, and held-out texts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.evaluation import HeldOutSet
from datamask.config.selection import NO_GROUP
from datamask.embedding.embed import own_vectors
from datamask.embedding.loose_texts import text_embedder
from datamask.embedding.pinning import PIN
from datamask.errors import InputError, SettingsError
from datamask.evaluation.models import preset
from datamask.evaluation.pinning import NOTHING_HELD_OUT
from datamask.evaluation.questions import MOST_DOCUMENTS, answers_of, is_scored
from datamask.hygiene.minhash import NUMBERS, cluster, sign
from datamask.hygiene.references import first_rows
from datamask.hygiene.words import hash_ngrams, split_words
from datamask.quality import combining
from datamask.quality.examples import example_texts
from datamask.quality.held_out import is_drawn
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.reading import read_shard, take_rows
from datamask.source.token_counts import as_text, encode, load_tokenizer
from datamask.storage.duckdb_scratch import execute, execute_with, temporary_duckdb

SAMPLED_CHARACTERS = 20_000_000
"""Characters of text that train a tokenizer."""

SCORED_TOKENS = 1024
"""Maximum tokens of a held-out text that score models; or as many as a training sequence has, if
that is longer (docs/log.md#evaluation)."""

NGRAM = 5
"""Words in an n-gram; documents and held-out texts are compared by n-grams."""

SIMILARITY = 0.8
"""Estimated Jaccard similarity from which a document is a copy of a held-out one."""

LEAST_DOCUMENTS, MOST_GROUPS = 30, 50
"""A group of held-out documents is a set of its own from this size, if it is among the largest."""

MOST_EMBEDDED = 10_000
"""Maximum number of held-out documents that are embedded for their topic; others have no topic."""

SOURCE_SET = "all"
OTHER_GROUPS = "(other groups)"


def load_documents(connection: Any, run: Run, kind: str = "none") -> None:
    """Make table `documents`: shard, row, id, quality, dropped, characters, tokens, and groups.

    *kind* is in `source.groups` for its groups too.
    """
    for shard in range(run.num_shards):
        run.receipt("quality", shard)
    quality, scores = (
        combining.rows_of(connection, run, "quality"),
        combining.facts_of(connection, run, [kind]),
    )
    own = f', s."{kind}"' if kind in run.settings.source.groups else ""
    execute(
        connection,
        "CREATE TABLE documents AS SELECT q.shard, q.row, q.id, q.quality, q.dropped, "
        f"s.characters, s.tokens, s.dump, s.language, s.domain{own} "
        f"FROM {quality} q JOIN {scores} s USING (shard, row)",
    )


CANDIDATE = "(dropped IS NULL OR dropped = 'pruned') AND characters > 0"
"""SQL condition for documents that could have been selected, pruned ones included."""


def in_drawn_order(run: Run, purpose: str) -> str:
    """Return SQL for a seeded random order of documents."""
    return f"md5_number_lower('{run.settings.seed}/{purpose}/' || id), id"


def read_texts(
    run: Run, wanted: list[tuple[int, int]]
) -> Iterator[tuple[int, npt.NDArray[np.int64], list[str]]]:
    """Yield texts of documents, given shard and row, some at a time in the source's order.

    Yields:
        shard, rows, texts.

    Raises:
        InputError: the source cannot be read.
    """
    source = run.settings.source
    for shard, keys in itertools.groupby(sorted(wanted), itemgetter(0)):
        rows = np.array([row for _, row in keys], np.int64)
        for inside, batch in take_rows(read_shard(run, shard, [source.columns.text]), rows):
            yield shard, inside, [text or "" for text in batch.column(0).to_pylist()]


def make_tokenizer(run: Run, compute: Compute) -> None:
    """Write `evaluation/tokenizer.parquet`: the tokenizer's definition.

    The receipt's metrics: `vocabulary`, and `characters_per_token` of the sample. Errors are as in
    `tokenizer_of`.
    """
    texts = _sample(run, compute)
    tokenizer, some = tokenizer_of(run, texts), texts[:2000]
    tokens = sum(map(len, encode(tokenizer, some)))
    metrics = {
        "vocabulary": tokenizer.get_vocab_size(),
        "characters_per_token": sum(map(len, some)) / max(tokens, 1),
    }
    table = pa.table({"definition": [tokenizer.to_str()]}, schema=schemas.TOKENIZER)
    write_output(run, "tokenizer", 0, schemas.TOKENIZER, [table], metrics)


def tokenizer_of(run: Run, texts: list[str]) -> Any:
    """Return the tokenizer beside the model's configuration, or train byte-level BPE on *texts*.

    Raises:
        InputError: the tokenizer is not the planned one.
        SettingsError: the tokenizer cannot be loaded.
    """
    if planned := run.pinned_revisions.get("tokenizer:tokenizer"):
        return load_tokenizer(run.settings.evaluation.model, "evaluation.model", planned)
    return train_tokenizer(texts, preset(run.settings.evaluation).vocabulary)


def train_tokenizer(texts: list[str], vocabulary: int) -> Any:
    """Train a tokenizer, byte-level BPE, on *texts*; its vocabulary has *vocabulary* tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _sample(run: Run, compute: Compute) -> list[str]:
    """Return texts of candidates, drawn with the run's seed."""
    with temporary_duckdb(run.root, compute) as connection:
        load_documents(connection, run)
        rows = execute(
            connection,
            "SELECT shard, row FROM (SELECT shard, row, sum(characters) OVER "
            f"(ORDER BY {in_drawn_order(run, 'tokenizer')}) AS upto FROM documents "
            f"WHERE {CANDIDATE}) WHERE upto <= {SAMPLED_CHARACTERS}",
        )
    texts = [text for _, _, some in read_texts(run, rows) for text in some]
    if not texts:
        raise InputError(
            "evaluation: no text is left to train a tokenizer on; lower evaluation.hold_out or "
            "quality.prune_fraction, or give a larger source"
        )
    return texts


def read_tokenizer(run: Run) -> Any:
    """Load the tokenizer of an evaluation."""
    from tokenizers import Tokenizer

    return as_text(Tokenizer.from_str(run.read_output("tokenizer")["definition"][0].as_py()))


def encode_held_out(run: Run, compute: Compute) -> None:
    """Write `evaluation/held_out.parquet`: the texts that score models.

    The receipt's metrics: documents by set, and how many texts are left out because they are
    `examples`, which a score has learned from. Errors are as in `held_out_texts`.
    """
    table, left_out = held_out_texts(run, read_tokenizer(run), compute)
    counts = dict(Counter(table.filter(is_scored(table))["set"].to_pylist()))
    metrics = {"documents": counts, SOURCE_SET: pc.sum(table["in_all"]).as_py() or 0}
    metrics["examples"] = left_out
    write_output(run, "held_out", 0, schemas.HELD_OUT, [table], metrics)


def held_out_texts(run: Run, tokenizer: Any, compute: Compute) -> tuple[pa.Table, int]:
    """Return the texts that score models (`schemas.HELD_OUT`), and the number left out as examples.

    Raises:
        SettingsError: nothing is held out; the tokenizer cannot encode a text.
        InputError: a set is unreadable, empty, or not as planned.
    """
    evaluation = run.settings.evaluation
    context, known = preset(evaluation).context, example_texts(run)
    rows = [*_from_source(run, compute)]
    of_sets = {own_set.name: [*_from_set(run, own_set)] for own_set in evaluation.sets}
    rows += itertools.chain.from_iterable(of_sets.values())
    examples = {(row["set"], row["id"]) for row in rows if not known.isdisjoint(_wholes(row))}
    rows = [row for row in rows if (row["set"], row["id"]) not in examples]
    for own_set in evaluation.sets:
        if own_set.name not in {row["set"] for row in rows}:
            problem = "no text in it"
            if of_sets[own_set.name]:
                problem += " that is not an example of a score"
            raise InputError(f"{problem}; check path and column", path=own_set.path)
    if not rows:
        raise SettingsError(NOTHING_HELD_OUT)
    held_out = [_encoded(tokenizer, context, **row) for row in rows]
    kept = [row for row in held_out if row["bytes"]]
    wholes = ["" if row.get("right") is False else _wholes(row)[-1] for row in rows]
    words = split_words(pa.array(wholes, pa.large_string()))
    signatures, lengths = sign(hash_ngrams(words, NGRAM)), np.diff(words.offsets)
    for row, signature, length in zip(held_out, signatures, lengths, strict=True):
        row["signature"] = signature.tobytes() if length else None
    return pa.Table.from_pylist(kept, schema=schemas.HELD_OUT), len(examples)


def _wholes(row: dict[str, Any]) -> list[str]:
    """Return what a document may copy: a text; for an answer to choose, the question with it."""
    return [row["text"]] if "right" not in row else [row["prompt"], row["prompt"] + row["text"]]


def copy_groups(texts: list[str], held_out: pa.Table) -> tuple[npt.NDArray[np.int64], set[int]]:
    """Return the group of near-copies of each text, -1 without words; and held-out texts' groups.

    *held_out* has the column `signature` of `schemas.HELD_OUT`.
    """
    known = held_out["signature"].drop_null().to_pylist()
    signatures = np.frombuffer(b"".join(known), "<u2").reshape(-1, NUMBERS)
    words = split_words(pa.array(texts, pa.large_string()))
    has_words = np.diff(words.offsets) > 0
    own = sign(hash_ngrams(words, NGRAM))[has_words]
    labels = cluster(np.concatenate([signatures, own]), SIMILARITY)
    groups = np.full(len(texts), -1, np.int64)
    groups[has_words] = labels[len(signatures) :]
    return groups, set(labels[: len(signatures)].tolist())


def _encoded(
    tokenizer: Any, context: int, *, text: str, prompt: str = "", **row: Any
) -> dict[str, Any]:
    """Make a row of `schemas.HELD_OUT` without its signature; a long text is cut."""
    before = tokenizer.encode(prompt, add_special_tokens=False).ids[-context // 2 :]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    unknown = getattr(tokenizer.model, "unk_token", None)
    if unknown is not None and tokenizer.token_to_id(unknown) in encoding.ids:
        raise SettingsError(
            f"evaluation.model: its tokenizer has no token for a text of set {row['set']}; remove "
            "tokenizer.json, or use one of bytes"
        )
    tokens = encoding.ids[: max(SCORED_TOKENS, context)]
    end = encoding.offsets[len(tokens) - 1][1] if tokens else 0
    scored = text[:end] if "right" not in row else text[:end].lstrip()
    size = len(scored.encode())
    return {**row, "prefix": len(before), "tokens": [*before, *tokens], "bytes": size}


def _from_source(run: Run, compute: Compute) -> Iterator[dict[str, Any]]:
    """Yield documents that were drawn from the source, for every group and for all together."""
    evaluation = run.settings.evaluation
    if not evaluation.hold_out:
        return
    # A group that the user names is scored on documents beyond the mixture's too, and is shown even
    # if it is the only group.
    is_named, by = bool(evaluation.hold_out_by), evaluation.hold_out_by or "domain"
    group = f"'{SOURCE_SET}'" if by == "none" else f"coalesce({by}, '{NO_GROUP}')"
    taken = {SOURCE_SET, *(own_set.name for own_set in evaluation.sets)}
    least = LEAST_DOCUMENTS if by != "none" else 1
    most, order = MOST_DOCUMENTS, in_drawn_order(run, "held-out")
    with temporary_duckdb(run.root, compute) as connection:
        load_documents(connection, run, by)
        if by == "topic":
            _add_topics(connection, run, compute)
        rows = execute(
            connection,
            f"WITH drawn AS (SELECT *, {group} AS name FROM documents WHERE "
            f"dropped = 'held_out' AND {is_drawn(run.settings)} "
            f"QUALIFY {is_named} OR row_number() OVER (ORDER BY {order}) <= {most}), "
            f"large AS (SELECT name FROM drawn GROUP BY name HAVING count(*) >= {least} "
            f"ORDER BY count(*) DESC, name LIMIT {MOST_GROUPS}), named AS (SELECT * REPLACE "
            f"(CASE WHEN name IN (SELECT name FROM large) THEN name ELSE '{OTHER_GROUPS}' END "
            "AS name), "
            f"row_number() OVER (ORDER BY {order}) AS place FROM drawn) "
            f"SELECT shard, row, id, name, place <= {most} FROM named QUALIFY place <= {most} OR "
            f"row_number() OVER (PARTITION BY name ORDER BY {order}) <= {most}",
        )
    if not is_named and len({name for *_, name, _ in rows}) < 2:
        by, rows = "none", [(*row[:3], SOURCE_SET, True) for row in rows]
    known = {(shard, row): rest for shard, row, *rest in rows}
    for shard, rows_read, texts in read_texts(run, list(known)):
        for row, text in zip(rows_read.tolist(), texts, strict=True):
            name, group, in_all = known[shard, row]
            # A dump may be named as the whole sample, or as a set of the user's.
            shown = f"{by} {group}" if by != "none" and group in taken else group
            columns = {"set": shown, "id": name, "in_all": in_all, "text": text}
            yield columns | {"group": None if by == "none" else group}


def _add_topics(connection: Any, run: Run, compute: Compute) -> None:
    """Add column `topic` to `documents`, for the first held-out ones, which are embedded for it."""
    from datamask.selection.topics import nearest, read_topic_model  # This imports torch.

    first = execute(
        connection,
        f"SELECT shard, row FROM documents WHERE dropped = 'held_out' AND {is_drawn(run.settings)} "
        f"ORDER BY {in_drawn_order(run, 'held-out')} LIMIT {MOST_EMBEDDED}",
    )
    names, directions = read_topic_model(run)
    is_own = bool(run.settings.vector_column)
    if not is_own:
        revision, windows = run.pinned_revisions.get(PIN, ""), run.settings.source.windows
        tokenise, encode = text_embedder(run.settings.embedding, revision, compute, windows)
    execute(connection, "ALTER TABLE documents ADD COLUMN topic VARCHAR")
    for shard, rows, texts in read_texts(run, first):
        where = [f"row {row} of shard {shard}" for row in rows.tolist()]
        vectors = own_vectors(run, shard, rows) if is_own else encode(tokenise(texts), where)
        topics = [names[index] for index in nearest(vectors, directions)]
        execute_with(
            connection,
            pa.table({"row": rows, "topic": topics}),
            f"UPDATE documents d SET topic = a.topic FROM arriving a WHERE d.row = a.row "
            f"AND d.shard = {shard}",
        )


def _from_set(run: Run, own_set: HeldOutSet) -> Iterator[dict[str, Any]]:
    """Yield the first documents of a set of the user's own, or all answers to its questions."""
    planned = run.pinned_revisions[f"held_out:{own_set.name}"]
    rows = first_rows(own_set.path, own_set.columns, MOST_DOCUMENTS, planned)
    for number, row in enumerate(rows):
        group = row.get(own_set.group_column) if own_set.group_column else None
        shared = {"set": own_set.name, "id": str(number), "in_all": False}
        shared["group"] = None if group is None else str(group)
        shared["prompt"] = str(row.get(own_set.prompt or "") or "")
        if own_set.gold:
            yield from (shared | answer for answer in answers_of(own_set, number, row))
        else:
            yield {**shared, "text": str(row.get(own_set.column) or "")}

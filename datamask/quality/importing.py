"""Write the facts (length, tokens, origin) and the raw scores of one shard's documents.

All scores come into one file in the source's order, wherever they were. "Missing" is kept apart
from every number (null, NaN, infinite and unmatched are all null), and the receipt records what the
whole-corpus normalisation needs. A text of white space alone has 0 characters.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.scores import OwnScore, Score
from datamask.errors import InputError, one_line
from datamask.quality.kinds import KINDS
from datamask.quality.moments import moments
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.columns import domains, named, whole_tokens
from datamask.source.reading import check_text, locate, read_shard, row_error, source_schema
from datamask.source.token_counts import count_tokens, load_tokenizer
from datamask.source.windows import Scorer


def import_scores(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `scores/NNNNN.parquet`: facts and raw scores of every document of a shard.

    The receipt's metrics: `long` (the bound, and how many texts were cut or dropped), `characters`
    and `tokens` (sums; null where the source has none) and `scores`, for each its `missing`,
    `count`, `min`, `max`, `mean` and `deviation` over the values present.

    Raises:
        InputError: a score is not a number, the source cannot be read, or tokenizer or model are
            not the planned ones.
    """
    settings = run.settings
    wanted = _wanted_columns(run)
    batches: list[pa.RecordBatch] = []
    long: dict[int, int] = {}
    scorers = _scorers(run)
    for batch in read_shard(run, shard, wanted, long=long):
        done = sum(len(earlier) for earlier in batches)
        batches.append(_facts(run, shard, done, batch, scorers))
        advance(done + batch.num_rows, run.shard_rows(shard))
    table = pa.Table.from_batches(batches)
    scores: dict[str, pa.Array] = {}
    read = [table["text_read"].combine_chunks()]
    for score in settings.scores:
        if read_values := KINDS[type(score)].read:
            values, share = read_values(run, shard, score.name, table["id"])
            read += [] if share is None else [share]
        else:
            values = table[f"score:{score.name}"].combine_chunks()
        scores[score.name] = _finite(values)
    schema = schemas.scores(scores)
    row = pa.array(np.arange(table.num_rows, dtype=np.int64))
    columns = {"row": row, "text_read": pc.min_element_wise(*read), **scores}
    source = settings.source
    if source.longer == "drop":  # Stage `quality` finds these texts by their lengths.
        characters = table["characters"].to_numpy().copy()
        characters[list(long)] = list(long.values())
        columns["characters"] = pa.array(characters)
    arrays = [columns[name] if name in columns else table[name] for name in schema.names]
    written = pa.Table.from_arrays(arrays, schema=schema)
    metrics: dict[str, Any] = {
        "long": {"policy": source.longer, "bound": source.most_characters, "documents": len(long)},
        "characters": pc.sum(written["characters"]).as_py(),
        "tokens": pc.sum(table["tokens"]).as_py(),
        "scores": {name: moments(values) for name, values in scores.items()},
    }
    receipt = write_output(run, "scores", shard, schema, [written], metrics)
    assert receipt.rows == run.shard_rows(shard)
    return receipt


def _wanted_columns(run: Run) -> list[str]:
    source, known = run.settings.source, source_schema(run).names
    columns = source.columns
    names = [source.id_column]
    if source.layout == "documents":
        names.append(columns.text)
    optional = (columns.token_count, columns.dump, columns.language, columns.url)
    names += [name for name in optional if name in known]
    names += [score.source_column for score in run.settings.scores if score.source_column]
    return list(dict.fromkeys(names))


def _scorers(run: Run) -> dict[str, Scorer]:
    """Return the functions that score texts in this stage, by name of the score."""
    made = [(score, KINDS[type(score)].scorer) for score in run.settings.scores]
    return {score.name: scorer(run, score) for score, scorer in made if scorer}


def _facts(
    run: Run,
    shard: int,
    first: int,
    batch: pa.RecordBatch,
    scorers: dict[str, Scorer],
) -> pa.RecordBatch:
    """Return the facts of one batch, and the scores that the batch itself gives."""
    source = run.settings.source
    columns = source.columns

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name not in batch.schema.names:
            return pa.nulls(batch.num_rows, kind)
        try:
            values = batch.column(name).cast(kind, safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"does not cast to {kind} ({one_line(error)}); fix it, or name another column"
            path = locate(run, shard, first)[0]
            raise InputError(problem, path=path, shard=shard, column=name) from None
        if kind != pa.float64():
            check_text(run, shard, first, values, name)
        return values

    given = column(columns.token_count, pa.float64())
    tokens, at = whole_tokens(given)
    if at >= 0:
        problem = f"{given[at].as_py():g} tokens in a document; fix it, or name another column"
        raise row_error(run, shard, first + at, columns.token_count, problem)
    facts = {
        "id": column(source.id_column, pa.string()),
        "characters": pa.nulls(batch.num_rows, pa.int64()),
        "tokens": tokens,
        "dump": named(column(columns.dump, pa.string())),
        "language": named(column(columns.language, pa.string())),
        "domain": named(domains(column(columns.url, pa.string()))),
        "content": pa.nulls(batch.num_rows, pa.binary(16)),
    }
    texts: list[str | None] = []
    read = [pa.nulls(batch.num_rows, pa.float32())]
    if source.layout == "documents":
        text = column(columns.text, pa.large_string())
        facts["characters"] = count_characters(text)
        if run.settings.compares_texts:
            facts["content"] = content_hashes(text)
        is_given = columns.token_count in batch.schema.names
        is_counted = run.settings.counts_for_trainer or (not is_given and source.tokenizer)
        if is_counted:
            facts["tokens"] = _counted(run, text)
        if is_counted or is_given:
            # A null, spaces and an empty text have other counts, depending on who counts.
            is_empty = pc.equal(facts["characters"], 0)
            facts["tokens"] = pc.if_else(is_empty, pa.scalar(0, pa.int64()), facts["tokens"])
        texts = text.to_pylist() if scorers else []
    for score in run.settings.scores:
        name = f"score:{score.name}"
        if score.source_column:
            facts[name] = column(score.source_column, pa.float64())
        elif scorer := scorers.get(score.name):
            values, share = scorer(texts)
            _check_values(run, shard, first, score, values, len(texts))
            facts[name] = pa.array(values)
            read.append(pa.array(share))
    facts["text_read"] = pc.min_element_wise(*read)
    return pa.RecordBatch.from_pydict(facts)


def _check_values(
    run: Run, shard: int, first: int, score: Score, values: np.ndarray, texts: int
) -> None:
    """Refuse values that are not one number for each text; *first* is the row of the first text."""
    problem, at = "", 0
    if values.shape != (texts,):
        problem = f"kind {score.kind} made {values.shape} of {texts} texts, needed one number each"
    elif score.missing == "error" and not (is_finite := np.isfinite(values)).all():
        remedy = "correct its class, or set" if isinstance(score, OwnScore) else "set"
        problem, at = f"NaN or infinite; {remedy} `missing`", is_finite.argmin()
    if problem:
        raise row_error(run, shard, first + int(at), score.name, problem)


def _counted(run: Run, text: pa.Array) -> pa.Array:
    """Count the tokens of each text; a trainer's count includes the end of the document."""
    settings, planned = run.settings, run.pinned_revisions.get("scores:tokenizer")
    if not settings.counts_for_trainer:
        return count_tokens(load_tokenizer(settings.source.tokenizer, planned=planned), text)
    assert settings.tokens is not None
    tokenizer = load_tokenizer(settings.tokens.tokenizer, "tokens.tokenizer", planned)
    return pc.add(count_tokens(tokenizer, text, settings.tokens.end_of_document), 1)


def count_characters(text: pa.Array) -> pa.Array:
    """Count the characters (Unicode code points) of each text; 0 for null and white space alone."""
    length = pc.utf8_length(text).cast(pa.int64())
    blank = pc.fill_null(pc.or_(pc.equal(length, 0), pc.utf8_is_space(text)), True)
    return pc.if_else(blank, pa.scalar(0, pa.int64()), length)


def content_hashes(text: pa.Array) -> pa.Array:
    """Return the first 16 bytes of each text's SHA-256, equal for equal texts; null for null."""
    values = text.cast(pa.large_binary()).to_pylist()  # This is cheaper than Arrow's scalars.
    hashes = [None if value is None else sha256(value).digest()[:16] for value in values]
    return pa.array(hashes, pa.binary(16))


def _finite(values: pa.Array) -> pa.Array:
    # Adding zero turns -0.0 into 0.0, so that equal values are equal bits.
    numbers = values.to_numpy(zero_copy_only=False) + 0.0
    return pa.array(np.where(np.isfinite(numbers), numbers, np.nan), from_pandas=True)

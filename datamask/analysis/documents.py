"""Stage `documents`: a shard's documents with all that is known of each, and counts of them.

`documents/NNNNN.parquet` has a row per document. The subset, the published scores and the views
`documents` and `selection` of `datamask query` are made of these rows. Values that add up over
shards are in the metrics of its receipt (documents, characters, tokens, sums and extremes of
scores) and, by group and fate, in `tallies/NNNNN.parquet`. `analysis.composition` adds them up.

Computed from `scores/`, `quality/`, `topics/` and `selection/`. Sums add integers, or
add in the order of the rows, so that equal runs give equal values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.group import OF_SOURCE
from datamask.config.selection import NO_GROUP
from datamask.errors import CorruptFileError
from datamask.runs import budget, schemas
from datamask.runs.files import write_parquet
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.repeats import with_repeat
from datamask.storage.duckdb_scratch import ROWS_AT_ONCE


def tabulate(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `documents/NNNNN.parquet` and `tallies/NNNNN.parquet`.

    Raises:
        RunError: the shard's mask, or the repeats, are missing or stale.
        CorruptFileError: the files of the shard do not hold the same documents, or the mask misses
            the budget.
        StorageError: the disk is full.
    """
    run.receipt("selection", shard)
    schema = schemas.documents(run.settings)
    documents = with_repeat(run, _join(run, shard), compute).select(schema.names).cast(schema)
    scores = ["quality", *(score.name for score in run.settings.scores)]
    sets = {
        "source": None,
        "candidates": pc.is_null(documents["dropped"]),
        "selected": documents["selected"],
        "top_quality": documents["top_quality"],
    }
    counted = documents.select(["characters", "tokens", *scores])
    metrics = {
        name: _totals(counted if of_set is None else counted.filter(of_set), scores)
        for name, of_set in sets.items()
    }
    path = run.root / run.beside("documents", shard)[0]
    tallies = _tallies(documents, [*run.settings.source.kinds])
    write_parquet(path, schemas.TALLIES, [tallies], storage=run.storage)
    rows = documents.to_batches(ROWS_AT_ONCE)
    return write_output(run, "documents", shard, schema, rows, {"totals": metrics})


def _join(run: Run, shard: int) -> pa.Table:
    """Return the shard's documents in order, with all columns but `repeat`.

    Rows are joined by their place: all files are in the source's order, and files of masks, topics
    and vectors have a row per document that is not dropped.
    """
    scores = schemas.scores(score.name for score in run.settings.scores)
    kept = [name for name in scores.names if name != "content"]
    facts = run.read_output("scores", shard, kept).combine_chunks()
    judged = ["quality", "dropped", *schemas.NEAR_DUPLICATE.names, *schemas.CONTAMINATION.names]
    quality = run.read_output("quality", shard, ["id", "row", *judged]).combine_chunks()
    first, second = (table.slice(0, min(len(facts), len(quality))) for table in (facts, quality))
    same = pc.and_(*(pc.equal(first[name], second[name]) for name in ("id", "row")))
    number = pc.sum(same).as_py() or 0
    if not number == len(facts) == len(quality) == run.shard_rows(shard):
        raise CorruptFileError(
            f"{run.path('quality', shard)}: agrees with the scores on {number} of "
            f"{run.shard_rows(shard)} documents; delete it and relaunch"
        )
    own = _candidates(run, shard, pc.is_null(quality["dropped"]))
    selected = own["selected"]
    if (number := pc.sum(selected).as_py() or 0) != _expected(run, shard):
        raise CorruptFileError(
            f"{run.path('selection', shard)}: {number} documents are selected where "
            f"{_expected(run, shard)} are wanted; delete it and relaunch"
        )
    columns = {name: facts[name] for name in kept}
    columns |= {name: pc.fill_null(facts[name], NO_GROUP) for name in OF_SOURCE} | own
    columns["text_read"] = pc.min_element_wise(facts["text_read"], own["text_read"])
    columns |= {name: quality[name] for name in judged}
    columns["shard"] = pa.repeat(pa.scalar(shard, pa.int32()), len(facts))
    columns["top_quality"] = _top_quality(run, quality, number)
    return pa.table(columns)


def _candidates(run: Run, shard: int, is_left: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Return columns of the files that have a row per candidate, and groups of the run's own.

    Columns that only candidates have are null if a document is dropped, `selected` is false then.
    """
    columns = {"selection": ["logit", "selected"]}
    columns |= {"topics": ["topic"]} if run.settings.topics else {}
    columns |= {"embeddings": ["text_read"]} if run.settings.has_vectors else {}
    number, counted = pc.sum(is_left).as_py() or 0, pc.cumulative_sum(is_left.cast(pa.int64()))
    rows = pc.if_else(is_left, pc.subtract(counted, 1), None)
    unknown = {"topic": pa.string(), "text_read": pa.float32()}
    arrays = {name: pa.nulls(len(is_left), kind) for name, kind in unknown.items()}
    for stage, names in columns.items():
        table = run.read_output(stage, shard, names)
        if len(table) != number:
            raise CorruptFileError(
                f"{run.path(stage, shard)}: {len(table)} documents, but "
                f"{run.path('quality', shard)} has {number}; delete it and relaunch"
            )
        arrays |= {name: table[name].take(rows) for name in names}
    if own := [*run.settings.source.groups]:
        table = run.read_output("groups", shard, own)
        arrays |= {name: pc.fill_null(table[name], NO_GROUP) for name in own}
    arrays["topic"] = pc.fill_null(arrays["topic"], NO_GROUP)
    arrays["selected"] = pc.fill_null(arrays["selected"], False)
    return arrays


def _top_quality(run: Run, documents: pa.Table, selected: int) -> pa.ChunkedArray:
    """Return for each document whether quality alone would select it, by the last that it does."""
    is_left = pc.is_null(documents["dropped"])
    if run.settings.selection.scope == "corpus":
        last = run.receipt("threshold").metrics["top_quality"]
    elif selected:
        left = documents.select(["quality", "id"]).filter(is_left)
        values = np.sort(left["quality"].to_numpy())[::-1]
        least = values[selected - 1]
        equal = pc.equal(left["quality"], least)
        ids = left["id"].filter(equal).sort()
        last = least, ids[selected - 1 - int((values > least).sum())].as_py()
    else:
        last = None
    least, last_id = last or (np.inf, "")
    quality, ids = documents["quality"], documents["id"]
    is_last = pc.and_(pc.equal(quality, least), pc.less_equal(ids, last_id))
    above = pc.or_(pc.greater(quality, least), is_last)
    return pc.fill_null(pc.and_(is_left, above), False)


def _expected(run: Run, shard: int) -> int:
    """Return the number of documents to select from a shard."""
    selection = run.settings.selection
    if selection.mask_model:
        return int(run.receipt("selection", shard).metrics["num_selected"])
    if selection.has_cut:
        return int(run.receipt("threshold").metrics["selected"][shard])
    survivors = budget.Survivors.of(run.receipt("quality", shard).metrics)
    return budget.shard_units(selection, run.num_documents, survivors)


def _tallies(documents: pa.Table, kinds: list[str]) -> pa.Table:
    """Count documents by kind and name of their group, and fate (`schemas.TALLIES`).

    Documents without a topic are in no topic. Sums of whole numbers do not depend on their order,
    unlike sums of floats.
    """
    fate = pc.if_else(
        documents["selected"], "selected", pc.fill_null(documents["dropped"], "left out")
    )
    topic = pc.if_else(pc.equal(documents["topic"], NO_GROUP), None, documents["topic"])
    quality = documents["quality"]
    millionths = pc.round(pc.multiply(quality, 1e6), round_mode="half_towards_infinity")
    numbers = {"characters": documents["characters"], "tokens": documents["tokens"]}
    numbers |= {"scored": quality, "quality": millionths.cast(pa.int64())}
    groups = {kind: documents[kind] for kind in kinds}
    groups |= {"topic": topic, "length": _lengths(documents["characters"])}
    groups["all"] = pa.repeat("all", len(documents))
    wanted: list[tuple[Any, str]] = [([], "count_all"), ("scored", "count")]
    wanted += [(name, "sum") for name in ("characters", "tokens", "quality")]
    keys = ["kind", "name", "fate"]
    tables = [
        pa.table({"kind": pa.repeat(kind, len(fate)), "name": names, "fate": fate} | numbers)
        for kind, names in groups.items()
    ]
    tally = pa.concat_tables(tables).group_by(keys, use_threads=False).aggregate(wanted)
    tally = tally.filter(pc.is_valid(tally["name"])).sort_by([(key, "ascending") for key in keys])
    sums = ("count_all", "characters_sum", "tokens_sum", "scored_count", "quality_sum")
    return tally.select([*keys, *sums]).rename_columns(schemas.TALLIES.names).cast(schemas.TALLIES)


def _lengths(characters: pa.ChunkedArray) -> pa.Array:
    """Return the name of each document's band of characters, null if these are unknown."""
    known = characters.fill_null(0).to_numpy()
    octaves = np.maximum(np.frexp(known.astype(float))[1] - 1, 5)
    names = [f"{1 << octave:,} to {(2 << octave) - 1:,}" for octave in range(64)]
    names[5] = "below 64"
    bands = pa.array(octaves, pa.int32(), mask=characters.is_null().to_numpy())
    return pa.DictionaryArray.from_arrays(bands, names).cast(pa.string())


def _totals(documents: pa.Table, scores: list[str]) -> dict[str, Any]:
    """Return documents, characters, tokens (null if unknown) and `scores` of a set of documents."""
    of_scores = {}
    for name in scores:
        values = documents[name].drop_null().to_numpy()
        # Added in order: other orders round differently.
        mean = float(np.add.accumulate(values)[-1] / len(values)) if len(values) else None
        ends = (float(values.min()), float(values.max())) if len(values) else (None, None)
        of_scores[name] = {
            "mean": mean,
            "least": ends[0],
            "largest": ends[1],
            "missing": len(documents) - len(values),
        }
    sums = {name: pc.sum(documents[name]).as_py() for name in ("characters", "tokens")}
    return {"documents": len(documents), **sums, "scores": of_scores}

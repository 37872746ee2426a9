"""Stage `order`: every exposure of every document, in the one order that training sees.

Exposure k of a document that is seen r times has the place (k - 1 + u) / r, where u in [0, 1)
follows from seed and id alone. So any part of the training resembles the whole, and exposures of a
document are 1 / r of it apart. Chance could still bring two of them into the first total /
max_repeat tokens; so first exposures fill these, in their order, and the displaced ones follow.

`tokens/order.parquet` is the ledger: it names the document behind a token, and where its tokens
are. DuckDB sorts on disk, and rows are numbered as they stream by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.outputs import Phase
from datamask.config.settings import Settings
from datamask.errors import SettingsError, one_line
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import (
    execute,
    hash_of,
    last_within,
    stream,
    temporary_duckdb,
)
from datamask.tokens.tokenise import wanted

logger = logging.getLogger(__name__)

TOKENS_PER_FILE = 2**28
"""Tokens of a file, besides the rest of its last document: half a gigabyte of 16-bit tokens."""

BANDS = 10
"""Number of bands of quality, with equally many documents each."""

_EXPOSURES = """
SELECT * REPLACE (tokens - if(exposure = repeat, cut, 0) AS tokens),
    (exposure - 1 + place) / repeat AS key
FROM (SELECT *, unnest(range(1, repeat + 1))::INTEGER AS exposure FROM documents)
"""


def check_phases(settings: Settings) -> None:
    """Refuse conditions of phases that fail on the columns of the documents, or read others."""
    import duckdb

    documents = schemas.documents(settings).empty_table()
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        for phase in filter(lambda phase: phase.where, wanted(settings).phases):
            try:
                relation = connection.from_arrow(documents)
                relation.filter(phase.where).fetchall()
                if relation.project(phase.where).types == ["VARCHAR"]:
                    raise duckdb.BinderException("a text, neither true nor false")
            except duckdb.Error as error:
                problem = f"condition {phase.where!r} cannot be evaluated ({one_line(error)})"
                known = ", ".join(documents.column_names)
                raise SettingsError(f"tokens.phases: {problem}; columns are {known}") from None


def put_in_order(run: Run, compute: Compute) -> None:
    """Write `tokens/order.parquet`, and remove token files of an order with more of them.

    The metrics of the receipt: `tokens`, `documents` (exposures) and, for each phase, both in
    `phases`; `files`; `type`, `end` and `with_special` (its sum) as in stage `tokenised`.

    Raises:
        SettingsError: no document is selected, or a phase has too few tokens.
    """
    metrics: dict[str, Any] = {}
    with temporary_duckdb(run.root, compute) as connection:
        with_special = _load(connection, run)
        made = run.receipt("tokenised", 0).metrics
        metrics |= {"phases": [], "files": 0, "type": made["type"], "end": made["end"]}
        metrics["with_special"] = with_special
        rows = _numbered(connection, run, metrics)
        write_output(run, "order", 0, schemas.ORDER, rows, metrics)
    logger.info("order: %d tokens in %d files", metrics["tokens"], metrics["files"])
    kept = {f"{number:05d}" for number in range(metrics["files"])} | {"order"}
    for name in run.storage.list("tokens"):
        if name.rpartition("/")[2].partition(".")[0] not in kept:
            run.storage.remove(name)


def _load(connection: Any, run: Run) -> int:
    """Make `documents`, and `exposures` with a row each; count documents with special tokens."""
    with_special = 0
    execute(
        connection,
        "CREATE TABLE documents (unit INTEGER, id VARCHAR, quality DOUBLE, repeat INTEGER, "
        "start BIGINT, tokens BIGINT, place DOUBLE, cut BIGINT DEFAULT 0)",
    )
    key = hash_of(f"'{run.settings.seed}/' || id")
    for unit in range(run.num_units("tokenised")):
        with_special += run.receipt("tokenised", unit).metrics["with_special"]
        execute(
            connection,
            f"INSERT INTO documents SELECT {unit}, *, {key}::DOUBLE / 2::DOUBLE ** 64, 0 "
            "FROM read_parquet(?, hive_partitioning = false)",
            [str(run.path("tokenised", unit))],
        )
    [(total,)] = execute(connection, "SELECT sum(repeat * tokens)::BIGINT FROM documents")
    if not total:
        raise SettingsError("tokens: no document is selected; raise selection.ratio")
    if run.settings.selection.training_tokens:
        total -= _cut_last_exposure(connection, run, total)
    if phases := wanted(run.settings).phases:
        _fill_phases(connection, run, phases, total)
    else:
        execute(connection, f"CREATE VIEW exposures AS SELECT *, 1 AS phase FROM ({_EXPOSURES})")
    return with_special


def _cut_last_exposure(connection: Any, run: Run, total: int) -> int:
    """Cut the exposure with which stage `repeats` reached the total; return the tokens it loses.

    No other exposure may lose tokens: a document that is seen once would not be seen at all. An
    epoch with more tokens than the total is seen whole, and nothing is cut.
    """
    excess = total - int(run.receipt("repeats").metrics["total"])
    [last] = run.read_output("repeats").to_pylist()
    where, values = "id = ? AND repeat > 1 AND tokens > ?", [last["id"], excess]
    execute(connection, f"UPDATE documents SET cut = {excess} WHERE {where}", values)
    [(cut,)] = execute(connection, "SELECT sum(cut)::BIGINT FROM documents")
    assert cut == excess, "the last exposure has more tokens than are too many"
    return excess


def _fill_phases(connection: Any, run: Run, phases: tuple[Phase, ...], total: int) -> None:
    """Give every exposure its phase; number a document's exposures in the order of training.

    Phases with a condition choose before those without, and later ones before earlier ones; each
    takes the last remaining exposures until it has its tokens. One phase gets the rest.
    """
    for shard in range(run.num_shards):
        run.receipt("documents", shard)
    paths = [str(run.path("documents", shard)) for shard in range(run.num_shards)]
    execute(
        connection,
        "CREATE TABLE facts AS FROM read_parquet(?, hive_partitioning = false) WHERE selected",
        [paths],
    )
    # A condition, which may come with the settings of others, reads nothing else.
    execute(connection, "SET enable_external_access = false")
    execute(connection, f"CREATE TABLE chosen AS SELECT *, NULL::INT AS phase FROM ({_EXPOSURES})")
    ends = [round(total * sum(phase.share for phase in phases[:n])) for n in range(len(phases))]
    ends.append(total)
    *choosing, last = sorted(range(len(phases)), key=lambda n: (not phases[n].where, -n))
    for number in (*choosing, last):
        condition = phases[number].where or "true"
        connection.table("facts").filter(condition).project("id").create(f"of_{number}")
        where = f"phase IS NULL AND id IN (FROM of_{number})"
        taken = f"(SELECT key, id, tokens AS units FROM chosen WHERE {where})"
        [(there,)] = execute(connection, f"SELECT coalesce(sum(units), 0)::BIGINT FROM {taken}")
        due = ends[number + 1] - ends[number]
        if number == last:
            [(due,)] = execute(connection, "SELECT sum(tokens) FROM chosen WHERE phase IS NULL")
        if there < due:
            raise SettingsError(
                f"tokens.phases: {due:,} tokens are for phase {number + 1}, and documents where "
                f"{condition} have {there:,} of them; change the shares or conditions"
            )
        if due and number != last:
            key, name = last_within(connection, taken, due, "key DESC, id")
            name = name.replace("'", "''")
            where += f" AND (key > {key!r} OR (key = {key!r} AND id <= '{name}'))"
        execute(connection, f"UPDATE chosen SET phase = {number + 1} WHERE {where}")
    execute(
        connection,
        "CREATE TABLE exposures AS SELECT * REPLACE (row_number() OVER (PARTITION BY id "
        "ORDER BY phase, key)::INTEGER AS exposure) FROM chosen",
    )


def _order(connection: Any, settings: Settings) -> str:
    """Return SQL for the order of the exposures within a phase."""
    if wanted(settings).order != "by_quality_then_shuffled":
        return "key, id"
    shares = [number / BANDS for number in range(1, BANDS)]
    [(ends,)] = execute(connection, f"SELECT quantile_disc(quality, {shares}) FROM documents")
    band = " + ".join(f"(quality > {end!r})::INTEGER" for end in ends)
    return f"exposure, {band}, key, id"


def _numbered(connection: Any, run: Run, metrics: dict[str, Any]) -> Iterator[pa.Table]:
    """Yield the rows of the ledger; add their totals to *metrics*.

    Raises:
        RuntimeError: a document does not occur as often as its `repeat`.
    """
    tokens, order = wanted(run.settings), _order(connection, run.settings)
    most = run.settings.selection.max_repeat
    expected = _added_up(connection)
    least = -(-expected[1] // most) if most > 1 else 0
    position = file = cell = documents = check = 0
    for number in range(1, max(len(tokens.phases), 1) + 1):
        begin, before = position, documents
        rows = stream(
            connection,
            "SELECT id, exposure, phase, unit, start, tokens, place FROM exposures "
            f"WHERE phase = {number} ORDER BY {order}",
        )
        for table in first_exposures_first(map(pa.table, rows), least - position):
            lengths = table["tokens"].to_numpy()
            first = position + np.cumsum(lengths) - lengths
            cells = first // TOKENS_PER_FILE
            files = file + np.cumsum(np.diff(cells, prepend=cell) != 0)
            check += int((table["place"].to_numpy() * 2.0**PLACE_BITS).astype(np.int64).sum())
            for name, values in (("first_token", first), ("file", files)):
                table = table.append_column(name, pa.array(values))
            yield table.select(schemas.ORDER.names).cast(schemas.ORDER)
            documents += len(table)
            if len(table):
                position = int(first[-1] + lengths[-1])
                file, cell = int(files[-1]), int(cells[-1])
        metrics["phases"].append({"tokens": position - begin, "documents": documents - before})
    if (documents, position, check) != expected:
        raise RuntimeError("the ledger does not have each document as often as its repeat")
    metrics |= {"tokens": position, "documents": documents, "files": file + 1}


PLACE_BITS = 36
"""Bits of a place that are added up, so that the sum of a batch fits into 64."""


def _added_up(connection: Any) -> tuple[int, int, int]:
    """Sum exposures, their tokens and their places, from the repeats of the documents."""
    place = f"floor(place * {2**PLACE_BITS})::BIGINT"
    [due] = execute(
        connection,
        "SELECT sum(repeat)::BIGINT, sum(repeat * tokens - cut)::BIGINT, "
        f"sum((repeat * {place})::HUGEINT) FROM documents",
    )
    return int(due[0]), int(due[1]), int(due[2])


def first_exposures_first(tables: Iterable[pa.Table], least: int) -> Iterator[pa.Table]:
    """Keep rows of tables in order, but only first exposures until these have *least* tokens.

    The exposures that they displace follow at once.
    """
    waiting: list[pa.Table] = []
    done = 0
    for table in tables:
        if done >= least:
            yield table
            continue
        tokens, is_first = table["tokens"].to_numpy(), table["exposure"].to_numpy() == 1
        is_ahead = is_first & (done + np.cumsum(tokens * is_first) - tokens < least)
        yield table.filter(pa.array(is_ahead))
        waiting.append(table.filter(pa.array(~is_ahead)))
        done += int(tokens[is_ahead].sum())
        if done >= least:
            yield from waiting
            waiting = []
    yield from waiting

"""Stage `arms`: the documents of an arm as tokens, without what copies held-out text.

The text is read from the source by shard and row. Only as many documents are encoded as the models
of all seeds can draw from, chosen by a seeded hash of their ids. Kind `texts` has files of its own,
which are read in a seeded order until there is enough text.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.evaluation import LEAST_TOKENS, Arm
from datamask.errors import InputError, RunError, SettingsError
from datamask.evaluation.models import budget_tokens
from datamask.evaluation.pinning import changed_selection
from datamask.evaluation.texts import (
    CANDIDATE,
    copy_groups,
    in_drawn_order,
    load_documents,
    read_texts,
    read_tokenizer,
)
from datamask.runs import budget, schemas
from datamask.runs.opening import open_run
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.opening import PlannedFiles
from datamask.source.rows import ROW_SUFFIXES, TEXTS_AT_ONCE, read_rows
from datamask.source.token_counts import encode
from datamask.storage.duckdb_scratch import execute, execute_with, temporary_duckdb
from datamask.storage.unchanged import not_as_planned

MARGIN = 1.25
"""Characters per token differ between arms, so somewhat more text is read than is expected."""


def make_arm(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write the documents of an arm as tokens.

    The receipt's metrics: `available` (documents of the arm), `documents` and `tokens` that were
    encoded, `bytes` of their text, and `copies`, documents left out because they are held out or
    nearly repeat a held-out text.

    Raises:
        InputError: a list of ids is unreadable, or names documents that the source lacks.
        RunError: another run has another source, or its selection is not done.
    """
    evaluation = run.settings.evaluation
    arm = evaluation.arms[unit]
    per_token = run.receipt("tokenizer").metrics["characters_per_token"]
    enough = budget_tokens(evaluation) * evaluation.seeds * per_token * MARGIN
    totals = {"available": 0, "documents": 0, "tokens": 0, "bytes": 0, "copies": 0}
    if arm.kind == "texts":
        batches = _own_texts(run, arm, enough, totals)
    else:
        batches = _source_texts(run, _draw(run, arm, enough, compute, totals))
    table = pa.concat_tables([schemas.ARM.empty_table(), *_encoded(run, batches, totals)])
    return write_output(run, "arms", unit, schemas.ARM, [table], totals)


Batch = tuple[int, npt.NDArray[np.int64], list[str], list[str]]
"""Some documents: shard (-1 outside the source), rows, ids and texts."""


def _draw(
    run: Run, arm: Arm, enough: float, compute: Compute, totals: dict[str, int]
) -> list[tuple[int, int, str]]:
    """Return shard, row and id of documents with *enough* characters; count those there are."""
    with temporary_duckdb(run.root, compute) as connection:
        load_documents(connection, run)
        _choose(connection, run, arm, compute)
        order = in_drawn_order(run, "arm")
        execute(
            connection,
            "CREATE VIEW of_arm AS SELECT *, dropped IS NOT DISTINCT FROM 'held_out' AS held_out "
            "FROM documents WHERE id IN (SELECT id FROM chosen) AND characters > 0",
        )
        [(totals["available"], totals["copies"])] = execute(
            connection,
            "SELECT count(*) FILTER (NOT held_out), count(*) FILTER (held_out) FROM of_arm",
        )
        chosen: list[tuple[int, int, str]] = execute(
            connection,
            "SELECT shard, row, id FROM (SELECT shard, row, id, sum(characters) OVER "
            f"(ORDER BY {order}) - characters AS before FROM of_arm WHERE NOT held_out) "
            "WHERE before < ?",
            [enough],
        )
    return chosen


def _source_texts(run: Run, chosen: list[tuple[int, int, str]]) -> Iterator[Batch]:
    """Yield documents of the source, given shard, row and id."""
    ids = {(shard, row): name for shard, row, name in chosen}
    for shard, rows, texts in read_texts(run, list(ids)):
        yield shard, rows, [ids[shard, row] for row in rows.tolist()], texts


def _own_texts(run: Run, arm: Arm, enough: float, totals: dict[str, int]) -> Iterator[Batch]:
    """Yield texts of the arm's own files until they have *enough* characters, and count them."""
    files, [column], characters = PlannedFiles(arm.path, ROW_SUFFIXES), arm.columns, 0
    keys = {name: f"{run.settings.seed}/{name}".encode() for name in files.names}
    names = sorted(files.names, key=lambda name: hashlib.md5(keys[name]).digest())
    with files.compared(run.pinned_revisions[f"arm:{arm.name}"]):
        rows = chain.from_iterable(read_rows(name, arm.columns, files) for name in names)
        texts = filter(str.strip, (str(row.get(column) or "") for row in rows))
        while characters < enough and (some := list(islice(texts, TEXTS_AT_ONCE))):
            numbers = totals["available"] + np.arange(len(some))
            yield -1, numbers, [f"{arm.name}/{number}" for number in numbers.tolist()], some
            characters += sum(map(len, some))
            totals["available"] += len(some)


def _encoded(run: Run, batches: Iterable[Batch], totals: dict[str, int]) -> Iterator[pa.Table]:
    """Yield the tokens of documents, without copies of held-out ones; add counts to *totals*."""
    tokenizer = read_tokenizer(run)
    held_out = run.read_output("held_out", columns=["signature"])
    for shard, rows, ids, texts in batches:
        groups, of_held_out = copy_groups(texts, held_out)
        is_copy = np.isin(groups, [*of_held_out])
        kept = np.flatnonzero(~is_copy).tolist()
        encoded = list(encode(tokenizer, [texts[number] for number in kept]))
        totals["copies"] += int(is_copy.sum())
        totals["documents"] += len(kept)
        totals["tokens"] += sum(map(len, encoded)) + len(encoded)
        totals["bytes"] += sum(len(texts[number].encode()) for number in kept)
        yield pa.table(
            {
                "id": [ids[number] for number in kept],
                "shard": pa.array([shard] * len(kept), pa.int32()),
                "row": rows[kept],
                "tokens": pa.array(encoded, schemas.ARM.field("tokens").type),
            },
            schema=schemas.ARM,
        )


def _choose(connection: Any, run: Run, arm: Arm, compute: Compute) -> None:
    """Make table `chosen`: the ids of an arm's documents."""
    execute(connection, "CREATE TABLE chosen (id VARCHAR)")
    if arm.kind == "random":
        execute(connection, f"INSERT INTO chosen SELECT id FROM documents WHERE {CANDIDATE}")
    elif arm.kind == "top_quality":
        unit = "1" if run.settings.selection.tokens is None else "tokens"
        execute(
            connection,
            f"INSERT INTO chosen SELECT id FROM (SELECT id, sum({unit}) OVER (ORDER BY quality "
            f"DESC, id) - {unit} AS before FROM documents WHERE dropped IS NULL) WHERE before < ?",
            [budget.total_units(run.settings.selection, run.num_documents)],
        )
    else:
        for ids in _ids(run, arm, compute):
            arriving = pa.table({"id": ids})
            execute_with(connection, arriving, "INSERT INTO chosen SELECT id FROM arriving")
    if arm.kind == "ids":
        unknown = "SELECT count(*), min(id) FROM chosen ANTI JOIN documents USING (id)"
        [(number, first)] = execute(connection, unknown)
        if number:
            problem = f"{number:,} ids of arm {arm.name} are not in the source, first {first!r}"
            raise InputError(f"{problem}; leave them out", path=arm.path)


def _ids(run: Run, arm: Arm, compute: Compute) -> Iterator[pa.Array | pa.ChunkedArray]:
    """Yield the ids that an arm lists, or that its run or other settings select, shard by shard."""
    if arm.kind == "ids":
        ids: list[str] = []
        files = PlannedFiles(arm.path, ROW_SUFFIXES)
        with files.compared(run.pinned_revisions[f"arm:{arm.name}"]):
            for path in files.names:
                for row in read_rows(path, arm.columns, files):
                    value = str(row.get(arm.columns[0]))
                    ids += value.split("\n") if path.lower().endswith(".txt") else [value]
        yield pa.array([name for name in map(str.strip, ids) if name], pa.string())
    elif arm.change:
        from datamask.selection.per_shard import selected_alone

        selection = changed_selection(run.in_force.selection, arm)
        changed = replace(run, settings=run.settings.model_copy(update={"selection": selection}))
        for shard in range(run.num_shards):
            yield selected_alone(changed, shard, compute)
    else:
        from datamask.selection.documents import read_column, read_survivors

        other = run if arm.kind == "selection" else open_run(arm.path)
        planned = run.pinned_revisions.get(f"arm:{arm.name}")
        if other is not run and other.fingerprint_all("selection") != planned:
            raise not_as_planned(arm.path)
        if {piece.digest for piece in other.pieces} != {piece.digest for piece in run.pieces}:
            raise RunError(
                f"{arm.path}: arm {arm.name} is a run of another source than {run.address}; name a "
                "run of the same files, cut into any shards"
            )
        for shard in range(other.num_shards):
            candidates = read_survivors(other, shard)
            selected = read_column(other, "selection", candidates, "selected")
            yield candidates.ids.filter(selected)


def check_tokens(run: Run) -> None:
    """Check that every arm has enough tokens to train a model, when all arms are made.

    Raises:
        SettingsError: some have fewer.
    """
    evaluation = run.settings.evaluation
    wanted, names = budget_tokens(evaluation), [arm.name for arm in evaluation.arms]
    tokens = [run.receipt("arms", unit).metrics["tokens"] for unit in range(len(names))]
    if (most := min(tokens)) < wanted:
        few = [f"{name} {n:,d}" for name, n in zip(names, tokens, strict=True) if n < wanted]
        command = f"datamask evaluate {shlex.quote(run.address)} --set evaluation.tokens={most}"
        remedy = f"run `{command}` (and evaluation.epochs to see them more often)"
        if most < LEAST_TOKENS:
            command = f"datamask rebuild {shlex.quote(run.address)} --set evaluation.arms=[]"
            remedy = "select more, or evaluate on a larger source; "
            remedy += f"`{command}` finishes the run without an evaluation"
        problem = f"models are trained on {wanted:,d} tokens, but some arms have fewer"
        raise SettingsError(f"evaluation.tokens: {problem} ({', '.join(few)}); {remedy}")


def drawn_tokens(run: Run, arm: int, seed: int, separator: int) -> npt.NDArray[np.int64]:
    """Return the text of an arm that trains the models of a seed: exactly `budget_tokens` tokens.

    Each seed takes the next piece of the arm's text. If pieces overlapped, seeds would agree with
    each other more than with other documents of the arm, and the verdict would be too sure.
    """
    wanted = budget_tokens(run.settings.evaluation)
    return piece_of(arm_stream(run, arm, separator), seed * wanted, wanted)


def piece_of(stream: npt.NDArray[np.uint32], begin: int, number: int) -> npt.NDArray[np.int64]:
    """Return *number* tokens of an arm's text from token *begin*; the text repeats."""
    positions = begin % len(stream) + np.arange(number)
    return stream.take(positions, mode="wrap").astype(np.int64)


def arm_stream(run: Run, arm: int, separator: int) -> npt.NDArray[np.uint32]:
    """Join the documents of an arm in a seeded random order, with the separator after each."""
    run.receipt("arms", arm)
    table = run.read_output("arms", arm, ["id", "tokens"])
    keys = [f"{run.settings.seed}/{name}".encode() for name in table["id"].to_pylist()]
    order = sorted(range(len(keys)), key=lambda row: hashlib.md5(keys[row]).digest())
    tokens = table["tokens"].combine_chunks().take(pa.array(order))
    ends = np.cumsum(pc.list_value_length(tokens).to_numpy(), dtype=np.int64)
    return np.insert(tokens.flatten().to_numpy(), ends, separator)

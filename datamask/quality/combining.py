"""Stage `combined`: a shard's scores on the scale of the corpus, and their weighted sum.

Normalisations: `rank` is the share of documents with a smaller value, averaged over ties, in
[0, 1); `z-score` has mean 0 and deviation 1; `min-max` is in [0, 1]; `none` is the value. All that
concerns other shards is in `scales.parquet` and `comparison/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.errors import CorruptFileError
from datamask.quality.agreement import is_sampled
from datamask.quality.comparison import answers_for
from datamask.quality.grouping import group_expression, group_kinds, mixed_with_groups
from datamask.quality.held_out import is_drawn
from datamask.quality.scales import Scale, filled, read_scales
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import temporary_duckdb


def combine_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `combined/NNNNN.parquet`: quality, and why a document is dropped before pruning.

    Near-duplicates are not known yet.

    Raises:
        RunError: what it reads is missing or stale.
        CorruptFileError: the answers of `comparison/` are not about the values of this shard.
    """
    run.receipt("scores", shard)
    scores, scales = run.settings.scores, read_scales(run)
    table = _read(run, shard, compute)
    answers = answers_for(run, shard)
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    total, whole_total = np.zeros(table.num_rows), np.zeros(table.num_rows)
    for place, (score, scale) in enumerate(zip(scores, scales, strict=True)):
        values = filled(table[score.name], score)
        found = answers.filter(pc.equal(answers["score"], place))
        whole = normalised = _normalised(values, score, scale, found)
        if score.normalise_within != "none":
            names = table[f"g_{score.normalise_within}"].combine_chunks()
            normalised = mixed_with_groups(whole, values, names, found, score)
        total = score.weight * normalised + total
        whole_total = score.weight * whole + whole_total
        columns[score.name] = pa.array(normalised, from_pandas=True)  # NaN as null
        if len(scores) > 1:
            raw = np.where(table["sampled"].to_numpy(), values, np.nan)
            columns[f"raw_{score.name}"] = pa.array(raw, from_pandas=True)
    for name, summed in (("quality", total), ("whole_quality", whole_total)):
        columns[name] = pa.array(summed + 0.0, from_pandas=True)  # -0.0 becomes 0.0
    columns["reason"] = _reasons(run, shard, table, np.isnan(total), answers)
    schema = schemas.combined(
        [score.name for score in scores], [f"g_{kind}" for kind in group_kinds(scores)]
    )
    written = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    return write_output(run, "combined", shard, schema, [written], {})


def _read(run: Run, shard: int, compute: Compute) -> pa.Table:
    """The shard's `scores`, with `drawn`, `sampled` and the groups g_<kind> where they matter."""
    table, parameters = read_columns(run.path("scores", shard)), []
    added = {}
    if run.settings.evaluation.hold_out:
        added["drawn"] = is_drawn(run.settings)
    if len(run.settings.scores) > 1:
        added["sampled"] = is_sampled(run.num_documents)
    for kind in group_kinds(run.settings.scores):
        added[f"g_{kind}"], folders = group_expression(run, shard, kind)
        parameters += folders
    if not added:
        return table
    columns = ", ".join(f"{expression} AS {name}" for name, expression in added.items())
    with temporary_duckdb(run.root, compute) as connection:
        connection.register("s", table)
        found = connection.sql(f"SELECT {columns} FROM s ORDER BY row", params=parameters)
        for name, column in zip(added, found.to_arrow_table().columns, strict=True):
            table = table.append_column(name, column)
    return table


def _normalised(values: np.ndarray, score: Score, scale: Scale, answers: pa.Table) -> np.ndarray:
    """Values on the scale of the corpus, float64, NaN where they are missing."""
    if score.normalisation == "none":
        return values
    if score.normalisation != "rank":
        result: np.ndarray = (values - scale.offset) / scale.divisor
        return result
    there = ~np.isnan(values)
    found, places = np.unique(values[there], return_inverse=True)
    if scale.values:
        shares = np.interp(found, scale.values, scale.shares)
    else:
        ranks = answers.filter(pc.equal(answers["kind"], "rank"))
        if not np.array_equal(ranks["value"].to_numpy(), found):
            raise CorruptFileError(
                f"comparison: the ranks of score {score.name} are of other values; delete the "
                "folder `comparison` of the run and relaunch"
            )
        shares = ranks["share"].to_numpy()
    result = np.full(len(values), np.nan)
    result[there] = shares[places]
    return result


def _reasons(
    run: Run, shard: int, table: pa.Table, missing: np.ndarray, answers: pa.Table
) -> np.ndarray:
    """Why each document is dropped, in the order of `schemas.DROP_REASONS`; None: it is not."""

    def answered(kind: str) -> np.ndarray:
        rows = answers.filter(pc.equal(answers["kind"], kind))["row"].to_numpy()
        return np.isin(np.arange(table.num_rows), rows)

    known = run.settings.quality.contamination
    contaminated = np.zeros(table.num_rows, bool)
    if known is not None and known.action == "drop":
        run.receipt("screening", shard)
        column = read_columns(run.path("screening", shard), ["contaminated_by"])[0]
        contaminated = column.is_valid().to_numpy()
    held_out = answered("held_out")
    if run.settings.evaluation.hold_out:
        held_out |= table["drawn"].to_numpy()
    reasons = {
        "empty": pc.fill_null(pc.equal(table["characters"], 0), False).to_numpy(),
        "held_out": held_out,
        "missing-score": missing,
        "duplicate": answered("duplicate"),
        "contaminated": contaminated,
    }
    found = np.full(table.num_rows, None, object)
    for reason, holds in reversed(reasons.items()):
        found[holds] = reason
    return found

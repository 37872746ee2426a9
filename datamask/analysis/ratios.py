"""Shares of groups as a table of ratios, which tools for mixtures read and write.

A table is as olmix has it: a CSV file with a row per mixture, a column `run` (or `run_id`) that
names it, perhaps a column `name`, and a column per group with the group's share of the tokens. The
mixture that olmix proposes is a JSON list of `domain` and `weight`, which is read too.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from datamask.analysis.composition import query
from datamask.errors import InputError, did_you_mean, one_line
from datamask.runs.run import Run
from datamask.source.opening import naming, open_binary

NOT_GROUPS = ("run", "run_id", "name", "")
"""Columns of a table of ratios that are no groups; pandas writes a column without a name."""

MOST_OFF = 0.01
"""By how much the ratios of a mixture may differ from 1 in total."""


def ratios(runs: Sequence[Run], column: str) -> list[dict[str, Any]]:
    """A row per run: its name, and each group's share of the selected tokens.

    Of a run whose documents have no tokens, shares of the documents.

    Raises:
        RunError: the composition of a run is missing.
    """
    rows = []
    for run in runs:
        groups = query(
            run,
            f"SELECT {column} AS name, count(*) AS documents, sum(tokens)::BIGINT AS tokens "
            "FROM selection GROUP BY 1 ORDER BY 1",
        )
        known = [group["tokens"] for group in groups]
        unit = "tokens" if None not in known and sum(known) else "documents"
        total = sum(group[unit] for group in groups)
        shares = {group["name"]: round(group[unit] / total, 9) for group in groups}
        rows.append({"run": run.address.rstrip("/").rpartition("/")[2], **shares})
    names = sorted({name for row in rows for name in row} - {"run"})
    return [{"run": row["run"], **{name: row.get(name, 0.0) for name in names}} for row in rows]


def read_ratios(path: str, name: str = "") -> dict[str, float]:
    """The ratios of a mixture, by group.

    Args:
        path: file or URL of a table of ratios (.csv) or of a proposed mixture (.json).
        name: that of the row, if the table has several.

    Raises:
        InputError: the file is unreadable, has no such row, or its ratios are no shares.
    """
    with naming(path), open_binary(path) as file:
        text = file.read().decode("utf-8-sig")
    try:
        if path.endswith(".json"):
            mixture = {row["domain"]: float(row["weight"]) for row in json.loads(text)}
        else:
            mixture = _row(path, list(csv.DictReader(io.StringIO(text))), name)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"no table of ratios ({one_line(error)}); it has a column `run` and one per group, "
            "with numbers",
            path=path,
        ) from None
    total = math.fsum(mixture.values())
    if not all(0 <= ratio <= 1 for ratio in mixture.values()) or abs(total - 1) > MOST_OFF:
        problem = f"the ratios add up to {total:g}; give shares in [0, 1] that add up to 1"
        raise InputError(problem, path=path)
    return {group: ratio / total for group, ratio in mixture.items()}


def _row(path: str, rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    labels = [str(row.get("run") or row.get("run_id") or number) for number, row in enumerate(rows)]
    if name not in labels and (name or len(rows) != 1):
        told = f"{did_you_mean(name, labels)}; name one with --run" if labels else ""
        problem = f"{len(rows)} rows, and none is `{name}`" if name else f"{len(rows)} rows"
        raise InputError(f"{problem}{told}", path=path, column="run")
    row = rows[labels.index(name) if name else 0]
    return {group: float(ratio) for group, ratio in row.items() if group not in NOT_GROUPS}


def limits_of(mixture: Mapping[str, float], column: str, within: float) -> list[dict[str, Any]]:
    """Settings `selection.limits` that keep a mixture; other groups are left out.

    Args:
        mixture: shares by group, which add up to 1.
        column: dump, language, domain or topic.
        within: relative distance of floors and caps from the shares.
    """
    limits: list[dict[str, Any]] = [
        {
            "column": column,
            "value": group,
            "floor": math.floor(1e6 * ratio * (1 - within)) / 1e6,
            "cap": min(1.0, math.ceil(1e6 * ratio * (1 + within)) / 1e6),
        }
        for group, ratio in mixture.items()
    ]
    return [*limits, {"column": column, "cap": 0.0}]

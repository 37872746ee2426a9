"""Compare runs: find the documents that they share, and those that only one of them selects.

Documents are matched by id, so the runs must share some. Figures of runs are comparable only if
their sources are the same; any other setting may differ.

DuckDB computes everything from the runs' `documents/`, out of core.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamask.analysis.summary import documents_of, kinds_of, rows_of
from datamask.config.compute import Compute
from datamask.errors import InputError, RunError
from datamask.runs.run import Run
from datamask.source.texts import with_beginnings
from datamask.storage.duckdb_scratch import execute, temporary_duckdb

logger = logging.getLogger(__name__)

MOST_NAMES = 10
MOST_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs compared.

    Args:
        first: name of a run.
        second: name of the other.
        documents: in both sources.
        both: selected by both.
        only_first: selected by the first alone.
        only_second: selected by the second alone.
        missing: for each run, the documents that it alone selects: `keeper` (its name),
            `documents`, `mean_quality` (the first run's; None without documents), `mean_characters`
            (None without text), `groups` (by kind: names and documents, the largest first),
            `examples` (the best by quality: shard, row, id, quality, beginning; None without source
            or text).
    """

    first: str
    second: str
    documents: int
    both: int
    only_first: int
    only_second: int
    missing: list[dict[str, Any]]

    @property
    def jaccard(self) -> float:
        """Documents selected by both over documents selected by either; 1 if there are none."""
        union = self.both + self.only_first + self.only_second
        return self.both / union if union else 1.0


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Some runs by their names, and all pairs of them.

    `settings` are settings that differ and can change a selection, with the value of each run.
    """

    runs: dict[str, Run]
    pairs: list[Pair]
    settings: list[tuple[str, list[str]]]

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return list(self.runs)

    @property
    def same_source(self) -> bool:
        """True if all runs read the same files, by the digests of their plans."""
        files = ({piece.path: piece.digest for piece in run.pieces} for run in self.runs.values())
        return len({tuple(sorted(digests.values())) for digests in files}) == 1


def compare(runs: Sequence[Run]) -> Comparisons:
    """Compare every pair of two or more finished runs.

    Raises:
        RunError: there are fewer than two runs, a composition is missing, or two runs share no
            document.
    """
    if len(runs) < 2:
        raise RunError("compare: needs two runs or more")
    if len({run.address for run in runs}) < len(runs):
        raise RunError("compare: a run is named twice")
    short = [run.root.absolute().name for run in runs]
    names = short if len(set(short)) == len(short) else [run.address for run in runs]
    for run in runs:
        run.receipt("composition")
    with (
        tempfile.TemporaryDirectory(prefix="datamask-compare-") as folder,
        temporary_duckdb(Path(folder), Compute()) as connection,
    ):
        # Sums of floats depend on how threads divide the rows.
        connection.execute("SET threads = 1")
        for number, run in enumerate(runs):
            for shard in range(run.num_shards):
                run.receipt("documents", shard)
            connection.execute(f"CREATE TEMP VIEW r{number} AS FROM {documents_of(run)}")
        pairs = [
            _pair(connection, runs, names, first, other)
            for first, other in itertools.combinations(range(len(runs)), 2)
        ]
    return Comparisons(dict(zip(names, runs, strict=True)), pairs, _differences(runs))


def _pair(
    connection: Any, runs: Sequence[Run], names: Sequence[str], left: int, right: int
) -> Pair:
    kinds = ", ".join(f'a."{kind}"' for kind in kinds_of(runs[left].settings))
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE matched AS SELECT a.id, a.shard, a.row, a.quality, "
        f"a.characters, {kinds}, a.selected AS first, "
        "b.selected AS second "
        f"FROM r{left} a JOIN r{right} b USING (id)"
    ).fetchall()
    [(documents, both, first, second)] = execute(
        connection,
        "SELECT count(*), count(*) FILTER (first AND second), "
        "count(*) FILTER (first AND NOT second), count(*) FILTER (second AND NOT first) "
        "FROM matched",
    )
    if not documents:
        raise RunError(
            f"{runs[left].address} and {runs[right].address} share no document: compare runs of "
            "one source"
        )
    missing = [
        _missing(connection, runs[left], names[left], "first AND NOT second"),
        _missing(connection, runs[left], names[right], "second AND NOT first"),
    ]
    pair = (names[left], names[right], documents, both, first, second)
    return Pair(*pair, missing)


def _missing(connection: Any, run: Run, keeper: str, where: str) -> dict[str, Any]:
    counted = connection.execute(
        "SELECT count(*) AS documents, avg(quality) AS mean_quality, "
        f"avg(characters) AS mean_characters FROM matched WHERE {where}"
    )
    missing = rows_of(counted)[0] | {"keeper": keeper}
    groups = {
        kind: connection.execute(
            f'SELECT "{kind}" AS name, count(*) AS n FROM matched WHERE {where} GROUP BY name '
            f"ORDER BY n DESC, name LIMIT {MOST_NAMES}"
        ).fetchall()
        for kind in kinds_of(run.settings)
    }
    missing["groups"] = {kind: rows for kind, rows in groups.items() if len(rows) > 1}
    best = connection.execute(
        f"SELECT shard, row, id, quality FROM matched WHERE {where} "
        f"ORDER BY quality DESC NULLS LAST, id LIMIT {MOST_EXAMPLES}"
    )
    examples = rows_of(best)
    missing["examples"] = [row | {"beginning": None} for row in examples]
    try:
        missing["examples"] = with_beginnings(run, examples)
    except InputError as error:
        logger.warning("%s: examples are shown without text", error)
    return missing


_SETTINGS = ("selection", "quality", "embedding", "source", "plan", "seed", "evaluation.hold_out")
"""Settings that can change a selection, the most informative first."""


def _differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """List settings of `_SETTINGS` that differ, with the value of each run, by their dotted key.

    The documents are the same, so only the last component of the source's path counts.
    """
    flat = [_flat(run.in_force.model_dump(mode="json")) for run in runs]
    for settings in flat:
        settings["source.path"] = Path(settings["source.path"]).name
    known = dict.fromkeys(key for settings in flat for key in settings)
    keys = [key for group in _SETTINGS for key in known if key.startswith(group)]
    rows = [(key, [settings.get(key, "–") for settings in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        return {prefix: str(value)}
    values: dict[str, str] = {}
    for name, inner in value.items():
        values |= _flat(inner, f"{prefix}.{name}" if prefix else name)
    return values

"""Two or more runs side by side: what they share, and what one keeps that the other does not.

Documents are matched by id, so the runs must be of the same source; their settings may differ in
anything else. Everything is computed by DuckDB from the runs' `composition.duckdb` files, within
`compute.duckdb_memory`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamask.analysis.composition import query
from datamask.analysis.summary import Comparison, summary
from datamask.config.compute import Compute
from datamask.errors import RunError
from datamask.runs.run import Run
from datamask.source.texts import beginnings
from datamask.storage.duckdb_scratch import temporary_duckdb

BANDS = 10
MOST_NAMES = 10
MOST_EXAMPLES = 10
KINDS = ("dump", "language", "domain")


@dataclass(frozen=True, slots=True)
class Band:
    """A tenth of the first run's quality.

    Args:
        band: 1 (the worst) to 10.
        low: least quality in it.
        high: largest.
        first: documents of it that the first run keeps.
        second: that the second keeps.
        both: that both keep.
    """

    band: int
    low: float
    high: float
    first: int
    second: int
    both: int

    @property
    def jaccard(self) -> float | None:
        """Shared documents over all that either keeps; None where neither keeps any."""
        union = self.first + self.second - self.both
        return self.both / union if union else None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a run keeps and the other of the pair does not.

    Args:
        keeper: name of the run that keeps it.
        documents: how many.
        mean_quality: in the first run's quality; None if there are none.
        mean_characters: None without text.
        groups: by kind: name and documents, the most first.
        examples: the best of them by quality: shard, row, id, quality, beginning.
    """

    keeper: str
    documents: int
    mean_quality: float | None
    mean_characters: float | None
    groups: dict[str, list[tuple[str, int]]]
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs compared.

    Args:
        first: name of a run.
        second: name of the other.
        documents: in both sources.
        both: kept by both.
        only_first: kept by the first alone.
        only_second: kept by the second alone.
        bands: by tenth of the first run's quality; documents without quality are in none.
        missing: what each keeps alone.
    """

    first: str
    second: str
    documents: int
    both: int
    only_first: int
    only_second: int
    bands: list[Band]
    missing: list[Missing]

    @property
    def jaccard(self) -> float:
        """Documents kept by both over documents kept by either; 1 if neither keeps any."""
        union = self.both + self.only_first + self.only_second
        return self.both / union if union else 1.0


@dataclass(frozen=True, slots=True)
class Comparisons:
    """All pairs of some runs, and each run's own figures by its name."""

    names: list[str]
    pairs: list[Pair]
    terms: dict[str, list[Comparison]]
    totals: dict[str, dict[str, dict[str, Any]]]
    lengths: dict[str, dict[str, Any]]
    settings: list[tuple[str, list[str]]]


def compare(runs: Sequence[Run], compute: Compute | None = None) -> Comparisons:
    """Compare every pair of some finished runs.

    Args:
        runs: two or more.
        compute: DuckDB's memory and threads.

    Raises:
        RunError: fewer than two, a composition is missing, or two runs share no document.
        InputError: a file of a source is gone.
    """
    if len(runs) < 2:
        raise RunError("compare: needs two runs or more")
    names = _names(runs)
    for run in runs:
        run.receipt("composition")
    pairs = []
    with _attached(runs, compute or Compute()) as connection:
        for one, other in itertools.combinations(range(len(runs)), 2):
            pairs.append(_pair(connection, runs, names, one, other))
    return Comparisons(
        names,
        pairs,
        {name: summary(run) for name, run in zip(names, runs, strict=True)},
        {
            name: {row["selection"]: row for row in query(run, "SELECT * FROM totals")}
            for name, run in zip(names, runs, strict=True)
        },
        {
            name: query(run, "SELECT * FROM lengths WHERE selection = 'selected'")[0]
            for name, run in zip(names, runs, strict=True)
        },
        _differences(runs),
    )


def _names(runs: Sequence[Run]) -> list[str]:
    short = [run.root.absolute().name for run in runs]
    if len(set(short)) == len(short):
        return short
    return [run.address for run in runs]


@contextmanager
def _attached(runs: Sequence[Run], compute: Compute) -> Iterator[Any]:
    """All compositions in one connection: r0, r1, ... Nothing is written into a run."""
    with (
        tempfile.TemporaryDirectory(prefix="datamask-compare-") as folder,
        temporary_duckdb(Path(folder), compute) as connection,
    ):
        # Means of equal runs must be equal to the last digit.
        connection.execute("SET threads = 1")
        for number, run in enumerate(runs):
            path = str(run.path("composition").absolute()).replace("'", "''")
            connection.execute(f"ATTACH '{path}' AS r{number} (READ_ONLY)")
        connection.execute("SET enable_external_access = false")
        yield connection


def _pair(connection: Any, runs: Sequence[Run], names: Sequence[str], one: int, other: int) -> Pair:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE matched AS SELECT a.id, a.shard, a.row, a.quality, "
        "a.characters, a.dump, a.language, a.domain, a.selected AS first, b.selected AS second "
        f"FROM r{one}.documents a JOIN r{other}.documents b USING (id)"
    ).fetchall()
    documents, both, first, second = connection.execute(
        "SELECT count(*), count(*) FILTER (first AND second), "
        "count(*) FILTER (first AND NOT second), count(*) FILTER (second AND NOT first) "
        "FROM matched"
    ).fetchall()[0]
    if not documents:
        raise RunError(
            f"{runs[one].address} and {runs[other].address} share no document: compare runs of "
            "one source"
        )
    return Pair(
        names[one],
        names[other],
        documents,
        both,
        first,
        second,
        _bands(connection),
        [
            _missing(connection, runs[one], names[one], "first AND NOT second"),
            _missing(connection, runs[one], names[other], "second AND NOT first"),
        ],
    )


def _bands(connection: Any) -> list[Band]:
    points = ", ".join(str(place / BANDS) for place in range(1, BANDS))
    rows = connection.execute(
        f"WITH cuts AS (SELECT quantile_disc(quality, [{points}]) AS cut FROM matched "
        "WHERE quality IS NOT NULL) "
        "SELECT 1 + len(list_filter(cut, lambda c: c < quality)) AS band, "
        "min(quality), max(quality), count(*) FILTER (first), count(*) FILTER (second), "
        "count(*) FILTER (first AND second) FROM matched, cuts WHERE quality IS NOT NULL "
        "GROUP BY band ORDER BY band"
    ).fetchall()
    return [Band(*row) for row in rows]


def _missing(connection: Any, run: Run, keeper: str, where: str) -> Missing:
    documents, quality, characters = connection.execute(
        f"SELECT count(*), avg(quality), avg(characters) FROM matched WHERE {where}"
    ).fetchall()[0]
    groups = {}
    for kind in KINDS:
        rows = connection.execute(
            f"SELECT {kind}, count(*) AS n FROM matched WHERE {where} GROUP BY {kind} "
            f"ORDER BY n DESC, {kind} LIMIT {MOST_NAMES}"
        ).fetchall()
        if len(rows) > 1:
            groups[kind] = rows
    found = connection.execute(
        f"SELECT shard, row, id, quality FROM matched WHERE {where} "
        f"ORDER BY quality DESC NULLS LAST, id LIMIT {MOST_EXAMPLES}"
    ).fetchall()
    texts = beginnings(run, [(shard, row) for shard, row, _, _ in found])
    examples = [
        {"shard": shard, "row": row, "id": name, "quality": score}
        | {"beginning": texts.get((shard, row))}
        for shard, row, name, score in found
    ]
    return Missing(keeper, documents, quality, characters, groups, examples)


def _differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Settings in which the runs differ, by their key."""
    flat = [_flat(run.settings.model_dump(mode="json")) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    rows = [(key, [settings.get(key, "–") for settings in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        return {prefix: str(value)}
    found: dict[str, str] = {}
    for name, inner in value.items():
        found |= _flat(inner, f"{prefix}.{name}" if prefix else name)
    return found

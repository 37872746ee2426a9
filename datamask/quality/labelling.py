"""Files for `datamask label`: the sample of texts, the journal of answers and the labels.

A journal gets a line of JSON for each answer as it arrives, so a killed process loses none. The
labels are made from a journal whenever the command ends: a line of JSON for each document, with
`id` and a column for each axis, as scores of kind `examples` read them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from datamask.config.compute import Compute
from datamask.config.inputs import WINDOWS
from datamask.config.outputs import SAMPLED_SHARDS
from datamask.config.rubric import Rubric
from datamask.errors import InputError, SettingsError
from datamask.quality.example_texts import LEAST_LABELS, read_texts
from datamask.quality.word_model import features_of, fit_words
from datamask.runs.files import replace_file
from datamask.runs.run import Run, digest
from datamask.source.rows import json_objects
from datamask.storage.duckdb_scratch import execute, is_sampled, temporary_duckdb
from datamask.storage.local import Storage

Labels = dict[str, dict[str, int]]
"""Grades of documents by axis, by id."""

DRAWN_FROM = 200_000
"""Number of documents, drawn by id, from which the sample is taken: a large corpus is not sorted
whole."""

REFIT_AFTER = 20
"""Number of labels by the user after which the order of the texts is computed anew."""

# A position in [0, 1) for each document, even in each group; a random start favours no group.
_STRATIFIED = """
WITH ranked AS (SELECT *, md5_number_lower($seed || id) AS key,
        ntile(10) OVER (ORDER BY quality, id) AS tenth FROM eligible),
    spread AS (SELECT *, (row_number() OVER (PARTITION BY tenth, domain ORDER BY key)
        - md5_number_lower($seed || tenth || '/' || coalesce(domain, '')) / 18446744073709551616.0)
        / count(*) OVER (PARTITION BY tenth, domain) AS position FROM ranked)
SELECT shard, row, id, quality FROM spread
ORDER BY id NOT IN (SELECT unnest($known::TEXT[])),
    row_number() OVER (PARTITION BY tenth ORDER BY position, key), tenth LIMIT $number
"""

_ELIGIBLE = """
INSERT INTO eligible SELECT ?, row, id, quality, domain
FROM read_parquet(?, hive_partitioning = false)
JOIN (SELECT row, domain FROM read_parquet(?, hive_partitioning = false)) USING (row)
WHERE quality IS NOT NULL AND coalesce(dropped, 'pruned') = 'pruned' AND {}
"""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A document to label: id, beginning of its text, and present quality (combined scores)."""

    id: str
    text: str
    quality: float


def sample(
    run: Run, number: int, characters: int, compute: Compute, known: Sequence[str] = ()
) -> list[Sampled]:
    """Draw *number* documents, evenly over tenths of the present quality and domains within them.

    Documents with *known* ids, which were labelled before, are first. A larger sample has all
    documents of a smaller one. It includes pruned documents, but none that were dropped for other
    reasons.

    Raises:
        RunError: the run has no quality yet.
        SettingsError: the source has no texts.
    """
    if run.settings.source.layout == "features":
        raise SettingsError(
            "source.layout: `features` has no texts to label; use a source of documents"
        )
    seed = run.settings.seed
    shards = np.random.default_rng(seed).permutation(run.num_shards)[:SAMPLED_SHARDS].tolist()
    columns = "shard INT, row BIGINT, id TEXT, quality DOUBLE, domain TEXT"
    with temporary_duckdb(run.root, compute) as connection:
        connection.execute(f"CREATE TABLE eligible ({columns})")
        insert = _ELIGIBLE.format(is_sampled(sum(map(run.shard_rows, shards)), DRAWN_FROM))
        for shard in shards:
            run.receipt("quality", shard)
            paths = (run.path("quality", shard), run.path("scores", shard))
            execute(connection, insert, [shard, *map(str, paths)])
        given = {"seed": f"{seed}/label/", "number": number, "known": [*known]}
        drawn = connection.execute(_STRATIFIED, given).fetchall()
    texts: dict[tuple[int, int], str] = {}
    for shard in shards:
        rows = sorted(row for other, row, *_ in drawn if other == shard)
        if rows:
            read = read_texts(run, shard, np.array(rows))
            texts |= {(shard, row): text[:characters] for row, text in zip(rows, read, strict=True)}
    return [Sampled(key, texts[shard, row], quality) for shard, row, key, quality in drawn]


def by_disagreement(texts: Sequence[Sampled], labels: dict[str, int]) -> list[Sampled]:
    """Order the texts so that the first labels teach most.

    First are those whose rank by a fit to the labels so far differs most from their rank by the
    present quality. Before there is anything to fit, the best and the worst are first.
    """
    from scipy.stats import rankdata

    ranks = rankdata([sampled.quality for sampled in texts])
    distance = np.abs(ranks - ranks.mean())
    if len(labels) >= REFIT_AFTER and len({*labels.values()}) > 1:
        features, _ = features_of([sampled.text for sampled in texts], WINDOWS)
        known = np.flatnonzero([sampled.id in labels for sampled in texts])
        targets = np.array([float(labels[texts[row].id]) for row in known.tolist()])
        model = fit_words(features[known], targets)[0]
        distance = np.abs(rankdata(model.scores(features)) - ranks)
    order: list[int] = np.argsort(-distance, kind="stable").tolist()
    return [texts[row] for row in order]


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a journal; a last line that a killed process did not finish is cut off.

    Raises:
        InputError: a line is damaged.
    """
    if not path.exists():
        return []
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    lines = []
    with path.open("rb") as file:
        for row, line in json_objects(file, str(path)):
            if line.pop("digest", None) not in (None, digest(line)):
                problem = "damaged, or changed by hand; delete the line: its text is labelled again"
                raise InputError(problem, path=path, row=row)
            lines.append(line)
    return lines


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line with its digest to a journal; it is on the disk when this function returns."""
    line = json.dumps(record | {"digest": digest(record)}, ensure_ascii=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def write_labels(path: Path, labels: Labels, storage: Storage | None) -> None:
    """Write the labels, in the order of their ids; *storage* is the run's if *path* is in a run."""
    with replace_file(path, storage) as temporary, temporary.open("w", encoding="utf-8") as file:
        for key in sorted(labels):
            file.write(json.dumps({"id": key, **labels[key]}, ensure_ascii=False) + "\n")


def settings_of(path: Path, labels: Labels, rubric: Rubric) -> str:
    """Write settings in YAML that turn each axis into a score; a comment if labels are too few."""
    if len(labels) < LEAST_LABELS:
        return f"# {len(labels):,} labels; a score needs {LEAST_LABELS}, so label more texts"
    scores = [
        {"name": axis.name, "kind": "examples", "labels": str(path), "column": axis.name}
        for axis in rubric.axes
        if len({grades[axis.name] for grades in labels.values()}) > 1
    ]
    settings = {"quality": {"scores": scores}}
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=2**16).strip()

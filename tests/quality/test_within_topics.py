"""Scores normalised within topics through real runs, against numpy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.config.loading import parse_settings
from datamask.planning.plan import plan_run
from datamask.runs.stages import stages_of
from tests.conftest import nightly
from tests.finished import finish, settings, table_of
from tests.quality.test_combining import plainly

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

LEVELS = {"onion garlic": 5.0, "court judge": -3.0, "goal match": 0.0}
FORM = {"name": "form", "kind": "column", "column": "form"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety documents of three subjects, whose grades differ; one has no grade."""
    folder = tmp_path_factory.mktemp("corpus") / "source"
    folder.mkdir()
    generator = np.random.default_rng(4)
    subjects = [[*LEVELS][row % 3] for row in range(90)]
    grades = [LEVELS[subject] + round(generator.normal(), 1) for subject in subjects]
    columns = {
        "id": [f"d{row:02d}" for row in range(90)],
        "text": [f"{subject} " * 5 + str(row) for row, subject in enumerate(subjects)],
        "edu": [None if row == 7 else grade for row, grade in enumerate(grades)],
        "form": generator.standard_normal(90),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=30)
    return folder


def within_topics(source: Path, normalisation: str = "z-score", **groups: Any) -> Any:
    """Settings of a score within topics, and of one that prunes a fifth."""
    edu = {"name": "edu", "kind": "column", "column": "edu", "missing": "drop", "weight": 2.0}
    edu |= {"normalisation": normalisation, "normalise_within": "topic"}
    given = {"topics": {"number": 3}, "plan": {"rows_per_shard": 30}, **groups}
    given["quality"] = {"scores": [edu, FORM], **given.get("quality", {})}
    return settings(source, **given)


@pytest.mark.parametrize("normalisation", ["z-score", *nightly("rank")])
def test_quality_is_normalised_within_topics(source, tmp_path, normalisation):
    """The other score alone prunes; then each value is a mix of its places in topic and corpus."""
    run = finish(tmp_path / "run", within_topics(source, normalisation), "composition")
    columns = pq.read_table(source / "a.parquet").to_pydict()
    edu = np.array(columns["edu"], np.float64)
    has_edu = ~np.isnan(edu)
    whole = np.full(90, np.nan)
    whole[has_edu] = plainly(edu[has_edu], normalisation)
    form = np.array(plainly(columns["form"], "z-score"))
    candidates = np.flatnonzero(has_edu)
    kept = np.sort(candidates[np.argsort(form[candidates])][len(candidates) // 5 :])
    expected = whole.copy()
    for subject in range(3):
        rows = kept[kept % 3 == subject]
        weight = len(rows) / (len(rows) + 10)
        within = np.array(plainly(edu[rows], normalisation))
        expected[rows] = weight * within + (1 - weight) * whole[rows]
    rows = table_of(run, "topic_quality").to_pylist()
    assert [place for place, row in enumerate(rows) if row["dropped"] is None] == kept.tolist()
    assert read_column(rows, "edu") == pytest.approx(expected, abs=1e-6, nan_ok=True)
    quality = form + 2 * expected
    assert read_column(rows, "quality") == pytest.approx(quality, abs=1e-6, nan_ok=True)
    centre = np.sort(quality[kept])[(len(kept) - 1) // 2]
    assert run.receipt("topic_quality", 2).metrics["centre"] == pytest.approx(centre, abs=1e-6)
    told = query(run, "SELECT id, quality, topic FROM documents")
    assert read_column(told, "quality") == pytest.approx(quality, abs=1e-6, nan_ok=True)
    changed = query(run, "SELECT * FROM score_groups")
    assert len(changed) == 4 and {row["kind"] for row in changed} == {"topic"}
    compared = np.flatnonzero(has_edu)
    for key, values in (("best_whole", form + 2 * whole), ("best_within", quality)):
        best = compared[np.argsort(-values[compared])[: len(compared) // 10]]
        of_topics = {row["name"]: row[key] for row in changed}
        names = [told[place]["topic"] for place in best]
        assert of_topics == {name: names.count(name) for name in of_topics}


def read_column(rows: list[dict[str, Any]], name: str) -> list[float]:
    """A column of numbers, NaN where null."""
    return [np.nan if row[name] is None else row[name] for row in rows]


def test_only_what_depends_on_a_change_is_made_again(source, tmp_path):
    """Other topics and another weight change the last quality, but neither what is pruned."""
    chosen = within_topics(source, selection={"scope": "corpus", "rounds": 2})
    run = plan_run(tmp_path / "run", chosen)

    def kept(data: dict[str, Any]) -> set[str]:
        changed = replace(run, settings=parse_settings(data))
        stages = stages_of(chosen, "scores", "selection")
        return {s for s in stages if changed.fingerprint_all(s) == run.fingerprint_all(s)}

    early = {"scores", "quality", "embeddings"}
    assert kept({**chosen.given(), "topics": {"number": 2}}) == early
    heavier = chosen.given()
    heavier["quality"]["scores"][0]["weight"] = 3.0
    assert kept(heavier) == early | {"topic_model", "topics"}

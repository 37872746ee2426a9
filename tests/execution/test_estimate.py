"""The estimate: arithmetic by hand, and a real one against a real run."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution import estimate as module
from datamask.execution.estimate import estimate
from datamask.execution.pipeline import rebuild
from datamask.planning.preview import PlanPreview, preview
from datamask.runs.stages import stages_of
from tests.finished import settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.mark.parametrize(("rows", "most", "measured"), [(30, 100, 90), (30, 4, 12), (500, 6, 6)])
def test_costs_are_in_proportion_to_documents(source, monkeypatch, rows, most, measured):
    """A start of 7, a fixed cost and one per document give that of 120; two stages have an end."""
    chosen = settings(source, plan={"rows_per_shard": rows})
    monkeypatch.setattr(module, "SAMPLED_DOCUMENTS", 50)
    monkeypatch.setattr(module, "RANDOM_DOCUMENTS", 70)
    laws = {"embeddings": (2.0, 0.5), "pruning": (1.0, 0.0)}
    laws |= {"report": (3.0, 0.25), "example_models": (4.0, 0.125)}
    ends = {"report": 50, "example_models": 70}
    starts: list[int] = []

    def costs(
        folder: Path, tables: list[pa.Table], plan: PlanPreview, compute: Compute
    ) -> dict[str, Any]:
        assert compute.workers == 1
        documents = sum(map(len, tables))
        start = 0.0 if starts else 7.0
        starts.append(documents)
        return {
            stage: np.array([start + fixed + each * documents, 2 * start, 8 * documents])
            for stage, (fixed, each) in laws.items()
        }

    monkeypatch.setattr(module, "_measured", costs)
    stages, sampled = estimate(preview(chosen), Compute(workers=4), most)
    assert sampled == measured == starts[-1]
    assert starts[0] == starts[1] == measured // (2 if rows == 500 else 3)
    by_name = {stage.stage: stage for stage in stages}
    for stage, (fixed, each) in laws.items():
        documents = max(ends.get(stage, 120), measured)
        assert by_name[stage].seconds == pytest.approx(7 + fixed + each * documents)
        assert by_name[stage].measured_seconds == fixed + each * measured
        assert by_name[stage].cpu_seconds == 14
        assert by_name[stage].disk_bytes == 8 * documents
    assert by_name["total"].seconds == sum(stage.seconds for stage in stages[:-1])


@pytest.mark.slow
def test_an_estimate_is_of_the_real_stages_and_leaves_nothing(source, tmp_path, monkeypatch):
    """All stages of the settings; bytes on disk within a quarter of those of the whole run."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("datamask.report.page.write_pictures", lambda *_: None)
    chosen = settings(source, plan={"rows_per_shard": 20})
    stages, sampled = estimate(preview(chosen), Compute(), 50)
    assert not list((tmp_path / "temporary").iterdir())
    assert 0 < sampled < 60
    assert [stage.stage for stage in stages] == ["plan", *stages_of(chosen), "total"]
    assert all(stage.seconds >= stage.measured_seconds / 10 > 0 for stage in stages)
    run = rebuild(tmp_path / "run", chosen, Compute())
    whole = sum(path.stat().st_size for path in run.root.rglob("*") if path.is_file())
    assert stages[-1].disk_bytes == pytest.approx(whole, rel=0.25)


def test_the_sample_is_rows_of_each_third(tmp_path):
    """The first rows of three of seven shards, whatever the files' order of columns and types."""
    for number in range(7):
        ids = [f"{number}-{row}" for row in range(10)]
        columns = {"id": ids, "text": ["river"] * 10, "n": pa.array(range(10), pa.int64())}
        if number % 2:
            columns = dict(reversed(columns.items())) | {"n": pa.array(range(10), pa.int32())}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=4)
    plan = preview(settings(tmp_path, plan={"rows_per_shard": 10}, quality={"scores": ()}))
    tables = module._sample(plan, 9)
    assert [table["id"].to_pylist()[0] for table in tables] == ["0-0", "2-0", "4-0"]
    assert [table.num_rows for table in tables] == [9, 9, 9]


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection",
    [
        {"documents": 60, "max_repeat": 2, "training_tokens": 2400},
        {"tokens": 1200, "max_repeat": 3, "training_documents": 99},
    ],
)
def test_budgets_are_those_of_the_documents_run(source, monkeypatch, selection):
    """A budget larger than the documents run, and a floor of a group that is not among them."""
    # The report takes seconds, and knows no budgets.
    monkeypatch.setattr(module, "stages_of", lambda chosen: stages_of(chosen)[:-2])
    limits = ({"column": "language", "value": "xx", "floor": 0.2, "cap": 0.5},)
    chosen = settings(source, plan={"rows_per_shard": 10}, selection=selection | {"limits": limits})
    stages, _ = estimate(preview(chosen), Compute(), 10)
    assert {"selection", "subset"} <= {stage.stage for stage in stages}


def test_the_command_prints_and_writes_nothing(source, tmp_path, monkeypatch):
    """One JSON object per stage on standard output; the run's folder does not come into being."""
    items = [f"source.path={source}", "plan.rows_per_shard=30", "embedding.method=lexical"]
    monkeypatch.setattr(module, "_measured", lambda *_: {"embeddings": np.array([1.0, 2.0, 3.0])})
    arguments = ["plan", str(tmp_path / "run"), "--estimate", "--documents", "8"]
    arguments += [part for item in items for part in ("--set", item)]
    done = CliRunner().invoke(cli, [*arguments, "--format", "json"])
    assert done.exit_code == 0, done.exception
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["stage"] for row in rows] == ["embeddings", "total"]
    assert rows[0]["cpu_seconds"] == 2 and rows[0]["disk_bytes"] == 3
    assert "24 documents" in done.stderr
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("of", ["labels", "where"])
def test_examples_need_not_be_among_the_documents_run(tmp_path, monkeypatch, of):
    """The score is fitted, though no document that is run has a label or belongs to the group."""
    ids, rare = [f"d{row:03d}" for row in range(600)], np.arange(600) % 200 >= 150
    texts = [f"text {row} about {word}" for row, word in enumerate(np.where(rare, "sea", "land"))]
    table = pa.table({"id": ids, "text": texts, "language": np.where(rare, "xx", "en").tolist()})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "part.parquet")
    labels = pa.table({"id": ids, "score": np.arange(600.0)}).filter(pa.array(rare))
    pq.write_table(labels, tmp_path / "labels.parquet")
    given: dict[str, Any] = {
        "labels": {"labels": str(tmp_path / "labels.parquet")},
        "where": {"where": {"column": "language", "value": "xx"}},
    }
    score = {"name": "mine", "kind": "examples"} | given[of]
    chosen = settings(
        tmp_path / "source", plan={"rows_per_shard": 200}, quality={"scores": [score]}
    )
    monkeypatch.setattr(module, "stages_of", lambda _: ("example_models", "scores"))
    stages, sampled = estimate(preview(chosen), Compute(), 120)
    assert sampled == 360
    assert [stage.stage for stage in stages] == ["plan", "example_models", "scores", "total"]
    with pytest.raises(SettingsError, match="99 documents"):
        estimate(preview(chosen), Compute(), 99)

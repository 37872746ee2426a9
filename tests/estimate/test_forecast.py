"""A forecast: from measurements to a fleet, by hand; and from a real calibration to a real run."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.embedding.speed import EmbeddingSpeed
from datamask.estimate import calibration
from datamask.estimate import forecast as module
from datamask.estimate.calibration import Calibration, calibrate
from datamask.estimate.costs import Measurement, fit, size_of
from datamask.estimate.forecast import (
    Fleet,
    basis,
    data,
    duration,
    fleet_of,
    forecast,
    readable_rows,
)
from datamask.execution.pipeline import rebuild
from datamask.planning.preview import PlanPreview, preview
from datamask.runs.run import Piece
from datamask.runs.stages import stages_of
from tests.finished import corpus, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

ONE = Fleet(machines=1, shards=1, gpus=0, cores=2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents in four files."""
    return corpus(tmp_path_factory.mktemp("estimate") / "source")


def plan_of(shards: int, rows: int, chosen: Settings) -> PlanPreview:
    """A plan of equal shards of a source on the Hub; nothing of it is there."""
    path = "hf://datasets/a/b/c.parquet"
    pieces = tuple(Piece(n, path, n, 1, 0, rows, 10 * rows, "") for n in range(shards))
    where = chosen.source.model_copy(update={"path": path})
    return PlanPreview(
        chosen.model_copy(update={"source": where}),
        {},
        pieces,
        shards * rows,
        4 * shards * rows,
        {},
        None,
    )


def calibration_of(chosen: Settings, seconds: dict[str, tuple[float, float]]) -> Calibration:
    """As if every stage had taken so long a run and so long a document; CPU twice that."""

    def took(stage: str, documents: int) -> Measurement:
        fixed, a_document = seconds.get(stage, (0.0, 0.0))
        value = fixed + a_document * documents
        return Measurement(
            stage=stage,
            size=size_of(documents // 100, documents, 1.0, chosen),
            seconds=value,
            cpu_seconds=2 * value,
            disk_bytes=3 * documents if stage in seconds else 0,
            source_bytes=2 * documents if stage == "embeddings" else 0,
        )

    stages = ["plan", *stages_of(chosen)]
    return Calibration(
        measured=tuple(took(stage, n) for stage in stages for n in (100, 300)),
        once=dict.fromkeys(stages, (0.0, 0.0)) | {"embeddings": (7.0, 5.0)},
        rows=100,
        whole=True,
        left=1.0,
        sample_bytes=8 * 300,
        sample_documents=300,
        download_rate=100.0,
        seconds=1.0,
    )


def test_shards_are_shared_out_and_cores_bound(source: Path) -> None:
    """Ten shards by hand: rounds of workers, at least the CPU's work over the cores; network."""
    chosen = settings(source)
    measured = calibration_of(chosen, {"embeddings": (0.0, 0.1), "pruning": (1.0, 0.01)})
    plan = plan_of(10, 100, chosen)

    def of(fleet: Fleet, stage: str) -> module.StageForecast:
        (found,) = (one for one in forecast(plan, measured, fleet) if one.stage == stage)
        return found

    download = 2 * 1000 * 4 / 8  # the source is twice as well compressed as the sample
    alone = of(ONE, "embeddings")
    assert alone.seconds == pytest.approx(7 + 100 + download / 100)
    assert alone.cpu_hours == pytest.approx((200 + 5) / 3600)
    assert alone.gpu_hours is None
    assert (alone.disk_bytes, alone.download_bytes) == (3000, download)
    # Four at once: three rounds of 10 s; but 200 s of CPU need 200 / cores.
    many = Fleet(machines=2, shards=4, gpus=0, cores=1000)
    assert of(many, "embeddings").seconds == pytest.approx(7 + 30 + download / 200)
    few = replace(many, cores=4)
    assert of(few, "embeddings").seconds == pytest.approx(7 + 50 + download / 200)
    # A GPU each for five shards at once, though ten workers: two rounds; GPUs are held 100 s.
    gpus = Fleet(machines=5, shards=10, gpus=5, cores=1000)
    on_gpus = of(gpus, "embeddings")
    assert on_gpus.seconds == pytest.approx(7 + 20 + download / 500)
    assert on_gpus.gpu_hours == pytest.approx(100 / 3600)
    # What looks at all shards is not shared out.
    for fleet in (ONE, many, gpus):
        assert of(fleet, "pruning").seconds == pytest.approx(11)
    total = of(gpus, "total")
    assert total.seconds == pytest.approx(11 + 27 + download / 500)
    assert total.disk_bytes == 2 * 3000 + 5 * 100 * chosen.embedding.dimension * 2


def test_what_is_uploaded_is_known_and_how_fast_is_not(source: Path) -> None:
    """A publication's bytes are its folder's; a dry run uploads nothing."""
    for dry_run in (False, True):
        publication = {"repository": "a/b", "license": "mit", "dry_run": dry_run}
        chosen = settings(source, publication=publication)
        measured = calibration_of(chosen, {"publication": (0.0, 0.1)})
        found = forecast(plan_of(10, 100, chosen), measured, ONE)
        last, total = found[-2:]
        assert last.stage == "publication" and last.disk_bytes == 3000
        assert (last.seconds is None) == (not dry_run)
        assert last.upload_bytes == total.upload_bytes == (0 if dry_run else 3000)


@pytest.mark.parametrize(
    ("gpus", "machines", "words"),
    [
        (0, 1, "1 machine like this one, 1 shard at once, no GPU"),
        (1, 1, "1 machine like this one, 1 shard at once, 1 GPU"),
        (4, 2, "2 machines like this one, 1 shard at once, 4 GPUs"),
    ],
)
def test_the_fleet_is_told_in_words(source: Path, gpus: int, machines: int, words: str) -> None:
    """One of a kind has no plural."""
    chosen = settings(source)
    fleet = replace(ONE, gpus=gpus, machines=machines)
    first, *_ = basis(plan_of(10, 100, chosen), calibration_of(chosen, {}), fleet)
    assert first == f"1,000 documents in 10 shards; {words}"


def test_a_calibration_measures_the_real_stages_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stages of the settings, whole shards; disk as that of a real run, with three rounds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("datamask.report.page.write_pictures", lambda *_: None)
    chosen = settings(
        source,
        plan={"rows_per_shard": 30},
        selection={"scope": "corpus", "metric": "pairwise", "rounds": 3, "tolerance": 0},
        report={"sample_documents": 40, "map_documents": 10, "neighbour_documents": 10},
    )
    found = preview(chosen)
    measured = calibrate(found, Compute(), 0)
    assert not list((tmp_path / "temporary").iterdir())
    assert {one.stage for one in measured.measured} == {"plan", *stages_of(chosen)}
    assert measured.whole and measured.rows == 30 and measured.sample_documents == 90
    assert measured.download_rate is None
    run = rebuild(tmp_path / "run", chosen, Compute())
    predicted = {one.stage: one for one in forecast(found, measured, ONE)}
    bytes_of = {
        stage: sum(run.path(stage, unit).stat().st_size for unit in range(run.num_units(stage)))
        for stage in ("embeddings", "selection", "round", "round_total")
    }
    assert run.last_round == 3
    for stage in ("round", "round_total"):  # of a calibration with two rounds
        assert predicted[stage].disk_bytes == pytest.approx(bytes_of[stage], rel=0.2), stage
    for stage in ("embeddings", "selection"):
        real = bytes_of[stage]
        # Beside the files: logs, work records, checksums and curves.
        assert real < predicted[stage].disk_bytes < 3 * real + 40_000, stage
    whole = sum(path.stat().st_size for path in run.root.rglob("*") if path.is_file())
    assert predicted["total"].disk_bytes == pytest.approx(whole, rel=0.15)
    kept = sum(run.receipt("embeddings", shard).rows for shard in range(run.num_shards))
    assert measured.left == pytest.approx(kept / run.num_documents, abs=0.1)


def test_the_sample_is_rows_of_shards_from_all_over(tmp_path: Path) -> None:
    """The first rows of three of seven shards, whatever the files' order of columns and types."""
    for number in range(7):
        ids = [f"{number}-{row}" for row in range(10)]
        columns = {"id": ids, "text": ["river"] * 10, "n": pa.array(range(10), pa.int64())}
        if number % 2:
            columns = dict(reversed(columns.items())) | {"n": pa.array(range(10), pa.int32())}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=4)
    rest = {"id": ["rest"], "text": ["river"], "n": pa.array([1], pa.int64())}
    pq.write_table(pa.table(rest), tmp_path / "7.parquet")
    tables, whole, rate = calibration._sample(
        preview(settings(tmp_path, plan={"rows_per_shard": 10}, quality={"scores": ()}))
    )
    assert [table["id"].to_pylist()[0] for table in tables] == ["0-0", "3-0", "6-0"]
    assert [table.num_rows for table in tables] == [10, 10, 10]
    assert whole and rate is None


@pytest.mark.parametrize("of_a_document", [0.00001, 0.002, 0.02, 0.05])
@pytest.mark.parametrize("rows_per_shard", [30, 20_000])
def test_a_calibration_ends_in_a_minute(
    monkeypatch: pytest.MonkeyPatch, of_a_document: float, rows_per_shard: int
) -> None:
    """Whatever a document costs, with reports of five seconds: by a clock that passes advance."""
    clock, sizes = [0.0], []

    class Pass:
        left, source_bytes, run, spare = 1.0, 1, None, calibration._Pass.spare

        def __init__(self, folder, parts, found, compute, closely) -> None:
            documents = sum(part.num_rows for part in parts)
            size = size_of(len(parts), documents, 1.0, found.settings)
            work = {"embeddings": of_a_document * documents} | ({"report": 5.0} if closely else {})
            self.seconds = sum(work.values())
            clock[0] += self.seconds
            costs = {"cpu_seconds": 0.0, "disk_bytes": 0, "source_bytes": 0}
            self.measured = [
                Measurement(stage=stage, size=size, seconds=seconds, **costs)
                for stage, seconds in work.items()
            ]
            sizes.append(documents)

        def measure_smaller_sample(self, *names: str) -> list[Measurement]:
            clock[0] += 5.0
            return []

    speed = EmbeddingSpeed(1 / of_a_document, 1.0, None, 0.0)
    monkeypatch.setattr(calibration, "_Pass", Pass)
    monkeypatch.setattr(calibration, "embedding_speed", lambda run, stage: speed)
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: clock[0])
    table = pa.table({"id": pa.nulls(rows_per_shard)})
    monkeypatch.setattr(calibration, "_sample", lambda found: ([table] * 3, True, None))
    found = calibrate(plan_of(50, rows_per_shard, parse_settings({})), Compute(), 50)
    assert found.seconds < 60, sizes
    assert found.seconds > 25 or found.whole, "the time is used"
    law = fit([one for one in found.measured if one.stage == "embeddings"])
    size = size_of(1, 1000, 1.0, parse_settings({}))
    assert found.whole or law.at("seconds", size) == pytest.approx(1000 * of_a_document)
    assert found.once["embeddings"][0] == pytest.approx(0.0, abs=1e-6), "no start of a process"


def test_budgets_are_scaled_to_the_sample(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One larger than the sample does not fail, and limits of groups it lacks do not either."""
    # The report takes seconds, and knows no budgets.
    monkeypatch.setattr(calibration, "stages_of", lambda chosen: stages_of(chosen)[:-2])
    limits = ({"column": "language", "value": "xx", "floor": 0.2, "cap": 0.5},)
    repeats = (
        {"max_repeat": 2, "training_tokens": 2400},
        {"max_repeat": 3, "training_documents": 99},
    )
    budgets = {"documents": 60, "limits": limits} | repeats[0], {"tokens": 1200} | repeats[1]
    for selection in budgets:
        chosen = settings(source, plan={"rows_per_shard": 10}, selection=selection)
        found = calibrate(preview(chosen), Compute(), 0)
        assert {one.stage for one in found.measured} == {"plan", *stages_of(chosen)[:-2]}


def test_the_command_prints_and_writes_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON object a stage on standard output; the run's folder does not come into being."""
    items = [f"source.path={source}", "plan.rows_per_shard=30", "embedding.method=lexical"]
    items += ["embedding.dimension=32", "selection.metric=pairwise", "compute.workers=2"]
    arguments = ["plan", str(tmp_path / "run"), "--estimate", "--format", "json"]
    arguments += ["--calibration-seconds", "0", "--machines", "3"]
    arguments += [part for item in items for part in ("--set", item)]
    asked = []

    def calibrated(found: PlanPreview, compute: Compute, seconds: float) -> Calibration:
        asked.append((compute.workers, seconds))
        every = dict.fromkeys(["plan", *stages_of(found.settings)], (1.0, 0.0))
        return calibration_of(found.settings, every)

    monkeypatch.setattr(module, "calibrate", calibrated)
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.exception
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["stage"] for row in rows] == ["plan", *stages_of(parse_settings({})), "total"]
    assert all(row["seconds"] > 0 and row["gpu_hours"] is None for row in rows)
    assert "120 documents in 4 shards; 3 machines like this one, 6 shards at once" in done.stderr
    assert not (tmp_path / "run").exists()
    assert asked == [(2, 0)]


def test_machines_have_the_workers_and_gpus_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more GPUs than there are, than are allowed, and than shards at once."""
    monkeypatch.setattr(module, "visible_gpus", lambda: ["a", "b", "c", "d"])
    assert fleet_of(Compute(workers=8), 2).gpus == 8
    assert fleet_of(Compute(workers=8, gpus=3), 2).gpus == 6
    assert fleet_of(Compute(workers=2), 2).gpus == 4
    assert fleet_of(Compute(workers=2, device="cpu"), 2).gpus == 0
    assert fleet_of(Compute(workers=8), 2).shards == 16
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert fleet_of(Compute(), 2).cores == 2 * (os.cpu_count() or 1)


def test_a_run_that_is_there_needs_no_settings(source: Path, tmp_path: Path) -> None:
    """Its own are used; without a run or settings, it is one line."""
    runner = CliRunner()
    found = runner.invoke(cli, ["plan", str(tmp_path / "none"), "--estimate"])
    assert found.exit_code and "source.path: required" in str(found.exception)


def test_numbers_for_people() -> None:
    """Two units of time, three digits of bytes."""
    assert [duration(s) for s in (0.5, 99.94, 100, 7200, 3600 * 250, None)] == [
        "0.5 s",
        "99.9 s",
        "2 min",
        "2 h 00 min",
        "10 d 10 h",
        "–",
    ]
    assert [data(size) for size in (0, 999, 1e6, 999_600, 1.5e12, 2e18)] == [
        "–",
        "999 B",
        "1 MB",
        "1 MB",
        "1.5 TB",
        "2e+03 PB",
    ]
    row = module.StageForecast(
        stage="x",
        seconds=None,
        cpu_hours=1234.5,
        gpu_hours=None,
        disk_bytes=0,
        download_bytes=5,
        upload_bytes=0,
    )
    assert readable_rows([row]) == [("x", "–", "1,234", "–", "–", "5 B", "–")]

"""Scope `corpus` in one round: judged in one pass, with exact sums of the result."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.embedding import embed
from datamask.embedding.speed import embedding_speed
from datamask.errors import DatamaskError
from datamask.execution.pipeline import rebuild, run_stage
from datamask.planning.applying import settings_to_apply
from datamask.report.answer import answer
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection import sampling
from datamask.selection.documents import read_quality, with_vectors
from tests.conftest import nightly
from tests.finished import embedded, finish, rows_of, settings, table_of
from tests.selection.runs import by_definition

pytestmark = pytest.mark.usefixtures("undrawn")

ONCE = {"scope": "corpus", "rounds": 1}
UNKEPT = {"keep": False}
LEARNING = ("corpus_statistics", "round_total", "round", "swaps", "swaps_total", "learning")
LEARNING += ("threshold", "selection", "outcome")


def masks(run: Run) -> list[dict[str, object]]:
    """All documents that could be selected."""
    return [row for shard in range(run.num_shards) for row in rows_of(run, shard)]


def vectors(run: Run) -> dict[str, np.ndarray]:
    """The vectors of a run that keeps them, by id."""
    found: dict[str, np.ndarray] = {}
    for shard in range(run.num_shards):
        ids, matrix = embedded(run.path("embeddings", shard), 32)
        found |= dict(zip(ids, matrix.astype(np.float64), strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection",
    [{"tokens": 700, "metric": "pairwise"}, {}, {"rounds": 4, "quality_weight": 0.1}],
)
def test_where_vectors_come_from_changes_nothing(tmp_path, source, selection, monkeypatch):
    """The same tables in every stage from a sample's vectors on."""
    monkeypatch.setattr(sampling, "SAMPLE", 16)
    monkeypatch.setattr(sampling, "STAND_INS", 16)
    selection = ONCE | selection
    kept, unkept = (
        finish(
            tmp_path / name,
            settings(source, selection=selection, embedding=embedding),
            "composition",
        )
        for name, embedding in (("kept", {}), ("unkept", UNKEPT))
    )
    compared = [stage for stage in stages_of(unkept.settings) if stage in LEARNING]
    assert len(compared) == len(LEARNING) - 2 * (unkept.settings.selection.num_rounds == 1)
    for stage in compared:
        for unit in range(unkept.num_units(stage)):
            found = [pq.read_table(run.path(stage, unit)) for run in (kept, unkept)]
            assert found[0].equals(found[1]), (stage, unit)
    assert query(kept, "FROM terms") == query(unkept, "FROM terms")
    models = [run.path("mask_model").with_name("model.safetensors") for run in (kept, unkept)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert (kept.root / "embeddings").exists() and not (unkept.root / "embeddings").exists()
    assert not list((kept.root / "checkpoints").rglob("*.npz"))
    assert not list((unkept.root / "checkpoints").rglob("*.npz"))


@pytest.mark.parametrize("rounds", nightly(1, 2))
def test_vectors_that_are_read(tmp_path, source, rounds, monkeypatch):
    """Counted where Parquet is read, with a row group for each vector."""
    read: Counter[str] = Counter()

    class Counted(pq.ParquetFile):
        def read_row_group(self, i: int, *args: object, **given: object) -> pa.Table:
            table = super().read_row_group(i, *args, **given)
            read[stage] += table.num_rows * ("feature_arr" in table.column_names)
            return table

    monkeypatch.setattr(embed, "ROWS_PER_GROUP", 1)
    monkeypatch.setattr(sampling, "STAND_INS", 16)
    monkeypatch.setattr(sampling, "SAMPLE", 40)
    chosen = settings(source, selection={"scope": "corpus", "rounds": rounds})
    run = finish(tmp_path / "run", chosen, "embeddings")
    monkeypatch.setattr(pq, "ParquetFile", Counted)
    learning = [stage for stage in LEARNING if stage in stages_of(run.settings)]
    for stage in learning:
        run_stage(run, stage, Compute())
    number = run.receipt("quality", 0).metrics["kept_total"]
    assert set(+read) <= {"corpus_statistics", "round", "swaps", "learning", "outcome"}
    assert read["corpus_statistics"] == 40 + 16 < number
    # Those in the selection or of top quality, and a sample, at most.
    assert 0 < read["outcome"] < number
    if rounds == 1:
        assert (read["round"], read["learning"]) == (number, 0)
        return
    proposed = [
        pq.read_table(run.path("round", shard))["proposed"][0].values.to_numpy()
        for shard in range(run.num_shards)
    ]
    assert run.receipt("round_total", 1).metrics["share"] == 1
    inclusion, share = 1 / (1 + np.exp(-np.concatenate(proposed))), 30 / number
    may_move = (inclusion > 0.01 * share) & (1 - inclusion > 0.01 * (1 - share))
    assert (read["round"], read["learning"]) == (number + may_move.sum(), number)
    assert 0 < read["swaps"] <= may_move.sum() < number


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, source: Path) -> tuple[Run, Run]:
    """With and without embeddings on disk, learned from a third of the corpus."""
    root, found = tmp_path_factory.mktemp("sampled"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "STAND_INS", 16)
        patch.setattr(sampling, "SAMPLE", 32)
        for name, embedding in (("kept", {}), ("unkept", UNKEPT)):
            selection = ONCE | {"metric": "pairwise"}
            found.append(
                finish(root / name, settings(source, selection=selection, embedding=embedding))
            )
    return found[0], found[1]


@pytest.mark.slow
def test_documents_are_read_in_the_order_asked_for(sampled):
    """Some of a shard, with vectors from disk and made, against all of it."""
    rows = np.array([7, 0, 30, 4])
    whole = with_vectors(sampled[0], read_quality(sampled[0], 0), Compute())
    assert whole.features.shape == (len(whole.ids), 32)
    for run in sampled:
        some = with_vectors(run, read_quality(run, 0), Compute(), rows=rows)
        assert some.ids.to_pylist() == whole.ids.take(rows).to_pylist()
        assert (some.quality == whole.quality[rows]).all()
        assert (some.features == whole.features[rows]).all()
        assert (some.scores["edu"] == whole.scores["edu"][rows]).all()


def test_the_result_is_valued_exactly(sampled):
    """Values of the terms against numpy over the vectors; the budget is met; the report warns."""
    kept, unkept = sampled
    found, of = {row["term"]: row for row in query(unkept, "FROM terms")}, vectors(kept)
    quality = {row["id"]: row["quality"] for row in table_of(kept, "quality").to_pylist()}
    ours = [row["id"] for row in masks(unkept) if row["selected"]]
    best = sorted(of, key=lambda name: (-quality[name], name))[: len(ours)]
    assert len(ours) == 30
    for names, column in ((ours, "selected"), (best, "top_quality")):
        matrix, scores = np.stack([of[name] for name in names]), [quality[name] for name in names]
        for term, value in by_definition(matrix, np.array(scores), "pairwise").items():
            assert found[term][column] == pytest.approx(value, rel=1e-4)
    whole = query(kept, "FROM terms")
    for row in whole:  # random subsets follow from the sums over all documents
        assert found[row["term"]]["random"] == pytest.approx(row["random"], rel=0.05, abs=1e-3)

    assert all((row["logit"] > 0) == row["selected"] for row in masks(unkept))
    (line,) = [line for line in answer(unkept).warnings if "judged once" in line]
    lost = unkept.receipt("round_total").metrics["sample"]["shortfall"]
    assert f"sample of 32 documents; a second sample confirmed {1 - lost:.0%}" in line
    assert [one for one in answer(kept).warnings if "judged once" in one] == [line]


def test_the_mask_model_judges_other_documents(sampled, source, tmp_path):
    """Its threshold keeps about the share that the run keeps."""
    _, unkept = sampled
    run = rebuild(tmp_path / "applied", settings_to_apply(unkept, unkept.settings.source))
    kept = sum(row["selected"] for row in masks(run))
    assert 15 <= kept <= 45
    speed = embedding_speed(unkept)
    assert speed is not None and speed.documents_per_second > 0


KILLED = """
import os, signal, sys
from datamask.execution.pipeline import rebuild
from datamask.config.compute import Compute
from datamask.embedding import chunked
from datamask.runs.checkpoints import Checkpoints
from datamask.selection import sampling
left = int(sys.argv[3])
real = Checkpoints.save
def save(checkpoints, name, state):
    global left
    left -= "vectors" in state and checkpoints.home.parent.name == sys.argv[2]
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(checkpoints, name, state)
Checkpoints.save = save
chunked.CHUNK = 3
sampling.SAMPLE = sampling.STAND_INS = 16
rebuild(sys.argv[1], None, Compute())
"""


@pytest.mark.slow
def test_killed_runs_resume_to_the_same_bytes(tmp_path, source, monkeypatch):
    """Killed in stages that embed and in a later round; no chunk is embedded twice."""
    selection = {"scope": "corpus", "rounds": 2}
    chosen = settings(source, selection=selection, embedding=UNKEPT)
    monkeypatch.setattr("datamask.embedding.chunked.CHUNK", 3)
    monkeypatch.setattr(sampling, "SAMPLE", 16)
    monkeypatch.setattr(sampling, "STAND_INS", 16)
    compute = Compute()
    whole = finish(tmp_path / "whole", chosen, "mask_model", compute)
    finish(tmp_path / "run", chosen, "quality", compute)
    given = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    rows = [whole.receipt("selection", shard).rows for shard in range(whole.num_shards)]
    first_round = sum(-(-number // 3) for number in rows)
    kills = [("corpus_statistics", 1), ("round", first_round + 1), ("swaps", 1), ("outcome", 1)]
    for stage, chunks in kills:
        killed = subprocess.run([*given, stage, str(chunks)], check=False).returncode
        assert killed == -signal.SIGKILL
        assert list((tmp_path / "run/checkpoints" / stage).rglob("*.npz")), stage
    run = finish(tmp_path / "run", chosen, "mask_model", compute)
    assert not list((run.root / "checkpoints").rglob("*.npz"))
    for stage in set(LEARNING) & {*stages_of(run.settings)}:
        for unit in range(run.num_units(stage)):
            assert run.path(stage, unit).read_bytes() == whole.path(stage, unit).read_bytes()
    for stage in {stage for stage, _ in kills}:
        for unit in range(run.num_units(stage)):
            one, other = (read_record(of, stage, unit) for of in (run, whole))
            assert one is not None and other is not None
            if one.attempts > 1:
                assert 0 <= one.metrics["documents"] < other.metrics["documents"]
    records = [read_record(run, "round", unit) for unit in run.round_units(2)]
    assert sum(one.attempts for one in records if one is not None) == run.num_shards + 1


@pytest.mark.parametrize("selection", [{}, {"scope": "corpus", "method": "random"}])
def test_what_reads_embeddings_twice_is_refused(tmp_path, source, selection):
    """Before any work, with the settings to change."""
    chosen = settings(source, selection=selection, embedding=UNKEPT)
    message = r"^embedding\.keep: false is for runs that select by selection\.mask_model"
    with pytest.raises(DatamaskError, match=message):
        rebuild(tmp_path / "run", chosen)
    assert not (tmp_path / "run").exists()

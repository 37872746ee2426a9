"""Classifiers' scores against transformers and fastText themselves, a text at a time."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.models import random_bert
from datamask.config.compute import Compute
from datamask.embedding import chunked, forward
from datamask.errors import SettingsError
from datamask.execution.attempts import ShardsFailedError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.planning.preview import preview
from datamask.quality import classifier_model
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from tests.finished import WORDS, finish, settings, table_of
from tests.quality.classifiers import (
    fasttext_file,
    in_windows,
    outputs,
    probability,
    random_classifier,
)

GRADES = ["bad", "fair", "good"]
ON_CPU = Compute(device="cpu", embedding_batch=2)


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> Iterator[None]:
    """Eight texts are tokenised together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK", 8)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of a model without a head, of one output, of three classes, of two labels."""
    folder = tmp_path_factory.mktemp("models")
    bert = random_bert(folder / "made", WORDS, hidden=32, layers=1).parent / "bert"
    several = "multi_label_classification"
    return {
        "none": str(bert),
        "one": random_classifier(folder / "one", bert, ["edu"]),
        "short one": random_classifier(folder / "short one", bert, ["edu"], most=8),
        "short grades": random_classifier(folder / "short grades", bert, GRADES, most=8),
        "grades": random_classifier(folder / "grades", bert, GRADES),
        "several": random_classifier(folder / "several", bert, ["ads", "hate"], several),
    }


def score(name: str, model: str, **more: Any) -> dict[str, Any]:
    """Settings of a classifier's score."""
    return {"name": name, "kind": "classifier", "model": model, **more}


def column(run: Run, stage: str, name: str) -> np.ndarray:
    """A column of all shards of a stage."""
    return table_of(run, stage)[name].to_numpy()


def texts_of(source: Path) -> list[str]:
    """All texts in the order of the source."""
    paths = sorted(source.glob("*.parquet"))
    return [text for path in paths for text in pq.read_table(path)["text"].to_pylist()]


def test_scores_are_those_of_transformers(source, models, tmp_path):
    """Every head equals the model's output for the text, alone or in windows.

    Of each fourth document, among them the empty one.
    """
    scores = [
        score("edu", models["one"]),
        score("short", models["short one"]),
        score("good", models["grades"], label="good"),
        score("brief", models["short grades"], label="good"),
        score("second", models["grades"], label="1"),
        score("grade", models["grades"], label="expected_value"),
        score("hate", models["several"], label="hate"),
    ]
    chosen = settings(source, quality={"scores": scores, "prune_fraction": 0.5})
    run = finish(tmp_path / "run", chosen, "embeddings", ON_CPU)
    texts, some = texts_of(source)[3::4], slice(3, None, 4)
    assert "" in map(str.strip, texts)
    grades = torch.softmax(torch.from_numpy(outputs(models["grades"], texts)), dim=1)
    expected = {
        "edu": outputs(models["one"], texts)[:, 0],
        "short": in_windows(models["one"], texts, lambda made: made[:, 0]),
        "brief": in_windows(models["grades"], texts, lambda made: made.softmax(1)[:, 2]),
        "good": grades[:, 2].numpy(),
        "second": grades[:, 1].numpy(),
        "grade": (grades[:, 1] + 2 * grades[:, 2]).numpy(),
        "hate": 1 / (1 + np.exp(-outputs(models["several"], texts)[:, 1])),
    }
    read = column(run, "classifier_scores", "text_read:short").astype(float)
    assert (column(run, "classifier_scores", "text_read:edu") == 1).all()
    assert (column(run, "scores", "text_read") == read).all() and 0 < read.min() < read.max() == 1
    for name, values in expected.items():
        assert np.ptp(values) > 0.001, name
        allowed = 1e-5 if name not in ("short", "brief") else 0.02  # weights by half characters
        found = column(run, "classifier_scores", name)
        assert np.abs(found[some] - values).max() < allowed, name
        assert (column(run, "scores", name) == found).all()
    assert stages_of(run.settings)[:3] == ["classifier_scores", "scores", "quality"]
    dropped = np.asarray([value is None for value in column(run, "quality", "dropped")])
    kept = sum(run.receipt("embeddings", shard).rows for shard in range(run.num_shards))
    assert kept == dropped.sum() < 0.6 * len(dropped)


def test_texts_that_are_cut_elsewhere_are_scored_again(
    source: Path, models: dict[str, str], tmp_path: Path
) -> None:
    """Another bound of the texts leaves no column of the file before."""
    for most in (60, 25):
        bound = {"path": str(source), "longer": "cut", "most_characters": most}
        scores = {"scores": [score("edu", models["one"])]}
        chosen = settings(source, source=bound, quality=scores)
        run = finish(tmp_path / "run", chosen, "classifier_scores", ON_CPU)
        expected = outputs(models["one"], [text[:most] for text in texts_of(source)])[:, 0]
        assert np.abs(column(run, "classifier_scores", "edu") - expected).max() < 1e-5


def test_a_shard_goes_on_after_a_kill_and_ends_with_the_same_bytes(
    source, models, tmp_path, monkeypatch
):
    """Broken off in the third chunk: no chunk is computed twice, and no byte differs."""
    chosen = settings(source, quality={"scores": [score("edu", models["one"])]})
    run = plan_run(tmp_path / "run", chosen)
    other = plan_run(tmp_path / "other", chosen)
    run_stage(other, "classifier_scores", ON_CPU.model_copy(update={"workers": 2}))
    real, calls = forward.compute_batches, []

    def breaking(forward: Any, tokenised: Any, *rest: Any) -> np.ndarray:
        calls.append(len(tokenised.windows.texts))
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return real(forward, tokenised, *rest)

    monkeypatch.setattr(forward, "compute_batches", breaking)
    with pytest.raises(ShardsFailedError, match="the disk is gone"):
        run_stage(run, "classifier_scores", ON_CPU, shards=[1])
    run_stage(run, "classifier_scores", ON_CPU, shards=[1])
    assert sum(calls) - 8 == run.shard_rows(1)
    run_stage(run, "classifier_scores", ON_CPU)
    for shard in range(run.num_shards):
        one, two = (r.path("classifier_scores", shard).read_bytes() for r in (run, other))
        assert one == two
    assert not list((run.root / "checkpoints").rglob("*.npz"))


def test_another_score_computes_no_more_than_itself(source, models, tmp_path, monkeypatch):
    """A second classifier leaves the first one's numbers; another weight computes nothing."""
    edu, grade = score("edu", models["one"]), score("g", models["grades"], label="good")
    root = tmp_path / "run"
    run = plan_run(root, settings(source, quality={"scores": [edu]}))
    run_stage(run, "classifier_scores", ON_CPU)
    before = column(run, "classifier_scores", "edu")
    loaded: list[str] = []
    real = classifier_model.load_classifier

    def noted(model: classifier_model.ClassifierModel, *arguments: Any) -> Any:
        loaded.append(model.used_by)
        return real(model, *arguments)

    monkeypatch.setattr(classifier_model, "load_classifier", noted)
    run = plan_run(root, settings(source, quality={"scores": [{**edu, "weight": 2}, grade]}))
    assert run.remaining("classifier_scores") == [0, 1, 2]
    run_stage(run, "classifier_scores", ON_CPU)
    assert set(loaded) == {"score g"}
    assert (column(run, "classifier_scores", "edu") == before).all()
    loaded.clear()
    run = plan_run(root, settings(source, quality={"scores": [edu, grade]}))
    assert run.remaining("classifier_scores") == []
    run_stage(run, "classifier_scores", ON_CPU, force=True)
    assert set(loaded) == {"score edu", "score g"}


WRONG = {
    "no such folder": ({"model": "/nowhere/model"}, "no folder /nowhere/model"),
    "no head": ({"model": "none"}, "no trained head for sequence classification"),
    "open head": ({"model": "grades"}, "3 outputs; set label .*bad, fair, good"),
    "unknown head": ({"model": "grades", "label": "gud"}, "has no class gud"),
    "no grades": ({"model": "several", "label": "expected_value"}, "mutually exclusive"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_any_work(case, source, models):
    """A model that is missing, no classifier, or without the head is refused when planned."""
    given, message = WRONG[case]
    model = models.get(given["model"], given["model"])
    with pytest.raises(SettingsError, match=message):
        preview(settings(source, quality={"scores": [score("edu", **{**given, "model": model})]}))


def test_a_model_that_changed_after_planning_is_refused(source, models, tmp_path):
    """The folder's digest is pinned, as the encoder's is."""
    model = shutil.copytree(models["one"], tmp_path / "model")
    run = plan_run(
        tmp_path / "run", settings(source, quality={"scores": [score("edu", str(model))]})
    )
    (model / "notes.txt").write_text("changed")
    with pytest.raises(ShardsFailedError, match="has changed since the run was planned"):
        run_stage(run, "classifier_scores", ON_CPU)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fastText model with two labels."""
    return fasttext_file(tmp_path_factory.mktemp("fasttext") / "model.bin")


def test_fasttext_scores_are_the_label_s_probability(source, binary, tmp_path):
    """As computed from the model's weights, of each text as one line, in stage `scores`."""
    one = {"name": "hq", "kind": "fasttext", "path": str(binary), "label": "__label__hq"}
    table = pa.table({"id": ["a", "b"], "text": ["river\nstone market", None]})
    pq.write_table(table, tmp_path / "two.parquet")
    for place in (source, tmp_path / "two.parquet"):
        chosen = settings(place, quality={"scores": [one]})
        run = finish(tmp_path / f"run-{place.stem}", chosen, "scores", ON_CPU)
        texts = texts_of(place) if place is source else ["river stone market", ""]
        expected = np.asarray([probability(text) for text in texts])
        assert np.ptp(expected) > 0.01
        # fastText adds 1e-5 before it takes the logarithm.
        assert np.abs(column(run, "scores", "hq") - expected).max() < 2e-5
        assert "classifier_scores" not in stages_of(run.settings)


def test_a_fasttext_model_is_looked_at_before_any_work(source, binary, tmp_path):
    """An unknown label, a file that is not a model, and a missing file are refused when planned."""
    (tmp_path / "no.bin").write_text("nothing")
    for path, label, message in (
        (binary, "__label__xx", "no label __label__xx; it has __label__"),
        (tmp_path / "no.bin", "__label__hq", "not a fastText model"),
        (tmp_path / "absent.bin", "__label__hq", "no file"),
    ):
        one = {"name": "hq", "kind": "fasttext", "path": str(path), "label": label}
        with pytest.raises(SettingsError, match=message):
            preview(settings(source, quality={"scores": [one]}))

"""`datamask learn`: a planted property is found; the regression agrees with other programs."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.linear_model import Ridge

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.evaluation import effects
from datamask.evaluation.effects import Floats, Integers
from datamask.evaluation.learn import RANDOM_DRAWS, Learned, _Judge, learn
from datamask.runs.opening import open_run
from tests import finished
from tests.cli.commands import here

WANTED = ["alpha", "bravo", "delta", "gamma", "kappa", "omega", "sigma", "theta"]
OTHER = ["river", "stone", "market", "window", "garden", "letter", "music", "bridge"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 400 documents, a third with the words of the texts that are held out.

    Score `text` is noise. The language `de` is that of the documents with the wanted words.
    """
    folder = tmp_path_factory.mktemp("learned")
    generator = np.random.default_rng(3)
    (folder / "source").mkdir()
    for file in range(2):
        is_wanted = np.arange(200) % 3 == 0
        words = [WANTED if wanted else OTHER for wanted in is_wanted]
        texts = [" ".join(generator.choice(some, generator.integers(20, 40))) for some in words]
        table = {"id": [f"{file}-{row:03d}" for row in range(200)], "text": texts}
        table["language"] = ["de" if wanted else "en" for wanted in is_wanted]
        table["edu"] = generator.standard_normal(200)
        pq.write_table(pa.table(table), folder / "source" / f"{file}.parquet")
    held_out = [" ".join(generator.choice(WANTED, 30)) for _ in range(60)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in held_out)
    (folder / "wanted.jsonl").write_text(lines)
    settings = finished.settings(
        folder / "source",
        plan={"rows_per_shard": 150},
        selection={"ratio": 0.2},
        quality={
            "prune_fraction": 0,
            # A name that columns of the sample must not have.
            "scores": [{"name": "text", "kind": "column", "column": "edu"}],
        },
        evaluation={
            "model": "tiny",
            "sets": [{"name": "wanted", "path": str(folder / "wanted.jsonl")}],
        },
    )
    finished.finish(folder / "run", settings, "documents")
    return folder / "run"


@pytest.fixture(scope="module")
def learned(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """What 48 draws show."""
    return learn(open_run(run), 48, tmp_path_factory.mktemp("scores"), Compute(workers=1))


def test_the_planted_property_is_found_and_noise_is_not(learned):
    """Documents in the wanted language reduce the loss, the random score does not change it."""
    rows = {row[0]: row for row in learned.rows}
    _, effect, low, high, word = rows["language de"]
    assert effect < 0 and low < high < 0 and word == "helps"
    _, _, low, high, word = rows["score text"]
    assert low < 0 < high and word == "undecided"
    assert learned.correlation[1] > 0.8 and not learned.warning
    assert learned.arms["learned"] < learned.arms["random"]


def test_the_score_ranks_the_wanted_documents_first(learned, run):
    """Every document has a score; the best quarter are all of the wanted language."""
    table = pq.read_table(learned.scores)
    documents = [pq.read_table(path) for path in sorted((run / "documents").glob("*.parquet"))]
    languages = {row["id"]: row["language"] for part in documents for row in part.to_pylist()}
    assert set(table["id"].to_pylist()) == set(languages)
    order = np.argsort(-table["learned"].to_numpy())[:100]
    assert {languages[table["id"][int(row)].as_py()] for row in order} == {"de"}
    draws = pq.read_table(learned.scores.parent / "draws.parquet")
    assert draws.num_rows == 48 and draws.column_names[2:] == learned.properties


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(learned, run, tmp_path):
    """Three threads draw what one does."""
    again = learn(open_run(run), 48, tmp_path, Compute(workers=3))
    for name in ("scores.parquet", "draws.parquet"):
        assert (tmp_path / name).read_bytes() == (learned.scores.parent / name).read_bytes()
    assert again.arms == learned.arms


KILLED = """
import os, signal, sys
from pathlib import Path
from datamask.config.compute import Compute
from datamask.evaluation.learn import learn
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.opening import open_run
save = Checkpoints.save
def saved(self, name, state):
    save(self, name, state)
    if name == "00039":
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoints.save = saved
learn(open_run(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Compute(workers=1))
"""


def test_a_killed_call_goes_on_where_it_was(learned, run, tmp_path, monkeypatch):
    """Killed after 40 of 48 draws: the next one fits 8 and the arms, and writes the same bytes.

    For 52 draws there is a property more, so none of the 40 is used.
    """
    root = Path(shutil.copytree(run, tmp_path / "run"))
    command = [sys.executable, "-c", KILLED, str(root), "48", str(tmp_path / "scores")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "scores").exists()
    real, fitted = _Judge.losses, []

    def counted(judge: _Judge, rows: Integers) -> Floats:
        fitted.append(rows)
        return real(judge, rows)

    monkeypatch.setattr(_Judge, "losses", counted)
    other = Path(shutil.copytree(root, tmp_path / "other"))
    learn(open_run(other), 52, tmp_path / "more", Compute(workers=1))
    assert len(fitted) == 52 + 2 + RANDOM_DRAWS
    fitted.clear()
    again = learn(open_run(root), 48, tmp_path / "scores", Compute(workers=1))
    assert len(fitted) == 8 + 2 + RANDOM_DRAWS
    for name in ("scores.parquet", "draws.parquet"):
        written = (tmp_path / "scores" / name).read_bytes()
        assert written == learned.scores.with_name(name).read_bytes()
    assert again.arms == learned.arms
    assert not list(root.rglob("*.npz"))


def test_the_regression_is_that_of_other_computations():
    """Slopes of scikit-learn's ridge; the penalty of refits without each selection; HC3."""
    generator = np.random.default_rng(1)
    moments = generator.standard_normal((40, 6)) * [1, 0.5, 0.5, 0.1, 0.1, 0.1]
    losses = moments @ [0.3, -0.2, 0, 0, 0, 0] + 0.3 * generator.standard_normal(40) + 2
    fitted = effects.fit(moments, losses)
    variance = float((np.linalg.svd(moments - moments.mean(0))[1] ** 2).mean())

    def left_out(penalty: float) -> float:
        errors = []
        for row in range(40):
            rest = np.arange(40) != row
            # The closed form keeps the mean of all selections out of the penalty, as refits do.
            model = Ridge(alpha=penalty * variance + 1e-12).fit(moments[rest], losses[rest])
            errors.append(losses[row] - model.predict(moments[row : row + 1])[0])
        return float(np.square(errors).sum())

    assert fitted.penalty == min(effects.PENALTIES, key=left_out)
    model = Ridge(alpha=fitted.penalty * variance).fit(moments, losses)
    assert np.allclose(fitted.slopes, model.coef_)
    assert np.allclose(fitted.predicted(moments), model.predict(moments))
    centred = moments - moments.mean(0)
    inverse = np.linalg.inv(centred.T @ centred + fitted.penalty * variance * np.eye(6))
    leverage = 1 / 40 + np.einsum("kp,pq,kq->k", centred, inverse, centred)
    residuals = (losses - model.predict(moments)) / (1 - leverage)
    covariance = inverse @ centred.T @ np.diag(residuals**2) @ centred @ inverse
    ratio = (fitted.high - fitted.low) / 2 / np.sqrt(np.diag(covariance))
    assert np.allclose(ratio, ratio[0]) and 2.0 < ratio[0] < 2.1


def test_losses_without_a_relation_are_not_predicted():
    """The rank correlation's interval covers 0, and about one effect in twenty excludes it."""
    generator = np.random.default_rng(2)
    moments, losses = generator.standard_normal((64, 16)), generator.standard_normal((2, 64))
    _, low, high = effects.cross_validated(moments, *losses)
    assert low < 0 < high
    outside = []
    for _ in range(100):
        fitted = effects.fit(moments, generator.standard_normal(64))
        outside.append((fitted.low > 0) | (fitted.high < 0))
    assert 0.02 < np.mean(outside) < 0.08


def test_a_score_that_predicts_nothing_is_not_offered(learned):
    """A low correlation, or a selection that random ones beat: a warning instead of a setting."""
    low = replace(learned, correlation=(0.4, 0.2, 0.6))
    beaten = replace(learned, arms={**learned.arms, "learned": learned.arms["random"]})
    for case in (low, beaten):
        assert case.warning and not any("kind: file" in line for line in case.lines)
    assert any("kind: file" in line for line in learned.lines)


def test_bad_requests_are_refused_before_work(run, tmp_path, monkeypatch):
    """Too few draws; nothing held out; a large share: an error of settings, and no file."""
    assert here("learn", run, "--draws", "8", "-o", tmp_path / "scores") == 2
    assert not (tmp_path / "scores").exists()
    planned = open_run(run)
    bare = planned.settings.evaluation.model_copy(update={"sets": ()})
    without = replace(planned, settings=planned.settings.model_copy(update={"evaluation": bare}))
    with pytest.raises(SettingsError):
        learn(without, 64, tmp_path / "scores", Compute())
    monkeypatch.setattr("datamask.evaluation.learn.LARGEST_SHARE", 0.1)
    with pytest.raises(SettingsError):
        learn(planned, 64, tmp_path / "scores", Compute())
    assert not (tmp_path / "scores").exists()


def test_the_command_prints_effects_and_the_setting(run, tmp_path, capsys):
    """The printed setting is accepted by a new run, which has the score of every document."""
    root = Path(shutil.copytree(run, tmp_path / "run"))
    assert here("learn", root, "--draws", "48") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "language de" in printed and "helps" in printed
    score = yaml.safe_load(printed[printed.index("{name: learned") :].replace(" }", "}"))
    settings = finished.settings(run.parent / "source", quality={"scores": [score]})
    new = finished.finish(tmp_path / "new", settings, "scores")
    rows = finished.table_of(new, "scores").to_pylist()
    given = pq.read_table(root / "learned" / "scores.parquet")
    expected = dict(zip(given["id"].to_pylist(), given["learned"].to_pylist(), strict=True))
    assert {row["id"]: row["learned"] for row in rows} == expected

"""New documents judged by a finished run's mask: results, warnings, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.analysis.summary import query
from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.errors import DatamaskError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.report.answer import answer
from datamask.runs.opening import open_run
from datamask.runs.run import Run, digest
from tests.finished import corpus, finish, rows_of, settings, table_of
from tests.selection.test_mask_model import chosen, write

pytestmark = pytest.mark.usefixtures("undrawn")


def applied(root: Path, learnt: Run, source: Path, *overrides: str) -> Run:
    """Make with the command what `datamask apply` makes."""
    args = ["apply", str(learnt.root), str(root), "--set", f"source.path={source}"]
    done = CliRunner().invoke(cli, [*args, *(part for one in overrides for part in ("--set", one))])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    assert "drift" in done.output
    return open_run(root)


def masks(run: Run) -> dict[str, float]:
    """Logits by id."""
    return {row["id"]: row["logit"] for s in range(run.num_shards) for row in rows_of(run, s)}


def test_a_run_that_selects_by_itself_is_not_judged_by_another(tmp_path, source):
    """It would be made as it is, and the model of the other would say nothing of it."""
    run = plan_run(tmp_path / "run", settings(source))
    with pytest.raises(SettingsError, match="the run selects by itself"):
        applied(run.root, run, source)


def test_a_run_stays_with_its_model(tmp_path):
    """Another model is refused, a copy is not; next commands keep its settings."""
    source = corpus(tmp_path / "source")
    run = finish(tmp_path / "run", settings(source), "composition")
    other = settings(source, selection={"quality_weight": 0.1})
    other = finish(tmp_path / "other", other, "mask_model")
    new = applied(tmp_path / "new", run, source)
    before = masks(new)
    with pytest.raises(SettingsError, match="other/mask_model"):
        applied(new.root, other, source)
    applied(new.root, open_run(shutil.copytree(run.root, tmp_path / "copy")), source)
    assert masks(new) == before
    assert any("embedding.method=" in command for command in answer(run).commands)
    assert not [command for command in answer(new).commands if "embedding." in command]


@pytest.mark.slow
def test_apply_judges_by_the_old_scores_and_threshold(source, tmp_path):
    """New documents one by one: scores, pruning and logit of one do not depend on the others."""
    score = {"name": "edu", "kind": "column", "column": "edu", "normalisation": "rank"}
    other = {"name": "long", "kind": "column", "column": "token_count"}
    terms = [{"name": "length", "weight": 0.5}]
    asked = settings(
        source,
        quality={"scores": [score, other]},
        embedding={"dimension": 8},  # Fewer than are selected: else DiSF cannot judge one by one.
        selection={"scope": "corpus", "quality_weight": 0.8, "more_terms": terms, "final_lr": 0.1},
    )
    run = finish(tmp_path / "run", asked, "mask_model")
    new = applied(tmp_path / "same", run, source)
    table = pq.read_table(source)
    few = tmp_path / "few"
    few.mkdir()
    pq.write_table(table.take(list(range(0, 120, 4))), few / "0.parquet")
    # The rate is above the last one of the run, and not above the last one by default.
    part = applied(tmp_path / "part", run, few, "plan.rows_per_shard=7", "selection.initial_lr=0.5")
    before, after, of_part = masks(run), masks(new), masks(part)
    # The same texts are pruned as in the run that learnt.
    assert set(after) == set(before) and len(of_part) > 15
    for name, logit in of_part.items():
        assert logit == pytest.approx(after[name], abs=1e-4)
    # A document that the selection has already gains less than its published logit.
    is_kept = [name for name in before if before[name] > 0]
    assert all(after[name] < before[name] + 1e-4 for name in is_kept)
    theirs, ours = table_of(run, "quality"), table_of(new, "quality")
    for name in ("edu", "long", "quality"):
        np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), atol=1e-12)
    rows = {row["term"]: row for row in query(new, "SELECT * FROM drift")}
    assert set(rows) == {"share kept", "quality", "disf", "length"}
    for name in ("quality", "disf", "length"):
        assert abs(rows[name]["shift"]) < 0.1
    assert (new.root / "subset").is_dir() and "Drift" in new.path("report").read_text()


@pytest.mark.slow
def test_another_corpus_is_warned_about(tmp_path):
    """Its quality is higher by a deviation: more are kept, and the drift says by which term."""
    run = finish(tmp_path / "run", chosen(write(tmp_path / "source", 600, 1)), "mask_model")
    new = applied(tmp_path / "new", run, write(tmp_path / "better", 300, 1, shift=1.0))
    rows = {row["term"]: row for row in query(new, "SELECT * FROM drift")}
    assert rows["quality"]["shift"] == pytest.approx(1.0, abs=0.2)
    kept = [value > 0 for value in masks(new).values()]
    assert rows["share kept"]["now"] == pytest.approx(np.mean(kept)) and np.mean(kept) > 0.4
    assert "quality" in next(line for line in answer(new).warnings if "mask model" in line)
    again = applied(tmp_path / "new", run, tmp_path / "better")
    assert not again.remaining("selection")


@pytest.mark.slow
def test_a_model_of_other_scores_or_vectors_is_refused(tmp_path):
    """By the names of both, before any work; and a model that changed after planning."""
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source")), "mask_model")
    source = tmp_path / "source"
    for override, said in (
        ("embedding.dimension=16", r"embedding\.dimension 32, but this run has 16"),
        ("source.windows=2", r"source\.windows 3, but this run has 2"),
        ("quality.scores=[{name: other, kind: column, column: edu}]", "scores edu, but .* other"),
        (
            "quality.scores=[{name: edu, kind: column, column: edu, normalisation: rank}]",
            "normalisation of score edu 'z-score', but this run has 'rank'",
        ),
        ("selection.metric=pairwise", "the objective .*disf.*'pairwise'"),
        ("selection.tokens=9", "decides by its own threshold"),
    ):
        with pytest.raises(DatamaskError, match=said):
            applied(tmp_path / "new", run, source, override)
        assert not (tmp_path / "new").exists()
    with pytest.raises(DatamaskError, match=r"source\.path: name the new documents"):
        applied(tmp_path / "new", run, Path(""), "source.path=''")
    new = applied(tmp_path / "new", run, source)
    path = run.path("mask_model")
    about = json.loads(path.read_text())
    del about["digest"]
    about["threshold"] += 1
    path.write_text(json.dumps(about | {"digest": digest(about)}))
    with pytest.raises(DatamaskError, match="has changed since the run was planned"):
        run_stage(new, "judged", Compute(), force=True)
    assert plan_run(new.root, None).remaining("selection") == [0, 1, 2]


@pytest.mark.slow
def test_a_published_model_judges_as_the_run_does(tmp_path):
    """From the folder that is published, by the settings that the card gives."""
    publication = {"license": "mit", "dry_run": True, "include": ["mask_model"]}
    limits = [{"column": "language", "value": "de", "floor": 0.1}]
    asked = settings(
        corpus(tmp_path / "source"), selection={"limits": limits}, publication=publication
    )
    run = finish(tmp_path / "run", asked, "publication")
    folder = run.root / "publication"
    card = (folder / "README.md").read_text()
    assert "selection.mask_model=judged-by/mask_model --set selection.limits=[]\n" in card
    assert {path.name for path in (folder / "mask_model").iterdir()} == {
        "model.json",
        "model.safetensors",
    }
    for path in (folder / "mask_model").iterdir():
        assert str(tmp_path) not in path.read_bytes().decode("latin-1")
    shutil.copytree(folder / "mask_model", tmp_path / "copy")
    given = {"limits": [], "mask_model": str(tmp_path / "copy"), "scope": "shard"}
    other = finish(tmp_path / "other", settings(tmp_path / "source", selection=given), "selection")
    assert masks(other) == masks(applied(tmp_path / "applied", run, tmp_path / "source"))
    wrong = settings(tmp_path / "source", selection=given, publication=publication)
    with pytest.raises(DatamaskError, match=r"publication\.include: this run learns no mask"):
        plan_run(tmp_path / "wrong", wrong)

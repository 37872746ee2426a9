"""Impossible evaluations are refused in one clear line, before a model is trained."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from datamask.config.compute import Compute
from datamask.config.inputs import Quality
from datamask.errors import DatamaskError, InputError, RunError, SettingsError
from datamask.evaluation.arms import check_tokens
from datamask.evaluation.pinning import pin_evaluation
from datamask.evaluation.questions import check_questions
from datamask.evaluation.results import evaluate
from datamask.evaluation.training import _Training
from datamask.execution.pipeline import run_stage
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests import finished
from tests.conftest import nightly
from tests.evaluation import small

pytestmark = pytest.mark.usefixtures("roughly")


def refused(root: Path, source: Path, **evaluation: Any) -> DatamaskError:
    """The error of an evaluation that must end before training."""
    with pytest.raises(DatamaskError) as caught:
        finished.finish(root, small.settings(source, **evaluation), "training")
    assert not (root / "evaluation" / "training").exists()
    assert "\n" not in str(caught.value)
    return caught.value


def test_fewer_tokens_than_models_are_trained_on(root, source, caplog):
    """No model fails; the error has the tokens of each such arm, and the most that all have."""
    error = refused(root, source, tokens=50_000)
    assert isinstance(error, SettingsError)
    assert not (root / "records" / "evaluation" / "training").exists()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    run = open_run(root)
    ours, random = (run.receipt("arms", arm).metrics["tokens"] for arm in (0, 1))
    assert 1000 < ours < random
    for part in (
        "50,000",
        f"ours {ours:,d}",
        f"random {random:,d}",
        f"evaluation.tokens={ours}`",
    ):
        assert part in str(error)
    for tokens, names in ((ours, ""), (ours + 1, "ours")):
        run = finished.finish(root, small.settings(source, tokens=tokens), "arms")
        with pytest.raises(SettingsError) if names else contextlib.nullcontext() as caught:
            check_tokens(run)
        assert not names or "random" not in str(caught.value)


@pytest.mark.slow
def test_nothing_to_score_on(tmp_path, root, source):
    """Nothing held out and no sets; or a set without text."""
    for kept in (0, 1e-12):
        error = refused(root, source, hold_out=kept)
        assert isinstance(error, SettingsError)
        assert "evaluation.hold_out: nothing is held out; set it to a share" in str(error)
        assert not (root / "evaluation").exists() or kept, "refused before any work"
    path = small.write_lines(tmp_path / "empty.jsonl", [{"text": ""}, {"text": "  "}])
    path.write_text("")
    one = {"name": "mine", "path": str(path)}
    error = refused(root, source, hold_out=0, sets=[one])
    assert str(path) in str(error)


def test_examples_of_a_score_are_not_scored_on(tmp_path, source):
    """A set loses the texts that a score has learned from; a set of these alone is refused."""
    texts = [{"text": f"an example with number {row}"} for row in range(120)]
    own = [texts[3], {"text": "a text of its own"}, texts[5]]
    known = str(small.write_lines(tmp_path / "examples.jsonl", texts))
    sets = [{"name": "own", "path": str(small.write_lines(tmp_path / "own.jsonl", own))}]
    score = {"name": "like", "kind": "examples", "path": known, "column": "text"}

    def finish(name: str, sets: list[dict[str, str]]) -> Run:
        settings = small.settings(source, sets=sets)
        quality = settings.quality.model_dump() | {"scores": [score]}
        chosen = settings.model_copy(update={"quality": Quality(**quality)})
        return finished.finish(tmp_path / name, chosen, "held_out")

    metrics = finish("run", sets).receipt("held_out").metrics
    assert (metrics["documents"]["own"], metrics["examples"]) == (1, 2)
    with pytest.raises(InputError) as caught:
        finish("other", [{"name": "same", "path": known}])
    assert known in str(caught.value)


@pytest.mark.parametrize("kind", ["txt", *nightly("folder", "jsonl")])
def test_lists_of_ids_that_do_not_fit(tmp_path, root, source, kind):
    """Ids that the source lacks; a list without the column."""
    path = file = tmp_path / f"ids.{kind}"
    if kind == "folder":
        path.mkdir()
        file = path / "a.TXT"
    arms = ["ours", {"name": "mine", "kind": "ids", "path": str(path)}]
    names = ["1-01", "unknown", "absent"]
    file.write_text("\n".join(names))
    if kind == "jsonl":
        small.write_lines(path, [{"id": name} for name in names])
    error = refused(root, source, arms=arms)
    assert "2 ids of arm mine are not in the source, first 'absent'" in str(error)
    assert str(path) in str(error)
    if kind == "jsonl":
        small.write_lines(path, [{"name": "1-01"}])
        assert "column id" in str(refused(root, source, arms=arms))


@pytest.mark.slow
def test_runs_that_cannot_be_compared(tmp_path, root, source):
    """Another source; no run; a run that ends after its scores."""
    other = finished.corpus(tmp_path / "other")
    finished.finish(tmp_path / "theirs", finished.settings(other), "selection")
    finished.finish(tmp_path / "unfinished", small.settings(source), "scores")
    for name, expected in (
        ("theirs", "theirs: arm mine is a run of another source than"),
        ("absent", "absent"),
        ("unfinished", "run stage `quality` first"),
    ):
        arm = {"name": "mine", "kind": "run", "path": str(tmp_path / name)}
        error = refused(root, source, arms=["ours", arm])
        assert expected in str(error)


def test_a_tokenizer_without_a_token_for_a_text(tmp_path, root, source):
    """Its models would be scored on less than others see."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "two": 1, "words": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    error = refused(root, source, model=str(tmp_path))
    assert isinstance(error, SettingsError)
    assert "evaluation.model: its tokenizer has no token for a text of set all" in str(error)
    path.write_text("{}")
    error = refused(root, source, model=str(tmp_path))
    assert "evaluation.model" in str(error) and "tokenizer" in str(error)


def test_models_that_are_none(tmp_path, root, source):
    """A folder without config.json, an unreadable one, and another kind of model."""
    folder = tmp_path / "model"
    folder.mkdir()
    expected = f"evaluation.model: {folder}: no such folder with a config.json; use tiny"
    assert expected in str(refused(root, source, model=str(folder)))
    for content in ("{", "{}", json.dumps({"model_type": "unheard-of"})):
        (folder / "config.json").write_text(content)
        error = refused(root, source, model=str(folder))
        assert isinstance(error, SettingsError)
        assert str(error).startswith("evaluation.model: ")


def test_questions_without_a_right_answer(tmp_path, root, source):
    """The row and the column are named before anything is made."""
    row, path = {"query": "Which?", "choices": ["one", "two"], "gold": 1}, tmp_path / "q.jsonl"
    own = {"name": "q", "path": str(path), "prompt": "query", "column": "choices", "gold": "gold"}
    evaluation = small.settings(source, sets=[own]).evaluation
    wrong = [("choices", answers) for answers in (["one"], "text", ["one", " "], [1, 2])]
    for column, value in (*wrong, *(("gold", gold) for gold in (2, -1, None, "B", True))):
        small.write_lines(path, [row] * 4 + [row | {column: value}])
        with pytest.raises(InputError) as caught:
            check_questions(evaluation, "held_out:q")
        assert (caught.value.row, caught.value.column) == (4, column)
    for gold, found in (("gold", (4, "gold")), ("", (None, "choices"))):
        error = refused(root, source, sets=[own | {"gold": gold}])
        assert isinstance(error, InputError) and (error.row, error.column) == found


def test_features_have_no_text(tmp_path, source):
    """Layout `features` is refused when the run is planned."""
    chosen = small.settings(source)
    features = chosen.source.model_copy(update={"layout": "features"})
    with pytest.raises(SettingsError, match="layout `features` has no text to train on"):
        pin_evaluation(chosen.model_copy(update={"source": features}))


def test_a_set_that_changed_since_it_was_planned(tmp_path, root, source):
    """The stage reads the files that the fingerprint names, or none."""
    path = small.write_lines(tmp_path / "mine.jsonl", [{"text": "one text of mine"}])
    chosen = small.settings(source, sets=[{"name": "mine", "path": str(path)}])
    run = finished.finish(root, chosen, "tokenizer")
    small.write_lines(path, [{"text": "another text of mine, which is longer"}])
    with pytest.raises(InputError, match="has changed since"):
        run_stage(run, "held_out", Compute())


@pytest.mark.slow
def test_a_rate_at_which_a_model_diverges_is_left_out(root, source, monkeypatch):
    """Of two, with its reason."""
    real = _Training.problem

    def problem(self: _Training) -> str | None:
        return "12 bits per token" if self.rate == 0.008 else real(self)

    monkeypatch.setattr(_Training, "problem", problem)
    chosen = small.settings(source, learning_rates=[0.004, 0.008])
    run = finished.finish(root, chosen, "evaluation")
    diverged = run.receipt("evaluation").metrics["diverged"]
    assert [*diverged] == ["0.008"] and "12 bits per token" in diverged["0.008"]


@pytest.mark.slow
def test_a_rate_that_is_far_too_high_diverges(root, source):
    """Its model is given up as soon as its loss is not a number, or is worse than at first."""
    chosen = small.settings(source, learning_rates=[0.99], epochs=4)
    run: Run = finished.finish(root, chosen, "training")
    assert run.receipt("training").metrics["diverged"] is not None
    assert run.receipt("training").rows == 0
    with pytest.raises(RunError, match=r"set lower evaluation\.learning_rates"):
        evaluate(run, Compute())

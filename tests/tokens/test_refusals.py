"""Refusals of the stages of tokens: before any work where that is possible, and in one line."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models

from datamask.analysis import summary
from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.errors import InputError, RunError, SettingsError
from datamask.execution.attempts import ShardsFailedError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.selection import threshold
from datamask.selection.order import NOTHING
from tests.finished import corpus, finish, settings, word_tokenizer
from tests.selection.runs import write_vectors

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and a good tokenizer next to it."""
    folder = tmp_path_factory.mktemp("refusals")
    word_tokenizer(folder / "good.json")
    for name, words in (("endless", {"a": 0}), ("large", {"a": 101, "</s>": 0})):
        Tokenizer(models.WordLevel(words, "a")).save(str(folder / f"{name}.json"))
    return corpus(folder / "source")


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        ({"tokenizer": "nowhere.json"}, "tokens.tokenizer"),
        ({"tokenizer": "endless.json"}, "tokens.end_of_document"),
        ({"tokenizer": "good.json", "end_of_document": "<|bos|>"}, "tokens.end_of_document"),
        ({"tokenizer": "large.json"}, "tokens.tokenizer"),
        ({"tokenizer": "good.json", "phases": [{"share": 1, "where": "edi > 1"}]}, "tokens.phases"),
        ({"tokenizer": "good.json", "phases": [{"share": 1, "where": "id"}]}, "tokens.phases"),
        (
            {"tokenizer": "good.json", "phases": [{"share": 1, "where": "edu > 1); DROP TABLE x"}]},
            "tokens.phases",
        ),
    ],
)
def test_a_plan_refuses_bad_tokens(tmp_path, source, monkeypatch, tokens, named):
    """A tokenizer that is missing, without end or too large; conditions that are none."""
    monkeypatch.setattr("datamask.source.token_counts.LARGEST_TOKEN", 100)
    tokens = tokens | {"tokenizer": str(source.parent / tokens["tokenizer"])}
    with pytest.raises(SettingsError) as refused:
        plan_run(tmp_path / "run", settings(source, tokens=tokens))
    assert str(refused.value).startswith(named) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_condition_reads_nothing_but_documents(tmp_path, source):
    """Not when it is planned: settings may come from others."""
    (tmp_path / "secret.csv").write_text("number\n7\n")
    where = f"edu < (SELECT max(number) FROM read_csv('{tmp_path}/secret.csv'))"
    tokens = {
        "tokenizer": str(source.parent / "good.json"),
        "phases": [{"share": 1, "where": where}],
    }
    with pytest.raises(SettingsError, match=r"tokens\.phases.*disabled"):
        plan_run(tmp_path / "run", settings(source, tokens=tokens))


@pytest.mark.parametrize(
    "groups",
    [
        {"tokens": {"phases": [{"share": 0.5}, {"share": 0.4}]}},
        {"tokens": {}, "source": {"tokenizer": "other.json"}},
        {"publication": {"license": "mit", "dry_run": True, "include": ["tokens"]}},
    ],
)
def test_settings_that_contradict_each_other(source, groups):
    """Shares that do not add up, two tokenizers that count, and tokens of no tokenizer."""
    if "tokens" in groups:
        groups["tokens"]["tokenizer"] = str(source.parent / "good.json")
    with pytest.raises(SettingsError):
        settings(source, **groups)


def test_vectors_have_no_tokens(tmp_path, source):
    """Layout `features` has no text, whatever the tokenizer."""
    vectors = np.random.default_rng(0).normal(size=(64, 32))
    folder = tmp_path / "vectors"
    folder.mkdir()
    write_vectors(folder, vectors, np.zeros(64), 1)
    chosen = settings(
        folder,
        source={"layout": "features"},
        tokens={"tokenizer": str(source.parent / "good.json")},
        quality={"scores": [], "prune_fraction": 0},
    )
    with pytest.raises(SettingsError, match="tokens: needs text"):
        plan_run(tmp_path / "run", chosen)


@pytest.mark.slow
def test_a_tokenizer_that_changed_since_planning(tmp_path, source):
    """Is refused by the stage; a launch plans again, and makes all tokens with the new one."""
    tokens = {"tokenizer": word_tokenizer(tmp_path / "mine.json")}
    run = finish(tmp_path / "run", settings(source, tokens=tokens), "subset")
    word_tokenizer(tmp_path / "mine.json", more=3)
    with pytest.raises(ShardsFailedError) as refused:
        run_stage(run, "tokenised", Compute())
    assert all(isinstance(cause, InputError) for cause in refused.value.causes)
    assert "mine.json" in str(refused.value)
    again = finish(run.root, run.settings, "tokens")
    assert set(again.states("tokens")) == {"done"} and set(again.states("subset")) == {"done"}


def test_a_phase_without_enough_tokens(tmp_path, source):
    """Is named with what is asked for and what there is; so are documents of no phase."""
    good = str(source.parent / "good.json")
    for phases, what in (
        ([{"share": 0.5}, {"share": 0.5, "where": "edu > 2.2"}], "phase 2"),
        ([{"share": 0.1, "where": "edu > 0"}, {"share": 0.9, "where": "edu > 1"}], "phase"),
    ):
        chosen = settings(source, tokens={"tokenizer": good, "phases": phases})
        with pytest.raises(SettingsError, match=rf"tokens\.phases: [\d,]+ tokens are for {what}"):
            finish(tmp_path / "run", chosen, "order")


def test_nothing_is_selected(tmp_path, source, monkeypatch):
    """One line in place of empty files, which no trainer can map into memory."""
    monkeypatch.setattr(threshold, "last_within", lambda *_: NOTHING)
    tokens = {"tokenizer": str(source.parent / "good.json")}
    chosen = settings(source, tokens=tokens, selection={"tokens": 500, "method": "random"})
    with pytest.raises(SettingsError, match="no document is selected"):
        finish(tmp_path / "run", chosen, "order")


@pytest.mark.parametrize("tokens", ["5", "10:5", "-1:5", "a:b", "1:2:3"])
def test_a_range_of_tokens_has_a_first_and_a_last(tokens):
    """In this order, from 0."""
    with pytest.raises(SettingsError, match=f"--tokens {tokens}: "):
        summary.seen(tokens, "")


def test_a_run_without_tokens_has_seen_none(tmp_path, source):
    """`seen` and the relation say so; neither a table nor a range is needed for that."""
    run = plan_run(tmp_path / "run", settings(source))
    result = CliRunner().invoke(cli, ["seen", str(run.root), "--id", "x"])
    assert isinstance(result.exception, SettingsError | RunError)

"""Settings of an evaluation: short names of arms, what is refused, and what is trained anew."""

import re
from dataclasses import replace
from typing import Any

import pytest

from datamask.config.evaluation import METHODS, Arm, Evaluation
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import InputError, SettingsError
from datamask.evaluation.models import PRESETS, make_model, training_explained, weight_bytes
from datamask.evaluation.pinning import changed_selection, pin_evaluation
from datamask.runs.opening import open_run
from datamask.runs.stages import evaluation_stages, stages_of
from tests import finished
from tests.evaluation import small


def parsed(arms: list, **others: object) -> Settings:
    """Settings with these arms."""
    evaluation = {"arms": arms, "hold_out": 0.01}
    settings: Settings = parse_settings({**others, "evaluation": evaluation})
    return settings


def test_names_alone_are_arms():
    """The run's own selection, two kinds, and every method of selection but those two's."""
    methods = [name for name in METHODS if name not in ("random", "top_quality")]
    assert "semdedup" in methods
    found = parsed(["ours", "random", "top_quality", *methods]).evaluation.arms
    assert found == (
        Arm(name="ours"),
        Arm(name="random", kind="random"),
        Arm(name="top_quality", kind="top_quality"),
        *(Arm(name=name, change={"method": name}) for name in methods),
    )
    assert {arm.kind for arm in found[3:]} == {"selection"}


def test_the_amount_of_training_is_told():
    """Models and tokens, and their time without a GPU; nothing without arms."""
    arms = ["ours", "random", "top_quality"]
    amount, without_gpu = training_explained(parsed(arms).evaluation)
    assert "18 models" in amount and "300,000,000 tokens each;" in amount and "tiny" in without_gpu
    cheap = parsed(["ours", "random"]).evaluation.model_copy(
        update={"model": "tiny", "seeds": 2, "epochs": 3}
    )
    assert f"{18 * 300e6 / 550 / 86400:,.0f} days" in without_gpu
    amount, takes = training_explained(cheap)
    assert "10 minutes" in takes
    assert "8 models" in amount and "400,000 tokens each, 3 times" in amount
    assert training_explained(Evaluation()) == []
    assert weight_bytes(cheap) == 8 * PRESETS["tiny"].weight_bytes
    tiny: Any = make_model(cheap, PRESETS["tiny"].vocabulary + 1, seed=0)
    assert PRESETS["tiny"].weight_bytes == 4 * tiny.num_parameters()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratoi": 0.1}, "evaluation.arms mine: ratoi: unknown key; did you mean `ratio`?"),
        ({"ratio": 3}, "evaluation.arms mine: ratio: Input should be less than or equal to 1"),
    ],
)
def test_a_wrong_change_is_refused_when_the_run_is_planned(change, message):
    """The message names the arm."""
    settings = parsed(["ours", {"name": "mine", "change": change}])
    with pytest.raises(SettingsError, match=re.escape(message)):
        pin_evaluation(settings)


def test_a_change_keeps_the_other_settings_of_selection():
    """It is selected shard by shard, whatever the run's scope is."""
    settings = parsed(
        ["ours", {"name": "mine", "change": {"quality_weight": 0.2}}],
        selection={"ratio": 0.03, "scope": "corpus"},
    )
    assert pin_evaluation(settings) == {}
    found = changed_selection(settings.selection, settings.evaluation.arms[1])
    assert found == settings.selection.model_copy(update={"scope": "shard", "quality_weight": 0.2})


def test_a_list_of_ids_is_identified_by_its_content(tmp_path):
    """Another list is another evaluation."""
    listed = tmp_path / "ids.txt"
    settings = parsed(["ours", {"name": "mine", "kind": "ids", "path": str(listed)}])
    found = []
    for text in ("a\nb\n", "a\nc\n", "a\nb\n"):
        listed.write_text(text)
        found.append(pin_evaluation(settings))
    assert found[0] == found[2] != found[1]
    assert list(found[0]) == ["arm:mine"]


@pytest.mark.parametrize("name", ["ids.csv", "ids.jsonl"])
def test_a_list_that_cannot_be_read_is_refused_when_the_run_is_planned(name, tmp_path):
    """Of an unknown kind, or without the column of ids."""
    path = tmp_path / name
    path.write_text('{"key": "a"}\n')
    settings = parsed(["ours", {"name": "mine", "kind": "ids", "path": str(path)}])
    with pytest.raises(InputError, match=re.escape(str(path))):
        pin_evaluation(settings)


def test_more_arms_rates_and_seeds_train_only_what_is_new(source, selected_run):
    """The fingerprints of models that exist stay, and so does that of the selection."""
    run = open_run(selected_run)

    def fingerprints(**evaluation: Any) -> dict[str, str]:
        changed = replace(run, settings=small.settings(source, **evaluation))
        assert changed.fingerprint_all("selection") == run.fingerprint_all("selection")
        units = range(changed.num_units("training"))
        return {
            changed.unit_label("training", u): changed.fingerprint("training", u) for u in units
        }

    known, more = fingerprints(), dict[str, Any]()
    assert len(known) == 4
    for change, added in (
        ({"arms": ["ours", "random", "top_quality"]}, 2),
        ({"learning_rates": [0.008, 0.004]}, 6),
        ({"seeds": 3}, 6),
        ({"sets": []}, 0),
    ):
        more |= change
        trained = fingerprints(**more)
        assert known.items() <= trained.items() and len(trained) == len(known) + added, change
        known = trained


def test_nothing_held_out_and_no_arms_change_nothing(source):
    """The settings are those without an evaluation, which has no stages."""
    chosen = finished.settings(source, evaluation={"hold_out": 0, "arms": []})
    assert chosen == finished.settings(source) and evaluation_stages(chosen) == []
    assert not {"tokenizer", "held_out", "arms", "training"} & {*stages_of(chosen)}

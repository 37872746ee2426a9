"""What the models of an evaluation will cost."""

from __future__ import annotations

import pytest

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.estimate.forecast import Fleet, training_forecast
from datamask.evaluation import training


def test_models_are_shared_out_and_cores_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 models of 195 steps (100,000 tokens of 8 x 64, twice: 390), given the cost of a step."""
    monkeypatch.setattr(training, "step_cost", lambda *_: (0.1, 0.2))
    evaluation = Evaluation(
        arms=("ours", "random"), model="tiny", tokens=100_000, epochs=2, seeds=3
    )
    one = 39.0
    on_gpus = training_forecast(
        evaluation, Compute(), Fleet(machines=1, shards=8, gpus=8, cores=64)
    )
    assert on_gpus.seconds == pytest.approx(2 * one)
    assert on_gpus.gpu_hours == pytest.approx(12 * one / 3600)
    assert on_gpus.cpu_hours == pytest.approx(12 * 2 * one / 3600)
    on_cores = training_forecast(
        evaluation, Compute(), Fleet(machines=1, shards=12, gpus=0, cores=2)
    )
    assert on_cores.seconds == pytest.approx(12 * 2 * one / 2)
    assert on_cores.gpu_hours is None


def test_a_step_is_really_measured() -> None:
    """A step of the smallest model takes time, and no more than seconds."""
    seconds, cpu_seconds = training.step_cost(Evaluation(model="tiny"), Compute(device="cpu"))
    assert 0 < seconds < 10
    assert 0 < cpu_seconds < 10

"""A killed training goes on where it was, and gives the bytes of an undisturbed one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.evaluation.training import train
from datamask.runs import checkpoints
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.run import Run
from tests import finished
from tests.evaluation import small


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is made after every step."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0)


@pytest.fixture(scope="module")
def trained(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, bytes]:
    """A run whose arms are done, and the bytes of its first model, trained without a break."""
    root = tmp_path_factory.mktemp("interrupted") / "run"
    run = finished.finish(root, small.settings(source, epochs=3), "arms")
    train(run, 0, Compute())
    return run, run.path("training", 0).read_bytes()


@pytest.fixture
def run(trained: tuple[Run, bytes]) -> Run:
    """The run, without the model."""
    trained[0].path("training", 0).unlink(missing_ok=True)
    return trained[0]


def test_the_number_of_threads_changes_no_byte(run, trained):
    """Gradients of a model that uses all threads differ with three of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train(run, 0, Compute())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert run.path("training", 0).read_bytes() == trained[1]


def test_a_training_killed_again_and_again_ends_the_same(run, trained, monkeypatch):
    """While the rate rises, while it falls, and while weights are averaged."""

    class Killed(BaseException):
        """Stands for SIGKILL where the test needs to know the moment."""

    save, saves, kills = Checkpoints.save, 0, 0

    def saved(self: Checkpoints, name: str, state: dict[str, np.ndarray]) -> None:
        nonlocal saves
        save(self, name, state)
        saves += 1
        if saves % 3 == 0:
            raise Killed

    monkeypatch.setattr(Checkpoints, "save", saved)
    while True:
        try:
            train(run, 0, Compute())
            break
        except Killed:
            kills += 1
    assert kills >= 5
    assert run.path("training", 0).read_bytes() == trained[1]

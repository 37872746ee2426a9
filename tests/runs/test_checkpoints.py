"""A killed shard goes on where it was, and gives the bytes of an undisturbed one."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from datamask.config.compute import Compute
from datamask.embedding import chunked
from datamask.learning import learner
from datamask.runs import checkpoints
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.run import Run
from datamask.selection.per_shard import make_mask
from tests import finished

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    """Eight texts are tokenised together, and a checkpoint is made after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SECONDS", 0)
        patch.setattr(chunked, "CHUNK", 8)
        yield


class Killed(BaseException):
    """Stands for SIGKILL where the test needs to know the moment."""


def make_run(folder: Path, last: str, **groups: object) -> Run:
    """A run of three shards, done up to a stage."""
    source = folder / "source"
    if not source.exists():
        finished.corpus(source)
    return finished.finish(folder / "run", finished.settings(source, **groups), last)


def learnt(run: Run) -> bytes:
    """Learn shard 1; the mask's bytes."""
    make_mask(run, 1, Compute())
    return run.path("selection", 1).read_bytes()


def test_learning_goes_on_after_a_kill_at_any_step(tmp_path, monkeypatch):
    """Killed after every third checkpoint, again and again: the same mask."""
    selection = {"estimator": "policy_gradient", "steps": 20, "rollouts": 8, "swap_refinement": 10}
    run = make_run(tmp_path, "embeddings", selection=selection)
    undisturbed = learnt(run)
    run.path("selection", 1).unlink()
    saves = kills = 0
    save = Checkpoints.save

    def saved(self: Checkpoints, name: str, state: dict[str, np.ndarray]) -> None:
        nonlocal saves
        save(self, name, state)
        saves += 1
        if saves % 3 == 0:
            raise Killed

    monkeypatch.setattr(Checkpoints, "save", saved)
    while True:
        try:
            resumed = learnt(run)
            break
        except Killed:
            kills += 1
    assert kills >= 1
    assert resumed == undisturbed
    assert not list((run.root / "checkpoints").rglob("*.npz"))


def test_a_checkpoint_of_other_settings_is_not_used(tmp_path, monkeypatch):
    """Killed while it learned with one lambda, then planned with another: as if never begun."""
    selection = {"estimator": "policy_gradient", "steps": 20, "rollouts": 16, "swap_refinement": 0}
    other = {"selection": {**selection, "quality_weight": 0.2}}
    expected = learnt(make_run(tmp_path / "other", "embeddings", **other))
    run = make_run(tmp_path / "killed", "embeddings", selection={**selection, "quality_weight": 1})
    save = Checkpoints.save

    def saved(self: Checkpoints, name: str, state: dict[str, np.ndarray]) -> None:
        save(self, name, state)
        if state["step"] == 15:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "save", saved)
        learnt(run)
    assert list((run.root / "checkpoints").rglob("*.npz"))
    assert learnt(make_run(tmp_path / "killed", "embeddings", **other)) == expected


def test_a_damaged_or_foreign_checkpoint_counts_as_none(planned):
    """A flipped bit, half a file, and other settings."""
    run = planned
    state = {"logits": np.arange(100, dtype=np.float32)}
    kept = Checkpoints(run, "selection", 0, ["cpu"])
    kept.save("learner", state)
    found = kept.load("learner")
    assert found is not None and (found["logits"] == state["logits"]).all()
    assert Checkpoints(run, "selection", 0, ["cuda"]).load("learner") is None
    path = kept.folder / "learner.npz"
    data = path.read_bytes()
    # In an array, and in the directory of the archive: the version and the flags of the entry.
    entry = data.index(b"PK\x01\x02")
    flipped = [
        data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        for place, bit in ((200, 1), (entry + 6, 64), (entry + 8, 1))
    ]
    for spoilt in (*flipped, data[: len(data) // 2], b""):
        path.write_bytes(spoilt)
        assert kept.load("learner") is None
    path.write_bytes(data)
    assert kept.load("learner") is not None
    kept.clear()
    assert not list((run.root / "checkpoints").rglob("*.npz"))


def test_a_checkpoint_is_due_by_the_clock(planned, monkeypatch):
    """Not at once, but after a minute; then again."""
    now = 100.0
    monkeypatch.setattr(checkpoints, "SECONDS", 60)
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    kept = Checkpoints(planned, "selection", 0, [])
    now += 59
    assert not kept.due()
    now += 1
    assert kept.due()
    kept.save("learner", {})
    now += 59
    assert not kept.due()
    now += 1
    assert kept.due()


def test_out_of_memory_is_tried_with_less(tmp_path, monkeypatch):
    """Half the working set each time; below what can help it is one line, and may be retried."""
    import torch

    from datamask.errors import DeviceMemoryError

    run = make_run(tmp_path, "embeddings")
    sizes: list[int] = []
    real = learner.learn_mask

    def short(*args: object, compute: Compute, **options: object) -> learner.LearnedMask:
        sizes.append(compute.working_set_bytes)
        if len(sizes) < 3:
            raise torch.OutOfMemoryError("out of memory")
        return real(*args, compute=compute, **options)

    monkeypatch.setattr(learner, "learn_mask", short)
    make_mask(run, 0, Compute())
    assert sizes == [2**30, 2**29, 2**28]
    sizes.clear()
    with pytest.raises(DeviceMemoryError, match=r"shard 00000.*smaller shards"):
        make_mask(run, 0, Compute(working_set_bytes=2**26))


def test_a_unit_saves_while_another_one_is_cleared(planned, monkeypatch):
    """Another worker finishes between the two folders that a save makes."""
    other, own = (Checkpoints(planned, "selection", unit) for unit in (0, 1))
    other.save("state", {"steps": np.arange(3)})
    made = Path.mkdir

    def interrupted(path: Path, *arguments: object, **options: object) -> None:
        if path == own.home:
            other.clear()
        made(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    own.save("state", {"steps": np.arange(4)})
    kept = own.load("state")
    assert kept is not None
    assert kept["steps"].tolist() == [0, 1, 2, 3]
    assert other.load("state") is None

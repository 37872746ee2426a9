"""A machine's lack is reported before a run starts, and units share its devices."""

import pkgutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution.attempts import run_unit
from datamask.execution.devices import check_device
from datamask.execution.pipeline import rebuild
from datamask.objectives import threads
from datamask.planning.plan import plan_run
from tests import finished


def test_emulated_bfloat16_is_refused(monkeypatch, tmp_path):
    """Nothing is written; a processor that has bfloat16 is not refused, nor is `auto`."""
    compute = Compute(device="cpu", matmul="bfloat16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    check_device(compute)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    check_device(Compute(device="cpu", matmul="auto"))
    settings = finished.settings(finished.corpus(tmp_path / "source"))
    with pytest.raises(SettingsError, match=r"compute\.matmul"):
        rebuild(tmp_path / "run", settings, compute)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stage", "workers", "each"),
    [("embeddings", 1, 12), ("embeddings", 2, 6), ("embeddings", 8, 4), ("quality", 8, 12)],
)
def test_units_that_are_made_at_once_share_the_threads(stage, workers, each, tmp_path, monkeypatch):
    """Of three shards, eight workers make three at once; quality is made of all of them."""
    settings = finished.settings(finished.corpus(tmp_path / "source"))
    run, seen = plan_run(tmp_path / "run", settings), []
    assert run.num_shards == 3
    monkeypatch.setattr(threads, "threads_of_process", 12)
    monkeypatch.setattr(
        pkgutil,
        "resolve_name",
        lambda name: lambda *given: seen.append(torch.get_num_threads()),
    )
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as pool:
            unit = 0 if stage == "embeddings" else None
            pool.submit(run_unit, run, stage, unit, Compute(workers=workers)).result()
    finally:
        torch.set_num_threads(before)
    assert seen == [each]

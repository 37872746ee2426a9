"""What a machine lacks is said before a run starts, and units share what it has."""

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


@pytest.mark.parametrize(("workers", "each"), [(1, 12), (2, 6), (8, 4)])
def test_units_that_are_made_at_once_share_the_threads(workers, each, tmp_path, monkeypatch):
    """Of three shards, eight workers make three at once."""
    settings = finished.settings(finished.corpus(tmp_path / "source"))
    run, seen = plan_run(tmp_path / "run", settings), []
    assert run.num_shards == 3
    monkeypatch.setattr(threads, "threads_of_process", lambda: 12)
    monkeypatch.setattr(
        pkgutil,
        "resolve_name",
        lambda name: lambda run, unit, compute: seen.append(torch.get_num_threads()),
    )
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_unit, run, "embeddings", 0, Compute(workers=workers)).result()
    finally:
        torch.set_num_threads(before)
    assert seen == [each]

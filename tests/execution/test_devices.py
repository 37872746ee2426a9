"""What a machine lacks is said before a run starts."""

import pytest
import torch

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution.devices import check_device
from datamask.execution.pipeline import rebuild
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

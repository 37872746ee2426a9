"""What planning says about products that this processor computes slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.learning import learner
from datamask.planning.plan import plan_run


@pytest.mark.parametrize(
    ("matmul", "native", "is_told"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("auto", False, False)],
)
def test_slow_products_are_told_when_planned(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    matmul: Any,
    native: bool,
    is_told: bool,
) -> None:
    """With the measured factor, where bfloat16 is asked of a processor that lacks it."""
    assert learner.bfloat16_slowdown() > 0
    monkeypatch.setattr(learner, "bfloat16_slowdown", lambda: 7.9)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["one", "two", "three"]}), source)
    data = {"source": {"path": str(source)}, "embedding": {"method": "lexical"}}
    plan_run(tmp_path / "run", parse_settings(data), Compute(device="cpu", matmul=matmul))
    assert ("7.9 times as long" in caplog.text) == is_told

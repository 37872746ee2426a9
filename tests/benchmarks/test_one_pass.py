"""`benchmarks.one_pass`: its reference, and how often vectors are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import one_pass
from benchmarks.global_selection import planted


def test_reads_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R rounds read R + 3 times; one pass twice (it draws everything) and what it mispredicts."""
    monkeypatch.setattr(one_pass, "ROUNDS", {64: (1, 2, 3)})
    corpus = planted(50, 8)
    learnt, others = (
        one_pass.Side.of(corpus.features, corpus.quality, rows, tmp_path / name)
        for name, rows in (("learnt", np.arange(800)), ("unseen", np.arange(800, 1000)))
    )
    one_pass.compare(learnt, others, (64,), metric="disf", quality_weight=0.9)
    found = [row.split(" | ") for row in capsys.readouterr().out.splitlines()]
    assert [row[:4] for row in found[:2]] == [
        ["| disf", "0.9", "all", "one shard"],
        ["| disf", "0.9", "64", "1"],
    ]
    assert found[0][4:8] == ["100.00%", "2.00", "2.00", "1.00"]
    assert 2 <= float(found[1][5]) < float(found[1][6]) <= 3
    assert [(int(row[3][0]), float(row[5]), float(row[6])) for row in found[2:]] == [
        (rounds, rounds + 3, rounds + 3) for rounds in (2, 3)
    ]
    for row in found[:2]:
        assert 0 < float(row[8].rstrip("%")) < 30 and float(row[9].rstrip("% |")) > 50

"""`benchmarks.one_pass`: its reference, and how often vectors are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import one_pass
from benchmarks.global_selection import planted


@pytest.mark.slow
def test_reads_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass reads twice (all is drawn) and what it mispredicts; rounds also their outcome."""
    monkeypatch.setattr(one_pass, "ROUNDS", {64: (1, 3)})
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
    (rounds,) = found[2:]
    # The sample, the first round and the logits; from disk nearly all in the others, too.
    assert rounds[3] == "3" and 2.5 <= float(rounds[5]) <= 4.5 < 5.5 < float(rounds[6]) <= 7
    for row in found[:2]:
        assert 0 < float(row[8].rstrip("%")) < 30 and float(row[9].rstrip("% |")) > 50

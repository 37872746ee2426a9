"""Problems are reported together, shortened where many are alike, with the right exit status."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.malformed.commands import problems, run_main
from tests.malformed.inputs import ROWS, corpus, rebuild, setting


def test_all_problems_are_reported_together(tmp_path, capsys, monkeypatch):
    """Eleven problems of different kinds have one line each, and nothing is written."""
    source = corpus(tmp_path / "source", id=[f"0-{row}" for row in range(ROWS)])
    (source / "2.parquet").write_bytes(b"")
    (source / "3.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"id": ["x"], "score": [float("nan")]}), source / "4.parquet")
    (tmp_path / "s.csv").write_text("id,grade\n0-0,1\n")
    scores = [
        {"name": "edu", "kind": "column", "column": "score"},
        {"name": "one", "kind": "file", "path": str(tmp_path / "s.csv")},
        {"name": "two", "kind": "file", "path": "/nowhere.csv"},
    ]
    command = rebuild(
        tmp_path,
        quality__scores=json.dumps(scores),
        selection__metric="nowhere:Beauty",
        embedding__method="sentence-transformer",
        embedding__model="/nowhere",
        publication="{repository: a/b, license: mit}",
        compute__device="cuda:99",
    )
    assert run_main(["-q", *command]) == 2
    lines = problems(capsys)
    for fragment in (
        "2.parquet: truncated",
        "3.parquet: truncated",
        "4.parquet, column text: absent",
        "4.parquet, row 0, column score: score missing",
        "8 ids are not unique",
        "s.csv, column score: absent",
        "/nowhere.csv: no .parquet, .csv, .jsonl, .ndjson files found; check",
        "objective `nowhere:Beauty`: cannot be made",
        "embedding.model: no folder /nowhere; check the path",
        "HF_TOKEN: not set; export a token with write access to a/b",
        "compute.device: cuda:99 is set",
    ):
        assert sum(fragment in line for line in lines) == 1, (fragment, lines)
    assert len(lines) == 11, lines
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_reported_with_the_other_problems(tmp_path, capsys, monkeypatch):
    """Together with an unknown objective, before anything is written."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(100))
    command = setting(selection__metric="nowhere:Beauty")(tmp_path)
    assert run_main(["-q", *command]) == 2
    lines = problems(capsys)
    assert len(lines) == 2
    assert "GiB needed, 0.0 GiB free; free some, use another disk" in lines[1]
    assert not (tmp_path / "run").exists()


def test_many_problems_of_one_kind_are_ten_examples_a_count_and_a_file(
    tmp_path, capsys, monkeypatch
):
    """A planned run gets 40 other files: the main problem comes first, and a file lists all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = setting()(tmp_path)
    assert run_main(["-q", "plan", *command[1:]]) == 0
    other = tmp_path / "other"
    corpus(other)
    for number in range(40):
        pq.write_table(pa.table({"x": [1], "y": [2]}), other / f"x{number}.parquet")
    (other / "0.parquet").rename(other / "000.parquet")
    for number in range(12):
        (other / f"z{number}.parquet").write_bytes(b"")
    capsys.readouterr()
    assert run_main(["-q", *rebuild(tmp_path, source__path=other)]) == 2
    lines = problems(capsys)
    assert "run: planned with another source.path (" in lines[0]
    assert sum("truncated, or not a Parquet file" in line for line in lines) == 10
    assert "datamask: 2 more problems of this kind" in lines
    # Five columns differ in each of the 40: id, text and score are absent, x and y are more.
    absent = 40 * 5
    assert sum("give all files the same columns" in line for line in lines) == 10
    assert f"datamask: {absent - 10} more problems of this kind" in lines
    assert len(lines) == 1 + 11 + 11 + 1
    words = lines[-1].split()
    assert words[1:4] == ["all", str(1 + 12 + absent), "problems:"]
    listed = Path(words[-1]).read_text().splitlines()
    assert len(listed) == 1 + 12 + absent
    for number in range(40):
        assert sum(f"x{number}.parquet, column" in line for line in listed) == 3
        assert sum(f"x{number}.parquet has it" in line for line in listed) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_an_absent_device_is_reported_at_once(device, tmp_path, capsys):
    """Before the first stage."""
    assert run_main(["-q", *setting(compute__device=device)(tmp_path)]) == 2
    (line,) = problems(capsys)
    assert f"compute.device: {device} is set, but this machine has no CUDA device; use auto" in line
    assert not (tmp_path / "run" / "scores").exists()


def test_a_hub_that_does_not_answer_may_be_tried_again(tmp_path, capsys):
    """Status 75, and what to do instead."""
    model = setting(embedding__method="sentence-transformer", embedding__model="a/b")
    assert run_main(["-q", *model(tmp_path)]) == 75
    (line,) = problems(capsys)
    assert "embedding.model a/b: the Hub cannot be reached" in line
    assert "try again, or give a local folder" in line


def test_a_bug_is_reported_as_a_bug(tmp_path, capsys, monkeypatch):
    """After the traceback that a report needs, a line says so; status 70."""

    def slip(*_: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("datamask.planning.preview.cut", slip)
    assert run_main(["-q", *setting()(tmp_path)]) == 70
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("datamask: a bug in datamask (ZeroDivisionError: a slip)")


def test_a_closed_pipe_is_no_error():
    """`datamask settings | head -1` prints nothing on standard error."""
    command = [sys.executable, "-m", "datamask.cli.main", "settings"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""

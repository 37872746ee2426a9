"""`init`, `doctor`, `settings` and completion: the first minute, in processes of their own."""

import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import constants

from datamask.cli.main import cli
from datamask.config.loading import load_settings, parse_settings
from datamask.config.reference import descriptions
from datamask.errors import InputError
from datamask.execution import machine
from datamask.planning.first_settings import look, settings_text
from datamask.planning.plan import plan_run
from tests.hub.server import Hub
from tests.malformed.commands import run_main

TEXTS = [f"The river runs by mill {row}." for row in range(30)]
TOKEN = "hf_loopbackSecretToken"


def datamask(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "datamask.cli.main", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    paths = os.pathsep.join(filter(None, sys.path))
    given = {**kept, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, env=given, timeout=60
    )


def write(folder: Path, **columns: object) -> Path:
    """A source of one Parquet file."""
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "0.parquet")
    return folder


def odd_source(folder: Path) -> Path:
    """A source whose columns have names of their own."""
    return write(
        folder,
        doc_id=[f"d{row}" for row in range(30)],
        content=pa.array(TEXTS).dictionary_encode(),
        lang=["en"] * 30,
        edu_score=[row / 30 for row in range(30)],
        language_score=[1.0] * 30,
        Rating=[*range(30)],
    )


def test_init_writes_settings_that_a_run_accepts(tmp_path):
    """Columns, scores and sizes of the source; the plan finds nothing wrong; never overwritten."""
    source = odd_source(tmp_path / "source")
    done = datamask("init", "source", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "30 documents" in done.stdout and "datamask plan runs/mine" in done.stdout
    path = tmp_path / "datamask.yaml"
    settings, _ = load_settings(path)
    assert settings.source.path == str(source)
    columns = settings.source.columns
    assert (columns.text, columns.id, columns.language) == ("content", "doc_id", "lang")
    assert [(score.name, score.column) for score in settings.scores] == [
        ("edu_score", "edu_score"),
        ("rating", "Rating"),
    ]
    text = path.read_text()
    for comment in (
        "language_score (double)",
        "not found: dump, url",
        "scores: edu_score, Rating",
        "lambda",
    ):
        assert comment in text
    assert all(len(line) < 400 for line in text.splitlines())
    given = ("--config", path, "--set", "embedding.method=lexical", "--dry-run")
    assert run_main(["plan", str(tmp_path / "run"), *map(str, given)]) == 0
    assert run_main(["init", str(source), "-o", str(path)]) == 2
    assert path.read_text() == text


def test_init_counts_all_files_and_proposes_what_the_source_has(tmp_path, capsys):
    """Lines beside a table are named; a score that later rows lack is dropped there; no toxicity.

    A launch accepts the file, by a dry run.
    """
    folder = tmp_path / "source"
    columns: dict[str, object] = {
        "text": [f"a text of its own {row}" for row in range(3000)],
        "id": [f"d{row}" for row in range(3000)],
        "edu_score": [None if row > 2600 else row / 3000 for row in range(3000)],
        "toxicity_score": [0.5] * 3000,
    }
    write(folder, **columns)
    path = tmp_path / "my.yaml"
    assert run_main(["init", str(folder), "-o", str(path)]) == 0
    chosen, _ = load_settings(path)
    [score] = chosen.scores
    assert (score.column, score.missing) == ("edu_score", "drop")
    assert "399 without edu_score" in path.read_text()
    given = ("--config", str(path), "--set", "embedding.method=lexical", "--dry-run")
    assert run_main(["plan", str(tmp_path / "run"), *given]) == 0
    lines = [f'{{"id": "l{row}", "text": "line {row}", "edu_score": 1.5}}\n' for row in range(50)]
    (folder / "b.jsonl").write_text("".join(lines))
    capsys.readouterr()
    assert run_main(["init", str(folder), "-o", str(tmp_path / "both.yaml")]) == 0
    assert "3,000 documents" in (out := capsys.readouterr().out)
    assert "1 files more to convert" in out
    given = ("--config", str(tmp_path / "both.yaml"), "--set", "embedding.method=lexical")
    assert run_main(["plan", str(tmp_path / "run"), *given, "--dry-run"]) == 0
    assert "not checked" in capsys.readouterr().err


def test_the_command_that_init_prints_can_be_pasted(tmp_path, monkeypatch, capsys):
    """Also if the name of the file has a space."""
    monkeypatch.chdir(tmp_path)
    odd_source(tmp_path / "source")
    assert run_main(["init", "source", "-o", "my settings.yaml"]) == 0
    command = shlex.split(capsys.readouterr().out.split("next: datamask ")[1])
    assert run_main([*command, "--set", "embedding.method=lexical"]) == 0


def test_init_says_what_is_missing(tmp_path):
    """A source without texts cannot be used as it is; the file and the output say so."""
    proposal = look(str(write(tmp_path / "source", id=[1, 2], score=[0.1, 0.2])))
    (problem,) = proposal.problems
    assert "column text: absent" in str(problem)
    assert f"# TO DO: {problem}" in settings_text(proposal, "my.yaml")
    assert yaml.safe_load(settings_text(proposal, "my.yaml")) == proposal.settings


def test_init_copes_with_a_missing_vector_and_equal_names(tmp_path):
    """Planning names a document without an embedding; scores get names of their own."""
    given = {"chunk_id": ["a", "b"], "quality_score": [0.5, 0.1], "feature_arr": [None, [0.6, 0.8]]}
    proposal = look(str(write(tmp_path / "vectors", **given)))
    assert proposal.settings["embedding"] == {"dimension": 2}
    with pytest.raises(InputError, match=r"row 0.*feature_arr|feature_arr.*row 0"):
        plan_run(tmp_path / "run", parse_settings(proposal.settings))
    proposal = look(str(write(tmp_path / "s", text=["a", "a"], score=[0.1, 0.2])))
    assert not proposal.problems and any("file and row" in line for line in proposal.lines)
    columns = {"id": ["a", "b"], "text": ["one", "two"], "a-score": [0.1, 0.2], "a_score": [1.0, 2]}
    proposal = look(str(write(tmp_path / "scores", **columns)))
    scores = proposal.settings["quality"]["scores"]
    assert [score["column"] for score in scores] == ["a-score", "a_score"]
    assert len({score["name"] for score in scores}) == 2


def test_init_knows_published_features(tmp_path):
    """Layout and width are found."""
    source = write(tmp_path / "s", chunk_id=["a"], quality_score=[0.5], feature_arr=[[0.6, 0.8]])
    proposal = look(str(source))
    assert not proposal.problems
    assert proposal.settings["source"] == {"path": str(source), "layout": "features"}
    assert proposal.settings["embedding"] == {"dimension": 2}
    text = settings_text(proposal, "my.yaml")
    assert all(proposal.lines) and "embedded" not in text and "model" not in text
    numbers = write(tmp_path / "n", chunk_id=["a"], quality_score=[0.5], feature_arr=[0.6])
    (problem,) = look(str(numbers)).problems
    assert "column feature_arr: type double, needed a list of floats" in str(problem)


@pytest.mark.slow
def test_init_reads_the_hub(tmp_path):
    """A look at hf:// needs footers and a few rows."""
    source = odd_source(tmp_path / "source")
    with Hub(tmp_path / "hub", token=TOKEN) as hub:
        hub.add("org/corpus", {"data/0.parquet": (source / "0.parquet").read_bytes()})
        given = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN}
        path = "hf://datasets/org/corpus/data"
        done = datamask("init", path, "-o", "hub.yaml", cwd=tmp_path, **given)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "hub.yaml").read_text())["source"]["path"] == path


@pytest.mark.slow
def test_doctor_passes_a_machine_that_is_ready(tmp_path):
    """Every check in a line; the token is checked at the Hub and never shown."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "health").write_text("true")
    files = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    hub = Hub(tmp_path / "hub", token=TOKEN)
    with hub, HTTPServer(("127.0.0.1", 0), files) as prefect:
        threading.Thread(target=prefect.serve_forever).start()
        address = f"http://127.0.0.1:{prefect.server_port}/api"
        given = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "PREFECT_API_URL": address}
        done = datamask("doctor", tmp_path / "runs", cwd=tmp_path, **given)
        prefect.shutdown()
    assert done.returncode == 0, done.stdout
    names = [line.split()[1] for line in done.stdout.splitlines()]
    assert names == ["device", "disk", "Hub", "Prefect"]
    assert "token of" in done.stdout and TOKEN not in done.stdout


def test_doctor_fails_a_machine_that_is_not_in_bounded_time(tmp_path, monkeypatch, capsys):
    """A token that is wrong; servers that are silent or absent."""
    monkeypatch.setattr(machine, "SECONDS", 0.5)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with Hub(tmp_path / "hub", token=TOKEN) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        assert run_main(["doctor", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "export it as HF_TOKEN" in shown and "hf_wrong" not in shown
    monkeypatch.setenv("PREFECT_API_URL", "http://user:secret@127.0.0.1:9/api")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        started = time.monotonic()
        assert run_main(["doctor", str(tmp_path)]) == 1
    assert time.monotonic() - started < 20
    shown = capsys.readouterr().out
    states = {line.split()[1]: line.split()[0] for line in shown.splitlines()}
    assert (states["Hub"], states["Prefect"]) == ("warning", "failed")
    assert "secret" not in shown


def test_settings_shows_one_key_or_a_group(capsys):
    """Type, range, default and meaning; for an unknown key, those near it."""

    def shown(*arguments: str) -> list[str]:
        assert run_main(["settings", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    first, second = shown("selection.ratio")
    assert first == "selection.ratio = 0.1  (number > 0 and <= 1)"
    assert second == "    share of the source's documents to keep"
    assert shown("selection.init")[0].endswith("= uniform  (uniform | quality)")
    assert shown("compute.embedding_batch")[0].endswith("= none  (integer >= 1)")
    assert all(line.startswith(("source", "    ")) for line in shown("source"))
    assert any(line.startswith("quality.scores[].weight = 1.0") for line in shown("quality.scores"))
    assert shown() == "\n".join(descriptions().values()).split("\n")
    for wrong, near in (("selection.metrc", "selection.metric"), ("ratio", "selection.ratio")):
        assert run_main(["settings", wrong]) == 2
        assert f"did you mean `{near}`" in capsys.readouterr().err
    assert run_main(["settings", "xyzzy"]) == 2
    assert "lists them all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("more rerun", ["plain,rerun-failed"]),
        ("settings selection.met", ["plain,selection.method", "plain,selection.metric"]),
        ("rebuild runs --set compute.du", ["plain,compute.duckdb_memory"]),
        ("status ru", ["dir,ru"]),
    ],
)
def test_the_shell_completes(words, expected, monkeypatch, capsys):
    """Further commands, settings and folders."""
    monkeypatch.setenv("_DATAMASK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"datamask {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        cli.main([], prog_name="datamask")
    assert capsys.readouterr().out.splitlines() == expected
    assert "selection.metric" in descriptions()

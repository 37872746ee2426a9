"""The command line as a user meets it: what it makes, one-line errors, exit statuses."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.errors import RunError
from datamask.execution.pipeline import rebuild
from datamask.execution.sharing import share
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from tests.faults.comparison import contents
from tests.malformed.commands import run_main

pytestmark = pytest.mark.usefixtures("undrawn")

WORDS = ["river", "stone", "market", "window", "garden", "letter", "music", "bridge", "winter"]
WORDS += ["silver", "paper", "morning", "engine", "harbour", "forest", "copper", "signal"]


def datamask(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "datamask.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def here(*arguments: object) -> int:
    """Run the command in this process, which costs no import; its exit status."""
    return run_main([str(argument) for argument in arguments])


def text_corpus(folder: Path, rows: int = 120, files: int = 3) -> Path:
    """Parquet files of small English-looking texts in FineWeb's columns."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for file in range(files):
        ids = [f"doc-{file}-{row}" for row in range(rows // files)]
        texts = [
            "The " + " ".join(generator.choice(WORDS, generator.integers(20, 60))) + " of it."
            for _ in ids
        ]
        table = pa.table(
            {
                "text": texts,
                "id": ids,
                "dump": [f"dump-{file}"] * len(ids),
                "url": [f"https://www.site{row % 7}.org/{row}" for row in range(len(ids))],
                "language": ["en"] * len(ids),
                "token_count": [len(text.split()) for text in texts],
                "score": generator.standard_normal(len(ids)),
            }
        )
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=10)
    return folder


SMALL = ("embedding.method=lexical", "plan.rows_per_shard=40", "selection.steps=20")
SMALL += ("embedding.dimension=32", "report.map_documents=20")


def settings(source: Path, *more: str) -> list[str]:
    """`--set` arguments for a small run."""
    items = (f"source.path={source}", *SMALL, *more)
    return [part for item in items for part in ("--set", item)]


def test_help_answers_at_once() -> None:
    """No heavy import delays the help, the end of a rebuild with nothing to do, or a flow."""
    code = (
        "import sys, datamask.cli.main, datamask.execution.pipeline, datamask.report.warnings\n"
        "import datamask.analysis.frontier, datamask.report.evaluation\n"
        "heavy = {'torch', 'duckdb', 'sentence_transformers', 'vl_convert', 'sklearn', 'prefect'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert "rerun-failed" in datamask("--help").stdout


@pytest.mark.parametrize("command", ["", "plan", "sweep"])
def test_examples_in_the_help_are_lines_of_their_own(command: str) -> None:
    """As they are typed, each on one line."""
    shown = datamask(*command.split(), "--help").stdout
    examples = [line for line in shown.splitlines() if line.startswith("  datamask ")]
    assert examples and "\\b" not in shown
    assert shown.count("  datamask ") == len(examples)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A whole run through the command line: its root, its source and what was printed."""
    folder = tmp_path_factory.mktemp("cli")
    source = text_corpus(folder / "source")
    status, printed, terminal = in_a_terminal("rebuild", folder / "run", *settings(source))
    assert status == 0, terminal
    (folder / "terminal").write_text(terminal)
    return folder / "run", source, printed


def in_a_terminal(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and what a terminal got from standard error."""
    command = [sys.executable, "-m", "datamask.cli.main", *map(str, arguments)]
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=given) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the command has closed the terminal
            while part := os.read(ours, 65536):
                shown += part
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    return process.returncode, printed, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_a_terminal_shows_the_stage_at_work(finished: tuple[Path, Path, str]) -> None:
    """By name from the first second, with the logs above it."""
    shown = (finished[0].parent / "terminal").read_text()
    for stage in ("plan", "report"):
        assert re.search(rf"^{stage} +[━╸╺ ]+ 0:\d\d", shown, re.MULTILINE), shown
    assert re.search(r"INFO +embeddings: 3 of 3 done in 0:\d\d", shown)


def test_a_rebuild_ends_by_saying_where_things_are(finished: tuple[Path, Path, str]) -> None:
    """The table of terms and the paths; all of them exist."""
    root, _, printed = finished
    for name in ("report.html", "subset", "composition.duckdb"):
        assert str(root / name) in printed
        assert (root / name).exists()
    assert "top quality" in printed
    rows = sum(pq.read_metadata(path).num_rows for path in (root / "subset").glob("*.parquet"))
    assert rows == 12


def test_the_subset_is_made_of_rows_of_the_source(finished: tuple[Path, Path, str]) -> None:
    """Every selected row equals its source row in every source column, in the source's order."""
    root, source, _ = finished
    original = pq.read_table(source)
    subset = pq.read_table(root / "subset")
    assert subset.column_names == [*original.column_names, "quality", "logit", "shard"]
    position = {key: row for row, key in enumerate(original["id"].to_pylist())}
    rows = [position[key] for key in subset["id"].to_pylist()]
    assert rows == sorted(rows)
    assert subset.select(original.column_names).equals(original.take(rows))


def test_the_same_command_again_does_nothing(finished: tuple[Path, Path, str]) -> None:
    """Not one file changes."""
    root, source, _ = finished
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()}
    result = datamask("rebuild", root, *settings(source))
    assert result.returncode == 0, result.stderr
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()} == before
    assert "nothing to do" in result.stderr


def test_a_copy_gives_the_same_bytes_with_other_workers(
    finished: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """Same settings, input and seed: the same bytes with 3 workers and other batch sizes."""
    root, source, _ = finished
    more = ("compute.workers=3", "compute.embedding_chunk=7", "compute.duckdb_threads=1")
    assert here("rebuild", tmp_path / "run", *settings(source, *more)) == 0
    for folder in ("scores", "quality", "embeddings", "selection", "subset"):
        for path in sorted((root / folder).iterdir()):
            assert path.read_bytes() == (tmp_path / "run" / folder / path.name).read_bytes(), path


def test_status_names_what_is_left(
    finished: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A removed mask is missing, and what follows from it still is what it was."""
    root, _, _ = finished
    (root / "selection" / "00001.parquet").rename(tmp_path / "mask")
    assert here("status", root) == 0
    lines = capsys.readouterr().out.splitlines()
    (tmp_path / "mask").rename(root / "selection" / "00001.parquet")
    masks = next(line.split() for line in lines if line.startswith("selection"))
    assert masks[1:] == ["2", "0", "1", "00001"]
    assert "rerun-failed" in lines[-1]


def test_a_new_lambda_learns_again_and_embeds_nothing(
    finished: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """Stale means: exactly the stages that depend on the setting."""
    root, source, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(root, copy)
    before = {p: p.stat().st_ino for p in copy.glob("embeddings/*")}
    masks = {p: p.read_bytes() for p in copy.glob("selection/*")}
    time.sleep(0.01)
    assert here("rebuild", copy, *settings(source, "selection.quality_weight=0.9")) == 0
    assert {p: p.stat().st_ino for p in copy.glob("embeddings/*")} == before
    assert all(path.read_bytes() != data for path, data in masks.items())


def test_a_changed_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resume on other data names the file."""
    source = text_corpus(tmp_path / "source")
    assert here("plan", tmp_path / "run", *settings(source)) == 0
    pq.write_table(pq.read_table(source / "1.parquet").slice(1), source / "1.parquet")
    assert here("rebuild", tmp_path / "run", *settings(source)) == 2
    assert "1.parquet" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_is_the_same_in_an_ascii_locale(tmp_path: Path) -> None:
    """Settings that are no ASCII, in files and in the output; names that are none get one line."""
    source = text_corpus(tmp_path / "source", rows=12)
    (tmp_path / "søurce").mkdir()
    (tmp_path / "my.yaml").write_text("embedding: {prefix: 'frågå: '}\n", encoding="utf-8")
    given = ("--config", tmp_path / "my.yaml")
    assert here("plan", tmp_path / "of source", *given, *settings(source)) == 0
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "datamask.cli.main", "plan"]

    def plan(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, **ascii_only}
        full = [*command, *map(str, arguments)]
        return subprocess.run(full, capture_output=True, env=environment, check=False)

    before = (tmp_path / "of source" / "run.json").read_bytes()
    again = plan(tmp_path / "of source", *given, *settings(source))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "of source" / "run.json").read_bytes() == before
    shown = plan(tmp_path / "new", "--dry-run", *given, *settings(source))
    assert shown.returncode == 0 and shown.stdout.isascii(), shown.stderr
    for refused in (
        plan(tmp_path / "of søurce", *given, *settings(source)),
        plan(tmp_path / "new", *given, *settings(tmp_path / "søurce")),
    ):
        assert refused.returncode == 2
        (line,) = refused.stderr.decode().splitlines()
        assert "not UTF-8 in this locale" in line and "PYTHONUTF8=1" in line


def test_dry_run_prints_shards_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resolved settings, shards, disk; as JSON one object that gives the same settings again."""
    source = text_corpus(tmp_path / "source")
    command = ["plan", tmp_path / "run", "--dry-run", *settings(source)]
    assert here(*command) == 0
    shown = capsys.readouterr().out
    assert "rows_per_shard: 40" in shown
    assert re.search(r"^00002 +40 ", shown, re.M)
    assert "embeddings" in shown
    assert here(*command, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(shard["documents"] for shard in found["shards"]) == 120
    assert [shard["shard"] for shard in found["shards"]] == [0, 1, 2]
    assert parse_settings(found["settings"]).plan.rows_per_shard == 40
    assert found["disk"]["embeddings"] > 0
    assert here(*command, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["bytes"]) for row in rows] == [shard["bytes"] for shard in found["shards"]]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["table", "json"])
def test_dry_run_without_the_hub_prints_what_is_known(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards of a local source do not depend on a model's address; then the problem is told."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    given = settings(text_corpus(tmp_path / "source"), "embedding.method=sentence-transformer")
    command = ["plan", tmp_path / "run", "--dry-run", "--format", form, *given]
    assert here(*command, "--set", "embedding.model=a/b") == 75
    shown = capsys.readouterr()
    if form == "json":
        assert [shard["documents"] for shard in json.loads(shown.out)["shards"]] == [40, 40, 40]
    else:
        assert re.search(r"^00002 +40 ", shown.out, re.M)
    assert shown.err.splitlines()[-1].startswith("datamask: embedding.model a/b: the Hub cannot be")
    assert here("plan", tmp_path / "run", "--dry-run", "--set", "seed=7") == 2
    shown = capsys.readouterr()
    assert "seed: 7" in shown.out and shown.err.startswith("datamask: source.path: required")


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Bare `datamask` is a question, not an error."""
    assert here() == 0
    shown = capsys.readouterr()
    assert "Usage: datamask" in shown.out and "rebuild" in shown.out and not shown.err


def test_set_changes_the_settings_that_a_run_has(
    finished: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the source or the model being named again, and nothing else changes."""
    root, _, _ = finished
    shutil.copytree(root, tmp_path / "run")
    before = json.loads((root / "run.json").read_text())["settings"]
    embedded = {p: p.stat().st_ino for p in tmp_path.glob("run/embeddings/*")}
    assert here("rebuild", tmp_path / "run", "--set", "selection.quality_weight=0.2") == 0
    assert here("report", tmp_path / "run", "--set", "report.map_documents=50") == 0
    # A launch that is refused, here for its engine, keeps nothing.
    more = ("--set", "selection.ratio=0.5", "--set", "compute.engine=ray")
    assert here("rebuild", tmp_path / "run", *more) == 2
    after = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    before["selection"]["quality_weight"], before["report"]["map_documents"] = 0.2, 50
    assert after == before
    assert {p: p.stat().st_ino for p in tmp_path.glob("run/embeddings/*")} == embedded
    assert here("plan", tmp_path / "run", "--dry-run", "--set", "selection.ratio=0.2") == 0
    assert "quality_weight: 0.2" in capsys.readouterr().out


def test_a_report_that_fails_changes_no_settings(
    finished: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """The report needs the masks; without them run.json stays what it was, byte for byte."""
    root, _, _ = finished
    shutil.copytree(root, tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    (tmp_path / "run" / "selection" / "00000.parquet").unlink()
    (tmp_path / "run" / "composition.duckdb").unlink()
    assert here("report", tmp_path / "run", "--set", "report.map_documents=50") == 2
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_run_from_another_shares_what_is_the_same(
    finished: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """Equal embeddings are one file; the result is a fresh run's and outlives the other run."""
    root, source, _ = finished
    old, new, fresh = (tmp_path / name / "run" for name in ("old", "new", "fresh"))
    shutil.copytree(root, old)
    changes = ("selection.quality_weight=0.2", "selection.steps=10")
    assert here("rebuild", fresh, *settings(source, *changes)) == 0
    more = [part for item in changes for part in ("--set", item)]
    assert here("rebuild", new, "--from", old, *more) == 0
    shared = [p.relative_to(old) for p in sorted(old.glob("embeddings/*.parquet"))]
    assert shared
    for name in shared:
        assert (old / name).stat().st_ino == (new / name).stat().st_ino
    # The corrupt file is renamed, not changed: the other run keeps its file.
    path = new / "quality" / "00001.parquet"
    (new / "checksums" / "quality" / "00001.parquet.sha256").unlink()
    assert here("verify", new) == 2
    assert not path.exists()
    assert here("verify", old) == 0
    shutil.rmtree(old)
    assert here("rebuild", new) == 0
    assert here("verify", new) == 0
    assert contents(new) == contents(fresh)


def test_a_run_from_another_on_another_disk_is_a_copy(
    finished: tuple[Path, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no link can be made the bytes are the same, and a URL is refused in one line."""
    root, _, _ = finished

    def refused(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    run = plan_run(tmp_path / "run", None, origin=open_run(root))
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        share(open_run(root), run)
    assert not run.remaining("embeddings")
    copied = {name: found for name, found in contents(tmp_path / "run").items() if "/" in name}
    assert copied.items() <= contents(root).items()
    with pytest.raises(RunError, match=r"^s3://somewhere/run: only folders of this"):
        rebuild("s3://somewhere/run", origin=root)


def opened(url: str, host: str = "") -> tuple[int, bytes]:
    """Status and body of a GET."""
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_are_served_on_loopback_only(finished: tuple[Path, Path, str]) -> None:
    """Report, pictures and logs; no other file, no other host; Ctrl-C ends it."""
    root, _, _ = finished
    command = [sys.executable, "-u", "-m", "datamask.cli.main", "open", str(root)]
    command += ["--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        server = address.removesuffix("/report.html")
        assert server.startswith("http://127.0.0.1:")
        report = (root / "report.html").read_bytes()
        assert opened(address) == opened(server) == (200, report)
        picture = next((root / "pictures").iterdir())
        assert opened(f"{server}/pictures/{picture.name}") == (200, picture.read_bytes())
        log = next((root / "logs").rglob("*.log"))
        assert opened(f"{server}/{log.relative_to(root)}") == (200, log.read_bytes())
        outside = (
            "run.json",
            "../cli/run/report.html",
            "%2e%2e/run/report.html",
            "none.html",
            "//x",
        )
        assert {opened(f"{server}/{name}")[0] for name in outside} == {404}
        assert opened(address, host="attacker.example")[0] == 403
        assert opened(address, host="localhost")[0] == 200, "as for port 80"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout.read().strip() == "ended"


def test_open_shows_the_report_in_the_browser(
    finished: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The browser of the user gets the report's address; without one, the path is printed."""
    root, _, _ = finished
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    code = [sys.executable, "-m", "datamask.cli.main", "open", str(root)]
    for name, shown in ((f"{browser} %s", "file://"), ("/nonexistent %s", "no browser here")):
        environment = {**os.environ, "BROWSER": name}
        done = subprocess.run(code, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.startswith(shown), done.stderr
    assert (tmp_path / "opened").read_text().strip() == (root / "report.html").as_uri()
    assert here("open", root, "--serve", "--host", "0.0.0.0") == 2
    assert "not a loopback address" in capsys.readouterr().err
    assert here("plan", tmp_path / "run", *settings(text_corpus(tmp_path / "source"))) == 0
    assert here("open", tmp_path / "run") == 2
    assert "no report yet" in capsys.readouterr().err

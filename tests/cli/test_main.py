"""The command line as a user meets it: what it makes, one-line errors, exit statuses."""

import csv
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import Later, cli
from datamask.config.loading import parse_settings
from datamask.errors import RunError
from datamask.planning.applying import settings_to_apply
from datamask.runs.opening import open_run, run_exists
from tests.cli.commands import here, settings, text_corpus

pytestmark = pytest.mark.usefixtures("undrawn")


def test_help_answers_at_once():
    """The help imports no library but click; nothing heavy delays a rebuild or a flow."""
    code = (
        "import sys\n"
        "from datamask.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print(sorted({'numpy', 'pyarrow', 'pydantic', 'pydantic_core'} & set(sys.modules)))\n"
        "import datamask.cli.rebuilding, datamask.execution.pipeline, datamask.report.answer\n"
        "heavy = {'torch', 'duckdb', 'sentence_transformers', 'vl_convert', 'sklearn', 'prefect'}\n"
        "print(sorted((heavy | {'fsspec', 'asyncio', 'scipy'}) & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-2:] == ["[]", "[]"]


def test_the_help_of_all_commands_has_the_first_line_of_each():
    """That help is written without importing the commands."""
    later = [command for command in cli.commands.values() if isinstance(command, Later)]
    lines = {command.name: command.short_help for command in later}
    assert len(lines) > 15
    assert lines == {each.name: each.loaded().help.splitlines()[0] for each in later}


def test_what_needs_no_learner_does_not_import_it(finished):
    """A relaunch with nothing to do, `status`, a dry run of a new run, and a run without vectors.

    A relaunch makes no Arrow arrays either, with which pandas would be imported.
    """
    root, source, _ = finished
    planning = ["plan", f"{root}-new", "--dry-run", *settings(source)]
    best = ["rebuild", f"{root}-best", *settings(source, "selection.method=top_quality")]
    commands = [["rebuild", str(root)], ["status", str(root)], planning, best]
    code = (
        "import json, sys\n"
        "from datamask.cli.main import cli\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    cli(['--quiet', *command], standalone_mode=False)\n"
        "    heavy = {'torch', 'scipy', 'sentence_transformers', 'vl_convert', 'sklearn'}\n"
        "    heavy |= {'prefect', 'huggingface_hub', 'pandas'}\n"
        "    print('imported', sorted(heavy & set(sys.modules)))\n"
    )
    given = [sys.executable, "-c", code, json.dumps(commands)]
    printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    lines = [line for line in printed.splitlines() if line.startswith("imported")]
    assert lines == ["imported []"] * 2 + ["imported ['pandas']"] * 2


def test_the_help_lists_twelve_commands_and_one_of_them_the_others():
    """Every command is in one of the two lists, and none in both."""

    def listed(*arguments: str) -> set[str]:
        after = CliRunner().invoke(cli, arguments).stdout.partition("Commands:")[2]
        return {line.split()[0] for line in after.splitlines() if line[:3].strip()}

    first, others = listed("--help"), listed("more")
    assert len(first) <= 12 and first.isdisjoint(others)
    assert first | others == set(cli.commands)


@pytest.mark.parametrize("command", ["", "plan", "sweep"])
def test_examples_in_the_help_are_lines_of_their_own(command):
    """As they are typed, each on one line."""
    shown = CliRunner().invoke(cli, [*command.split(), "--help"]).stdout
    examples = [line for line in shown.splitlines() if line.startswith("  datamask ")]
    assert examples and "\\b" not in shown
    assert shown.count("  datamask ") == len(examples)


def test_a_terminal_shows_the_stage_at_work(finished):
    """By name from the first second, with the logs above it."""
    shown = (finished[0].parent / "terminal").read_text()
    for stage in ("plan", "report"):
        assert re.search(rf"^{stage} +[━╸╺ ]+ .*\d:\d\d", shown, re.MULTILINE), shown
    assert re.search(r"INFO +embeddings: 3 of 3 done in 0:\d\d", shown)


def test_the_same_command_again_does_nothing(finished, caplog):
    """Not one file changes."""
    root, source, _ = finished
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()}
    caplog.set_level(logging.INFO)
    assert here("rebuild", root, *settings(source)) == 0
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()} == before
    assert "nothing to do" in caplog.text


def test_status_names_what_is_left(finished, tmp_path, capsys):
    """A removed mask is missing, and what follows from it still is what it was."""
    root, _, _ = finished
    (root / "selection" / "00001.parquet").rename(tmp_path / "mask")
    assert here("status", root) == 0
    lines = capsys.readouterr().out.splitlines()
    (tmp_path / "mask").rename(root / "selection" / "00001.parquet")
    masks = next(line.split() for line in lines if line.startswith("selection"))
    assert masks[1:] == ["2", "0", "1", "00001"]
    assert "rerun-failed" in lines[-1]


def test_status_of_a_finished_run_has_the_funnel_and_the_report(finished, tmp_path, capsys):
    """Documents and tokens after each step, as the subset has them; no document is read again."""
    _, source, _ = finished
    root = Path(shutil.copytree(finished[0], tmp_path / "run"))
    for path in (root / "documents").glob("*.parquet"):
        with path.open("r+b") as file:
            file.write(bytes(1000))  # the footers are as they were
    assert here("status", root) == 0
    lines = capsys.readouterr().out.splitlines()
    subset = pq.read_table(root / "subset", columns=["token_count"])["token_count"].to_pylist()
    everything = pq.read_table(source, columns=["token_count"])["token_count"].to_pylist()
    for step, tokens in (("source", everything), ("selected", subset)):
        cells = next(line.split() for line in lines if line.startswith(f"{step} "))
        assert cells[1:3] == [f"{len(tokens)}", f"{sum(tokens):,d}"]
    assert lines[-1] == f"finished; report: {root}/report.html"
    with pytest.raises(RunError):
        settings_to_apply(open_run(root))
    assert any(line.startswith("mask_model: there is none") for line in lines)


def test_an_empty_name_is_not_the_current_folder(finished, tmp_path, monkeypatch):
    """A run's folder from a variable that is not set is refused, by a parameter of flows too."""
    monkeypatch.chdir(tmp_path)
    for name in ("", " "):
        assert here("plan", name, *settings(finished[1])) == 2
        with pytest.raises(RunError):
            run_exists(name)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_run_is_the_same_in_an_ascii_locale(tmp_path):
    """Settings beyond ASCII, in files and in the output; names that are not text get one line."""
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


def test_dry_run_prints_shards_and_writes_nothing(tmp_path, capsys):
    """The answer, shards and disk, settings if asked for; as JSON one object that has them all."""
    source = text_corpus(tmp_path / "source")
    command = ["plan", tmp_path / "run", "--dry-run", *settings(source)]
    assert here(*command) == 0
    shown = capsys.readouterr().out
    assert "No problem" in shown.splitlines()[0] and "12 would be selected" in shown.splitlines()[1]
    assert re.search(r"^00002 +40 ", shown, re.M) and "rows_per_shard: 40" not in shown
    assert here(*command, "--settings") == 0
    assert "rows_per_shard: 40" in capsys.readouterr().out
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
def test_dry_run_without_the_hub_prints_what_is_known(form, tmp_path, capsys, monkeypatch):
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
    assert here("plan", tmp_path / "run", "--dry-run", "--settings", "--set", "seed=7") == 2
    shown = capsys.readouterr()
    assert "seed: 7" in shown.out and shown.err.startswith("datamask: source.path: required")


def test_without_a_command_there_is_help(capsys):
    """Bare `datamask` is a question, not an error."""
    assert here() == 0
    shown = capsys.readouterr()
    assert "Usage: datamask" in shown.out and "rebuild" in shown.out and not shown.err


def test_set_changes_the_settings_that_a_run_has(finished, tmp_path, capsys):
    """Without the source or the model being named again, and nothing else changes."""
    root, _, _ = finished
    shutil.copytree(root, tmp_path / "run")
    before = json.loads((root / "run.json").read_text())["settings"]
    embedded = {p: p.stat().st_ino for p in tmp_path.glob("run/embeddings/*")}
    assert here("rebuild", tmp_path / "run", "--set", "selection.quality_weight=0.2") == 0
    # A launch that is refused, here for its engine, keeps nothing.
    more = ("--set", "selection.ratio=0.5", "--set", "compute.engine=ray")
    assert here("rebuild", tmp_path / "run", *more) == 2
    after = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    before["selection"]["quality_weight"] = 0.2
    assert after == before
    assert {p: p.stat().st_ino for p in tmp_path.glob("run/embeddings/*")} == embedded
    changed = ("--settings", "--set", "selection.ratio=0.2")
    assert here("plan", tmp_path / "run", "--dry-run", *changed) == 0
    assert "quality_weight: 0.2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["report", "evaluate", "sweep --over selection.ratio=0.2"], ids=lambda text: text[:6]
)
def test_settings_of_other_stages_are_refused(finished, capsys, command):
    """They would make other masks; the command that changes them is named."""
    name, *more = command.split()
    assert here(name, finished[0], *more, "--set", "selection.ratio=0.5") == 2
    assert "`datamask rebuild`" in capsys.readouterr().err


def test_a_report_needs_the_masks(finished, tmp_path):
    """Without them it is refused."""
    root, _, _ = finished
    shutil.copytree(root, tmp_path / "run")
    assert here("report", tmp_path / "run") == 0
    (tmp_path / "run" / "selection" / "00000.parquet").unlink()
    (tmp_path / "run" / "composition.duckdb").unlink()
    assert here("report", tmp_path / "run") == 2

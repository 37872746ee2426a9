"""Names and texts that hold escape sequences reach the terminal as visible escapes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import finished
from tests.malformed.commands import run_main

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\r[red]"
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
"""What a terminal obeys; a pseudo-terminal itself writes \\r\\n for a line feed."""
DATAMASK = [sys.executable, "-m", "datamask.cli.main"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a small corpus whose file, columns, groups and ids are hostile."""
    folder = tmp_path_factory.mktemp("terminal")
    source = finished.corpus(folder / "source")
    for number, path in enumerate(sorted(source.iterdir())):
        table = pq.read_table(path)
        names = [name + EVIL if name in ("id", "edu") else name for name in table.column_names]
        table = table.rename_columns(names)
        for column in ("language", "dump", f"id{EVIL}"):
            place = table.column_names.index(column)
            values = [f"{value}{EVIL}" for value in table[column].to_pylist()]
            table = table.set_column(place, column, pa.array(values))
        pq.write_table(table, source / f"{number}{EVIL}.parquet", row_group_size=12)
        path.unlink()
    settings = {
        "source": {"path": str(source), "columns": {"id": f"id{EVIL}"}},
        "quality": {"scores": [{"name": "edu", "kind": "column", "column": f"edu{EVIL}"}]},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"ratio": 0.25, "steps": 5},
    }
    (folder / "good.yaml").write_text(json.dumps(settings))
    settings["source"]["columns"]["text"] = f"absent{EVIL}"  # type: ignore[index]
    (folder / "bad.yaml").write_text(json.dumps(settings))
    return folder


def on_terminal(*arguments: object) -> str:
    """All that a command writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*DATAMASK, *map(str, arguments)], stdout=theirs, stderr=theirs, env=environment()
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 65536):
            written += block
    except OSError:
        pass  # the other end is closed
    process.wait()
    os.close(ours)
    return written.decode()


def in_pipe(*arguments: object) -> str:
    """All that a command writes to a pipe, its standard error too."""
    command = [*DATAMASK, *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), check=False
    )
    return done.stdout.decode()


def environment() -> dict[str, str]:
    """Without charts, which take long to draw."""
    undrawn = Path(__file__).parents[1] / "undrawn"
    paths = [str(undrawn), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.slow
def test_no_command_sends_names_to_be_obeyed(config):
    """Commands that show hostile names, in a pipe and on a terminal, show them as escapes."""
    run, good = config / "run", config / "good.yaml"
    in_pipe("rebuild", run, "--config", good)
    query = "SELECT id, language FROM documents ORDER BY id LIMIT 3"
    damaged = next((config / "source").iterdir())
    commands: list[tuple[object, ...]] = [
        ("plan", config / "new", "--config", good, "--dry-run", "--settings"),
        ("plan", config / "new", "--config", config / "bad.yaml"),
        ("query", run, query),
        ("query", run, f'SELECT id AS "{EVIL}" FROM documents LIMIT 1'),
        ("status", config / f"absent{EVIL}"),
        ("rebuild", run, "--set", f"source.columns.id={EVIL}"),
        ("init", config / "source", "-o", config / f"new{EVIL}.yaml"),
    ]
    said: dict[object, str] = {("pipe", command): in_pipe(*command) for command in commands}
    said |= {("terminal", command): on_terminal(*command) for command in commands[1:4]}
    logs = {path: path.read_text() for path in (run / "logs").rglob("*.log")}
    damaged.write_bytes(b"PAR1 no longer")
    said["damaged"] = in_pipe("plan", config / "new", "--config", good)
    obeyed = {key: OBEYED.findall(text) for key, text in {**said, **logs}.items()}
    assert not {key: found for key, found in obeyed.items() if found}
    hidden = [key for key, text in said.items() if "]0;owned" not in text]
    assert not hidden


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_data_in_a_file_is_unchanged(config, capfd):
    """CSV and JSON that a program reads have the characters of the source."""
    run = config / "run"
    if not run.exists():
        assert run_main(["rebuild", str(run), "--config", str(config / "good.yaml")]) == 0
    sql = "SELECT language FROM documents ORDER BY language LIMIT 1"
    for form in ("csv", "json"):
        command = ["query", str(run), sql, "--format", form]
        capfd.readouterr()
        assert run_main(command) == 0
        text = capfd.readouterr().out
        row = json.loads(text)["language"] if form == "json" else text
        assert f"de{EVIL}" in row
        assert not OBEYED.findall(on_terminal(*command))

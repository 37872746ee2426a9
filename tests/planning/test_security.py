"""What a hostile corpus, data folder or server can do: nothing beyond the run it is in.

Each attack is real: the payload would leave a mark if it ran, the server does quote the token it
was sent, the names would leave the folder or end a statement if anything took them for more than
data.
"""

from __future__ import annotations

import ast
import http.server
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import open_composition
from datamask.analysis.query import run_query
from datamask.cli.main import main
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, PublicationError, RunError, SettingsError
from datamask.execution import pipeline
from datamask.objectives.weighted import load_objective
from datamask.planning.plan import plan_run
from datamask.runs import stages
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.opening import run_storage
from datamask.runs.run import Run
from tests import finished
from tests.hub.runs import finished_run
from tests.hub.server import Fault, Hub
from tests.publishing.conftest import TOKEN

PROJECT = Path(__file__).parents[2]


def texts_of(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The content of every file below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


# Tokens


class Parrot(http.server.BaseHTTPRequestHandler):
    """A server that refuses everything and quotes what it was sent, the token too."""

    heard: list[str]
    status = 403

    def answer(self) -> None:
        """Refuse."""
        sent = self.headers.get("Authorization", "none")
        self.heard.append(sent)
        body = json.dumps({"error": f"no entry with {sent}"}).encode()
        self.send_response(self.status)
        self.send_header("X-Error-Message", f"no entry with {sent}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_PUT = answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def parrot() -> Iterator[tuple[str, list[str]]]:
    """The address of such a server, and the tokens it was sent."""
    heard: list[str] = []
    handler = type("OneParrot", (Parrot,), {"heard": heard})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()


def test_no_answer_of_a_server_brings_the_token_to_the_terminal(
    parrot: tuple[str, list[str]], tmp_path: Path
) -> None:
    """Source, model and repository on a Hub that quotes the token: nothing printed or kept has it.

    In a process of its own, because the client reads the Hub's address when it is imported.
    """
    address, heard = parrot
    items = (
        "source.path=hf://datasets/a/b",
        "embedding.model=a/b",
        "publication={repository: a/b, license: mit}",
    )
    given = [part for item in items for part in ("--set", item)]
    command = [sys.executable, "-m", "datamask.cli.main", "rebuild", str(tmp_path / "run"), *given]
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"),
        "HF_DEBUG": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert any(TOKEN in sent for sent in heard), "the server was never sent the token"
    assert "no entry with Bearer ***" in done.stderr
    assert "check the address, and that HF_TOKEN may read it" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    for path, content in texts_of(tmp_path):
        assert TOKEN.encode() not in content, path


def test_a_failed_publication_keeps_the_token_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the exception's whole chain, our most talkative log, or any file of the run."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "datamask")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = finished_run(tmp_path / "run")
    with Hub(tmp_path / "hub", token=TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        server.faults.append(Fault("commit", status=403, message=f"{TOKEN} may not", times=9))
        with pytest.raises(PublicationError, match=r"\*\*\* may not") as caught:
            pipeline.run_stage(run, "publication", Compute())
    told = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in told
    assert TOKEN not in caplog.text
    kept = dict(texts_of(tmp_path / "run"))
    assert any(path.suffix == ".log" for path in kept)
    for path, content in kept.items():
        assert TOKEN.encode() not in content, path
    copy = pickle.loads(pickle.dumps(caught.value))  # as between a worker and its task
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"source": {"path": "s3://ada:hunter2@bucket/corpus"}},
        {"quality": {"scores": [{"kind": "file", "path": "https://hunter2@host/scores.csv"}]}},
        {"publication": {"repository": "a/b", "license": "mit", "token": "hunter2"}},
        {"publication": {"repository": "a/b", "license": "mit", "hunter": {"token": "hunter2"}}},
    ],
)
def test_secrets_in_settings_are_refused_and_not_repeated(settings: dict[str, Any]) -> None:
    """Settings are recorded and shown on the card, so no secret may enter them."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(settings)
    assert "hunter2" not in str(caught.value)


SECRET_URLS = (
    "https://ada:hunter2@host/x.parquet",
    "https://ada:hunt/hunter2@host/x.parquet",
    "zip://x.parquet::https://ada:hunter2@host/x.zip",
    "simplecache::s3://key:hunter2@bucket/x",
    "ada+sftp://hunter2@host/x",
    "s3://bucket/x.parquet?X-Amz-Credential=a&X-Amz-Signature=hunter2",
    "s3://bucket/x.parquet?a=b&X-Amz-Security-Token=hunter2",
    "https://host/x.parquet?sv=1&sig=hunter2",
    "https://host/x.parquet?%73ig=hunter2",
    "https://host/x.parquet?Expires=1;Signature=hunter2",
    "zip://x::https://host/x.zip?token=hunter2",
    "hf://datasets/a/b?access_token=hunter2",
    "https://host/x?api_key=hunter2",
    "https://host/x?Password=hunter2#part",
    "abfs://container:hunter2@account/x",
)
PLACES = (
    "source.path={}",
    "source.tokenizer={}",
    "embedding.model={}",
    "publication.citation={}",
    "publication.repository={}",
    "seed={}",
    "sorce.path={}",
    "quality.scores=[{{name: a, kind: file, path: '{}'}}]",
    "selection.more_terms=[{{name: disf, weight: 1, options: {{deep: [{{path: '{}'}}]}}}}]",
    "source.path={}: [",
)


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_of_a_url_gets_past_the_settings(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Every kind of secret in every kind of setting: refused, and printed and written nowhere."""
    source = finished.corpus(tmp_path / "source")
    for url in SECRET_URLS:
        given = ["--set", f"source.path={source}", "--set", place.format(url)]
        command = ["datamask", "rebuild", str(tmp_path / "run"), *given]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = "".join(capsys.readouterr())
        assert ended.value.code == 2, (url, shown)
        assert "hunter2" not in shown, shown
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", SECRET_URLS)
def test_no_secret_gets_into_the_place_of_a_run(url: str) -> None:
    """A run's own URL is in every log line."""
    with pytest.raises(RunError) as caught:
        run_storage(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "abfs://container@account.dfs.core.windows.net/corpus/*.parquet",
        "hf://datasets/a/b@main/data",
        "hf://datasets/a/b@refs%2Fconvert%2Fparquet/data/*-?.parquet",
        "https://host:8080/a@b/x.parquet?download=true&monkey=1",
        "https://[::1]:8080/key=1/token=2/x.parquet",
        "s3://bucket/a:b@c/x-[0-9].parquet",
        "zip://a/b@c::https://host/x.zip",
    ],
)
def test_addresses_without_a_secret_are_accepted(url: str) -> None:
    """A container, a revision, a port and a partition are no secrets, and are shown as they are."""
    assert parse_settings({"source": {"path": url}}).source.path == url
    assert str(SettingsError(f"{url}: no such file")) == f"{url}: no such file"


def test_the_token_of_the_environment_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's slip such as --set embedding.prefix=$HF_TOKEN is not recorded."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(SettingsError) as caught:
        parse_settings({"embedding": {"prefix": f"{TOKEN}: "}})
    assert TOKEN not in str(caught.value)


# Pickle


class Payload:
    """What makes a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def planned(root: Path, source: Path, **groups: object) -> Run:
    """A planned run with everything before the embeddings done."""
    run = plan_run(root, finished.settings(source, **groups))
    for stage in ("scores", "quality"):
        pipeline.run_stage(run, stage, Compute())
    return run


def test_a_pickle_in_a_checkpoint_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Arrays of objects where a killed shard left vectors: the shard is embedded as if new."""
    source = finished.corpus(tmp_path / "source")
    run, plain = (planned(tmp_path / name, source) for name in ("run", "plain"))
    compute = Compute(embedding_chunk=8)
    pipeline.run_stage(plain, "embeddings", compute)
    mark = tmp_path / "mark"
    poison = np.array([Payload(mark)] * 2, dtype=object)
    read = []
    load = Checkpoints.load

    def poisoned(checkpoints: Checkpoints, name: str) -> Any:
        path = checkpoints.folder / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, ids=poison, vectors=poison)
        read.append(path)
        return load(checkpoints, name)

    monkeypatch.setattr(Checkpoints, "load", poisoned)
    pipeline.run_stage(run, "embeddings", compute)
    assert read and not mark.exists()
    assert "damaged checkpoint" in caplog.text
    for shard in range(run.num_shards):
        one, other = (r.path("embeddings", shard).read_bytes() for r in (run, plain))
        assert one == other
    with np.load(_poisoned_file(tmp_path, poison), allow_pickle=True) as kept:
        assert len(kept["ids"]) == 2
    assert mark.exists(), "the payload is harmless: the test would see nothing"


def _poisoned_file(folder: Path, poison: np.ndarray) -> Path:
    path = folder / "poison.npz"
    np.savez(path, ids=poison)
    return path


def test_a_pickle_in_the_metadata_of_a_source_is_not_run(tmp_path: Path) -> None:
    """Arrow once unpickled extension types that a file brought (CVE-2023-47248)."""
    source, mark = finished.corpus(tmp_path / "source"), tmp_path / "mark"
    bring = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload(mark)),
    }
    for path in source.iterdir():
        table = pq.read_table(path)
        fields = [f.with_metadata(bring) if f.name == "dump" else f for f in table.schema]
        pq.write_table(table.cast(pa.schema(fields)), path)
    assert pq.read_metadata(path).metadata, "the file carries Arrow's own schema"
    finished.finish(tmp_path / "run", finished.settings(source), last="subset")
    assert not mark.exists()


def calls(folder: Path) -> Iterator[tuple[Path, str, ast.Call]]:
    """All calls in the Python files of a folder, with the dotted name of what is called."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, ast.unparse(node.func), node


def test_nothing_that_unpickles_or_evaluates_is_called() -> None:
    """In the library, the tasks and the flows; np.load only without pickle, text only as UTF-8."""
    forbidden = {
        *("eval", "exec", "pickle.load", "pickle.loads", "joblib.load", "torch.load"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"),
        *("cloudpickle.load", "cloudpickle.loads", "marshal.loads", "shelve.open"),
    }
    loads = 0
    for folder in ("datamask", "tasks", "flows"):
        for path, name, node in calls(PROJECT / folder):
            assert name not in forbidden, f"{path}:{node.lineno}: {name}"
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert options.get("shell") != "True", f"{path}:{node.lineno}"
            method = name.rpartition(".")[2]
            mode = [*map(ast.unparse, node.args), options.get("mode", ""), ""]
            if method in ("read_text", "write_text") or (
                name.endswith(("path.open", "temporary.open")) and "b" not in mode[0]
            ):
                assert options.get("encoding") == "'utf-8'", f"{path}:{node.lineno}: {name}"
            if name in ("np.load", "numpy.load"):
                loads += 1
                assert options.get("allow_pickle") == "False", f"{path}:{node.lineno}"
    assert loads, "checkpoints are read somewhere: this test looks in the wrong place"


# Names and values from data

HOSTILE = [
    "../../outside",
    "/etc/passwd",
    "..",
    "a/b\\c",
    "'; drop table documents; --",
    "\"; attach '/tmp/x' as x; --",
    "$quality {where} %s",
    "line\nbreak",
    "nul\0byte",
    "plain",
]
ID, TEXT, SCORE, DUMP = "id'; drop table ids; --", 'te"xt', "sc'ore\" = 1 --", "../du'mp"
DOCUMENTS = 40


def hostile_corpus(folder: Path) -> pa.Table:
    """Two files whose names, columns and values are all meant to be taken for something else."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    tables = []
    for file in range(2):
        names = [HOSTILE[row % len(HOSTILE)] for row in range(DOCUMENTS)]
        columns = {
            ID: [f"{name}/{file}-{row}" for row, name in enumerate(names)],
            TEXT: [" ".join(generator.choice(finished.WORDS, 20)) for _ in names],
            SCORE: generator.standard_normal(DOCUMENTS),
            DUMP: names,
            "language": names[::-1],
            "url": [f"https://x';drop--{row % 3}.org/{names[row]}" for row in range(DOCUMENTS)],
        }
        tables.append(pa.table(columns))
        path = folder / f"{file} '; drop table x; -- [a] \" 100%.parquet"
        pq.write_table(tables[-1], path, row_group_size=10)
    return pa.concat_tables(tables)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, pa.Table, set[str]]:
    """A whole run on such a corpus, its source, and what was beside the run before."""
    place = tmp_path_factory.mktemp("hostile")
    corpus = place / 'it\'s [1] "source"; --'
    source = hostile_corpus(corpus)
    marks = place / "marks'; drop table given; --.parquet"
    pq.write_table(source.select([ID, SCORE]), marks)
    column = {"name": "drop_table", "kind": "column", "column": SCORE}
    file = {"name": "select", "kind": "file", "path": str(marks), "id_column": ID, "column": SCORE}
    chosen = parse_settings(
        {
            "source": {"path": str(corpus), "columns": {"id": ID, "text": TEXT, "dump": DUMP}},
            "plan": {"rows_per_shard": 30},
            "quality": {"scores": [column, file], "prune_fraction": 0.2},
            "embedding": {"method": "lexical", "dimension": 32},
            "selection": {"ratio": 0.25, "steps": 5},
            "publication": {"dry_run": True, "license": "mit"},
        }
    )
    before = {str(path) for path in place.rglob("*")}
    run = pipeline.rebuild(place / 'run\'; drop table made; -- "x"', chosen)
    return run, source, before


def test_names_from_data_stay_in_the_run(hostile: tuple[Run, pa.Table, set[str]]) -> None:
    """Nothing appeared outside its folder, and no file in it is called after a value."""
    run, _, before = hostile
    place = run.root.parent
    new = {str(path) for path in place.rglob("*")} - before
    assert all(Path(path).is_relative_to(run.root) for path in new)
    names = {path.name for path in run.root.rglob("*")}
    assert not {name for name in names if any(part in name for part in ("drop", "passwd", "\n"))}
    assert all(path.resolve().is_relative_to(run.root.resolve()) for path in run.root.rglob("*"))
    assert all(run.state(stage, 0) == "done" for stage in stages.stages_of(run.settings))


def test_the_subset_of_a_hostile_corpus_is_its_rows(
    hostile: tuple[Run, pa.Table, set[str]],
) -> None:
    """Every selected row equals its source row, in the source's order."""
    run, source, _ = hostile
    position = {key: row for row, key in enumerate(source[ID].to_pylist())}
    assert len(position) == 2 * DOCUMENTS
    rows = []
    for unit in range(run.num_units("subset")):
        table = pq.read_table(run.path("subset", unit))
        places = [position[key] for key in table[ID].to_pylist()]
        assert places == sorted(places)
        assert table.select(source.column_names).equals(source.take(places))
        rows += places
    assert len(set(rows)) == len(rows) == DOCUMENTS // 2


def test_sql_takes_hostile_values_for_values(hostile: tuple[Run, pa.Table, set[str]]) -> None:
    """Tables are there, and their figures are those that Python counts."""
    run, source, _ = hostile
    with open_composition(run) as connection:
        found = connection.execute(
            'SELECT id, dump, language, domain, drop_table, "select" FROM documents '
            "ORDER BY shard, row"
        ).fetchall()
        counted = dict(
            connection.execute(
                "SELECT name, documents_before FROM groups WHERE kind = 'dump'"
            ).fetchall()
        )
    columns = list(zip(*found, strict=True))
    for place, name in enumerate((ID, DUMP, "language")):
        assert list(columns[place]) == source[name].to_pylist()
    assert counted == Counter(source[DUMP].to_pylist())
    assert list(columns[4]) == list(columns[5]) == source[SCORE].to_pylist()
    assert set(columns[3]) == {f"x';drop--{row}.org" for row in range(3)}


WRITES = (
    "COPY (SELECT 1 AS a) TO 'OUT' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO 'OUT' (USE_TMP_FILE false)",
    "PREPARE p AS COPY (SELECT 1 AS a) TO 'OUT' (USE_TMP_FILE false); EXECUTE p",
    "SELECT 1; COPY (SELECT 1 AS a) TO 'OUT' (USE_TMP_FILE false)",
    "WITH a AS (COPY (SELECT 1) TO 'OUT' (USE_TMP_FILE false)) SELECT * FROM a",
    "SELECT 1) AS t; COPY (SELECT 1) TO 'OUT' (USE_TMP_FILE false); SELECT (1",
    "FROM query('COPY (SELECT 1) TO ''OUT'' (USE_TMP_FILE false)')",
    "EXPORT DATABASE 'OUT'",
    "ATTACH 'OUT' AS other",
    "SET log_query_path = 'OUT'",
    "PRAGMA profiling_output = 'OUT'",
    "CALL enable_logging(storage = 'file', storage_path = 'OUT')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = 'OUT')",
)
READS = (
    "SELECT content FROM read_text('OTHER')",
    "SELECT content FROM read_blob('OTHER')",
    "SELECT file FROM glob('OTHER*')",
    "SELECT * FROM read_csv('OTHER', header = false)",
    "SELECT * FROM 'OTHER'",
    "SELECT * FROM read_json_auto('OTHER')",
    "FROM query('SELECT content FROM read_text(''OTHER'')')",
    "SELECT * FROM parquet_schema('OTHER')",
    "SELECT * FROM sniff_csv('OTHER')",
    "SELECT getenv('HF_TOKEN')",
    "SELECT * FROM root",
)
CHANGES = (
    "DELETE FROM documents",
    "WITH a AS (DELETE FROM documents RETURNING *) SELECT * FROM a",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD 'OTHER'",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE TEMP MACRO secret() AS TABLE SELECT * FROM read_text('OTHER')",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET temp_directory = 'OUT'",
    "",
)


def test_a_query_reads_its_run_and_touches_nothing_else(
    hostile: tuple[Run, pa.Table, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SQL writes a file, reads another one or changes DuckDB's configuration.

    Each statement that could write is aimed at a new file, at the database that is open, at its
    log and at a mask.
    """
    run, _, _ = hostile
    other = tmp_path / "other.csv"
    other.write_text("hunter2\n")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    open_file = run.path("composition")
    targets = (tmp_path / "new", open_file, Path(f"{open_file}.wal"), run.path("selection", 0))

    def files() -> dict[Path, tuple[int, int]]:
        found = (path for folder in (run.root, tmp_path) for path in folder.rglob("*"))
        states = {path: path.stat() for path in found if path.is_file()}
        return {path: (state.st_mtime_ns, state.st_size) for path, state in states.items()}

    before = files()
    attacks = [sql.replace("OUT", str(out).replace("'", "''")) for sql in WRITES for out in targets]
    attacks += [sql.replace("OTHER", str(other)) for sql in (*READS, *CHANGES)]
    for sql in attacks:
        with pytest.raises(RunError, match="query: "), run_query(run, sql) as (_, rows):
            assert "hunter2" not in str(list(rows)), sql
        assert files() == before, sql
    for sql in ("SELECT count(*) FROM documents", "SUMMARIZE sample", "FROM neighbours LIMIT 1"):
        with run_query(run, sql) as (_, rows):
            assert list(rows)


def test_a_database_that_comes_with_a_run_reads_no_file(tmp_path: Path) -> None:
    """A view in somebody's composition.duckdb cannot bring other files into query or comparison."""
    other = tmp_path / "other.csv"
    other.write_text("hunter2\n")
    with duckdb.connect(str(tmp_path / "composition.duckdb")) as connection:
        connection.execute(f"CREATE VIEW terms AS SELECT * FROM read_text('{other}')")
    run = Run(run_storage(tmp_path), Settings())
    with pytest.raises(RunError, match="Cannot access file"):
        run_query(run, "FROM terms").__enter__()
    with pytest.raises(duckdb.PermissionException), open_composition(run, "terms") as connection:
        connection.execute("FROM terms").fetchall()


def test_a_run_whose_path_is_a_pattern_is_refused(tmp_path: Path) -> None:
    """DuckDB reads patterns: the files of another run would be taken for this one's."""
    source = finished.corpus(tmp_path / "source")
    for name in ("run*", "run?", "run[12]", "run\\n"):
        with pytest.raises(DatamaskError, match=r"as a pattern and . as /; use another folder"):
            plan_run(tmp_path / name, finished.settings(source))
        assert not (tmp_path / name).exists()


# Code that settings name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("subprocess:Popen", {"args": ["touch", "MARK"]}),
        ("subprocess:run", {"args": ["touch", "MARK"]}),
        ("os:mkdir", {"path": "MARK"}),
        ("mailbox:Maildir", {"dirname": "MARK"}),
        ("shelve:DbfilenameShelf", {"filename": "MARK"}),
    ],
)
def test_settings_call_no_class_but_objectives(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A function, or a class with `values` that is no objective, is refused and never called."""
    mark = str(tmp_path / "mark")
    given = json.loads(json.dumps(options).replace("MARK", mark))
    with pytest.raises(SettingsError, match=f"{name}`: ") as caught:
        load_objective(name, given)
    assert "see docs/own-objective.md" in str(caught.value)
    assert not list(tmp_path.iterdir())


# Code that comes with a model

CODE = "from pathlib import Path\nPath({mark!r}).touch()\nclass Theirs: pass\n"


def custom_configuration(folder: Path) -> None:
    """A model whose configuration is a class of its own."""
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}
    (folder / "config.json").write_text(json.dumps(config))


def custom_module(folder: Path) -> None:
    """A sentence-transformers model that begins with a module of its own."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "theirs.Theirs"}]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("write", [custom_configuration, custom_module])
def test_code_of_a_model_does_not_run_unless_asked_for(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it is refused in one line; with trust_remote_code it does run."""
    from datamask.embedding.pinning import folder_digest
    from datamask.embedding.sentence_transformer import load_model

    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    write(folder)
    (folder / "theirs.py").write_text(CODE.format(mark=str(mark)))
    pin = folder_digest(folder)
    assert not Embedding().trust_remote_code
    with pytest.raises(SettingsError, match="cannot be loaded"):
        load_model(Embedding(model=str(folder)), pin, Compute())
    assert not mark.exists()
    with pytest.raises(Exception):  # noqa: B017 - their class is no model; it was run
        load_model(Embedding(model=str(folder), trust_remote_code=True), pin, Compute())
    assert mark.exists(), "the code is never run: the test would see nothing"

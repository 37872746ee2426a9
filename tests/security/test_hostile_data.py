"""Names, values and SQL that are hostile stay data: nothing outside the run is read or written."""

from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import open_composition, run_query
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, RunError
from datamask.execution import pipeline
from datamask.planning.plan import plan_run
from datamask.runs import stages
from datamask.runs.opening import run_storage
from datamask.runs.run import Run
from tests import finished

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

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
    """Two files whose names, columns and values look like paths, SQL or patterns."""
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
    """A finished run on such a corpus, its source, and the paths next to the run before it."""
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
    home = place / "row=5" / "quality=7"  # columns, where DuckDB reads names as partitions
    home.mkdir(parents=True)
    before = {str(path) for path in place.rglob("*")}
    run = pipeline.rebuild(home / 'run\'; drop table made; -- "x"', chosen)
    return run, source, before


def test_names_from_data_stay_in_the_run(hostile):
    """No file is new outside its folder, and no file in it is named after a value."""
    run, _, before = hostile
    place = run.root.parents[2]
    new = {str(path) for path in place.rglob("*")} - before
    assert all(Path(path).is_relative_to(run.root) for path in new)
    names = {path.name for path in run.root.rglob("*")}
    assert not {name for name in names if any(part in name for part in ("drop", "passwd", "\n"))}
    assert all(path.resolve().is_relative_to(run.root.resolve()) for path in run.root.rglob("*"))
    assert all(run.state(stage, 0) == "done" for stage in stages.stages_of(run.settings))


def test_the_subset_of_a_hostile_corpus_is_its_rows(hostile):
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


def test_sql_treats_hostile_values_as_data(hostile):
    """The tables hold the source's values, and their counts equal those of Python."""
    run, source, _ = hostile
    with open_composition(run, "documents") as connection:
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


def test_a_query_reads_its_run_and_touches_nothing_else(hostile, tmp_path, monkeypatch):
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


def test_a_database_that_comes_with_a_run_reads_no_file(tmp_path):
    """A view in a received composition.duckdb cannot bring other files into query or comparison."""
    other = tmp_path / "other.csv"
    other.write_text("hunter2\n")
    with duckdb.connect(str(tmp_path / "composition.duckdb")) as connection:
        connection.execute(f"CREATE VIEW terms AS SELECT * FROM read_text('{other}')")
    run = Run(run_storage(tmp_path), Settings())
    with pytest.raises(RunError, match="Cannot access file"):
        run_query(run, "FROM terms").__enter__()
    with pytest.raises(duckdb.PermissionException), open_composition(run, "terms") as connection:
        connection.execute("FROM terms").fetchall()


def test_a_run_whose_path_is_a_pattern_is_refused(source, tmp_path):
    """DuckDB reads patterns, columns and lists: it would read more or less than the run's files."""
    for name in ("run*", "run?", "run[12]", "run\\n", "a,b"):
        with pytest.raises(DatamaskError, match="use another folder"):
            plan_run(tmp_path / name / "run", finished.settings(source))
        assert not (tmp_path / name).exists()

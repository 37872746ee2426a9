"""Composition: every table recomputed in plain Python from the run's Parquet files."""

import json
import shutil
import subprocess
import venv
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import READABLE_FROM, compose
from datamask.analysis.documents import tabulate
from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import CorruptFileError, RunError
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run, run_storage
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from datamask.runs.schemas import DROP_REASONS
from tests.report.figures import candidates, documents_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def made(composed: Run) -> tuple[Run, list[dict[str, Any]]]:
    """A run with its composition, and its documents joined in Python."""
    return composed, documents_of(composed)


def test_the_file_has_the_format_of_the_oldest_client(made):
    """DuckDB says of the file which version reads it."""
    run, _ = made
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{run.path('composition')}' AS made (READ_ONLY)")
        [(tags,)] = connection.sql(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'made'"
        ).fetchall()
    assert tags["storage_version"].startswith(READABLE_FROM)


@pytest.mark.slow
def test_the_oldest_client_reads_all_tables_and_views(made, tmp_path):
    """The release that the documentation promises, in an environment of its own."""
    run, documents = made
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", f"duckdb=={READABLE_FROM[1:]}"]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip("this release of DuckDB cannot be installed here")
    program = (
        "import duckdb, json; db = duckdb.connect('composition.duckdb', read_only=True); "
        "names = [name for name, in db.sql('SELECT table_name FROM duckdb_tables() UNION ALL "
        "SELECT view_name FROM duckdb_views() WHERE NOT internal').fetchall()]; "
        "print(json.dumps({n: len(db.table(n).fetchall()) for n in names}))"
    )
    found = subprocess.run([python, "-c", program], cwd=run.root, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    counts = json.loads(found.stdout)
    assert counts["documents"] == len(documents) and len(counts) > 10
    for name, number in counts.items():
        assert number == query(run, f"SELECT count(*) AS n FROM {name}")[0]["n"], name


def test_random_is_the_expectation_of_a_draw_per_shard(made):
    """The oracle (tests/oracle_comparison.py) has the sums of the other selections."""
    run, documents = made
    [random] = query(run, "SELECT * FROM totals WHERE selection = 'random'")
    expected = 0.0
    for shard in range(run.num_shards):
        left = candidates(documents, shard)
        mean = sum(document["tokens"] for document in left) / len(left)
        expected += mean * sum(document["selected"] for document in left)
    assert random["documents"] == sum(document["selected"] for document in documents)
    assert random["tokens"] == pytest.approx(expected)
    assert random["mean_tokens"] == pytest.approx(expected / random["documents"])


def test_the_funnel_is_what_each_step_leaves(made):
    """Of every group and in total: documents, lengths and quality after each reason to drop."""
    run, documents = made
    steps = ["source", *(r for r in DROP_REASONS if any(d["dropped"] == r for d in documents))]
    steps.append("selected")
    for kind in ("all", "dump", "language", "domain"):
        names = {"all"} if kind == "all" else {document[kind] for document in documents}
        found = query(run, f"SELECT * FROM funnel WHERE kind = '{kind}' ORDER BY name, number")
        assert [(r["name"], r["step"]) for r in found] == [
            (n, s) for n in sorted(names) for s in steps
        ]
        for row in found:
            gone = steps[1 : row["number"] + 1]
            left = [d for d in documents if kind == "all" or d[kind] == row["name"]]
            left = [d for d in left if d["dropped"] not in gone]
            if row["step"] == "selected":
                left = [d for d in left if d["selected"]]
            assert row["documents"] == len(left)
            for unit in ("characters", "tokens"):
                total = sum(document[unit] for document in left)
                assert (row[unit] or 0) == total
                assert row[f"mean_{unit}"] == (pytest.approx(total / len(left)) if left else None)
            known = [d["quality"] for d in left if d["quality"] is not None]
            mean = pytest.approx(sum(known) / len(known), abs=2e-6) if known else None
            assert row["mean_quality"] == mean


def test_length_bands_hold_every_document_once(made):
    """Bands are fixed, so that ties do not make them uneven; their ends are powers of two."""
    run, documents = made
    found = query(run, "SELECT * FROM groups WHERE kind = 'length'")
    assert sum(row["documents_before"] for row in found) == len(documents)
    for row in found:
        low, high = (0, 63) if row["name"] == "below 64" else map(int, row["name"].split(" to "))
        assert high == 63 or high == 2 * low - 1
        inside = [d for d in documents if low <= d["characters"] <= high]
        assert row["documents_before"] == len(inside)
        assert row["documents_after"] == sum(document["selected"] for document in inside)


def test_terms_are_means_over_what_shards_keep(made):
    """From the masks' own figures, which the oracle compares with the documents."""
    run, _ = made
    terms = {row["term"]: row for row in query(run, "SELECT * FROM terms")}
    weighted, joint, count = 0.0, 0.0, 0
    for shard in range(run.num_shards):
        metrics = run.receipt("selection", shard).metrics
        weighted += metrics["num_selected"] * metrics["terms"]["disf"]["random"]
        scaled = {
            name: term["top_quality"] / metrics["scales"][name]
            for name, term in metrics["terms"].items()
        }
        joint += metrics["num_selected"] * (0.5 * scaled["quality"] - 0.5 * scaled["disf"])
        count += metrics["num_selected"]
    assert terms["disf"]["random"] == pytest.approx(weighted / count)
    assert terms["objective"]["top_quality"] == pytest.approx(joint / count)
    assert [terms[name]["maximise"] for name in ("disf", "quality", "objective")] == [0, 1, 1]


def test_the_file_stands_alone(made, tmp_path):
    """Moved without the run, it answers the same; about documents with their files next to it."""
    run, documents = made
    shutil.copy(run.path("composition"), tmp_path / "composition.duckdb")
    moved = Run(run_storage(tmp_path), run.settings)
    assert query(moved, "FROM totals") == query(run, "FROM totals")
    shutil.copytree(run.root / "documents", tmp_path / "documents")
    # Of a plan with more shards.
    left = pq.read_table(run.path("documents", 0)).drop_columns("shard")
    left = left.add_column(0, "shard", [[run.num_shards] * left.num_rows])
    pq.write_table(left, tmp_path / "documents" / "00009.parquet")
    with duckdb.connect(str(tmp_path / "composition.duckdb"), read_only=True) as connection:
        connection.execute(f"SET file_search_path = '{tmp_path}'")
        found = connection.execute("SELECT id FROM selection").fetchall()
    assert [name for (name,) in found] == [row["id"] for row in documents if row["selected"]]


def test_files_that_disagree_are_refused(made, tmp_path):
    """A quality file of other documents would give wrong tables: it is an error, no empty join."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    path = run.path("quality", 0)
    receipt, table = read_receipt(path), pq.read_table(path)
    ids = ["nobody", *table["id"].to_pylist()[1:]]
    other = table.set_column(table.schema.get_field_index("id"), table.schema.field("id"), [ids])
    write_parquet(path, table.schema, [other], lambda rows: receipt, storage=run.storage)
    run.path("documents", 0).unlink()
    with pytest.raises(CorruptFileError, match=r"quality/00000.*on 41 of 42 documents"):
        tabulate(run, 0, Compute())
    with pytest.raises(RunError, match=r"documents/00000\.parquet: missing; run stage `documents`"):
        compose(run, Compute())


def test_a_query_before_the_composition_says_what_to_run(tmp_path):
    """The next command, not a DuckDB error."""
    with pytest.raises(RunError, match="run `datamask rebuild"):
        query(Run(run_storage(tmp_path), Settings()), "SELECT 1")

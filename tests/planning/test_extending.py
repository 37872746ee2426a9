"""Files that were added to a source become further shards; nothing is embedded twice."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datamask.config.settings import Settings
from datamask.errors import InputError, RunError
from datamask.execution.pipeline import rebuild
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
from datamask.runs.run import Run
from tests.cli.commands import here
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files."""
    return corpus(tmp_path_factory.mktemp("whole") / "source")


def some(whole: Path, folder: Path, *numbers: int) -> Path:
    """A source with some of these files; called again, it adds to them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        shutil.copy(whole / f"{number}.parquet", folder)
    return folder


def chosen(source: Path, scope: str = "shard", **groups: object) -> Settings:
    """Each file is a shard."""
    return settings(source, plan={"rows_per_shard": 30}, selection={"scope": scope}, **groups)


def embedded(run: Run) -> list[float]:
    """Documents that the last attempt at each shard embedded."""
    records = [read_record(run, "embeddings", shard) for shard in range(run.num_shards)]
    return [record.metrics.get("documents", 0) for record in records if record is not None]


def contents(run: Run) -> dict[str, bytes]:
    """The results, without records of time and place."""
    folders = ("scores", "quality", "embeddings", "selection", "subset", "mask_model")
    paths = [path for folder in folders for path in (run.root / folder).rglob("*.*")]
    return {path.relative_to(run.root).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_an_extended_run_equals_one_of_all_documents(whole, tmp_path, scope):
    """Byte for byte; of the old shards only documents that pruning had dropped are embedded."""
    source = some(whole, tmp_path / "source", 0, 1)
    run = finish(tmp_path / "run", chosen(source, scope), "subset")
    tables = [pq.read_table(run.path("quality", shard)).to_pylist() for shard in range(2)]
    had = {row["id"] for table in tables for row in table if row["dropped"] is None}
    some(whole, source, 2, 3)
    assert here("extend", tmp_path / "run") == 0
    run = open_run(tmp_path / "run")
    fresh = finish(tmp_path / "fresh", chosen(source, scope), "subset")
    assert run.num_shards == 4 and contents(run) == contents(fresh)
    for shard in range(4):
        rows = pq.read_table(run.path("quality", shard)).to_pylist()
        new = {row["id"] for row in rows if row["dropped"] is None} - had
        assert embedded(run)[shard] == len(new)
    assert sum(embedded(run)[:2]) < 10 < sum(embedded(run)[2:])
    assert all(state == "done" for name in ("report", "subset") for state in run.states(name))
    assert not verify(run).corrupt


def test_planned_shards_come_first_whatever_the_names(whole, tmp_path):
    """Also after a second extension; then the run goes on as any other."""
    source = some(whole, tmp_path / "source", 2)
    for added in (0, 3):
        plan_run(tmp_path / "run", chosen(source))
        planned = open_run(tmp_path / "run").pieces
        some(whole, source, added)
        run = plan_run(tmp_path / "run", None, extend=True)
        assert run.pieces[: len(planned)] == planned
    assert [Path(piece.path).stem for piece in run.pieces] == ["2", "0", "3"]
    assert [piece.shard for piece in run.pieces] == [0, 1, 2]
    assert plan_run(tmp_path / "run", None).pieces == run.pieces
    assert plan_run(tmp_path / "run", None, extend=True).pieces == run.pieces


def test_files_elsewhere_are_added_by_a_wider_path(whole, tmp_path):
    """The new path must have all planned files."""
    months = tmp_path / "months"
    january, february = (
        some(whole, months / name, n) for n, name in enumerate(("january", "february"))
    )
    plan_run(tmp_path / "run", chosen(january))
    wider = chosen(months / "*/*.parquet")
    with pytest.raises(RunError, match=r"planned with another source\.path"):
        plan_run(tmp_path / "run", wider)
    with pytest.raises(RunError, match=r"planned with another source\.path"):
        plan_run(tmp_path / "run", chosen(february), extend=True)
    run = plan_run(tmp_path / "run", wider, extend=True)
    assert [Path(piece.path).parent.name for piece in run.pieces] == ["january", "february"]
    assert open_run(tmp_path / "run").settings.source.path == str(months / "*/*.parquet")


def test_what_cannot_be_extended_says_why(whole, tmp_path):
    """The plan stays, and names the command where it is the remedy."""
    source = some(whole, tmp_path / "source", 0, 1)
    with pytest.raises(RunError, match=r"no run here"):
        plan_run(tmp_path / "run", chosen(source), extend=True)
    plan = plan_run(tmp_path / "run", chosen(source)).plan_path
    before = plan.read_bytes()
    some(whole, source, 2)
    with pytest.raises(RunError, match=r"2\.parquet was added.*`datamask extend .*/run`"):
        plan_run(tmp_path / "run", None)
    table = pq.read_table(source / "2.parquet")
    pq.write_table(table.drop_columns(["edu"]), source / "2.parquet")
    with pytest.raises(InputError, match=r"2\.parquet, column edu: absent"):
        plan_run(tmp_path / "run", None, extend=True)
    shutil.copy(source / "1.parquet", source / "2.parquet")
    with pytest.raises(InputError, match=r"column id: 30 ids are not unique"):
        plan_run(tmp_path / "run", None, extend=True)
    (source / "1.parquet").write_bytes((whole / "3.parquet").read_bytes())
    with pytest.raises(RunError, match=r"1\.parquet has changed.*; restore it, or use another"):
        plan_run(tmp_path / "run", None, extend=True)
    assert plan.read_bytes() == before


@pytest.mark.slow
def test_a_new_run_shares_what_an_earlier_one_has(whole, tmp_path):
    """`--from` a run whose source has grown: the same result, and the earlier run is untouched."""
    source = some(whole, tmp_path / "source", 1)
    earlier = finish(tmp_path / "earlier", chosen(source), "subset")
    before = contents(earlier)
    some(whole, source, 0)
    run = rebuild(tmp_path / "run", None, origin=tmp_path / "earlier")
    assert [Path(piece.path).stem for piece in run.pieces] == ["1", "0"]
    assert embedded(run)[0] < 6 < embedded(run)[1]
    assert contents(earlier) == before


KILLED = """
import os, signal, sys
from datamask.embedding import embed, reuse
from datamask.execution.pipeline import rebuild
real = reuse.merged
def merged(*given):
    for table in real(*given):
        yield table
        os.kill(os.getpid(), signal.SIGKILL)
embed.merged = merged
rebuild(sys.argv[1], None, extend=True)
"""


@pytest.mark.slow
def test_a_kill_while_vectors_are_reused_changes_nothing(whole, tmp_path):
    """The earlier file is there until the new one is whole."""
    source = some(whole, tmp_path / "source", 0, 1)
    finish(tmp_path / "run", chosen(source), "subset")
    some(whole, source, 2)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], check=False)
    assert killed.returncode == -signal.SIGKILL
    run = open_run(tmp_path / "run")
    assert run.num_shards == 3 and run.states("embeddings") == ["stale", "stale", "missing"]
    run = rebuild(tmp_path / "run")  # as `rerun-failed` does
    assert contents(run) == contents(finish(tmp_path / "fresh", chosen(source), "subset"))
    assert sum(embedded(run)[:2]) < 10

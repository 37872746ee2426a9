"""`datamask sweep` makes the runs of `rebuild --from`, and prints the numbers of their reports."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from datamask.analysis.summary import query
from datamask.cli.main import cli
from datamask.execution import sweep
from datamask.execution.pipeline import rebuild
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from tests.cli.commands import here
from tests.faults.comparison import contents
from tests.finished import corpus, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

WEIGHTS, STEPS = (0.2, 0.9), (5, 10)
OVER = ("--over", "selection.quality_weight=0.2,0.9", "--over", "selection.steps=5,10")
NAMES = [f"quality_weight-{weight}+steps-{steps}" for weight in WEIGHTS for steps in STEPS]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which would publish, and its sweep over two settings."""
    folder = tmp_path_factory.mktemp("swept")
    to = {"dry_run": True, "license": "mit"}
    chosen = settings(corpus(folder / "source"), publication=to)
    rebuild(folder / "run", chosen, publishing=False)
    result = CliRunner().invoke(cli, ["-q", "sweep", str(folder / "run"), *OVER])
    assert result.exit_code == 0, result.output
    (folder / "printed").write_text(result.stdout)
    return folder


def gains_by_hand(terms: list[dict[str, Any]]) -> dict[str, float]:
    """The gain of each term over random, as a share of what the best gains."""
    return {
        row["term"]: (row["selected"] - row["random"]) / (row["best"] - row["random"])
        for row in terms
        if row["term"] != "objective"
    }


def test_a_variant_is_the_run_of_rebuild_from(home, tmp_path):
    """One for each combination; equal bytes, shared embeddings, nothing published."""
    swept = home / "run-sweep"
    assert {path.name for path in swept.iterdir() if path.is_dir()} == set(NAMES)
    first = swept / NAMES[0]
    same = tmp_path / NAMES[0]  # of the same name, which reports show
    changes = ("--set", "selection.quality_weight=0.2", "--set", "selection.steps=5")
    dropped = ("--set", "publication=null")
    assert here("-q", "rebuild", same, "--from", home / "run", *changes, *dropped) == 0
    assert contents(first) == contents(same)
    for path in (home / "run" / "embeddings").iterdir():
        assert (first / "embeddings" / path.name).stat().st_ino == path.stat().st_ino
    assert (first / "report.html").exists() and not (first / "published.json").exists()


def test_the_table_has_the_numbers_of_the_reports(home):
    """Of every run and of the run itself, worked out from table `terms`."""
    lines = (home / "printed").read_text().splitlines()
    assert lines[0].split()[1:] == ["quality", "diversity", "metric", "objective", "documents"]
    runs = {"the run": home / "run"} | {name: home / "run-sweep" / name for name in NAMES}
    for line, (name, root) in zip(lines[1:], runs.items(), strict=False):
        assert line.startswith(name)
        run = open_run(root)
        terms = query(run, "SELECT * FROM terms")
        gain = gains_by_hand(terms)
        (joint,) = [row for row in terms if row["term"] == "objective"]
        (count,) = query(run, "SELECT count(*) AS n FROM selection")
        quality, diversity, metric, objective, documents = line.removeprefix(name).split()
        assert metric == "disf" and int(documents) == count["n"]
        assert float(quality) == pytest.approx(gain["quality"], abs=1e-3)
        assert float(diversity) == pytest.approx(gain["disf"], abs=1e-3)
        assert float(objective) == pytest.approx(joint["selected"] - joint["random"], abs=1e-3)
    assert lines[-1].split() == ["page", str(home / "run-sweep" / "sweep.html")]


def test_the_chart_has_a_line_for_each_choice_of_the_second_setting(home):
    """Along the first setting, in the order that was asked for, with its values as labels."""
    runs = {name: open_run(home / "run-sweep" / name) for name in NAMES}
    rows = sweep.sweep_rows(runs, None)
    values = {
        f"quality_weight-{weight}+steps-{steps}": {"quality_weight": weight, "steps": steps}
        for weight in WEIGHTS
        for steps in STEPS
    }
    series = sweep.tradeoff(rows, values).series
    assert [one.name for one in series] == ["steps=5", "steps=10", "random"]
    for line, steps in zip(series, STEPS, strict=False):
        of_line = [row for row in rows if row["variant"].endswith(f"steps-{steps}")]
        assert list(line.labels) == ["0.2", "0.9"]
        assert list(line.x) == [row["quality"] for row in of_line]
        assert list(line.y) == [row["diversity"] for row in of_line]


def test_a_sweep_again_makes_only_what_is_missing(home, tmp_path):
    """A lost mask is made again; files of the other variants stay as they are."""
    folder = Path(shutil.copytree(home / "run-sweep", tmp_path / "again"))
    lost, kept = (folder / name / "selection" / "00001.parquet" for name in NAMES[:2])
    before, mask = kept.stat(), lost.read_bytes()
    lost.unlink()
    assert here("-q", "sweep", home / "run", *OVER, "-o", folder) == 0
    assert lost.read_bytes() == mask
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.fixture
def some(home: Path, tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A sweep of shards 0 and 2, and what it printed."""
    given = ("--over", "selection.quality_weight=0.2", "--shards", "0,2", "-o", str(tmp_path / "s"))
    result = CliRunner().invoke(cli, ["-q", "sweep", str(home / "run"), *given])
    assert result.exit_code == 0, result.output
    yield tmp_path / "s" / "quality_weight-0.2", result.stdout.splitlines()


def test_shards_alone_can_be_learned(home, some):
    """Their masks are those of a whole run, and numbers are means by their selected documents."""
    root, lines = some
    names = {path.name for path in (root / "selection").glob("*.parquet")}
    assert names == {"00000.parquet", "00002.parquet"} and not (root / "report.html").exists()
    parts = [open_run(root).receipt("selection", shard).metrics for shard in (0, 2)]
    total = sum(part["num_selected"] for part in parts)
    mean = {
        key: sum(part["num_selected"] * part["terms"]["disf"][key] for part in parts) / total
        for key in ("selected", "random", "best")
    }
    row = next(line for line in lines if line.startswith("quality_weight-0.2")).split()
    gain = (mean["selected"] - mean["random"]) / (mean["best"] - mean["random"])
    assert float(row[2]) == pytest.approx(gain, abs=1e-3) and int(row[-1]) == total
    kept = {name: (root / "selection" / name).stat().st_ino for name in names}
    given = ("--over", "selection.quality_weight=0.2", "-o", root.parent)
    assert here("-q", "sweep", home / "run", *given) == 0
    assert (root / "report.html").exists()
    assert kept == {name: (root / "selection" / name).stat().st_ino for name in names}


def test_a_run_that_is_only_planned_can_be_swept(home, tmp_path):
    """The first variant makes scores and vectors, the second one shares them."""
    plan_run(tmp_path / "run", settings(home / "source", selection={"steps": 5}))
    given = ("--over", "selection.quality_weight=0.2,0.9", "--shards", "1")
    assert here("-q", "sweep", tmp_path / "run", *given) == 0
    first, second = (tmp_path / "run-sweep" / f"quality_weight-{weight}" for weight in WEIGHTS)
    for path in (first / "embeddings").iterdir():
        assert (second / "embeddings" / path.name).stat().st_ino == path.stat().st_ino
    assert [path.name for path in (second / "selection").glob("*.parquet")] == ["00001.parquet"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--over", "selection.ratio=0.2,2"), "selection.ratio"),
        (("--over", "selection.rato=0.2"), "selection.rato"),
        (("--over", "selection.ratio"), "--over"),
        (("--over", "selection.ratio=[0.2"), "--over"),
        (("--over", "selection.documents=20,100000"), "selection.documents"),
        (("--over", "publication.tag=v2"), "publication"),
        (("--over", "selection.ratio=0.2", "--shards", "9"), "--shards 9"),
        (("--over", "selection.ratio=0.2", "--shards", "a"), "--shards a"),
        (("--over", "selection.scope=corpus", "--shards", "0"), "--shards"),
        (("--over", "selection.tokens=500", "--shards", "0"), "--shards"),
    ],
)
def test_bad_values_are_refused_before_any_work(home, tmp_path, given, named, capsys):
    """One line that names the setting; no variant has done any work."""
    assert here("sweep", home / "run", *given, "-o", tmp_path / "s") == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert named in line
    assert not list(tmp_path.rglob("selection")) and not list(tmp_path.rglob("sweep.html"))

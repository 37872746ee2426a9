"""A flipped bit of any output, met by any stage that reads it, changes no result."""

import random
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from datamask.errors import CorruptFileError, DatamaskError
from datamask.execution.pipeline import rebuild
from datamask.runs.opening import open_run
from datamask.runs.stages import STAGES, stages_of
from tests import finished
from tests.faults.comparison import contents

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SELECTIONS = {
    "shard": {"ratio": 0.25, "steps": 20, "max_repeat": 2, "training_documents": 60},
    "corpus": {"ratio": 0.25, "metric": "disf", "scope": "corpus", "rounds": 2},
}
MOST_TOLD = 2
"""Launches that may end with the damage that they found: that of the file, that of its copy."""
CASES = [
    pytest.param(scope, stage, marks=[] if stage in often else [pytest.mark.slow])
    for scope, often in (("shard", ("scores", "documents")), ("corpus", ()))
    for stage in STAGES
    if stage not in ("report", "publication")
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the finished run of a scope, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("damage")
    source = finished.corpus(folder / "source")

    @cache
    def made(scope: str) -> Path:
        screened = {"near_duplicates": {}}
        settings = finished.settings(source, quality=screened, selection=SELECTIONS[scope])
        return rebuild(folder / scope / "run", settings).root

    return made


@pytest.mark.parametrize(("scope", "stage"), CASES)
def test_no_stage_makes_anything_from_a_flipped_bit(original, scope, stage, tmp_path):
    """A file rots before all that read it are made: launches end as an undisturbed run."""
    root, draw = tmp_path / "run", random.Random(f"{scope} {stage}")
    subprocess.run(["cp", "-a", original(scope), root], check=True)
    run = open_run(root)
    if stage not in stages_of(run.settings):
        pytest.skip("not a stage of this run")
    following = [STAGES[name] for name in stages_of(run.settings) if name != stage]
    readers = [one.name for one in following if stage in (*one.after, *one.after_all)]
    if not readers:
        pytest.skip("no stage of this run reads it")
    for reader in readers:
        for unit in range(run.num_units(reader)):
            run.path(reader, unit).unlink()
    damaged = run.local_path(stage, draw.randrange(run.num_units(stage)))
    data = bytearray(damaged.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    damaged.write_bytes(data)
    told = []
    for _ in range(MOST_TOLD + 1):
        try:
            rebuild(root)
            break
        except DatamaskError as error:
            told.append(str(error))
    assert len(told) <= MOST_TOLD, told
    assert contents(root) == contents(original(scope))


@pytest.mark.parametrize(
    ("name", "stage", "unit"),
    [
        ("selection/00001.parquet", "selection", 1),
        ("tallies/00002.parquet", "documents", 2),
        ("report/sample.parquet", "report", 0),
        ("report.html", "report", 0),
    ],
)
def test_a_read_that_finds_damage_names_the_file_and_makes_its_output_count_as_missing(
    original, name, stage, unit, tmp_path
):
    """Whatever else a unit of work wrote, one damaged file of it is enough."""
    subprocess.run(["cp", "-a", original("shard"), tmp_path / "run"], check=True)
    run = open_run(tmp_path / "run")
    path = run.fetch(name)
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
    with pytest.raises(CorruptFileError, match=f"{path}: .*relaunch"):
        run.fetch(name)
    assert path.with_name(f"{path.name}.corrupt").exists()
    assert run.state(stage, unit) == "missing"


def test_a_file_that_is_gone_from_beside_its_output_is_made_again_with_it(original, tmp_path):
    """The launch that misses the file says so; the next ends as an undisturbed run.

    What the report keeps for its next version may be deleted.
    """
    root = tmp_path / "run"
    subprocess.run(["cp", "-a", original("shard"), root], check=True)
    for name in ("tallies/00002.parquet", "composition.duckdb"):
        (root / name).unlink()
    with pytest.raises(CorruptFileError, match=r"tallies/00002\.parquet"):
        rebuild(root)
    run = rebuild(root)
    assert contents(root) == contents(original("shard"))
    kept = run.local_path("report").parent / "report" / "sample.parquet"
    kept.unlink()
    assert run.fetch(kept) == kept and run.state("report") == "done"

"""Two launches on one run, the first stopped before each of its steps while the second runs.

Whatever the two commands and wherever the first stops: run.json holds settings of launches that
succeeded, who ends with status 0 has done what was asked for, what was finished stays finished
unless its settings changed, and a last launch gives the bytes of a fresh run.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datamask.config.settings import Settings
from datamask.runs.opening import open_run
from datamask.runs.stages import stages_of
from tests.cli.commands import text_corpus
from tests.faults.comparison import contents

REPOSITORY = Path(__file__).parents[2]
BASE = (
    *("embedding.method=lexical", "embedding.dimension=16", "plan.rows_per_shard=30"),
    *("selection.steps=5", "selection.documents=10", "subset.file_bytes=1000000"),
)
COMMANDS = {
    "rebuild-6": ("rebuild", "selection.documents=6"),
    "rebuild-14": ("rebuild", "selection.documents=14"),
    "plan-8": ("plan", "selection.documents=8"),
    "report": ("report",),
    "verify": ("verify",),
    "status": ("status",),
}
"""Each of the first three changes the budget, so that run.json says which of them came last."""

Ask = Callable[..., dict[str, Any]]


def arguments(name: str, root: Path) -> list[str]:
    """A command on a run."""
    command, *changes = COMMANDS[name]
    return [command, str(root), *(part for item in changes for part in ("--set", item))]


def changed(name: str, settings: Settings) -> Settings:
    """Return the run's settings after a command that succeeds."""
    command, *changes = COMMANDS[name]
    if command in ("rebuild", "plan"):
        group, _, rest = changes[0].partition(".")
        key, _, value = rest.partition("=")
        update = {group: getattr(settings, group).model_copy(update={key: int(value)})}
        return settings.model_copy(update=update)
    return settings


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """The process that forks commands."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "tests" / "interleavings" / "launcher.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None

    def run(**request: Any) -> dict[str, Any]:
        launcher.stdin.write(json.dumps(request) + "\n")
        launcher.stdin.flush()
        answer: dict[str, Any] = json.loads(launcher.stdout.readline())
        return answer

    yield run
    launcher.communicate(timeout=60)


@pytest.fixture(scope="module")
def base(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("interleavings")
    source = text_corpus(folder / "source", rows=60, files=2)
    return rebuilt(ask, folder / "base" / "run", f"source.path={source}", *BASE)


def rebuilt(ask: Ask, root: Path, *changes: str) -> Path:
    """Run everything, in a process of its own."""
    more = [part for item in changes for part in ("--set", item)]
    done = ask(first=["rebuild", str(root), *more])["first"]
    assert done["status"] == 0, done["output"]
    return root


def fresh(ask: Ask, base: Path, settings: Settings) -> dict[str, str]:
    """Return the files of a run with these settings that had no others before."""
    documents = settings.selection.documents
    root = base.parents[1] / f"fresh-{documents}" / "run"
    if not root.exists():
        more = f"selection.documents={documents}"
        rebuilt(ask, root, f"source.path={settings.source.path}", *BASE, more)
    return held(root)


def held(root: Path) -> dict[str, str]:
    """A run's files."""
    return contents(root)


def is_chosen(step: str) -> bool:
    """Every lock and reading of run.json, and every output of a first shard that appears."""
    kind, _, place = step.partition(" ")
    if kind == "rename":
        return place.endswith((".parquet", ".duckdb", ".html", "run.json")) and "00001" not in place
    return "00001" not in place


def check(ask: Ask, base: Path, root: Path, ended: dict[str, dict[str, Any]]) -> None:
    """Every promise, after both commands have ended.

    Args:
        ask: runs commands.
        base: the run as it was before.
        root: the run as it is.
        ended: what became of each command, by name.
    """
    good = [name for name, one in ended.items() if one["status"] == 0]
    for name, one in ended.items():
        assert one["status"] in (0, 2, 75), f"{name}: {one['output']}"
        assert "Traceback" not in one["output"], f"{name}: {one['output']}"
        if name.startswith("rebuild") and name in good:
            assert f"{name.split('-')[1]} of 60 documents (" in one["output"], name
        if name == "verify" and name in good:
            assert "; 0 corrupt" in one["output"]
        if name in ("verify", "status") and not set(ended) - {name, "verify", "status"}:
            assert name in good, one["output"]
    before, run = open_run(base), open_run(root)
    orders = []
    for order in itertools.permutations(good):
        settings = before.settings
        for name in order:
            settings = changed(name, settings)
        orders.append(settings)
    assert run.settings in orders, f"run.json holds what nobody has: {run.settings}"
    complete = [changed(name, run.settings) for name in good if name.startswith("rebuild")]
    for stage in stages_of(run.settings):
        for unit in range(run.num_units(stage)):
            due = before.fingerprint(stage, unit) == run.fingerprint(stage, unit)
            due |= run.settings in complete
            assert not due or run.state(stage, unit) == "done", f"{stage} {unit} is lost"
    assert not (root / "tmp").exists()
    assert not list(root.rglob("*.corrupt"))
    rebuilt(ask, root)
    assert held(root) == fresh(ask, base, run.settings)
    again = open_run(root)
    assert (again.settings, again.pinned_revisions) == (run.settings, run.pinned_revisions)


def interleave(ask: Ask, base: Path, root: Path, first: str, second: str, stop: int | str) -> None:
    """Run two commands, the first stopped once, and check what came of it."""
    shutil.copytree(base, root)
    answer = ask(first=arguments(first, root), second=arguments(second, root), stop=stop)
    steps = answer["first"]["steps"]
    assert answer["stopped"], f"{first} does no `{stop}`: {steps}"
    try:
        check(ask, base, root, {first: answer["first"], second: answer["second"]})
    except AssertionError as error:
        where = f"{first} stopped before {stop}, {second} ran, in {steps}"
        outputs = "\n".join(answer[which]["output"] for which in ("first", "second"))
        raise AssertionError(f"{where}: {error}\n{outputs}") from None
    shutil.rmtree(root)


def gaps(ask: Ask, base: Path, root: Path, first: str) -> list[int]:
    """The numbers of the steps of a command that it is stopped before."""
    shutil.copytree(base, root)
    steps = ask(first=arguments(first, root))["first"]["steps"]
    shutil.rmtree(root)
    return [number for number, step in enumerate(steps) if is_chosen(step)]


PAIRS = [
    ("rebuild-6", "rebuild-14", "rename run/run.json"),
    ("rebuild-14", "verify", "rename selection/00000.parquet"),
    ("rebuild-6", "rebuild-14", "lock settings.lock"),
    ("plan-8", "rebuild-14", "rename run/run.json"),
    ("report", "rebuild-6", "lock run.lock"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "stop"), PAIRS, ids=str)
def test_what_matters_most(ask, base, tmp_path, first, second, stop):
    """Pairs that lost settings or results once, each stopped where it did."""
    interleave(ask, base, tmp_path / "pair" / "run", first, second, stop)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("second", COMMANDS)
@pytest.mark.parametrize("first", COMMANDS)
def test_every_pair_at_every_step(ask, base, tmp_path, first, second):
    """All pairs of commands, the first stopped before each lock, rename and reading of run.json."""
    if first == second:
        pytest.skip("a command and itself: tests/faults")
    failures = []
    steps = gaps(ask, base, tmp_path / "gaps" / "run", first)
    for number in steps:
        root = tmp_path / str(number) / "run"
        try:
            interleave(ask, base, root, first, second, number)
        except AssertionError as error:
            failures.append(str(error))
    print(f"{first} and {second}: {len(steps)} interleavings, {len(failures)} fail")
    assert not failures, f"{len(failures)} of {len(steps)}:\n" + "\n\n".join(failures)

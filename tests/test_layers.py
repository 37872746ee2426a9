"""Rooms import only rooms above, by the import statements. The order is stated here, once."""

import ast
import functools
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

ROOMS = (
    "datamask.showing",
    "datamask.errors",
    "datamask.config",
    "datamask.storage",
    "datamask.objectives",
    "datamask.baselines",
    "datamask.learning",
    "datamask.runs",
    "datamask.source",
    "datamask.embedding",
    "datamask.selection",
    "datamask.subset",
    "datamask.tokens",
    "datamask.analysis",
    "datamask.hygiene",
    "datamask.quality",
    "datamask.evaluation",
    "datamask.report",
    "datamask.publishing",
    "datamask.planning",
    "datamask.execution",
    "datamask.in_memory",
    "datamask.cli",
    "tasks",
    "flows.orchestration",
    "flows",
)
"""From the ground up: a room may import itself and the rooms above it in this list."""

PREFECT_ROOMS = ("tasks", "flows.orchestration", "flows")
MOST_ROOT_MODULES = 4
MOST_LINES = 400


def room_of(module: str) -> str | None:
    """The room a module is in; None for the package itself and for modules of others."""
    parts = module.split(".")
    found = [room for room in ROOMS if parts[: room.count(".") + 1] == room.split(".")]
    return max(found, key=len) if found else None


def modules(root: Path = REPOSITORY) -> Iterator[tuple[str, Path]]:
    """Every module of the library, the tasks and the flows, by its dotted name."""
    for top in ("datamask", "tasks", "flows"):
        for path in sorted((root / top).rglob("*.py")):
            yield ".".join(path.relative_to(root).with_suffix("").parts), path


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module or name a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def upward(module: str, path: Path) -> list[str]:
    """The imports of a module that lead to a room below its own in the list."""
    own = room_of(module)
    if own is None:
        return []
    allowed = ROOMS[: ROOMS.index(own) + 1]
    bad = [name for name in imported(path) if (room := room_of(name)) and room not in allowed]
    if own not in PREFECT_ROOMS:
        bad += [name for name in imported(path) if name.partition(".")[0] == "prefect"]
    return sorted(bad)


def circles(arrows: dict[str, set[str]]) -> set[str]:
    """The nodes of a graph from which a path leads back to themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in arrows.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    return {node for node in arrows if node in reached(node)}


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: str(value)[-60:])
def test_no_module_imports_a_room_below_its_own(module, path):
    """Every import follows the order of rooms, and only tasks and flows import Prefect."""
    assert not upward(module, path)


def test_every_module_has_a_room():
    """A new folder must be given its place in the order; at most four modules have no folder."""
    homeless = [
        module
        for module, _ in modules()
        if room_of(module) is None and module not in ("datamask.__init__", "datamask.__main__")
    ]
    assert not homeless
    assert len(list((REPOSITORY / "datamask").glob("*.py"))) <= MOST_ROOT_MODULES


def test_modules_do_not_import_each_other_in_circles():
    """Not even inside functions."""
    names = {name: path for name, path in modules()}
    arrows = {name: _targets(path, names) & {*names} - {name} for name, path in names.items()}
    assert not circles(arrows)


def _targets(path: Path, names: dict[str, Path]) -> set[str]:
    found = imported(path)
    return {name for name in found if name in names} | {
        name.rpartition(".")[0] for name in found if name not in names
    }


def test_no_module_is_long():
    """A module of more than 400 lines holds two ideas."""
    long = {name: len(path.read_text().splitlines()) for name, path in modules()}
    assert not {name: lines for name, lines in long.items() if lines > MOST_LINES}


def test_a_broken_rule_is_seen(tmp_path):
    """Imports inside functions and of both forms are seen, and so is a circle."""
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from prefect import flow\n    import flows.rebuild\n")
    assert upward("datamask.config.module", path) == ["flows.rebuild", "prefect.flow"]
    assert upward("flows.module", path) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"b", "c"}


def test_no_name_shadows_another_module():
    """A file-path import puts the folder first on sys.path, where it would shadow others."""
    taken = set(sys.stdlib_module_names) | set(packages_distributions())
    for room in ("tasks", "flows"):
        names = {path.stem for path in (REPOSITORY / room).glob("*.py")} - {"__init__"}
        assert not names & taken, room

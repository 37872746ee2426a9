"""Who may know whom, read from the import statements."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MODULES = sorted(
    path for room in ("datamask", "tasks", "flows") for path in (REPOSITORY / room).rglob("*.py")
)
FOUNDATION = {"config", "errors", "stages", "store", "schemas", "budget"}
FOUNDATION |= {"run_folder", "remote_folder", "mirror", "object_store"}


def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def knows(path: Path, *packages: str) -> set[str]:
    """Which of the packages a file imports something from."""
    return {
        name
        for name in imports(path)
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    }


def forbidden(path: Path) -> set[str]:
    """The imports that break the rules of the file's place."""
    place = path.relative_to(REPOSITORY).with_suffix("").parts
    if place[0] == "tasks":
        return knows(path, "flows", "datamask.cli")
    if place[0] == "flows":
        return knows(path, "datamask.cli")
    bad = knows(path, "prefect", "tasks", "flows")
    if place[1] not in ("cli", "__main__"):
        bad |= knows(path, "datamask.cli")
    if place[1] in FOUNDATION:
        allowed = {f"datamask.{name}" for name in FOUNDATION}
        bad |= {
            name
            for name in knows(path, "datamask")
            if name != "datamask" and ".".join(name.split(".")[:2]) not in allowed
        }
    if place[1] == "objectives":
        rooms = ("datamask.objectives", "datamask.errors", "datamask.config")
        bad |= knows(path, "datamask") - knows(path, *rooms) - {"datamask"}
    return bad


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_module_knows_one_above_it(path: Path) -> None:
    """deployments, flows, tasks, datamask: each knows only what is to its right."""
    assert not forbidden(path)


def test_a_broken_rule_is_seen(tmp_path: Path) -> None:
    """The reader of imports sees them inside functions and in both forms."""
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from prefect import flow\n    import flows.stages\n")
    assert knows(path, "prefect", "flows") == {"prefect", "prefect.flow", "flows.stages"}


@pytest.mark.parametrize("room", ["tasks", "flows"])
def test_no_name_shadows_another_module(room: str) -> None:
    """A file-path import puts the folder first on sys.path, where it would shadow others."""
    names = {path.stem for path in (REPOSITORY / room).glob("*.py")} - {"__init__"}
    taken = set(sys.stdlib_module_names) | set(packages_distributions())
    assert not names & taken

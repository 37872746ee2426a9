"""`docs/log.md` and the constants of the learner name each other."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("learning", "selection", "objectives", "baselines")
MODULES = (
    *("runs/budget", "runs/output"),
    *("quality/example_texts", "quality/heuristic", "quality/grouping", "quality/fitting"),
    *("quality/word_model", "quality/resemblance", "quality/in_groups"),
    "analysis/explained",
    *("evaluation/training", "evaluation/ngram"),
    "report/sample",
)


def entries() -> dict[str, tuple[str, set[str]]]:
    """The log's entries by anchor: their text, and the constants that they are about."""
    parts = re.split(r"^## ([a-z-]+)$", (ROOT / "docs" / "log.md").read_text("utf-8"), flags=re.M)
    found = {}
    for anchor, text in zip(parts[1::2], parts[2::2], strict=True):
        line = next(line for line in text.splitlines() if line.startswith("Constants: "))
        names = set()
        for module, constants in re.findall(r"`([a-z_.]+)`: ([A-Z_, ]+)", line):
            names |= {f"datamask.{module}.{name.strip()}" for name in constants.split(",")}
        found[anchor] = text, names
    return found


def constants() -> Iterator[tuple[str, str]]:
    """Each numeric constant of the learner's modules, and the paragraph of code that sets it."""
    paths = [path for room in ROOMS for path in (ROOT / "datamask").glob(f"{room}/*.py")]
    for path in [*paths, *(ROOT / "datamask" / f"{name}.py" for name in MODULES)]:
        source = path.read_text("utf-8")
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        lines = source.splitlines()
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            named = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            for name in named:
                value = getattr(importlib.import_module(module), name)
                values = value if isinstance(value, tuple) else (value,)
                if name.isupper() and all(isinstance(v, int | float) for v in values):
                    first = last = node.lineno - 1
                    while lines[first - 1].strip():
                        first -= 1
                    while last < len(lines) and lines[last].strip():
                        last += 1
                    yield f"{module}.{name}", "\n".join(lines[first:last])


def test_every_constant_points_to_an_entry_that_names_it():
    """A constant without a record of why it has its value, or with a dead link, is found."""
    log = entries()
    unnamed = []
    for name, paragraph in constants():
        anchors = re.findall(r"docs/log\.md#([a-z-]+)", paragraph)
        if not any(name in log.get(anchor, ("", set()))[1] for anchor in anchors):
            unnamed.append((name, anchors))
    assert not unnamed


def test_every_entry_is_dated_and_its_constants_exist():
    """An entry about a constant that was renamed or deleted is found."""
    there = {name for name, _ in constants()}
    assert len(there) > 50
    for anchor, (text, names) in entries().items():
        assert re.search(r"20\d\d-\d\d-\d\d", text), anchor
        assert names and names <= there, (anchor, names - there)


def test_the_benchmark_tries_constants_that_exist():
    """A constant that moved to another module is found."""
    from benchmarks.constants import TRIALS

    assert not {f"datamask.{name}" for name, *_ in TRIALS} - {name for name, _ in constants()}

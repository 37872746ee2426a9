"""Every command, setting, snippet and notebook: read by what it is for, or run.

Queries run in tests/analysis/test_query.py, what loads a published data set in
tests/publishing/test_configurations.py, the classes of one's own in tests/test_contributing.py, and
docs/python.md in tests/in_memory/test_guide.py.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from datamask.cli.main import cli
from datamask.config.loading import load_settings, with_values
from datamask.config.reference import descriptions
from datamask.config.settings import Settings
from datamask.errors import DatamaskError
from datamask.execution.sweep import read_over
from flows.rebuild import rebuild
from tests.conftest import mostly_nightly
from tests.docs.pages import PAGES, ROOT, all_blocks, blocks, command_lines, words_of


def shown(page: Path) -> str:
    """A page in the name of a test."""
    return page.relative_to(ROOT).as_posix()


SHELL = ("", "bash", "console", "sh")
COMMANDS = {
    page: [
        (block, line)
        for block in blocks(page, "indented", *SHELL)
        for line in command_lines(block)
        if not line.startswith("datamask: ")  # an error message
        if block.language in SHELL or re.match(r"(\w+=\S+ )*(\S*/)?(datamask|pip|prefect) ", line)
    ]
    for page in PAGES
}
"""Lines of blocks without a language are commands; indented blocks also hold formulas."""

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

PARAMETERS = parameter_schema(rebuild).model_dump_for_openapi()
"""With it, the server checks the parameters of a flow run of deployment `rebuild`."""

RUN_ELSEWHERE = (*("docs/own-objective.md", "docs/publish.md", "docs/python.md", "docs/scores.md"),)
OTHERS = (
    "export",
    "mkdir",
    "python",
    "python3",
    "git",
    "pre-commit",
    "docker",
    "kubectl",
    "aws",
    ".",
)
"""Programs that are not of this project: their lines are not checked."""


@pytest.fixture(autouse=True)
def _in_a_folder_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings files that pages name."""
    monkeypatch.chdir(tmp_path)
    for name in ("my.yaml", "evidence.yaml"):
        Path(name).write_text("source: {path: data}\n")
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for name in ("benchmark.jsonl", "rubric.yaml", "texts.jsonl"):
        Path(name).touch()


def parsed(words: list[str]) -> dict[str, Any]:
    """Parse the arguments of a command as the command does."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        words, command = words[1:], command.commands[words[1]]
    with command.make_context(words[0], words[1:]) as context:
        return dict(context.params)


def test_pages_have_commands():
    """The test looks where they are: most pages have some."""
    assert sum(map(len, COMMANDS.values())) > 70
    assert sum(bool(found) for found in COMMANDS.values()) > 15


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS[page]], ids=shown)
def test_commands_are_understood(page):
    """By the parser of the program; --set by the settings, parameters of flows by the flow."""
    for block, line in COMMANDS[page]:
        words = words_of(line)
        try:
            check(words)
        except (click.ClickException, DatamaskError, AssertionError) as error:
            pytest.fail(f"{block}: {line}\n{error}")


def check(words: list[str]) -> None:
    """Raise if a program would not understand its arguments."""
    program = words[0]
    if program == "datamask":
        given = parsed(words)
        load_settings(None, given.get("overrides", ()))
        for key, values in read_over(given.get("over", ())).items():
            for value in values:
                with_values(Settings(), {key: value})
    elif program == "make":
        targets = "".join(path.read_text() for path in (ROOT / "Makefile", *ROOT.glob("*/*.mk")))
        for word in words[1:]:
            assert "=" in word or re.search(rf"^{word}:.*##", targets, re.MULTILINE), word
    elif program == "sbatch":
        script = next(place for place, word in enumerate(words) if word.endswith(".sbatch"))
        assert (ROOT / words[script]).is_file()
        check(["datamask", "rebuild", *words[script + 1 :]])
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for word in (word for word in words[2:] if "datamask" in word):
            name, _, extra = word.rstrip("]").partition("[")
            assert name == project["name"]
            assert not extra or extra in project["optional-dependencies"]
    elif program == "prefect":
        check_prefect(words)
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words[2]
    elif program == "python" and words[1].startswith("examples/"):
        assert (ROOT / words[1]).is_file()
    else:
        assert program in OTHERS


def check_prefect(words: list[str]) -> None:
    """Prefect reads the arguments; a deployment is registered, and its flow has the parameters."""
    app = pytest.importorskip("prefect.cli._app")._app
    given = [word for word in words[1:] if word != "--no-prompt"]
    app.parse_args(given, exit_on_error=False, print_error=False)
    if given[:2] != ["deployment", "run"]:
        return
    flow_name, _, deployment = given[2].partition("/")
    for item in yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())["deployments"]:
        module, _, attribute = item["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), attribute)
        if (flow.name, item["name"]) == (flow_name, deployment):
            parameters = {word.partition("=")[0] for word in given if "=" in word}
            assert parameters <= {*inspect.signature(flow.fn).parameters}
            return
    raise AssertionError(f"no deployment {given[2]}")


def inline_code() -> Iterator[tuple[str, str]]:
    """Pieces of code within sentences."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        for found in re.findall(r"`([^`\n]+)`", text):
            yield page.name, found


def test_settings_named_in_sentences_exist():
    """`selection.ratio` and the like, and the commands after `datamask`."""
    keys = {key.replace("[]", "") for key in descriptions()}
    groups = "|".join({key.partition(".")[0] for key in keys if "." in key})
    wrong = []
    for page, code in inline_code():
        if match := re.fullmatch(rf"((?:{groups})\.[a-z_.]+[a-z_])(\.\*|[:=].*)?", code):
            exists = match[1] in keys or any(key.startswith(f"{match[1]}.") for key in keys)
            is_file = re.search(r"\.(py|md|yaml|jsonl?|parquet|html|tsv|png)$", match[1])
            is_file = is_file or (ROOT / f"datamask/{match[1].replace('.', '/')}.py").exists()
            wrong += [] if exists or is_file else [(page, code)]
        elif match := re.match(r"(?:\.venv/bin/)?datamask ([a-z][a-z-]*)", code):
            wrong += [] if match[1] in cli.commands else [(page, code)]
    assert not wrong


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_settings_in_yaml_are_accepted(block):
    """By what reads settings files, and by the check of Prefect's server on a deployment's run."""
    Path("snippet.yaml").write_text(block.text)
    load_settings(Path("snippet.yaml"))
    validate({"root": "runs/a", **yaml.safe_load(block.text)}, PARAMETERS, raise_on_error=True)


def test_blocks_of_other_languages_are_few():
    """A block has a language that a test reads, or is marked as text."""
    read = {"yaml", "python", "text", "sql", "math", *SHELL}
    fences = (re.findall(r"^```(\w+)", page.read_text("utf-8"), re.MULTILINE) for page in PAGES)
    assert {language for found in fences for language in found} <= read


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python")],
    ids=shown,
)
def test_python_runs(page, workplace, monkeypatch):
    """A page's blocks, one after the other, where the tutorial has run; with texts and scores."""
    found = blocks(page, "python")
    if found[0].page in RUN_ELSEWHERE:
        pytest.skip("another test runs it")
    generator = np.random.default_rng(0)
    features = generator.standard_normal((1200, 16), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    import datasets

    names: dict[str, Any] = {
        "numpy": np,
        "features": features,
        "quality": generator.standard_normal(1200),
        "texts": [f"text {row} of {row % 7} things and {row % 11} others" for row in range(200)],
        "scores": generator.standard_normal(200),
        "subset": datasets.Dataset.from_dict({"id": ["a", "b"], "repeat": [1, 3]}),
    }
    monkeypatch.chdir(workplace)
    for block in found:
        exec(compile(ast.parse(block.text), str(block), "exec"), names)


def test_the_tutorial_ends_with_what_it_says(workplace):
    """Settings, subsets, reports and a comparison."""
    for name in ("mine/report.html", "mine/subset", "other/report.html"):
        assert (workplace / "runs" / name).exists()
    assert (workplace / "runs/mine/comparison.html").exists()
    written = yaml.safe_load((workplace / "my.yaml").read_text())
    (shown,) = blocks(ROOT / "docs/tutorial.md", "yaml")
    assert written.keys() - {"quality"} == yaml.safe_load(shown.text).keys()


@pytest.mark.parametrize(
    "path", mostly_nightly(NOTEBOOKS[:2], NOTEBOOKS), ids=lambda path: path.stem
)
def test_a_notebook_runs(path, workplace, monkeypatch):
    """Every cell, in a module of its own, where the tutorial has run, without an error."""
    monkeypatch.chdir(workplace)
    module = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    cells = [
        cell
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert len(cells) > 2
    for number, cell in enumerate(cells):
        assert all(output["output_type"] != "error" for output in cell["outputs"])
        exec(compile("".join(cell["source"]), f"{path.name}:{number}", "exec"), module.__dict__)

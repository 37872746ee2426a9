"""Hooks of the documentation site: pages made from the code, and links that work in two places.

`mkdocs build` calls them. The reference is made from the settings, the commands, the schemas and
the tables of a run, so it cannot be out of date. README, CONTRIBUTING and the guides of other
folders become pages. Links are written for readers of the repository and rewritten for the site: a
link to a file that is no page becomes its text.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pyarrow as pa
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
GUIDES = (
    "README.md",
    "README.zh.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "CHANGELOG.md",
    "SECURITY.md",
)
FOLDERS = ("benchmarks", "deployments")
EXAMPLES: dict[str, Any] = {
    **{"names": ["edu"], "terms": ["quality", "disf"]},
    **{"dimension": 768, "storage": "float16", "groups": ["g_domain"]},
}
"""Arguments of the functions that make schemas."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version next to the name of the site, and a link to the repository at the end.

    The workflow that publishes the site knows the address. `repo_url` would fetch figures from it.
    """
    from datamask import __version__

    config.site_name = f"{config.site_name} {__version__}"
    if address := os.environ.get("REPOSITORY_URL"):
        config.copyright = f'<a href="{address}">Repository</a>'
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, those that lie outside docs/, and llms.txt with the site's links."""
    pages = {"settings": settings, "commands": commands, "api": api, "schemas": schemas}
    for name, make in {**pages, "sql": tables}.items():
        files.append(File.generated(config, f"{name}.md", content="\n".join(make()) + "\n"))
    if listed := files.get_file_from_path("llms.txt"):
        files.remove(listed)
        text = re.sub(r"\]\((?:\.\./)?(\S+)\.md\)", _on_site, listed.content_string)
        files.append(File.generated(config, "llms.txt", content=text))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=notebook(path)))
    found = [ROOT / name for name in GUIDES]
    for folder in FOLDERS:
        found += [ROOT / folder / "README.md", *(ROOT / folder).glob("results/*.[mp]*")]
    for path in found:
        name = page_of(path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _on_site(link: re.Match[str]) -> str:
    """A link of llms.txt as one of the site."""
    name = page_of(f"{link[1]}.md").removesuffix(".md")
    return f"]({re.sub('README$', 'index', name)}.html)"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set formulas, and rewrite relative links, except those in blocks of code."""
    from latex2mathml.converter import convert

    formula = re.compile(r"^```math\n(.*?)^```", re.DOTALL | re.MULTILINE)
    markdown = formula.sub(lambda match: convert(match[1], display="block"), markdown)
    own = page.file.src_uri
    is_in_docs = Path(page.file.abs_src_path or "").is_relative_to(ROOT / "docs")
    source = f"docs/{own}" if is_in_docs else "README.md" if own == "index.md" else own

    def rewritten(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = page_of(wanted)
        if files.get_file_from_path(name):
            relative = posixpath.relpath(name, posixpath.dirname(own) or ".")
            return f"{label}({relative}{mark}{anchor})"
        return label[1:-1] if (ROOT / wanted).exists() else match[0]

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    link = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\(([^()\s]+)\)")
    return "".join(part if part.startswith("```") else link.sub(rewritten, part) for part in parts)


def page_of(path: str) -> str:
    """The page on the site of a file of the repository."""
    if path.endswith(".ipynb"):
        return f"{path.removesuffix('ipynb')}md"
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def notebook(path: Path) -> str:
    """The text, code and printed output of a notebook, as a page."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        for output in cell.get("outputs", []):
            printed = output.get("text") or output.get("data", {}).get("text/plain", [])
            parts.append(f"```text\n{''.join(printed).rstrip()}\n```")
    return "\n\n".join([*parts, f"This page is the notebook `examples/{path.name}`."]) + "\n"


def settings() -> Iterator[str]:
    """Every setting, in a table per group, as `datamask settings` prints it."""
    from datamask.config.reference import described

    yield "# Settings\n\nThe keys of a settings file and of `--set`, as `datamask settings` prints"
    yield "them. `[]` stands for each entry of a list."
    group = None
    for entry in described(""):
        head, _, meaning = entry.partition("\n    ")
        key, _, rest = head.partition(" = ")
        if not meaning:
            continue
        if key.partition(".")[0] != group:
            group = key.partition(".")[0]
            yield f"\n## {group}\n\n| key | meaning |\n|:--|:--|"
        default, _, values = rest.partition("  (")
        shown = f"Default: {f'`{default}`' if default else 'empty'}."
        shown += f" Values: {cell(values[:-1], ', ')}." if values else ""
        broken = key.replace(".", ".<wbr>").replace("_", "_<wbr>")
        yield f'| <code id="{key}">{broken}</code> | {cell(meaning)}<br>*{shown}* |'


def commands() -> Iterator[str]:
    """The help of every command."""
    from datamask.cli.main import Later, cli

    def of(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
        command = command.loaded() if isinstance(command, Later) else command
        options = {**command.context_settings, "terminal_width": 100}
        context = click.Context(command, info_name=name, parent=parent, **options)
        yield f"\n## {context.command_path}\n\n```text\n{command.get_help(context)}\n```"
        for one, child in sorted(getattr(command, "commands", {}).items()):
            if parent is None:  # `more` lists commands that are there anyway
                yield from of(child, one, context)

    yield "# Commands\n\nWhat `--help` prints. The exit status is 2 for an error that you must"
    yield "fix, 75 for a transient one, and 70 for a bug."
    yield from of(cli, "datamask", None)


_EXAMPLE = """```python
import datamask
import numpy as np

generator = np.random.default_rng(0)
embeddings, quality = generator.standard_normal((2000, 32)), generator.standard_normal(2000)
chosen = datamask.select(embeddings, quality, ratio=0.1)
print(chosen.indices[:5], len(chosen.indices))  # rows to keep
```
"""


def api() -> Iterator[str]:
    """The public names of Python, which mkdocstrings documents from their docstrings."""
    import datamask

    yield "# Python\n\nThe names that `import datamask` offers, `select` first."
    yield "[Select from Python](python.md) shows how to use them.\n"
    yield _EXAMPLE
    groups = ("Compute", "Embedding", "Selection", "Settings")
    order = {name: place for place, name in enumerate(("select", "rebuild", "open_run"))}
    names = sorted(datamask.__all__, key=lambda name: (name[0].isupper(), name))
    for name in sorted(names, key=lambda name: order.get(name, len(order))):
        if name in groups:
            yield f"\n::: datamask.{name}\n    options: {{members: false}}\n"
            yield "Its keys are listed in [Settings](settings.md)."
        elif not name.startswith("_"):
            yield f"\n::: datamask.{name}"


def schemas() -> Iterator[str]:
    """The columns of every Parquet file of a run."""
    from datamask.config.settings import Settings
    from datamask.runs import schemas as module

    yield "# Parquet files of a run\n\nOne schema per kind of file, the same in every shard."
    yield "Columns that depend on settings are shown for a score `edu` and two terms."
    given = {**EXAMPLES, "settings": Settings()}
    for name, text in documented(module):
        made = getattr(module, name)
        if callable(made) and made.__annotations__["return"] == "pa.Schema":
            parameters = inspect.signature(made).parameters.values()
            made = made(**{p.name: given[p.name] for p in parameters if p.default is p.empty})
        if not isinstance(made, pa.Schema):
            continue
        yield f"\n## {name.lower()}\n\n{text}\n\n| column | type | may be missing |\n|:--|:--|:--|"
        for field in made:
            kind = str(field.type).replace(" not null", "")
            yield f"| `{field.name}` | `{kind}` | {'yes' if field.nullable else 'no'} |"


def documented(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Public constants and functions of a module in order, each with its docstring."""
    body = ast.parse(inspect.getsource(module)).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = getattr(getattr(after, "value", None), "value", None)
            text = inspect.cleandoc(value) if isinstance(value, str) else ""
            if not name.startswith("_"):
                yield name, text if isinstance(after, ast.Expr) else ""


def tables() -> Iterator[str]:
    """The tables of `datamask query`."""
    from datamask.analysis.summary import relations

    yield '# SQL tables\n\nTables and views of a run, for `datamask query RUN "SELECT ..."`.'
    yield "All but `sample` and `neighbours` are in `RUN/composition.duckdb`.\n"
    yield "| table | contents |\n|:--|:--|"
    for name, meaning in relations().items():
        yield f"| `{name}` | {cell(meaning)} |"


def cell(text: str, bar: str = "\\|") -> str:
    """A text as a cell of a table."""
    return text.replace(" | ", bar).replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")

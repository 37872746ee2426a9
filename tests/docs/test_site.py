"""The documentation's site builds without a warning, is complete, and needs no other server."""

import html
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import datamask
from datamask.analysis.summary import relations
from datamask.cli.main import cli
from datamask.config.reference import descriptions
from tests.docs.pages import PAGES, ROOT, blocks, command_lines, words_of

ADDRESS = "https://example.org/me/datamask"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; strict: a dead link or anchor, or a page that the menu lacks, ends it."""
    folder = tmp_path_factory.mktemp("site")
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    told["REPOSITORY_URL"] = ADDRESS
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    """No script, style, font or picture of another server; Mermaid would be fetched by diagrams."""
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loads.findall(text), page
        assert 'class="mermaid"' not in text, page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text()), style


@pytest.mark.slow
def test_the_reference_is_complete(site):
    """Every setting, command and table has its place."""

    def text(name: str) -> str:
        found = re.sub(r"<[^>]+>", "", (site / f"{name}.html").read_text(encoding="utf-8"))
        return html.unescape(found)

    shown = text("settings")
    for line in descriptions().values():
        if "\n" in line:
            assert line.partition(" = ")[0] in shown
    assert all(f"Usage: datamask {name} " in text("commands") for name in cli.commands)
    assert all(name in text("sql") for name in relations())
    assert "SCREENING" in text("schemas") and "near_duplicate_of" in text("schemas")
    names = [name for name in datamask.__all__ if not name.startswith("_")]
    assert all(f"datamask.{name}" in text("api") for name in names)
    assert "N x D, float16 or float32" in text("api"), "the docstrings of what is imported lazily"


@pytest.mark.slow
def test_assistants_find_every_page(site):
    """llms.txt names each page for users with a line, in the repository and on the site."""
    folder = ROOT / "docs"
    link = re.compile(r"^- \[[^]]+\]\((\S+)\): \S", re.MULTILINE)
    named = link.findall((folder / "llms.txt").read_text(encoding="utf-8"))
    assert all((folder / name).is_file() for name in named)
    assert {path.name for path in folder.glob("*.md")} <= set(named)
    on_site = link.findall((site / "llms.txt").read_text(encoding="utf-8"))
    assert len(on_site) == len(named) and all((site / name).is_file() for name in on_site)
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 80


@pytest.mark.slow
def test_the_site_leads_on(site):
    """Version, repository, next page; the Python reference begins with an example that runs."""
    text = (site / "tutorial.html").read_text(encoding="utf-8")
    assert datamask.__version__ in text and 'rel="next"' in text and "md-footer__link--next" in text
    api = (site / "api.html").read_text(encoding="utf-8")
    places = [api.index(f'id="datamask.{name}"') for name in ("select", "rebuild", "LearnedMask")]
    assert places == sorted(places) and api.index("default_rng") < places[0]
    example = runpy.run_path(str(ROOT / "docs" / "generate.py"))["_EXAMPLE"]
    exec(example.removeprefix("```python").removesuffix("```\n"), {})
    assert f'href="{ADDRESS}"' in text


@pytest.mark.slow
def test_formulas_are_set_and_notebooks_are_pages(site):
    """No formula is left as TeX, and every cell and every printed line of a notebook is shown."""
    for source in (ROOT / "docs").glob("*.md"):
        formulas = source.read_text(encoding="utf-8").count("```math")
        page = (site / source.relative_to(ROOT / "docs")).with_suffix(".html")
        assert page.read_text(encoding="utf-8").count("<math") == formulas
    notebooks = list((ROOT / "examples").glob("*.ipynb"))
    assert notebooks
    for notebook in notebooks:
        text = (site / "examples" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        text = html.unescape(re.sub(r"<[^>]+>", "", text))
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            printed = [output.get("text", []) for output in cell.get("outputs", [])]
            lines = [*cell["source"]] if cell["cell_type"] == "code" else []
            for line in (*lines, *itertools.chain(*printed)):
                assert line.strip() in text


def test_links_of_the_package_index_are_absolute():
    """Each is a file of the tag, pictures as they are served; links within the page stay."""
    absolute = runpy.run_path(str(ROOT / "docs" / "released.py"))["absolute"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"(!?)\[[^\[\]]*\]\((\S+?)\)", absolute(text, ADDRESS, "v1"))
    assert len(links) > 40
    for mark, target in links:
        assert target.startswith(("https://", "#")), target
        kind, _, path = target.removeprefix(f"{ADDRESS}/").partition("/v1/")
        if target.startswith(ADDRESS):
            assert (ROOT / path.partition("#")[0]).exists()
            assert kind == ("raw" if mark else "blob")


def test_a_release_changes_how_the_package_is_installed():
    """The workflow changes it before it builds; nothing else changes, and twice is once."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    commands = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    (place,) = (n for n, command in enumerate(commands) if "docs/released.py" in command)
    assert place < next(n for n, command in enumerate(commands) if "-m build" in command)
    script = runpy.run_path(str(ROOT / "docs" / "released.py"))
    for name in script["PAGES"]:
        before = (ROOT / name).read_text(encoding="utf-8")
        after = script["from_index"](before)
        assert "clone -->" in before and "clone -->" not in after
        from_clone = re.compile(r'pip install "?\.')
        assert from_clone.search(before) and not from_clone.search(after)
        kept = [line for line in after.splitlines() if "datamask-pipeline" not in line]
        assert [line for line in before.splitlines() if line in kept] == kept
        assert script["from_index"](after) == after
    assert not any(
        re.search(r"pip install (datamask-pipeline|\.)(\s|$)", page.read_text(encoding="utf-8"))
        for page in PAGES
        if page.relative_to(ROOT).as_posix() not in script["PAGES"]
    )


def test_the_chinese_readme_says_what_readme_says():
    """Its commands and figures are in README.md, its links lead to files, and each names it."""
    english, chinese = (ROOT / name for name in ("README.md", "README.zh.md"))

    def commands(page: Path) -> list[list[str]]:
        return [words_of(line) for block in blocks(page, "") for line in command_lines(block)]

    assert commands(chinese)[:5] == commands(english)[:5]
    assert all(command in commands(english) for command in commands(chinese))
    texts = [page.read_text(encoding="utf-8") for page in (english, chinese)]
    figures = [set(re.findall(r"−?\b\d[\d,.]*\d", text)) for text in texts]
    assert len(figures[1]) > 8 and figures[1] <= figures[0]
    targets = re.findall(r"\]\(([^()\s]+)\)", texts[1])
    assert "README.zh.md" in texts[0] and "README.md" in targets
    for target in (target for target in targets if "://" not in target):
        assert (ROOT / target.partition("#")[0]).exists(), target
    assert 30 < len(texts[1].splitlines()) < 70


def test_readme_is_a_screen_or_two():
    """At most 120 lines, without words that only other pages explain; commands on the first 40."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    first = "\n".join(text.splitlines()[:40])
    for command in ("pip install", "datamask rebuild", "make demo", "make test"):
        assert re.search(f"^{command}", first, re.MULTILINE)
    for answer in ("In", "Out", "What does it cost?", "Does it help?", "Is it for me?"):
        assert f"**{answer}" in first
    assert not re.findall(
        r"DiSF|facility location|lambda|shard|logit", re.sub(r"\(.*?\)", "", text)
    )


def test_the_tour_shows_what_make_pictures_takes():
    """Each picture of the page is taken by the script, in this order, and is small."""
    made = runpy.run_path(str(ROOT / "docs/tour.py"))
    shown = re.findall(r"\(pictures/(tour-[\w-]+)\.png\)", (ROOT / "docs/tour.md").read_text())
    assert shown == sorted([*made["TERMINAL"], *made["PAGES"]]) and len(shown) == 8
    assert all((made["PICTURES"] / f"{name}.png").stat().st_size < 100_000 for name in shown)

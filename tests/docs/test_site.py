"""The documentation's site builds without a warning, is complete, and needs no other server."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import datamask
from datamask.analysis.query import relations
from datamask.cli.main import cli
from datamask.config.reference import descriptions
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; strict: a dead link or anchor, or a page that the menu lacks, ends it."""
    folder = tmp_path_factory.mktemp("site")
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another server; Mermaid would be fetched by diagrams."""
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loads.findall(text), page
        assert 'class="mermaid"' not in text, page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text()), style


def test_the_reference_is_complete(site: Path) -> None:
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


def test_readme_is_a_screen_or_two() -> None:
    """At most 120 lines, without words that only other pages explain."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert not re.findall(
        r"DiSF|facility location|lambda|shard|logit", re.sub(r"\(.*?\)", "", text)
    )

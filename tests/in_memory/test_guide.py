"""The page on Python: its code runs as it stands."""

import re
import sys
import types
from pathlib import Path

import pytest

from tests.finished import corpus

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    """Every block in order, except what needs the Hub; the table is the one that is printed."""
    page = GUIDE.read_text(encoding="utf-8")
    corpus(tmp_path / "corpus")
    blocks = re.findall(r"(<!-- needs the Hub -->\n)?```python\n(.*?)```", page, re.DOTALL)
    code = [block for needs_hub, block in blocks if not needs_hub]
    assert len(blocks) == len(code) + 1
    code = [block.replace("\nchosen\n", "\nprint(chosen)\n") for block in code]
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # where its class of its own is found
    exec(compile("\n".join(code), "guide.py", "exec"), module.__dict__)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    # The last digits depend on the machine.
    words = [line.split()[0] for line in shown.splitlines()]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == words
    assert (tmp_path / "runs/mine/report.html").exists()

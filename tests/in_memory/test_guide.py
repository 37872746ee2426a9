"""The page on Python: its code runs as it stands, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import UNDRAWN
from tests.finished import corpus

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_code_of_the_guide_runs(tmp_path: Path) -> None:
    """Every block in order, except what needs the Hub; the table is the one that is printed."""
    page = GUIDE.read_text(encoding="utf-8")
    corpus(tmp_path / "corpus")
    blocks = re.findall(r"(<!-- needs the Hub -->\n)?```python\n(.*?)```", page, re.DOTALL)
    code = [block for needs_hub, block in blocks if not needs_hub]
    assert len(blocks) == len(code) + 1
    code[0] = code[0].replace("\nchosen\n", "\nprint(chosen)\n")
    (tmp_path / "guide.py").write_text("\n".join(code))
    command = [sys.executable, "guide.py"]
    places = filter(None, (str(UNDRAWN), *sys.path))
    environment = {"PYTHONPATH": ":".join(places), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    # The last digits depend on the machine.
    words = [line.split()[0] for line in shown.splitlines()]
    assert [line.split()[0] for line in done.stdout.splitlines()] == words
    assert (tmp_path / "runs/mine/report.html").exists()

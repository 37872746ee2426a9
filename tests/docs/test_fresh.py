"""README's first commands as they stand there, in a copy of the repository that has nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.docs.pages import ROOT, blocks
from tests.finished import corpus

INSTALL, MAKE = (block.text for block in blocks(ROOT / "README.md", "")[:2])


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a clone of the working tree would have, beside the folder `data`."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a clone")
    folder = tmp_path_factory.mktemp("clone")
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    corpus(folder / "data")
    return folder


def run(lines: str, clone: Path, home: Path) -> None:
    """Run lines of a page in a shell that knows neither this environment nor this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    path = [Path(sys.base_prefix) / "bin", *map(Path, os.environ["PATH"].split(":"))]
    kept["PATH"] = ":".join(str(part) for part in path if part != Path(sys.prefix) / "bin")
    variables = {**kept, "HOME": str(home), "BROWSER": "true", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    variables.pop("VIRTUAL_ENV", None)
    done = subprocess.run(["bash", "-e", "-c", lines], cwd=clone, env=variables, check=False)
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_first_commands_select(clone, tmp_path):
    """From nothing to a subset and a report, with the lines of README's first block."""
    run(INSTALL, clone, tmp_path)
    subset = pq.read_table(clone / "runs/mine/subset")
    assert 0 < subset.num_rows <= 12  # a tenth of 120 documents
    assert {"text", "dump", "edu", "quality", "logit"} <= {*subset.column_names}
    assert (clone / "runs/mine/report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_demo_selects(clone, tmp_path):
    """The first line of README's second block; the second is what CI itself runs."""
    demo, test = (line.partition("#")[0].strip() for line in MAKE.splitlines())
    assert f"exec {test}\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    run(demo, clone, tmp_path)
    assert pq.read_table(clone / "runs/demo/subset").num_rows > 1000

"""The flows of an installed package, on a machine without a checkout."""

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import finished
from tests.flows.server import REPOSITORY, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(REPOSITORY))
    subprocess.run([sys.executable, "-m", "pip", *command], check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_two_packages_and_no_name_of_others(wheel):
    """Every module of flows and tasks is in it, below one name, and names no other place."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        texts = {
            name: archive.read(name).decode() for name in names if name.startswith("datamask_f")
        }
    assert {name.partition("/")[0] for name in names} == {"datamask", "datamask_flows"}
    modules = [path for room in ("flows", "tasks") for path in (REPOSITORY / room).rglob("*.py")]
    expected = {f"datamask_flows/{path.relative_to(REPOSITORY)}" for path in modules}
    assert expected <= texts.keys()
    assert not [
        (name, line)
        for name, text in texts.items()
        for line in text.splitlines()
        if line.strip().startswith(("from flows", "from tasks", "import flows", "import tasks"))
        or "entrypoint: flows" in line
    ]


def test_an_installed_package_is_deployed_and_run(wheel, tmp_path):
    """Server, worker, `datamask deploy`, `prefect deployment run`: the subset is there."""
    venv, at = tmp_path / "venv", tmp_path / "anywhere"
    at.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    # Third packages are those of this environment, whose own .pth files are not read.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    server = Server(tmp_path / "server", gpu_workers=0, python=str(venv / "bin/python"), at=at)
    server.environment.pop("PYTHONPATH", None)
    server.environment["PATH"] = os.pathsep.join([str(venv / "bin"), server.environment["PATH"]])
    origins = server.run("-c", "import datamask as a, datamask_flows as b; print(a, b)")
    assert origins.stdout.count(str(packages)) == 2, origins.stdout + origins.stderr
    assert server.run("-c", "import flows").returncode == 1
    finished.corpus(at / "corpus")
    settings = {
        "root": "run",
        "source": {"path": "corpus"},
        "plan": {"rows_per_shard": 60},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"steps": 5, "ratio": 0.2},
    }
    try:
        server.start()
        registered = server.run("-m", "datamask.cli.main", "deploy", "--pool", "cpu")
        assert registered.returncode == 0, registered.stdout + registered.stderr
        again = server.run("-m", "datamask.cli.main", "more", "deploy", "--pool", "cpu")
        assert again.returncode == 0, again.stdout + again.stderr
        ended = server.launch("rebuild/local", settings, "--watch")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "selection" in ended.stdout, "the library's lines are in the log"
    finally:
        server.stop()
    assert (at / "run" / "report.html").is_file()

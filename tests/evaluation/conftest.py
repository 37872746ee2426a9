"""A run that is ready to be evaluated, made once."""

import shutil
from pathlib import Path

import pytest

from tests import finished
from tests.evaluation import small


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of most tests."""
    return small.corpus(tmp_path_factory.mktemp("evaluated") / "source")


@pytest.fixture(scope="session")
def selected_run(source: Path) -> Path:
    """Its folder, which tests copy."""
    root = source.parent / "run"
    finished.finish(root, small.settings(source, arms=[]), "composition")
    return root


@pytest.fixture
def root(tmp_path: Path, selected_run: Path) -> Path:
    """The folder of a run of its own, with a fifth held out and the selection made."""
    return Path(shutil.copytree(selected_run, tmp_path / "run"))

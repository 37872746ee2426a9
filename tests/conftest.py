"""Settings every test shares: no telemetry, no model hub, no progress bars, one thread."""

import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import vl_convert

from datamask.runs import retrying

# Before Prefect or huggingface_hub are imported: both read these once, at import.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

# Before torch and numpy are: on tensors of tests, threads that wait for each other cost ten times
# the arithmetic, and more while several tests run at once. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Runs write and sync many small files, which takes a third of their time on a disk. In memory it
# takes none. A container may have only 64 MB of it.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Tests of this process try again at once.
retrying.PAUSES[:] = [0.0] * len(retrying.PAUSES)

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

UNDRAWN = Path(__file__).parent / "undrawn"

ONE_WORKER = {
    # One Prefect server.
    "tests/flows/": "tests/flows",
    # Libraries of models, whose import takes longer than most tests.
    "tests/evaluation/": "models",
    "tests/embedding/": "models",
    "tests/quality/test_classifier.py": "models",
    "tests/examples/": "models",
    "tests/runs/test_fingerprints.py": "models",
    # One run with its pages: the fixture `made`.
    "tests/report/test_browser.py": "made",
    "tests/analysis/test_query.py": "made",
    # A run through the command line: the fixture `finished`.
    "tests/cli/test_main.py": "finished",
    "tests/cli/test_sharing.py": "finished",
    "tests/cli/test_open_pages.py": "finished",
    # A run whose figures are computed again: the fixture `run`.
    "tests/report/test_chart_data.py": "run",
    "tests/report/test_sample.py": "run",
}
"""Beginnings of paths whose tests share what is expensive, and the name of their group."""

LONGEST = (*ONE_WORKER, "tests/test_oracle", "tests/storage", "tests/cli", "tests/interleavings")
"""What begins first, so that no worker is alone with it at the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules."""
    last = len(LONGEST)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: next((places[n] for n in LONGEST if item.nodeid.startswith(n)), last)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, because tests of servers and processes often wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but a group of `ONE_WORKER` counts as one file."""
    from xdist.scheduler import LoadFileScheduling

    class Grouped(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = (name for start, name in ONE_WORKER.items() if nodeid.startswith(start))
            return next(found, super()._split_scope(nodeid))

    return Grouped(config, log) if config.getoption("dist") == "loadfile" else None


def nightly(*cases: object) -> list[Any]:
    """Parameters with the marker `slow`: further cases of a kind that `make test` has a case of."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def mostly_nightly(often: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """The cases that `make test` has, and all others for the night."""
    often = list(often)
    return [*often, *nightly(*(case for case in every if case not in often))]


def leave_out_charts(patch: pytest.MonkeyPatch) -> None:
    """Specify charts and do not draw them, here and in processes that are started from here."""
    others = os.environ.get("PYTHONPATH", "")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(UNDRAWN), others))))
    patch.setitem(sys.modules, "vl_convert", importlib.import_module("tests.undrawn.vl_convert"))


def measure_roughly(patch: pytest.MonkeyPatch) -> None:
    """Compare with few random subsets, in this process.

    Nor is the report's map arranged: documents lie at their first two coordinates.
    """
    from datamask.learning import scales
    from datamask.report import sample

    patch.setattr(scales, "MOST_SUBSETS", 4)
    patch.setattr(sample, "embedding_map", lambda features, seed: features[:, :2])


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """For modules that make runs: drawing is most of the time of a small one (tests/report)."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        yield


@pytest.fixture(scope="module")
def roughly() -> Iterator[None]:
    """For modules whose runs are all in this process: random subsets are few.

    That is much of the time of a small run.
    """
    with pytest.MonkeyPatch.context() as patch:
        measure_roughly(patch)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of `tests.finished`; a test that changes files makes its own."""
    from tests.finished import corpus

    return corpus(tmp_path_factory.mktemp("corpus") / "source")


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    """A run of a corpus of its own, in which nothing is done."""
    from datamask.planning.plan import plan_run
    from tests.finished import corpus, settings

    return plan_run(tmp_path / "run", settings(corpus(tmp_path / "source")))


@pytest.fixture(scope="session")
def composed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of it with the usual settings up to its composition; tests that change it copy it."""
    from tests.finished import finish, settings

    with pytest.MonkeyPatch.context() as patch:
        measure_roughly(patch)
        return finish(tmp_path_factory.mktemp("composed") / "run", settings(source), "composition")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with hostile documents, and its pages with charts: see `tests.report.conftest.make`."""
    from tests.report.conftest import make

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vl_convert", vl_convert)  # whichever module needs it first
        measure_roughly(patch)
        return make(tmp_path_factory.mktemp("pages"))

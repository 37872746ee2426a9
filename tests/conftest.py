"""Settings every test shares: no telemetry, no model hub, no progress bars, one thread."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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

UNDRAWN = Path(__file__).parent / "undrawn"


def leave_out_charts(patch: pytest.MonkeyPatch) -> None:
    """Specify charts and do not draw them, here and in processes that are started from here."""
    others = os.environ.get("PYTHONPATH", "")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(UNDRAWN), others))))
    patch.setitem(sys.modules, "vl_convert", importlib.import_module("tests.undrawn.vl_convert"))


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """For modules that make runs: drawing is most of the time of a small one (tests/report)."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        yield

"""Every test of a broken input is isolated from the Hub and from modules of other tests."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token, no Hub, and no module of another test."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "their_terms", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

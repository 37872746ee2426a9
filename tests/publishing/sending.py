"""Publish to the loopback Hub without waiting, and read what was published."""

from typing import Any

import pytest
from huggingface_hub import CommitInfo, HfApi

from datamask.config.compute import Compute
from datamask.publishing import retries
from datamask.publishing.publish import publish
from datamask.runs.run import Run
from tests.hub.runs import NAME
from tests.hub.server import Hub


def send(run: Run, attempts: int = 7) -> list[float]:
    """Publish without waiting; the waits requested, in seconds."""
    waits: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "ATTEMPTS", attempts)
        patch.setattr(retries, "pause", waits.append)
        publish(run, Compute())
    return waits


def folder(run: Run) -> dict[str, bytes]:
    """The publication folder, by path."""
    root = run.root / "publication"
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def remote(hub: Hub, revision: str = "main") -> dict[str, bytes]:
    """The repository's files without the one that the Hub creates."""
    files = hub.files(NAME, revision)
    return {path: content for path, content in files.items() if path != ".gitattributes"}


def commit_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends a folder in three commits, as it does through Xet with hundreds of files."""
    whole = HfApi.upload_folder

    def in_parts(self: HfApi, **options: Any) -> CommitInfo:
        """Each part is a commit, and only the first requires its parent."""
        for pattern in ("data/*-00000-*", "data/*-0000[1-4]-*"):
            whole(self, **options, allow_patterns=pattern)
            options.pop("parent_commit", None)
        return whole(self, **options)

    monkeypatch.setattr(HfApi, "upload_folder", in_parts)

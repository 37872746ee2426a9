"""Pin the exact version of a model: names on the Hub can move, and folders can change.

The version is looked up once, when the run is planned, and is part of the fingerprint of every
embedding.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from datamask.config.inputs import Embedding
from datamask.embedding.protocol import try_embedder
from datamask.errors import HubUnavailableError, SettingsError, is_transient, one_line
from datamask.storage.clients import hub_is_unavailable
from datamask.storage.unchanged import pinned

PIN = "embeddings:model"


def pin_model(embedding: Embedding) -> dict[str, str]:
    """Return `embeddings:model` with a commit, a digest of the folder or the embedder's version.

    Raises:
        SettingsError: as in `model_revision` and `try_embedder`.
    """
    if not embedding.has_model:
        return {PIN: try_embedder(embedding.method, embedding.dimension)}
    return {PIN: model_revision(embedding.model, embedding.revision, "embedding.model")}


def model_revision(model: str, revision: str | None, setting: str) -> str:
    """Return the commit of a model on the Hub, or a folder's digest.

    *revision* is a branch, tag or commit; *setting* names the setting in messages.

    Raises:
        SettingsError: there is no such model.
        HubUnavailableError: the Hub does not answer.
    """
    folder = Path(model)
    if folder.is_dir():
        if not any((folder / name).exists() for name in ("modules.json", "config.json")):
            raise SettingsError(
                f"{setting}: no model in {folder} (config.json is missing); name its folder"
            )
        return folder_digest(folder)
    if folder.is_absolute():
        raise SettingsError(f"{setting}: no folder {model}; check the path")
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        info = HfApi().model_info(model, revision=revision, timeout=30)
    except (HfHubHTTPError, HFValidationError) as error:
        kind = HubUnavailableError if hub_is_unavailable(error) else SettingsError
        raise kind(f"{setting} {model}: {one_line(error)}") from None
    except Exception as error:
        # The transport differs between versions of the client; all other errors come from the
        # network.
        problem = f"{setting} {model}: the Hub cannot be reached ({one_line(error)}); try again, "
        raise HubUnavailableError(f"{problem}or give a local folder") from None
    return str(info.sha)


@contextlib.contextmanager
def loading(before: str, after: str = ")") -> Iterator[None]:
    """Turn a library's error about a model into a `SettingsError`, with its reason in between."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        if is_transient(error):
            raise
        raise SettingsError(f"{before}{one_line(error)[:300]}{after}") from None


def folder_digest(folder: Path | str) -> str:
    """Hash the names and contents of all files in the folder of a model; 40 hex digits."""
    folder, whole = Path(folder), hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:40]


def planned_folder(model: str, revision: str) -> AbstractContextManager[object]:
    """Guard a block that loads a model: a folder must be, and stay, as planned."""
    is_folder = Path(model).is_dir()
    return pinned(model, revision, folder_digest) if is_folder else contextlib.nullcontext()

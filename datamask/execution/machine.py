"""Check that this machine is ready for a run: `datamask doctor`.

Every check is bounded in time, writes nothing, shows no secret, and names the remedy if something
is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datamask.errors import one_line
from datamask.execution.devices import usable_cores
from datamask.showing import without_secrets
from datamask.storage.local import nearest_folder

SECONDS = 5.0
"""Seconds of silence after which a request is given up."""

LEAST_DISK = 10 * 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """A finding: its subject, True if a run can start with it, and the remedy if not."""

    name: str
    state: Literal["ok", "warning", "failed"]
    text: str


def checks(folder: Path) -> Iterator[Check]:
    """Yield all checks, as they finish; *folder*, where runs will be, need not exist."""
    yield _device()
    yield _disk(folder)
    yield _hub()
    yield _prefect()


def _device() -> Check:
    import torch

    count, version = usable_cores(), f"torch {torch.__version__}"
    if not torch.cuda.is_available():
        built = torch.version.cuda
        hint = f"; torch was built for CUDA {built}: check the driver" if built else ""
        return Check("device", "ok", f"CPU, {count} cores, no CUDA device ({version}){hint}")
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    names = ", ".join(f"{gpu.name} ({_size(gpu.total_memory)})" for gpu in gpus)
    return Check("device", "ok", f"{names}; {count} cores ({version})")


def _disk(folder: Path) -> Check:
    existing = nearest_folder(folder)
    free = shutil.disk_usage(existing).free
    text = f"{_size(free)} free at {existing}"
    if not os.access(existing, os.W_OK):
        return Check("disk", "failed", f"{existing}: not writable; use another folder for runs")
    if free < LEAST_DISK:
        hint = "a dry run of its plan says what a run needs"
        return Check("disk", "warning", f"{text}; {hint}")
    return Check("disk", "ok", text)


def _hub() -> Check:
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return Check("Hub", "ok", "not used (HF_HUB_OFFLINE): models and sources must be local")
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, answer = _request(f"{ENDPOINT}/api/whoami-v2", headers)
    if status == 200 and token:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return Check("Hub", "ok", f"{ENDPOINT}: token of {json.loads(answer)['name']}")
        answer = "its answer is not the Hub's"
    if status in (401, 403) and token:
        text = f"{ENDPOINT}: the token is not valid; create one, and export it as HF_TOKEN"
        return Check("Hub", "failed", text)
    if status in (401, 403):
        text = f"{ENDPOINT}: no token; export HF_TOKEN to publish or to read private data"
        return Check("Hub", "ok", text)
    hint = "use local models and sources (and set HF_HUB_OFFLINE=1), or check the network"
    return Check("Hub", "warning", f"{ENDPOINT}: {answer or f'answers {status}'}; {hint}")


def _prefect() -> Check:
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url:
        return Check("Prefect", "ok", "not used (PREFECT_API_URL is not set)")
    status, answer = _request(f"{url}/health", {})
    if status in (200, 401, 403):  # A server with a password does not say more without it.
        return Check("Prefect", "ok", without_secrets(url))
    text = f"{without_secrets(url)}: {answer or f'answers {status}'}"
    return Check("Prefect", "failed", f"{text}; start the server (make up), or unset the variable")


def _request(url: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return status and body of a GET; status 0 and the reason without an answer."""
    import httpx2

    try:
        answer = httpx2.get(url, headers=headers, timeout=SECONDS, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return 0, without_secrets(one_line(error) or type(error).__name__)
    return answer.status_code, answer.text


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"

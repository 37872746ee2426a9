"""An S3 server on loopback, behind a proxy that counts requests and can cut a connection."""

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datamask.config.settings import Settings
from datamask.execution.pipeline import rebuild
from tests import finished
from tests.conftest import leave_out_charts, measure_roughly
from tests.killed import kill

REPOSITORY = Path(__file__).parents[2]
LEASE_SECONDS = 2
"""How long a lease lives whose holder is a process that dies or stops; others have a minute."""


class Proxy:
    """Passes bytes on to a server.

    Attributes:
        requests: methods and paths of what came through.
        cut: requests whose line matches lose their connection half-way through their body.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self.cut: re.Pattern[bytes] | None = None
        self.cuts = 0
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                upstream = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # the server has been stopped
                client.close()
                continue
            for source, target, look in ((client, upstream, True), (upstream, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, target, look), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, look: bool) -> None:
        try:
            while data := source.recv(65536):
                lines = (
                    re.findall(rb"^(?:GET|PUT|HEAD|POST|DELETE) \S+", data, re.M) if look else []
                )
                self.requests += [line.decode() for line in lines]
                if self.cut and any(self.cut.search(line) for line in lines):
                    self.cuts += 1
                    # All headers and some of the body arrive, if the body is in this piece at all.
                    target.sendall(data[: max(data.find(b"\r\n\r\n") + 12, len(data) // 2)])
                    break
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


class Store:
    """The server's bucket `runs`, which keeps every version of every object."""

    def __init__(self, client: Any, proxy: Proxy) -> None:
        self.client = client
        self.proxy = proxy

    def names(self, url: str) -> list[str]:
        """Return the objects under a URL, without the notes of receipts."""
        prefix = url.removeprefix("s3://runs/") + "/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="runs", Prefix=prefix)
        return [
            one["Key"].removeprefix(prefix) for page in pages for one in page.get("Contents", ())
        ]

    def read(self, url: str, name: str) -> bytes:
        """The bytes of an object."""
        key = f"{url.removeprefix('s3://runs/')}/{name}"
        body: bytes = self.client.get_object(Bucket="runs", Key=key)["Body"].read()
        return body

    def write(self, url: str, name: str, content: bytes) -> None:
        """Replace an object."""
        key = f"{url.removeprefix('s3://runs/')}/{name}"
        self.client.put_object(Bucket="runs", Key=key, Body=content)

    def writes(self, url: str) -> Counter[str]:
        """Count how often each object was written."""
        prefix = url.removeprefix("s3://runs/") + "/"
        pages = self.client.get_paginator("list_object_versions").paginate(
            Bucket="runs", Prefix=prefix
        )
        found = (one["Key"] for page in pages for one in page.get("Versions", ()))
        return Counter(key.removeprefix(prefix) for key in found)


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """The server, in the environment of this process and of its children."""
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    import moto.backends

    # Clients are kept by what they were made with, not by the server of the environment.
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    service = server.ThreadedMotoServer(port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    proxy = Proxy(port)
    services = tuple(moto.backends.list_of_moto_modules())
    with pytest.MonkeyPatch.context() as patch:
        # The server lists the folder of all services twice for each request, a third of its work.
        patch.setattr(moto.backends, "list_of_moto_modules", lambda: services)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s3-loopback-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket="runs")
        client.put_bucket_versioning(Bucket="runs", VersioningConfiguration={"Status": "Enabled"})
        yield Store(client, proxy)
    service.stop()


@pytest.fixture
def machine(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes this process one of another machine: with an empty mirror of its own."""

    def become(name: str) -> Path:
        cache = tmp_path / name
        monkeypatch.setenv("DATAMASK_CACHE", str(cache))
        return cache

    become("here")
    return become


def with_tokens(source: Path) -> Settings:
    """Settings of a run that ends with tokens for a trainer."""
    tokenizer = finished.word_tokenizer(source.parent / "tokenizer.json")
    return finished.settings(source, tokens={"tokenizer": tokenizer})


@pytest.fixture(scope="session")
def original(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on this machine's disk, without drawn charts."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        measure_roughly(patch)
        folder = tmp_path_factory.mktemp("local") / "mine"
        return rebuild(folder, with_tokens(source)).root


_started: list[subprocess.Popen[str]] = []


def process(
    code: str, *arguments: str, cache: Path | None = None, lease: float = LEASE_SECONDS
) -> subprocess.Popen[str]:
    """A Python process with short leases; with a *cache* of its own, as on another machine."""
    environment = {**os.environ, "DATAMASK_LEASE_SECONDS": str(lease)}
    environment |= {"DATAMASK_CACHE": str(cache)} if cache else {}
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _started.append(started)
    return started


def wait_for(line: str, started: subprocess.Popen[str]) -> None:
    """Read what a process prints up to a line."""
    assert started.stdout is not None
    assert line in map(str.strip, started.stdout), "it ended before"


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """Processes end with their test, also where that fails."""
    yield
    while _started:
        kill(_started.pop())

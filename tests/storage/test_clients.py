"""Servers that refuse without saying why, and a server that accepts and never answers."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from datamask.errors import DatamaskError, exit_status
from datamask.source.opening import list_files, open_binary
from datamask.storage import clients, object_store
from datamask.storage.object_store import ObjectStore
from tests.cli.commands import here
from tests.conftest import mostly_nightly, nightly

S3FS = pytest.importorskip("s3fs")
URL = "s3://runs/folder"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """A function that makes a port of this machine the store, with short time-outs."""
    monkeypatch.setattr(clients, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(clients, "READ_SECONDS", 0.5)
    monkeypatch.setattr(object_store, "SECONDS_BEFORE_LINE", 0.2)
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path / "cache"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def use(port: int) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        S3FS.S3FileSystem.clear_instance_cache()

    yield use
    S3FS.S3FileSystem.clear_instance_cache()


@pytest.fixture
def silent(aws: Callable[[int], None]) -> Iterator[list[socket.socket]]:
    """The connections to a store that accepts them and never answers."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        aws(listener.getsockname()[1])
        yield connections
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in connections:
        connection.close()


@pytest.mark.usefixtures("silent")
def test_a_silent_server_is_given_up_and_named(silent, caplog):
    """`status` asks a bounded number of times, says what it waits for, and ends with 75."""
    caplog.set_level(logging.INFO, "datamask")
    assert here("status", URL) == 75
    assert 1 <= len(silent) <= clients.TRIES**2
    assert sum(URL in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("read", [open_binary, *nightly(list_files)])
def test_a_silent_source_is_transient(silent, read):
    """A server as a source has the same time-outs, and a retry may help."""
    with pytest.raises(DatamaskError) as caught:
        read(f"{URL}/a.parquet")
    assert exit_status(caught.value) == 75
    assert len(silent) <= 2 * clients.TRIES**2


ANSWERS = {
    **{(400, ""): 2, (401, ""): 2, (403, ""): 2, (400, "ExpiredToken"): 2},
    **{(403, "AccessDenied"): 2, (403, "SignatureDoesNotMatch"): 2, (400, "InvalidToken"): 2},
    **{(503, ""): 75, (503, "SlowDown"): 75, (500, "InternalError"): 75},
}
"""HTTP status and code in the body, which answers to HEAD do not have; the exit status."""


@pytest.fixture
def answering(aws: Callable[[int], None]) -> Iterator[Callable[[int, str], None]]:
    """A function that starts a store whose answers all have this status and code."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, code: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = f"<Error><Code>{code}</Code><Message>no</Message></Error>" * bool(code)
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            do_GET = do_HEAD = do_PUT = answer

            def log_message(self, *given: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[0].serve_forever, daemon=True).start()
        aws(servers[0].server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code"),
    mostly_nightly([(403, ""), (400, "ExpiredToken"), (503, "SlowDown")], ANSWERS),
)
def test_refusals_are_not_tried_again(status, code, answering, tmp_path):
    """By every request and for every use: 2 for what other credentials change, 75 for the rest."""
    answering(status, code)
    store = ObjectStore(URL)
    (tmp_path / "file").write_bytes(b"1")
    requests: dict[str, Callable[[], object]] = {
        "find": lambda: store.find("run.json"),
        "list": lambda: store.list("scores"),
        "read": lambda: store.read("run.json"),
        "get": lambda: store.get("run.json", tmp_path / "got"),
        "put": lambda: store.put("run.json", tmp_path / "file"),
        "source listed": lambda: list_files(URL),
        "source read": lambda: open_binary(f"{URL}/a.parquet").read(),
    }
    statuses = {}
    for name, request in requests.items():
        with pytest.raises(DatamaskError) as caught:
            request()
        statuses[name] = exit_status(caught.value)
        if ANSWERS[status, code] == 2:
            assert "credentials" in str(caught.value), name
    assert statuses == dict.fromkeys(requests, ANSWERS[status, code])
    assert here("-q", "status", URL) == ANSWERS[status, code]

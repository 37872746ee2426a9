"""A Hub on loopback: what the real client calls, stored on disk, and able to fail on request.

It exists so that publishing is tested with the unmodified client over HTTP. It checks what the
Hub checks (hashes and sizes of uploads, the parent of a commit, names that exist already) and
keeps every commit, so that a test can look at any of them. Small files go in the commit, Parquet
files through LFS.
"""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.hub.reading import Reading
from tests.hub.repositories import Repositories
from tests.hub.state import Fault, State, Xet
from tests.hub.uploads import Uploads

__all__ = ["Fault", "Hub", "Xet"]


class _Requests(Repositories, Uploads, Reading):
    """All requests of the client."""


class Hub(State):
    """The server. Use it as a context manager; `endpoint` is its address.

    Args:
        folder: where contents are kept.
        token: the only one accepted; empty accepts every one.
        page: entries in one page of a listing.
    """

    def __init__(self, folder: Path, token: str = "", page: int = 1000) -> None:
        super().__init__(folder, token, page)
        handler = type("Handler", (_Requests,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        # A short poll, or each test waits half a second for the server to end.
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

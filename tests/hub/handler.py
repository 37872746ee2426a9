"""HTTP of the Hub on loopback: routes, tokens, bodies, and answers with or without a fault."""

import contextlib
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub.state import Fault, Repository, State

NAME = r"(?P<name>[^/]+/[^/]+)"
ROUTES = [
    ("POST", "create", r"/api/repos/create"),
    ("POST", "validate", r"/api/validate-yaml"),
    ("GET", "whoami", r"/api/whoami-v2"),
    ("POST", "preupload", rf"/api/datasets/{NAME}/preupload/(?P<rev>[^/]+)"),
    ("POST", "commit", rf"/api/datasets/{NAME}/commit/(?P<rev>[^/]+)"),
    ("GET", "xet", rf"/api/datasets/{NAME}/xet-write-token/(?P<rev>[^/]+)"),
    ("GET", "tree", rf"/api/datasets/{NAME}/tree/(?P<rev>[^/]+)(?:/(?P<path>.+))?"),
    ("POST", "paths", rf"/api/datasets/{NAME}/paths-info/(?P<rev>[^/]+)"),
    ("GET", "refs", rf"/api/datasets/{NAME}/refs"),
    ("POST", "tag", rf"/api/datasets/{NAME}/tag/(?P<rev>[^/]+)"),
    ("DELETE", "untag", rf"/api/datasets/{NAME}/tag/(?P<rev>[^/]+)"),
    ("POST", "branch", rf"/api/datasets/{NAME}/branch/(?P<rev>[^/]+)"),
    ("DELETE", "unbranch", rf"/api/datasets/{NAME}/branch/(?P<rev>[^/]+)"),
    ("GET", "access", rf"/api/datasets/{NAME}/auth-check/write"),
    ("GET", "info", rf"/api/datasets/{NAME}(?:/revision/(?P<rev>[^/]+))?"),
    ("POST", "batch", rf"/datasets/{NAME}\.git/info/lfs/objects/batch"),
    ("PUT", "put", r"/lfs/(?P<oid>[0-9a-f]{64})"),
    ("POST", "verify", r"/lfs/verify"),
    ("GET", "resolve", rf"/datasets/{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"),
    ("HEAD", "resolve", rf"/datasets/{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"),
]


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(
        self, status: int, message: str, code: str = "", body: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.body = {"error": message, **(body or {})}


class Handler(BaseHTTPRequestHandler):
    """Answers each kind of request by the method `on_<kind>` of a subclass."""

    hub: State
    protocol_version = "HTTP/1.1"
    # One packet an answer: else each waits 40 ms for the client's delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        """Print no requests."""

    def do_GET(self) -> None:
        """Serve a request of any method."""
        self.serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def serve(self) -> None:
        """Find the route of a request and answer it, with the fault that is due."""
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.fault: Fault | None = None
        matches = (
            (kind, re.fullmatch(pattern, url.path))
            for method, kind, pattern in ROUTES
            if method == self.command
        )
        kind, match = next(((k, m) for k, m in matches if m), ("", None))
        if match is None:
            self.read_body()
            self.answer(404, {"error": f"no route for {self.command} {url.path}"})
            return
        with self.hub.lock:
            fault = self.fault = self.hub.take_fault(kind)
        if fault and fault.half and self.command in ("PUT", "POST"):
            self.rfile.read(int(self.headers.get("Content-Length", 2)) // 2)
            self.cut()
            return
        self.body = self.read_body()
        if fault and fault.hang:
            self.hub.released.wait(fault.hang)
        places = {k: unquote(v) for k, v in match.groupdict().items() if v is not None}
        with self.hub.lock:
            self.hub.calls.append(kind)
            if kind in self.hub.before:
                self.hub.before.pop(kind)()
            fails = fault and not (fault.half or fault.slow or fault.hang)
            if fault and fails and not fault.after:
                self.fail(fault)
                return
            try:
                result = self.handle_kind(kind, places)
            except Refused as refused:
                headers = {"X-Error-Message": refused.message, "X-Error-Code": refused.code}
                self.answer(refused.status, refused.body, headers)
                return
        if fault and fails:
            self.fail(fault)
        elif result is not None:
            body, headers = result if isinstance(result, tuple) else (result, {})
            self.answer(200, body, headers)

    def read_body(self) -> bytes:
        """The body of the request, whole or in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Send status, headers and body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.served += len(content)
        fault = self.fault
        if fault and fault.half:
            self.wfile.write(content[: len(content) // 2])
            self.cut()
        elif fault and fault.slow:
            step = len(content) // 10 + 1
            for start in range(0, len(content), step):
                # Not time.sleep, which the tests make short.
                threading.Event().wait(fault.slow / 10)
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
        else:
            self.wfile.write(content)

    def cut(self) -> None:
        """Close the connection at once."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def fail(self, fault: Fault) -> None:
        """Answer with the status of the fault, or cut the connection."""
        if fault.status:
            headers = {"X-Error-Message": fault.message, **fault.headers}
            self.answer(fault.status, {"error": fault.message}, headers)
        else:
            self.cut()

    def handle_kind(self, kind: str, places: dict[str, str]) -> Any:
        """The body of the answer, with its headers if it has its own."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.token and token != self.hub.token and kind not in ("put", "verify"):
            raise Refused(401, "Invalid credentials in Authorization header")
        if kind in ("create", "validate", "whoami", "put", "verify"):
            return getattr(self, f"on_{kind}")(**places)
        repository = self.hub.repositories.get(places.pop("name"))
        if repository is None:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return getattr(self, f"on_{kind}")(repository, **places)

    def commit_of(self, repository: Repository, revision: str) -> str:
        """The commit of a branch, tag or commit id that exists."""
        oid = repository.resolve(revision)
        if oid is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def name_of(self, repository: Repository) -> str:
        """The name of a repository."""
        return next(n for n, r in self.hub.repositories.items() if r is repository)

    def json(self) -> Any:
        """The body of the request as JSON."""
        return json.loads(self.body or b"{}")

"""A Hub on loopback: what the real client calls, stored on disk, and able to fail on request.

It exists so that publishing is tested with the unmodified client over HTTP. It checks what the
Hub checks (hashes and sizes of uploads, the parent of a commit, names that exist already) and
keeps every commit, so that a test can look at any of them. Small files go in the commit, Parquet
files through LFS. Run it alone with `python -m tests.hub.server --folder F --port P`.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


@dataclass
class Fault:
    """A failure of the next `times` requests whose kind is `on`.

    Args:
        on: kind of request, such as `commit` (see `ROUTES`).
        status: answer with it; 0 cuts the connection instead.
        times: how often.
        after: let the request take effect first, then fail.
        half: cut the connection in the middle of the body: the request's, or else the answer's.
        slow: serve well, but stretch the answer's body over so many seconds.
        hang: say nothing for so many seconds, then serve well.
        headers: of the answer.
        message: of the answer (X-Error-Message).
        skip: requests of that kind to serve well first.
    """

    on: str
    status: int = 503
    times: int = 1
    after: bool = False
    half: bool = False
    slow: float = 0.0
    hang: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "injected"
    skip: int = 0


@dataclass
class Repository:
    """Commits (path to (oid, size, is LFS)), branches and tags."""

    private: bool
    commits: dict[str, dict[str, tuple[str, int, bool]]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, tuple[str, int, bool]]) -> str:
        """Move a branch to a new commit with these files."""
        parent = self.branches.get(branch, "")
        text = json.dumps([parent, sorted(files.items()), len(self.commits)])
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = dict(files)
        self.parents[oid] = parent
        self.branches[branch] = oid
        return oid

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit id."""
        oid = self.branches.get(revision) or self.tags.get(revision)
        return oid or (revision if revision in self.commits else None)


@dataclass
class Xet:
    """Xet storage: the real client's chunks in a local folder, without any network.

    A commit names a file by its SHA-256 only, so the name it has in the storage is looked up among
    the files that were sent.

    Args:
        storage: where the client puts chunks.
        sent: folder of the files that were sent.
    """

    storage: Path
    sent: Path

    @property
    def address(self) -> str:
        """What the client is told to upload to."""
        return f"local://{self.storage}"

    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(path.stat().st_size for path in self.storage.rglob("default.*"))

    def fetch(self, oid: str, target: Path) -> None:
        """Put a file together from its chunks."""
        import hf_xet

        for path in self.sent.rglob("*.*"):
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == oid:
                [found] = hf_xet.hash_files([str(path)])
                info = hf_xet.XetFileInfo(found.hash, path.stat().st_size)
                with hf_xet.XetSession().new_file_download_group(endpoint=self.address) as group:
                    group.start_download_file(info, str(target))
                assert hashlib.sha256(target.read_bytes()).hexdigest() == oid


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(
        self, status: int, message: str, code: str = "", body: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.body = {"error": message, **(body or {})}


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


class Hub:
    """The server. Use it as a context manager; `endpoint` is its address.

    Args:
        folder: where contents are kept.
        port: 0 for a free one.
        token: the only one accepted; empty accepts every one.
        page: entries in one page of a listing.

    Tests may set `faults`; `corrupt`, paths whose content a commit spoils; `altered`, contents that
    are served in place of others; `before`, what happens once just before a request of a kind;
    `after_uploads`, what happens when so many have come; `xet`, where contents go by Xet; `role` of
    the token, its `orgs` with the role in each, and the repositories `closed` to it. `calls`,
    `received` (uploads by hash) and `served` (bytes of answers) tell what happened.
    """

    def __init__(self, folder: Path, port: int = 0, token: str = "", page: int = 1000) -> None:
        self.folder, self.token, self.page = folder, token, page
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.received: Counter[str] = Counter()
        self.served = 0
        self.xet: Xet | None = None
        self.corrupt: set[str] = set()
        self.altered: dict[str, bytes] = {}
        self.role = "write"
        self.orgs: dict[str, str] = {"ada": "write"}
        self.closed: set[str] = set()
        self.before: dict[str, Callable[[], object]] = {}
        self.after_uploads: tuple[int, Callable[[], object]] | None = None
        self.lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        # A short poll, or each test waits half a second for the server to end.
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def content(self, oid: str) -> bytes:
        """What is stored under a hash."""
        return (self.folder / oid).read_bytes()

    def store(self, content: bytes) -> tuple[str, int, bool]:
        """Keep a small file under git's hash."""
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        (self.folder / oid).write_bytes(content)
        return oid, len(content), False

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """All contents of a revision, by path."""
        repository = self.repositories[name]
        commit = repository.commits[repository.resolve(revision) or ""]
        return {path: self.content(oid) for path, (oid, _, _) in commit.items()}

    def add(self, name: str, files: dict[str, bytes], private: bool = True) -> str:
        """Commit as somebody else would."""
        with self.lock:
            repository = self.repositories.setdefault(name, Repository(private))
            now = dict(repository.commits.get(repository.branches.get("main", ""), {}))
            now |= {path: self.store(content) for path, content in files.items()}
            return repository.commit("main", now)

    def take_fault(self, kind: str) -> Fault | None:
        """The fault due for a request of this kind, if any."""
        for fault in self.faults:
            if fault.on == kind and fault.times > 0:
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None


def listed(path: str, file: tuple[str, int, bool]) -> dict[str, Any]:
    """A file as listings tell of it."""
    oid, size, is_large = file
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": oid, "size": size}
    if is_large:
        entry["oid"] = hashlib.sha1(oid.encode()).hexdigest()
        entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 134}
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    # One packet an answer: else each waits 40 ms for the client's delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def serve(self) -> None:
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
            threading.Event().wait(fault.hang)
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
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
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
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def fail(self, fault: Fault) -> None:
        if fault.status:
            headers = {"X-Error-Message": fault.message, **fault.headers}
            self.answer(fault.status, {"error": fault.message}, headers)
        else:
            self.cut()

    def handle_kind(self, kind: str, places: dict[str, str]) -> Any:
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
        oid = repository.resolve(revision)
        if oid is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def name_of(self, repository: Repository) -> str:
        return next(n for n, r in self.hub.repositories.items() if r is repository)

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def on_create(self) -> Any:
        asked = self.json()
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = {"url": f"{self.hub.endpoint}/datasets/{name}"}
        if name in self.hub.repositories:
            raise Refused(409, "You already created this dataset repo", body=url)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit(
            "main", {".gitattributes": self.hub.store(b"*.parquet filter=lfs\n*.png filter=lfs\n")}
        )
        return url

    def on_whoami(self) -> Any:
        token = {"role": self.hub.role}
        orgs = [{"name": name, "roleInOrg": role} for name, role in self.hub.orgs.items()]
        return {"name": "me", "orgs": orgs, "auth": {"accessToken": token}}

    def on_access(self, repository: Repository) -> Any:
        if self.hub.role == "read" or self.name_of(repository) in self.hub.closed:
            raise Refused(403, "You have no write access to this repository")
        return {}

    def on_validate(self) -> Any:
        header = self.json()["content"].split("---")[1]
        if not isinstance(yaml.safe_load(header), dict):
            raise Refused(400, "the header is not YAML")
        return {"errors": [], "warnings": []}

    def on_preupload(self, repository: Repository, rev: str) -> Any:
        held = repository.commits[self.commit_of(repository, rev)]
        answers = []
        for asked in self.json()["files"]:
            mode = "lfs" if asked["path"].endswith((".parquet", ".png")) else "regular"
            answer = {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False}
            if asked["path"] in held:
                answer["oid"] = held[asked["path"]][0]
            answers.append(answer)
        return {"files": answers}

    def on_xet(self, repository: Repository, rev: str) -> Any:
        assert self.hub.xet
        body = {"casUrl": self.hub.xet.address, "accessToken": "x", "exp": 2**33}
        headers = {"X-Xet-Cas-Url": body["casUrl"], "X-Xet-Access-Token": "x"}
        return json.dumps(body).encode(), {**headers, "X-Xet-Token-Expiration": str(2**33)}

    def on_batch(self, repository: Repository) -> Any:
        objects = []
        for asked in self.json()["objects"]:
            oid = asked["oid"]
            if not (self.hub.folder / oid).exists():
                verify = {"href": f"{self.hub.endpoint}/lfs/verify", "header": {}}
                upload = {"href": f"{self.hub.endpoint}/lfs/{oid}", "header": {}}
                asked = {**asked, "actions": {"upload": upload, "verify": verify}}
            objects.append(asked)
        return {"transfer": "basic", "objects": objects}

    def on_put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "the content does not have this hash")
        (self.hub.folder / oid).write_bytes(self.body)
        self.hub.received[oid] += 1
        if self.hub.after_uploads and sum(self.hub.received.values()) == self.hub.after_uploads[0]:
            self.hub.after_uploads[1]()
            self.hub.after_uploads = None
        return {}

    def on_verify(self) -> Any:
        asked = self.json()
        path = self.hub.folder / asked["oid"]
        if not path.exists() or path.stat().st_size != asked["size"]:
            raise Refused(404, "object missing or of another size")
        return {}

    def on_commit(self, repository: Repository, rev: str) -> Any:
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        head = self.commit_of(repository, rev)
        parent = lines[0]["value"].get("parentCommit")
        if parent and parent != head:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[head])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = self.hub.store(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                stored = self.hub.folder / value["oid"]
                if self.hub.xet and not stored.exists():
                    self.hub.xet.fetch(value["oid"], stored)
                if not stored.exists():
                    raise Refused(400, f"LFS pointer of {value['path']} names no object")
                files[value["path"]] = (value["oid"], stored.stat().st_size, True)
            elif line["key"] == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                files = {p: f for p, f in files.items() if not p.startswith(value["path"])}
        for path in self.hub.corrupt & set(files):
            files[path] = (hashlib.sha256(b"spoiled").hexdigest(), *files[path][1:])
        oid = repository.commit(rev, files)
        url = f"{self.hub.endpoint}/datasets/{self.name_of(repository)}/commit/{oid}"
        return {"success": True, "commitOid": oid, "commitUrl": url}

    def on_tree(self, repository: Repository, rev: str, path: str = "") -> Any:
        files = repository.commits[self.commit_of(repository, rev)]
        entries: list[dict[str, Any]] = []
        folders = sorted({str(p) for name in files for p in PurePosixPath(name).parents[:-1]})
        entries += [{"type": "directory", "path": p, "oid": "0" * 40, "size": 0} for p in folders]
        entries += [listed(name, file) for name, file in sorted(files.items())]
        entries = [e for e in entries if not path or e["path"].startswith(path + "/")]
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            prefix = f"{path}/" if path else ""
            entries = [e for e in entries if "/" not in e["path"].removeprefix(prefix)]
        start = int(self.query.get("cursor", ["0"])[0])
        end = start + self.hub.page
        headers = {}
        if end < len(entries):
            base = urlsplit(self.path).path
            recursive = self.query.get("recursive", ["false"])[0]
            following = f"{self.hub.endpoint}{base}?recursive={recursive}&cursor={end}"
            headers["Link"] = f'<{following}>; rel="next"'
        return json.dumps(entries[start:end]).encode(), headers

    def on_paths(self, repository: Repository, rev: str) -> Any:
        files = repository.commits[self.commit_of(repository, rev)]
        asked = self.json()["paths"] if "json" in self.headers["Content-Type"] else []
        asked = asked or parse_qs(self.body.decode())["paths"]
        found: list[dict[str, Any]] = []
        for path in asked:
            if path in files:
                found.append(listed(path, files[path]))
            elif any(name.startswith(f"{path}/") for name in files):
                found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
        return json.dumps(found).encode(), {}

    def on_info(self, repository: Repository, rev: str = "main") -> Any:
        oid = self.commit_of(repository, rev)
        siblings = [{"rfilename": path} for path in repository.commits[oid]]
        name = self.name_of(repository)
        return {"id": name, "sha": oid, "private": repository.private, "siblings": siblings}

    def on_refs(self, repository: Repository) -> Any:
        def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid}
                for name, oid in sorted(refs.items())
            ]

        branches = listed("heads", repository.branches)
        return {"branches": branches, "tags": listed("tags", repository.tags), "converts": []}

    def on_tag(self, repository: Repository, rev: str) -> Any:
        tag = self.json()["tag"]
        if tag in repository.tags:
            raise Refused(409, "Tag reference exists already")
        repository.tags[tag] = self.commit_of(repository, rev)
        return {}

    def on_untag(self, repository: Repository, rev: str) -> Any:
        if repository.tags.pop(rev, None) is None:
            raise Refused(404, f"Tag {rev} not found", "RevisionNotFound")
        return {}

    def on_branch(self, repository: Repository, rev: str) -> Any:
        if rev in repository.branches:
            raise Refused(409, "Reference already exists")
        start = self.json().get("startingPoint", "main")
        repository.branches[rev] = self.commit_of(repository, start)
        return {}

    def on_unbranch(self, repository: Repository, rev: str) -> Any:
        if repository.branches.pop(rev, None) is None:
            raise Refused(404, f"Branch {rev} not found", "RevisionNotFound")
        return {}

    def on_resolve(self, repository: Repository, rev: str, path: str) -> Any:
        commit = self.commit_of(repository, rev)
        if path not in repository.commits[commit]:
            raise Refused(404, f"{path} not found", "EntryNotFound")
        oid, size, _ = repository.commits[commit][path]
        headers = {"ETag": f'"{oid}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if self.command == "HEAD":
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(size)}.items():
                self.send_header(name, value)
            self.end_headers()
            return None
        content = self.hub.altered.get(path) or self.hub.content(oid)
        if not asked:
            return content, headers
        first, last = asked.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        self.answer(206, content[start : end + 1], headers)
        return None


def main() -> None:
    """Serve until interrupted; the first line printed is the address."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with Hub(options.folder, options.port) as hub:
        print(hub.endpoint, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()

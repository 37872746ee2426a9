"""State of the Hub on loopback: repositories, contents, Xet storage and the faults still due."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Fault:
    """A failure of the next `times` requests whose kind is `on`.

    Args:
        on: kind of request, such as `commit` (see `ROUTES` in handler.py).
        status: answer with it; 0 cuts the connection instead.
        times: how often.
        after: let the request take effect first, then fail.
        half: cut the connection in the middle of the body: the request's, or else the answer's.
        slow: serve well, but stretch the answer's body over this many seconds.
        hang: send nothing for this many seconds, then serve well.
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

    def history(self, branch: str = "main") -> list[str]:
        """The commits of a branch, the newest first."""
        commits = [self.branches[branch]]
        while parent := self.parents[commits[-1]]:
            commits.append(parent)
        return commits

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit id."""
        oid = self.branches.get(revision) or self.tags.get(revision)
        return oid or (revision if revision in self.commits else None)


@dataclass
class Xet:
    """Xet storage: the real client's chunks in a local folder, without any network.

    A commit names a file by its SHA-256 only, so the name it has in the storage is looked up among
    the files that were sent. While a client is at work it has the storage for itself, so what the
    Hub serves meanwhile are those files.

    Args:
        storage: where the client puts chunks.
        sent: folder of the files that were sent.
    """

    storage: Path
    sent: Path

    @property
    def address(self) -> str:
        """The address that the client uploads to."""
        return f"local://{self.storage}"

    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(path.stat().st_size for path in self.storage.rglob("default.*"))

    def file(self, oid: str) -> Path:
        """The file that was sent and has this SHA-256."""
        files = filter(Path.is_file, self.sent.rglob("*.*"))
        return next(p for p in files if hashlib.sha256(p.read_bytes()).hexdigest() == oid)

    def fetch(self, file: Path, target: Path) -> None:
        """Put a file that was sent together from its chunks."""
        import hf_xet

        [hashed] = hf_xet.hash_files([str(file)])
        info = hf_xet.XetFileInfo(hashed.hash, file.stat().st_size)
        with hf_xet.XetSession().new_file_download_group(endpoint=self.address) as group:
            group.start_download_file(info, str(target))


class State:
    """Repositories, the contents of their files by hash, and what a test may set or read.

    Args:
        folder: where contents are kept.
        token: the only one accepted; empty accepts every one.
        page: entries in one page of a listing.

    Tests may set `faults`; `corrupt`, paths whose content a commit spoils; `altered`, contents that
    are served in place of others; `before`, functions called once, just before a request of a kind;
    `after_uploads`, a number of uploads and the function called after them; `xet`, where contents
    go by Xet; `role` of the token, its `orgs` with the role in each, and the repositories `closed`
    to it. `calls`, `received` (uploads by hash) and `served` (bytes of answers) count requests.
    """

    def __init__(self, folder: Path, token: str = "", page: int = 1000) -> None:
        self.folder, self.token, self.page = folder, token, page
        self.endpoint = ""
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
        self.released = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)

    def content(self, oid: str) -> bytes:
        """Return the bytes stored under a hash."""
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
        """Commit as another client would."""
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

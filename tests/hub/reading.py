"""Requests of the Hub on loopback that read: listings in pages, and files or ranges of them."""

import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.hub.handler import Handler, Refused
from tests.hub.state import Repository


def listed(path: str, file: tuple[str, int, bool]) -> dict[str, Any]:
    """The entry of a file in a listing."""
    oid, size, is_large = file
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": oid, "size": size}
    if is_large:
        entry["oid"] = hashlib.sha1(oid.encode()).hexdigest()
        entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 134}
    return entry


class Reading(Handler):
    """Lists and serves the files of a revision."""

    def on_tree(self, repository: Repository, rev: str, path: str = "") -> Any:
        """One page of the entries of a folder, with the address of the next."""
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
        """The entries of some paths; those that do not exist are left out."""
        commit = self.commit_of(repository, rev)
        files = repository.commits[commit]
        asked = self.json()["paths"] if "json" in self.headers["Content-Type"] else []
        asked = asked or parse_qs(self.body.decode())["paths"]
        found: list[dict[str, Any]] = []
        for path in asked:
            if path in files:
                last = {"id": commit, "title": "last", "date": "2026-01-01T00:00:00.000Z"}
                found.append({**listed(path, files[path]), "lastCommit": last})
            elif any(name.startswith(f"{path}/") for name in files):
                found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
        return json.dumps(found).encode(), {}

    def on_resolve(self, repository: Repository, rev: str, path: str) -> Any:
        """The content of a file, or a range of its bytes."""
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

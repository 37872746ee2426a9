"""As much of Google Cloud Storage's JSON API as gcsfs asks for, with generations, on loopback."""

import json
import threading
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class GoogleStorage(ThreadingHTTPServer):
    """The server. Objects are kept by name, with their generation.

    Attributes:
        objects: content and generation.
        conditions: what uploads were made conditional on.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.conditions: list[str] = []
        self.lock = threading.Lock()
        self._generation = 1000
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def put(self, name: str, content: bytes, condition: str | None) -> dict[str, Any] | None:
        """Store an object, unless the condition is not met."""
        with self.lock:
            _, generation = self.objects.get(name, (b"", 0))
            if condition is not None:
                self.conditions.append(condition)
                if int(condition) != generation:
                    return None
            self._generation += 1
            self.objects[name] = (content, self._generation)
            return self.metadata(name)

    def metadata(self, name: str) -> dict[str, Any]:
        """Return what the API says of an object."""
        content, generation = self.objects[name]
        return {
            "kind": "storage#object",
            "bucket": "runs",
            "name": name,
            "size": str(len(content)),
            "generation": str(generation),
            "etag": f"e{generation}",
            "contentType": "application/octet-stream",
            "updated": "2026-11-21T00:00:00.000Z",
            "timeCreated": "2026-11-21T00:00:00.000Z",
            "mediaLink": f"http://127.0.0.1:{self.server_port}/media/{name}",
        }


class _Handler(BaseHTTPRequestHandler):
    server: GoogleStorage
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes | dict[str, Any] = b"") -> None:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if isinstance(body, dict) else "x/y")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, reason: str) -> None:
        self._answer(status, {"error": {"code": status, "message": reason}})

    def _asked(self) -> tuple[str, dict[str, str], str]:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        _, _, name = parts.path.partition("/o/")
        return parts.path, query, unquote(name.removeprefix("media/"))

    def do_GET(self) -> None:
        path, query, name = self._asked()
        if name:
            if name not in self.server.objects:
                self._refuse(404, "no such object")
            elif query.get("alt") == "media" or "/download/" in path:
                content = self.server.objects[name][0]
                asked = self.headers.get("Range", "").removeprefix("bytes=")
                if not asked:
                    self._answer(200, content)
                    return
                first, _, last = asked.partition("-")
                start = int(first) if first else len(content) - int(last)
                stop = int(last) + 1 if first and last else len(content)
                self._answer(206, content[start:stop])
            else:
                self._answer(200, self.server.metadata(name))
        elif path.endswith("/o"):
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
            items, folders = [], set()
            for one in sorted(self.server.objects):
                if not one.startswith(prefix):
                    continue
                head, found, _ = one[len(prefix) :].partition(delimiter) if delimiter else ("",) * 3
                if found:
                    folders.add(f"{prefix}{head}{delimiter}")
                else:
                    items.append(self.server.metadata(one))
            self._answer(200, {"items": items, "prefixes": sorted(folders)})
        else:
            self._answer(200, {"kind": "storage#bucket", "name": "runs"})

    def do_POST(self) -> None:
        path, query, name = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/rewriteTo/" in path:
            source, _, target = name.partition("/rewriteTo/b/runs/o/")
            made = self.server.put(target, self.server.objects[source][0], None)
            self._answer(200, {"done": True, "resource": made or {}})
            return
        if query["uploadType"] == "multipart":
            kind = f"Content-Type: {self.headers['Content-Type']}\n\n".encode()
            parts = message_from_bytes(kind + body).get_payload()
            name = json.loads(parts[0].get_payload())["name"]  # type: ignore[union-attr, index]
            boundary = self.headers["Content-Type"].partition("boundary=")[2].strip("\"'")
            content = body.split(f"--{boundary}".encode())[2]
            content = content.partition(b"\n\n")[2].removesuffix(b"\n")
        else:
            name, content = query["name"], body
        made = self.server.put(name, content, query.get("ifGenerationMatch"))
        if made is None:
            self._refuse(412, "conditionNotMet")
        else:
            self._answer(200, made)

    def do_DELETE(self) -> None:
        _, _, name = self._asked()
        if self.server.objects.pop(name, None) is None:
            self._refuse(404, "no such object")
        else:
            self._answer(204)

"""A local OpenAI-compatible endpoint with planted answers, and a corpus of known quality."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.runs.run import Run
from tests.finished import finish, settings

GOOD = ["theorem", "proof", "lemma", "because", "therefore", "measure", "define", "integral"]
PLAIN = ["click", "buy", "offer", "today", "sale", "banner", "cheap", "login", "share", "cookie"]
KEY = "sk-planted-7f3a"

RUBRIC = """
model: planted
key_variable: PLANTED_KEY
concurrency: 4
axes:
  - name: depth
    question: How much can be learned from the text?
    lowest: 0
    highest: 5
  - name: clean
    question: Is the text free of advertisements?
    lowest: 0
    highest: 1
"""


def planted(text: str) -> dict[str, int]:
    """The grades of a text, from its share of good words."""
    words = text.split()
    share = sum(word in GOOD for word in words) / max(len(words), 1)
    return {"depth": min(5, int(6 * share)), "clean": int(share > 0.5)}


def labelled_run(
    folder: Path, rows: int = 400, last: str = "quality", hostile: str = ""
) -> tuple[Run, dict[str, str]]:
    """A run of three shards up to a stage, and its texts by id; a fifth of the domains is rare.

    Each text begins with the *hostile* words.
    """
    generator = np.random.default_rng(3)
    texts = []
    for _ in range(rows):
        share = generator.random()
        kinds = generator.random(40) < share
        words = (generator.choice(GOOD if good else PLAIN) for good in kinds)
        texts.append(hostile + " ".join(words))
    ids = [f"d{row:05d}" for row in range(rows)]
    columns: dict[str, Any] = {"id": ids, "text": texts}
    columns["url"] = [f"https://site{0 if row % 5 else row % 7}.org/{row}" for row in range(rows)]
    columns["edu"] = generator.standard_normal(rows)
    (folder / "source").mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "source/0.parquet", row_group_size=50)
    plan = {"rows_per_shard": rows // 3 + 1}
    run = finish(folder / "run", settings(folder / "source", plan=plan), last)
    return run, dict(zip(ids, texts, strict=True))


class Stub:
    """Requests to the endpoint, and its answers: by `reply`, given the text and the body."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.reply: Callable[[str, dict[str, Any]], tuple[int, str]] = self.right
        self.url = ""
        self.lock = threading.Lock()

    @staticmethod
    def right(text: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and the planted grades."""
        return 200, json.dumps(planted(text))

    @property
    def texts(self) -> list[str]:
        """The texts that were asked about, in the order of arrival."""
        return [text_in(body) for body in self.bodies]


def text_in(body: dict[str, Any]) -> str:
    """The document that a request quotes."""
    quoted = re.fullmatch(
        r"<document (\w+)>\n(.*)\n</document \1>", body["messages"][1]["content"], re.DOTALL
    )
    assert quoted
    return quoted[2]


@contextlib.contextmanager
def endpoint() -> Iterator[Stub]:
    """A server on a free port of this machine."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.bodies.append({"path": self.path, **body})
                stub.headers.append(dict(self.headers))
            status, answer = stub.reply(text_in(body), body)
            found: Any = {"error": {"message": answer}}
            if status == 200:
                message = {"role": "assistant", "content": answer}
                found = {"choices": [{"message": message}], "usage": {"total_tokens": 100}}
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the process was killed meanwhile
                self.wfile.write(content)

        def log_message(self, *given: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()

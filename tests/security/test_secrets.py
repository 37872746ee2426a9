"""No token, password or key of a user gets into a message, a log, a file or a setting.

The attacks are real: the server quotes the token that it received.
"""

import http.server
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from datamask.cli.main import main
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.outputs import Publication
from datamask.errors import PublicationError, RunError, SettingsError, check_secrets
from datamask.execution import pipeline
from datamask.publishing.access import check_access
from datamask.runs.opening import run_storage
from datamask.showing import SECRETS, printable
from tasks.hub_token import provide_hub_token
from tests.hub.runs import finished_run
from tests.hub.server import Fault, Hub
from tests.malformed.commands import run_main
from tests.publishing.conftest import TOKEN


def texts_of(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The content of every file below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


class Parrot(http.server.BaseHTTPRequestHandler):
    """A server that refuses everything and quotes what it was sent, the token too."""

    heard: list[str]
    status = 403

    def answer(self) -> None:
        """Refuse."""
        sent = self.headers.get("Authorization", "none")
        self.heard.append(sent)
        body = json.dumps({"error": f"no entry with {sent}"}).encode()
        self.send_response(self.status)
        self.send_header("X-Error-Message", f"no entry with {sent}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_PUT = answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def parrot() -> Iterator[tuple[str, list[str]]]:
    """The address of such a server, and the tokens it was sent."""
    heard: list[str] = []
    handler = type("OneParrot", (Parrot,), {"heard": heard})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()


@pytest.mark.slow
def test_no_answer_of_a_server_brings_the_token_to_the_terminal(parrot, tmp_path):
    """Source, model and repository on a Hub that quotes the token: nothing printed or kept has it.

    In a process of its own, because the client reads the Hub's address when it is imported.
    """
    address, heard = parrot
    items = (
        "source.path=hf://datasets/a/b",
        "embedding.model=a/b",
        "publication={repository: a/b, license: mit}",
    )
    given = [part for item in items for part in ("--set", item)]
    command = [sys.executable, "-m", "datamask.cli.main", "rebuild", str(tmp_path / "run"), *given]
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"),
        "HF_DEBUG": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert any(TOKEN in sent for sent in heard), "the server was never sent the token"
    assert "no entry with Bearer ***" in done.stderr
    assert "check the address, and that HF_TOKEN may read it" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    for path, content in texts_of(tmp_path):
        assert TOKEN.encode() not in content, path


def test_a_failed_publication_keeps_the_token_nowhere(tmp_path, monkeypatch, caplog):
    """Not in the exception chain, the log at level DEBUG, or any file of the run."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "datamask")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = finished_run(tmp_path / "run")
    with Hub(tmp_path / "hub", token=TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        server.faults.append(Fault("commit", status=403, message=f"{TOKEN} may not", times=9))
        with pytest.raises(PublicationError, match=r"\*\*\* may not") as caught:
            pipeline.run_stage(run, "publication", Compute())
    shown = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in shown
    assert TOKEN not in caplog.text
    kept = dict(texts_of(tmp_path / "run"))
    assert any(path.suffix == ".log" for path in kept)
    for path, content in kept.items():
        assert TOKEN.encode() not in content, path
    copy = pickle.loads(pickle.dumps(caught.value))  # as between a worker and its task
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"source": {"path": "s3://ada:hunter2@bucket/corpus"}},
        {"quality": {"scores": [{"kind": "file", "path": "https://hunter2@host/scores.csv"}]}},
        {"publication": {"repository": "a/b", "license": "mit", "token": "hunter2"}},
        {"publication": {"repository": "a/b", "license": "mit", "hunter": {"token": "hunter2"}}},
    ],
)
def test_secrets_in_settings_are_refused_and_not_repeated(settings):
    """Settings are recorded and shown on the card, so no secret may enter them."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(settings)
    assert "hunter2" not in str(caught.value)


SECRET_URLS = (
    "https://ada:hunter2@host/x.parquet",
    "https://ada:hunt/hunter2@host/x.parquet",
    "zip://x.parquet::https://ada:hunter2@host/x.zip",
    "simplecache::s3://key:hunter2@bucket/x",
    "ada+sftp://hunter2@host/x",
    "s3://bucket/x.parquet?X-Amz-Credential=a&X-Amz-Signature=hunter2",
    "s3://bucket/x.parquet?a=b&X-Amz-Security-Token=hunter2",
    "https://host/x.parquet?sv=1&sig=hunter2",
    "https://host/x.parquet?%73ig=hunter2",
    "https://host/x.parquet?Expires=1;Signature=hunter2",
    "zip://x::https://host/x.zip?token=hunter2",
    "hf://datasets/a/b?access_token=hunter2",
    "https://host/x?api_key=hunter2",
    "https://host/x?Password=hunter2#part",
    "abfs://container:hunter2@account/x",
)
PLACES = (
    "source.path={}",
    "source.tokenizer={}",
    "embedding.model={}",
    "publication.citation={}",
    "publication.repository={}",
    "seed={}",
    "sorce.path={}",
    "quality.scores=[{{name: a, kind: file, path: '{}'}}]",
    "selection.more_terms=[{{name: disf, weight: 1, options: {{deep: [{{path: '{}'}}]}}}}]",
    "source.path={}: [",
)


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_of_a_url_gets_past_the_settings(place, source, tmp_path, capsys, monkeypatch):
    """Every kind of secret in every kind of setting: refused, and printed and written nowhere."""
    for url in SECRET_URLS:
        given = ["--set", f"source.path={source}", "--set", place.format(url)]
        command = ["datamask", "rebuild", str(tmp_path / "run"), *given]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = "".join(capsys.readouterr())
        assert ended.value.code == 2, (url, shown)
        assert "hunter2" not in shown, shown
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", SECRET_URLS)
def test_no_secret_gets_into_the_place_of_a_run(url):
    """A run's own URL is in every log line."""
    with pytest.raises(RunError) as caught:
        run_storage(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "abfs://container@account.dfs.core.windows.net/corpus/*.parquet",
        "hf://datasets/a/b@main/data",
        "hf://datasets/a/b@refs%2Fconvert%2Fparquet/data/*-?.parquet",
        "https://host:8080/a@b/x.parquet?download=true&monkey=1",
        "https://[::1]:8080/key=1/token=2/x.parquet",
        "s3://bucket/a:b@c/x-[0-9].parquet",
        "zip://a/b@c::https://host/x.zip",
    ],
)
def test_addresses_without_a_secret_are_accepted(url):
    """A container, a revision, a port and a partition are not secret, and are shown as they are."""
    assert parse_settings({"source": {"path": url}}).source.path == url
    assert str(SettingsError(f"{url}: no such file")) == f"{url}: no such file"


def test_the_token_of_the_environment_is_no_setting(monkeypatch):
    """A mistake in a shell such as --set embedding.prefix=$HF_TOKEN is not recorded."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(SettingsError) as caught:
        parse_settings({"embedding": {"prefix": f"{TOKEN}: "}})
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("between", ["\n", "\r\n", " ", "\t", "\u200b", "\n\n"])
def test_a_secret_that_no_header_can_carry_is_refused_at_the_door(name, between, monkeypatch):
    """Before anything is sent, by the terminal, by tasks and by the library; no part is shown."""
    halves = "hf_firstHalfOfTheToken", "secondHalfOfTheToken"
    monkeypatch.setenv(name, between.join(halves) + "\n")
    publication = Publication(repository="a/b", license="mit")
    for act in (check_secrets, provide_hub_token, lambda: check_access(publication)):
        monkeypatch.setenv("HF_TOKEN", os.environ.get("HF_TOKEN", TOKEN))
        with pytest.raises(SettingsError, match=f"^{name}: ") as caught:
            act()
        assert not any(half in str(caught.value) for half in halves)
    assert run_main(["-q", "doctor"]) == 2
    joined = "".join(halves)
    for form in (repr(between.join(halves)), quote(between.join(halves)), joined, *halves):
        assert "Half" not in printable(f"Illegal header value b'Bearer {form}'")


@pytest.mark.parametrize("secret", ["test", "minioadmin", "data"])
def test_a_short_secret_is_no_part_of_an_honest_path(secret, monkeypatch):
    """Development stores have such passwords; a long one is found inside of words too."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    for path in (
        f"/{secret}/corpus",
        f"s3://{secret}/x-{secret}.parquet",
        f"{secret}/a",
        "/latest",
    ):
        assert parse_settings({"source": {"path": path}}).source.path == path
        assert printable(f"{path}: no such file") == f"{path}: no such file"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    assert "hunter2" not in printable("the key 'hunter2hunter2' is not known")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2/hunter2+hunter2")
    assert "hunter2" not in printable("x?k=hunter2%2Fhunter2%2Bhunter2_hunter2/hunter2+hunter2")

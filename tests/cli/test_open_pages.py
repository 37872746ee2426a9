"""`datamask open`: the pages of a run, served on this machine or shown in the browser."""

import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.cli.commands import here, settings, text_corpus

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def opened(url: str, host: str = "") -> tuple[int, bytes]:
    """Status and body of a GET."""
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_are_served_on_loopback_only(finished):
    """Report, pictures and logs; no other file, no other host; Ctrl-C ends it."""
    root, _, _ = finished
    command = [sys.executable, "-u", "-m", "datamask.cli.main", "open", str(root)]
    command += ["--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        server = address.removesuffix("/report.html")
        assert server.startswith("http://127.0.0.1:")
        report = (root / "report.html").read_bytes()
        assert opened(address) == opened(server) == (200, report)
        picture = next((root / "pictures").iterdir())
        assert opened(f"{server}/pictures/{picture.name}") == (200, picture.read_bytes())
        log = root / "logs" / "scores" / "00000.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("a unit that failed\n")
        assert opened(f"{server}/{log.relative_to(root)}") == (200, log.read_bytes())
        log.unlink()
        outside = (
            "run.json",
            "../run/report.html",
            "%2e%2e/run/report.html",
            "none.html",
            "//x",
        )
        assert {opened(f"{server}/{name}")[0] for name in outside} == {404}
        assert opened(address, host="attacker.example")[0] == 403
        assert opened(address, host="localhost")[0] == 200, "as for port 80"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read().strip() == "ended"


def test_open_shows_the_report_in_the_browser(finished, tmp_path, capsys):
    """The browser of the user gets the report's address; without one, the path is printed."""
    root, _, _ = finished
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    code = [sys.executable, "-m", "datamask.cli.main", "open", str(root)]
    for name, shown in ((f"{browser} %s", "file://"), ("/nonexistent %s", "no browser here")):
        environment = {**os.environ, "BROWSER": name}
        done = subprocess.run(code, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.startswith(shown), done.stderr
    assert (tmp_path / "opened").read_text().strip() == (root / "report.html").as_uri()
    assert here("plan", tmp_path / "run", *settings(text_corpus(tmp_path / "source"))) == 0
    assert here("open", tmp_path / "run") == 2
    problem = capsys.readouterr().err
    assert "no report yet" in problem
    assert here(*shlex.split(problem.split("`")[1])[1:]) == 0
    assert (tmp_path / "run" / "report.html").exists()

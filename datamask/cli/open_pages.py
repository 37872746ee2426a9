"""`datamask open`: the report in a browser, or the pages of a run over HTTP on this machine."""

from __future__ import annotations

import re
import shlex
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from datamask.cli.options import root_argument
from datamask.errors import RunError, SettingsError
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.location import Root

HOST = "127.0.0.1"
PAGE = re.compile(r"(?!.*\.\.)[\w-][\w./=-]*\.(html|png|log)")
"""Names of files that are served."""


@click.command("open")
@root_argument
@click.option("--serve", is_flag=True, help="Serve the pages until Ctrl-C, for a remote machine.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="--serve: port; 0 takes any free one.",
)
def open_pages(root: Root, serve: bool, port: int) -> None:
    """Open the report of RUN in a browser, or serve it.

    The pages have no password, so they are served on 127.0.0.1 only. To read them from another
    machine, forward the port: ssh -L 8000:127.0.0.1:8000 MACHINE.
    """
    run = open_run(root)
    path = run.path("report")
    if not path.exists():
        command = f"datamask rebuild {shlex.quote(run.address)}"
        raise RunError(f"{run.address}: no report yet; `{command}` writes it")
    if not serve:
        run.fetch("evaluation.html")  # The report links to it.
        address = path.absolute().as_uri()
        is_open = webbrowser.open(address)
        click.echo(address if is_open else f"no browser here; open {path}, or use --serve")
        return
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Pages, run=run))
    except OSError as error:
        raise SettingsError(f"--port {port}: {error.strerror}; use another, or 0") from None
    with server:
        click.echo(f"http://{HOST}:{server.server_port}/report.html (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended")


class Pages(SimpleHTTPRequestHandler):
    """The pages, pictures and logs of a run, for reading."""

    extensions_map = {  # noqa: RUF012 - as in its base
        ".html": "text/html; charset=utf-8",
        ".png": "image/png",
        ".log": "text/plain; charset=utf-8",
    }

    def __init__(self, *given: Any, run: Run, **named: Any) -> None:
        self.run = run
        super().__init__(*given, directory=str(run.root), **named)

    def send_head(self) -> Any:
        """Open a file of the run; a name from elsewhere (DNS rebinding) is refused."""
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        name = unquote(urlsplit(self.path).path).lstrip("/") or "report.html"
        if not PAGE.fullmatch(name) or not self.run.fetch(name).is_file():
            return self.send_error(HTTPStatus.NOT_FOUND)
        self.path = f"/{name}"
        return super().send_head()

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log requests."""


COMMANDS = (open_pages,)

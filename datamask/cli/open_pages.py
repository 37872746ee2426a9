"""`datamask open`: the report in a browser, or the pages of a run over HTTP on this machine."""

from __future__ import annotations

import re
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from datamask.cli.options import root_argument

if TYPE_CHECKING:
    from datamask.runs.run import Run
    from datamask.storage.location import Root

HOST = "127.0.0.1"
KINDS = {
    "html": "text/html; charset=utf-8",
    "png": "image/png",
    "log": "text/plain; charset=utf-8",
}
"""What is served, by the end of a file's name."""
PAGE = re.compile(rf"(?!.*\.\.)[\w-][\w./=-]*\.(?P<kind>{'|'.join(KINDS)})")


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
    """Open the report of RUN in a browser, or serve its pages on this machine.

    The pages have no password, so they are served on 127.0.0.1 only. To read them from another
    machine, forward the port: ssh -L 8000:127.0.0.1:8000 MACHINE.
    """
    from datamask.errors import RunError, SettingsError
    from datamask.runs.opening import open_run

    run = open_run(root)
    path = run.path("report")
    if not path.exists():
        raise RunError(f"{run.address}: no report yet; `datamask report {root}` writes it")
    if not serve:
        run.fetch("evaluation.html")  # the report links to it
        address = path.absolute().as_uri()
        is_open = webbrowser.open(address)
        click.echo(address if is_open else f"no browser here; open {path}, or use --serve")
        return
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(run))
    except OSError as error:
        raise SettingsError(f"--port {port}: {error.strerror}; use another, or 0") from None
    with server:
        click.echo(f"http://{HOST}:{server.server_port}/report.html (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended")


def _handler(run: Run) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        """The pages, pictures and logs of a run, for reading."""

        def do_GET(self) -> None:
            """Send a file of the run; a name from elsewhere (DNS rebinding) is refused."""
            if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            name = unquote(urlsplit(self.path).path).lstrip("/") or "report.html"
            found = PAGE.fullmatch(name)
            path = run.fetch(name) if found else None
            if found is None or path is None or not path.is_file():
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = path.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", KINDS[found["kind"]])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not logged."""

    return Pages

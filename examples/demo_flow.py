"""Runs the demo: the flow `rebuild` as deployment `rebuild/demo` does, in this process.

The demo's corpus is written meanwhile, if there is none. Prefect starts a server for the time of
the flow run. Its database is the one of `make up`, so the flow run can be looked at later.

    python examples/demo_flow.py
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
AT_THE_END = """
the report             .venv/bin/datamask open {root}
the same on a server   make up deploy, and in another terminal make worker, then
                       PREFECT_API_URL=http://127.0.0.1:4200/api .venv/bin/prefect deployment run \\
                         rebuild/demo --watch --param root={root}-2
all flow runs          http://127.0.0.1:4200, while `make up` runs
"""


@contextlib.contextmanager
def saying(text: str) -> Iterator[None]:
    """Print the text, and every 20 seconds again while the block runs."""
    ended = threading.Event()

    def say() -> None:
        print(text, flush=True)
        while not ended.wait(20):
            print(text, flush=True)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def main() -> None:
    """Run the flow, and say what can be done next."""
    os.chdir(REPOSITORY)
    sys.path.insert(0, str(REPOSITORY))
    # Read when Prefect is imported.
    os.environ.pop("PREFECT_API_URL", None)
    os.environ["PREFECT_HOME"] = str(REPOSITORY / ".services")
    # A busy machine takes minutes to create the database.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "1800")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    text = (REPOSITORY / "deployments" / "prefect.yaml").read_text(encoding="utf-8")
    deployments = yaml.safe_load(text)["deployments"]
    parameters = next(item["parameters"] for item in deployments if item["name"] == "demo")
    corpus = None
    # The texts to evaluate on are written last.
    if not Path(parameters["evaluation"]["sets"][0]["path"]).exists():
        script = ("examples/demo_corpus.py", parameters["source"]["path"])
        corpus = subprocess.Popen([sys.executable, *script])
    from prefect.client.orchestration import get_client

    from datamask.cli.rebuilding import print_answer
    from datamask.report.answer import answer
    from datamask.runs.opening import open_run
    from flows.rebuild import rebuild

    with (
        saying("Prefect starts a server for this flow run"),
        get_client(sync_client=True) as client,
    ):
        client.api_healthcheck()
    if corpus is not None and corpus.wait():
        sys.exit("demo: the corpus could not be written")
    state: Any = rebuild(**parameters, return_state=True)
    if not state.is_completed():
        sys.exit(f"demo: {state.message}")
    run = open_run(parameters["root"])
    print_answer(answer(run), run.address)
    print(AT_THE_END.format(root=parameters["root"]))


if __name__ == "__main__":
    main()

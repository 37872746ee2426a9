"""Faults of a real Prefect server, its workers and the processes of flow runs."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.faults.campaign import Outcome, judge
from tests.faults.harm import Case, outputs, wait_for_output
from tests.flows.server import Server, family, lives

KINDS = ("flow run killed", "worker killed", "server killed", "everything killed")


def against_services(cases: list[Case], state: Path, faults: int, seed: int) -> Iterator[Outcome]:
    """Inject so many faults, against one server with its workers under *state*."""
    server = Server(state)
    try:
        server.start()
        server.deploy()
        for number in range(faults):
            generator = random.Random(f"services {seed} {number}")
            root = state / f"fault{number}" / "run"
            kind, case = generator.choice(KINDS), generator.choice(cases)
            yield _inflict(kind, case, root, server, generator)
            shutil.rmtree(root.parent, ignore_errors=True)
    finally:
        server.stop()


def _inflict(
    kind: str, case: Case, root: Path, server: Server, generator: random.Random
) -> Outcome:
    given = yaml.safe_load(case.config.read_text())
    parameters = {"root": str(root), **given, "compute": {"workers": 2}}
    server.launch("rebuild/local", parameters)
    # From the plan on, so that there is a run to continue.
    number = generator.randrange(1, len(outputs(case.reference)))
    if not wait_for_output(root, number, lambda: True, generator):
        return Outcome(kind, f"{len(outputs(root))} outputs", problem="the flow run does not go on")
    there = len(outputs(root))
    victims = _victims(kind, server)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    while any(lives(victim) for victim in victims):
        time.sleep(0.05)
    told = f"after {there} outputs, {len(victims)} processes"

    def recover() -> None:
        server.start()
        done = server.launch("rerun-failed/local", {"root": str(root)}, "--watch")
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    return judge(kind, told, case, root, recover)


def _victims(kind: str, server: Server) -> list[int]:
    worker, api = (family(server.processes[name].pid) for name in ("cpu-0", "server"))
    return {
        "flow run killed": worker[1:],
        "worker killed": worker[:1],
        "server killed": api,
        "everything killed": [*api, *worker],
    }[kind]

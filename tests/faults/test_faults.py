"""A short version of the campaign (`make faults` is the long one): a kill, a full disk, a flip."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import campaign
from tests.faults.harm import Case

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An undisturbed run."""
    return campaign.make_case(tmp_path_factory.mktemp("faults"), 0, shards=3)


KINDS = ("killed", "full disk", "byte flipped")
OTHERS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in campaign.KILLS if kind not in KINDS
]


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_relaunch_ends_as_if_nothing_had_happened(
    kind: str, case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The files of an undisturbed run, and nothing whole is made again."""
    generator = random.Random(request.node.name)
    try:
        outcome = campaign.inflict(kind, case, tmp_path / "run", generator)
    except PermissionError as error:
        pytest.skip(f"no file system of a chosen size here: {error}")
    assert outcome.survived, outcome

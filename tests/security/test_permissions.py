"""Who may read a run is decided by the user's umask."""

import os
import stat

import pytest

from datamask.execution.pipeline import rebuild
from tests import finished
from tests.malformed.commands import run_main

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0o000, 0o027])
def test_files_have_the_permissions_of_the_umask(tmp_path, mask):
    """Every file and folder of a run, of one that shares its files and of a page has them."""
    before = os.umask(mask)
    try:
        chosen = finished.settings(
            finished.corpus(tmp_path / "source"),
            quality={"near_duplicates": {}},
            publication={"dry_run": True, "license": "mit"},
        )
        run = str(rebuild(tmp_path / "run", chosen).root)
        new = str(tmp_path / "new")
        status = [run_main(["-q", "rebuild", new, "--from", run, "--set", "selection.ratio=0.3"])]
        status += [run_main(["-q", "compare", run, new, "-o", str(tmp_path / "page.html")])]
        status += [run_main(["init", str(tmp_path / "source"), "-o", str(tmp_path / "a.yaml")])]
    finally:
        os.umask(before)
    assert status == [0, 0, 0]
    for path in tmp_path.rglob("*"):
        if not path.is_symlink():
            due = (0o777 if path.is_dir() else 0o666) & ~mask
            assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(due), path

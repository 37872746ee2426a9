"""`--from`: a run takes from another what is the same."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from datamask.config.loading import parse_settings
from datamask.errors import RunError
from datamask.execution.pipeline import rebuild
from datamask.execution.sharing import share
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from tests.cli.commands import here, settings
from tests.faults.comparison import contents

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.slow
def test_a_run_from_another_shares_what_is_the_same(finished, tmp_path):
    """Equal embeddings are one file; the result is a fresh run's and outlives the other run."""
    root, source, _ = finished
    old, new, fresh = (tmp_path / name / "run" for name in ("old", "new", "fresh"))
    shutil.copytree(root, old)
    changes = ("selection.quality_weight=0.2", "selection.steps=10")
    assert here("rebuild", fresh, *settings(source, *changes)) == 0
    more = [part for item in changes for part in ("--set", item)]
    assert here("rebuild", new, "--from", old, *more) == 0
    shared = [p.relative_to(old) for p in sorted(old.glob("embeddings/*.parquet"))]
    assert shared
    for name in shared:
        assert (old / name).stat().st_ino == (new / name).stat().st_ino
    # The corrupt file is renamed, not changed: the other run keeps its file.
    path = new / "quality" / "00001.parquet"
    (new / "records" / "quality" / "00001.parquet.json").unlink()
    assert here("verify", new) == 2
    assert not path.exists()
    assert here("verify", old) == 0
    shutil.rmtree(old)
    assert here("rebuild", new) == 0
    assert here("verify", new) == 0
    assert contents(new) == contents(fresh)


def test_a_run_from_another_may_have_more_stages_and_units(finished, tmp_path):
    """Near-duplicates and arms, of which the other run has none; then one arm more."""
    origin = open_run(finished[0])
    given = origin.settings.model_dump(mode="json", exclude={"sources"})
    given["quality"]["near_duplicates"] = {"similarity": 0.9}
    given["evaluation"] |= {"arms": ["ours", "random"], "hold_out": 0.1, "tokens": 1000}
    changed = plan_run(tmp_path / "changed", parse_settings(given))
    share(origin, changed)
    assert not changed.remaining("scores") and changed.remaining("similar_pairs") == [0]
    given["evaluation"]["arms"] = ["ours", "random", "top_quality"]
    again = plan_run(tmp_path / "again", parse_settings(given))
    share(changed, again)
    assert not again.remaining("scores") and again.remaining("arms") == [0, 1, 2]


def test_a_run_from_another_on_another_disk_is_a_copy(finished, tmp_path, monkeypatch):
    """Where no link can be made the bytes are the same, and a URL is refused in one line."""
    root, _, _ = finished

    def refused(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    run = plan_run(tmp_path / "run", None, origin=open_run(root))
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        share(open_run(root), run)
    assert not run.remaining("embeddings")
    copied = {name: found for name, found in contents(tmp_path / "run").items() if "/" in name}
    assert copied.items() <= contents(root).items()
    # A run that this user may only read: nothing is written there.
    read_only = shutil.copytree(
        root, tmp_path / "read_only", ignore=shutil.ignore_patterns("locks")
    )
    (read_only / "locks").write_text("")
    run = plan_run(tmp_path / "other", None, origin=open_run(read_only))
    monkeypatch.setattr(os, "access", lambda path, mode: path != read_only)
    opened = Path.open

    def opened_to_read(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        assert "+" not in mode, f"{path} may be a link to a file that cannot be changed"
        return opened(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", opened_to_read)
    share(open_run(read_only), run)
    assert not run.remaining("embeddings")
    with pytest.raises(RunError, match=r"^s3://somewhere/run: only folders of this"):
        rebuild("s3://somewhere/run", origin=root)

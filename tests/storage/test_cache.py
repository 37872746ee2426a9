"""The copy of a store on one machine: what is current, what is used, what is evicted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datamask.errors import RunError
from datamask.storage.cache import Mirror, make_mirror
from datamask.storage.location import locate, remote_folder_of
from datamask.storage.object_store import Entry


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty mirror."""
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path))
    return make_mirror("key", "mine", "s3://bucket/mine")


def fill(root: Path, *names: str) -> list[Mirror]:
    """Files of ten bytes, used in this order; what three processes would know of them."""
    mirrors = [Mirror(root) for _ in range(3)]
    for age, name in enumerate(names):
        (root / name).write_bytes(b"0123456789")
        mirrors[0].note(name, Entry(10, "v"))
        os.utime(root.parents[1] / "versions" / name, (age, age))
    return mirrors


def there(root: Path) -> set[str]:
    """Names of the files in a mirror."""
    return {path.name for path in root.iterdir()}


def test_what_was_not_used_for_longest_goes_first(root: Path) -> None:
    """Until the rest fits, and not the files that every process reads."""
    first, second, _ = fill(root, "run.json", "a", "b", "c")
    first.used("a")
    second.shrink(30)
    assert there(root) == {"run.json", "a", "c"}
    second.shrink(0)
    assert there(root) == {"run.json"}


def test_what_another_process_uses_stays(root: Path) -> None:
    """Until its unit of work ends; a file that no store has is never touched."""
    first, second, third = fill(root, "a", "b")
    (root / "mine.log").write_text("not brought")
    with first.in_use(10**9):
        first.pin("a")
        with second.in_use(10**9):
            second.pin("a")
            second.pin("b")
            third.shrink(0)
            assert there(root) == {"a", "b", "mine.log"}
        third.shrink(0)
        assert there(root) == {"a", "mine.log"}
    third.shrink(0)
    assert there(root) == {"mine.log"}


def test_what_a_dead_process_used_goes(root: Path) -> None:
    """Its pins die with it."""
    (one, *_) = fill(root, "a")
    code = "import os, sys; from pathlib import Path; from datamask.storage.cache import Mirror\n"
    code += "Mirror(Path(sys.argv[1])).pin('a'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(root)], check=False)
    assert list((root.parents[1] / "pins").iterdir()), "it died without cleaning up"
    one.shrink(0)
    assert there(root) == set()
    assert not list((root.parents[1] / "pins").iterdir())


def test_identity_is_one_for_a_mirror_and_another_for_another(root: Path) -> None:
    """Leases of a dead process are known by it."""
    other = make_mirror("other", "mine", "s3://bucket/other")
    assert Mirror(root).identity == Mirror(root).identity != Mirror(other).identity


def test_a_mirror_is_known_by_what_lies_beside_it(root: Path, tmp_path: Path) -> None:
    """In any process; and a run named as the bookkeeping's folders is no trouble."""
    found = remote_folder_of(root / "masks" / "00001.parquet")
    assert found is not None
    assert (found.address, found.root) == ("s3://bucket/mine", root)
    assert remote_folder_of(root) is None
    assert remote_folder_of(root.parents[1] / "versions" / "a") is None
    assert remote_folder_of(tmp_path / "else" / "a") is None
    for name in ("versions", "pins", "run"):
        place = locate(f"s3://bucket/{name}")
        assert place.name == name
        inside = remote_folder_of(place / "run.json")
        assert inside is not None
        assert inside.root == place


def test_different_urls_have_different_mirrors(root: Path) -> None:
    """A slash at the end makes no difference, a bucket does; files on this disk have none."""
    assert locate("s3://bucket/a/mine/") == locate("s3://bucket/a/mine")
    assert locate("s3://bucket/a/mine") != locate("s3://bucket/b/mine")
    assert locate("file:///runs/mine") == locate("/runs/mine") == Path("/runs/mine")
    with pytest.raises(RunError, match="two slashes"):
        locate("s3:/bucket/mine")

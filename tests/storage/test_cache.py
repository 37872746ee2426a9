"""The copies of a store's files on one machine: what is current, what is used, what is evicted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datamask.runs.opening import run_storage
from datamask.storage.cache import Cache
from datamask.storage.object_store import Entry

URL = "s3://bucket/mine"
FILE = Entry(10, "v")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path))
    return tmp_path


def fill(*names: str) -> list[Cache]:
    """Files of ten bytes, used in this order long ago; what four processes would know of them."""
    caches = [Cache(URL) for _ in range(4)]
    with caches[0].in_use(10**9):
        for age, name in enumerate(names):
            temporary = caches[0].root / "temporary"
            temporary.write_bytes(b"0123456789")
            caches[0].add(temporary, name, FILE, "")
            os.utime(caches[0].home / "versions" / name, (age, age))
    return caches


def there() -> set[str]:
    """Names of the files in the cache."""
    return {path.name for path in Cache(URL).root.iterdir()}


def test_what_was_not_used_for_longest_goes_first():
    """Until the rest fits, and not the files that every process reads."""
    first, second, *_ = fill("run.json", "a", "b", "c")
    with first.in_use(10**9):
        assert first.use("a", FILE)
    second.shrink(30)
    assert there() == {"run.json", "a", "c"}
    second.shrink(0)
    assert there() == {"run.json"}


def test_what_another_process_uses_stays():
    """Until its oldest unit of work ends; a file that no store has is never touched."""
    first, second, third, _ = fill("a", "b", "c")
    (first.root / "mine.log").write_text("not fetched")
    with first.in_use(10**9):
        assert first.use("a", FILE)
        with second.in_use(10**9):
            assert second.use("b", FILE)
            with second.in_use(10**9):
                pass  # another thread of the same process is done
            third.shrink(0)
            assert there() == {"a", "b", "mine.log"}
            assert not third.use("c", FILE)
    third.shrink(0)
    assert there() == {"mine.log"}


def test_what_is_used_stays_although_the_clock_is_set_back(monkeypatch):
    """By an hour, in the middle of a unit of work."""
    first, second, *_ = fill("a", "b")
    with first.in_use(10**9):
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
        assert first.use("a", FILE)
        second.shrink(0)
    assert there() == {"a"}


def test_what_a_dead_process_used_goes():
    """Its lock dies with it."""
    one, *_ = fill("a")
    code = "import os; from tests.storage.test_cache import Cache, FILE, URL; cache = Cache(URL)\n"
    code += "with cache.in_use(1): assert cache.use('a', FILE); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert list((one.home / "users").iterdir()), "it died without cleaning up"
    one.shrink(0)
    assert there() == set()
    assert not list((one.home / "users").iterdir())


def test_a_copy_that_was_changed_or_is_of_another_version_is_not_used():
    """Only the store's content counts."""
    one, *_ = fill("a")
    assert one.use("a", FILE)
    assert not one.use("a", Entry(10, "w"))
    (one.root / "a").write_bytes(b"0123456788")
    assert not one.use("a", FILE)


def test_identity_is_one_for_a_cache_and_another_for_another():
    """Leases of a dead process are known by it."""
    assert Cache(URL).identity == Cache(URL).identity != Cache("s3://bucket/other").identity


def test_different_urls_have_different_folders():
    """A slash at the end makes no difference, a bucket does; files on this disk have none."""

    def place(root: str) -> Path:
        return run_storage(root).root

    assert place("s3://bucket/a/mine/") == place("s3://bucket/a/mine")
    assert place("s3://bucket/a/mine") != place("s3://bucket/b/mine")
    assert place("file:///runs/mine") == place("/runs/mine") == Path("/runs/mine")
    for name in ("versions", "users", "run"):
        assert place(f"s3://bucket/{name}").name == name

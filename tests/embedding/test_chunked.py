"""Made ahead in a thread: the same items, order and errors as without."""

import threading
from collections.abc import Iterator

import pytest

from datamask.embedding.chunked import read_ahead


def threads() -> list[str]:
    """Threads of ours that live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_items_in_order():
    """As `map` would have it, and the thread is gone afterwards."""
    assert list(read_ahead(range(100), lambda n: n * n)) == [n * n for n in range(100)]
    assert list(read_ahead([], str)) == []
    assert list(read_ahead([1, 2], lambda n: None)) == [None, None]
    assert not threads()


def test_the_next_is_made_while_one_is_in_use():
    """While the first item is in use, the second is prepared, and not the whole rest."""
    made = [threading.Event() for _ in range(50)]
    items = read_ahead(range(50), lambda n: made[n].set())
    next(items)
    assert made[1].wait(60)
    assert not made[10].wait(0.3)
    items.close()
    assert not threads()


@pytest.mark.parametrize("error", [ValueError("bad item"), KeyboardInterrupt()])
def test_errors_come_in_their_place(error):
    """Earlier results are there; then the error itself, of the source or of the making."""

    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise error

    found = []
    with pytest.raises(type(error)) as caught:
        for item in read_ahead(source(), str):
            found.append(item)
    assert found == ["1", "2"] and caught.value is error

    def making(item: int) -> int:
        if item == 2:
            raise error
        return item

    found = []
    with pytest.raises(type(error)):
        for item in read_ahead([1, 2, 3], making):
            found.append(item)
    assert found == [1]
    assert not threads()


def test_leaving_early_closes_the_source():
    """Files that the source holds open are closed."""
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    held = source()  # so that it is not closed by being forgotten
    items = read_ahead(held, str)
    assert next(items) == "0"
    items.close()
    assert closed.is_set() and not threads()

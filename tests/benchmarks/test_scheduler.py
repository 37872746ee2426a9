"""The model of `benchmarks.scaling`, against schedules by hand and bounds it must keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scheduler import Costs, in_a_queue, in_parts

SECONDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=40)


def test_by_hand():
    """Three workers, two of them with two shards."""
    costs = Costs(task=0.5, start=2, part=1, notice=3)
    done = in_parts([4, 5, 6, 1, 2], 3, 1, costs)
    # Parts work from second 3, 4 and 5, with 0.5 s for each of their tasks.
    assert done.seconds == max(3 + 5 + 1, 4 + 7 + 1, 5 + 6 + 0.5) + 3
    assert done.lost == pytest.approx(1 - 18 / (3 * 15))
    handed = in_a_queue([4, 5, 6, 1, 2], 3, 1, Costs(task=0.5, submission=1, start=2))
    # Workers are there from second 2; shards go out at 1 to 5. The first worker has 4 and then 1,
    # the second 5 and then 2, the third 6 from second 3 on.
    assert handed.seconds == max(2 + 4.5 + 1.5, 2 + 5.5 + 2.5, 3 + 6.5)


@given(SECONDS, st.integers(1, 8), st.integers(1, 5))
def test_nothing_is_faster_than_the_work(seconds, workers, size):
    """Without costs a queue keeps Graham's bound; costs only add."""
    best = max(sum(seconds) / workers, max(seconds))
    for deal in (in_parts, in_a_queue):
        free = deal(seconds, workers, size, Costs())
        assert free.seconds >= best - 1e-9
        assert deal(seconds, workers, size, Costs(0.1, 0.1, 1, 0.2, 1)).seconds > free.seconds
    assert in_a_queue(seconds, workers, 1, Costs()).seconds <= 2 * best + 1e-9

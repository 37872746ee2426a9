"""Windows of texts against a count of characters, and what is computed from windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamask.source.windows import cut
from tests import windows

TEXTS = st.lists(st.text("aé 字\n", max_size=300) | st.text("ab ", min_size=200), max_size=4)


@given(texts=TEXTS, size=st.integers(1, 120), most=st.integers(1, 6))
def test_windows_are_those_worked_out_by_hand(texts, size, most):
    """Each text has its windows, weights that sum to 1, and the share of characters they hold."""
    found = cut(texts, size, most)
    shares = found.share_read()
    for row, text in enumerate(texts):
        spans = windows.by_hand(text, size, most)
        own = np.flatnonzero(found.owners == row)
        assert [found.texts[place] for place in own] == [text[slice(*span)] for span in spans]
        assert own[0] == row and (found.starts[own] == [start for start, _ in spans]).all()
        assert spans[-1][1] == len(text) or most == 1
        assert shares[row] == pytest.approx(windows.read(spans, len(text)))
        assert found.weights[own].sum() == pytest.approx(1)
        assert len(own) == 1 or all(found.texts[place] for place in own)
        # A border may be inside a character.
        near = windows.nearest(spans, len(text))
        assert np.abs(found.weights[own] - near).max() <= 1.01 / max(len(text), 1)


def test_three_windows_are_beginning_middle_and_end():
    """Of a text of 100 words, at starts of words; two windows read a text of up to two whole."""
    text = " ".join(f"{word:04d}" for word in range(100))
    assert cut([text], 24, 3).texts == [text[:24], text[235:260], text[475:]]
    assert cut([text], 250, 3).texts == [text[:250], text[250:]]
    assert cut([text], 250, 3).share_read().tolist() == [1]


def test_values_of_windows_are_averaged():
    """Numbers and rows by weight; of a text that is not cut the very same bits."""
    found = cut(["short", "x" * 100, ""], 10, 3)
    values = np.array([0.1, 1.0, 0.3, 2.0, 4.0])
    assert found.mean(values)[[0, 2]].tolist() == [0.1, 0.3]
    assert found.mean(values)[1] == pytest.approx((27.5 * 1 + 45 * 2 + 27.5 * 4) / 100)
    unit = np.eye(5, dtype=np.float32)
    directions = found.direction(unit)
    assert (directions[[0, 2]] == unit[[0, 2]]).all()
    expected = np.array([0, 27.5, 0, 45, 27.5])
    assert directions[1] == pytest.approx(expected / np.linalg.norm(expected))
    opposite = unit[[0, 1, 2, 1, 1]] * np.array([[1], [1], [1], [-1], [0.45 / 0.275 - 1]])
    assert (found.direction(opposite.astype(np.float64))[1] == unit[1]).all()


def test_the_share_read_counts_what_a_reader_took_of_each_window():
    """Characters that two windows share count once, and unknown ones make the share unknown."""
    found = cut(["x" * 100, "short"], 10, 3)
    assert found.share_read(np.array([10, 5, 4, 10])) == pytest.approx([0.24, 1])
    assert np.isnan(found.share_read(np.array([10, np.nan, 10, 10]))).tolist() == [False, True]

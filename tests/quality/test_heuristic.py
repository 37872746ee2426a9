"""The built-in heuristic stays between 0 and 1 and prefers prose."""

from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.quality.heuristic import score_text


@given(st.text(max_size=300))
@settings(max_examples=30, deadline=None)
def test_heuristic_is_between_0_and_1(text):
    """Every text has a score in [0, 1]; white space alone has 0."""
    assert 0 <= score_text(text) <= 1
    assert text.split() or score_text(text) == 0


def test_heuristic_prefers_prose():
    """Prose beats each kind of text that the parts are meant to catch."""
    prose = "The cat sat on the mat because it was warm and there was nothing else to do. "
    poor = ["buy now " * 10, "1234 5678 " * 8, "{}();<>[] a=b; " * 5, "cat dog fish bird"]
    assert all(score_text(prose) > score_text(text) + 0.1 for text in poor)

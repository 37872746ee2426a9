"""Real runs of drawn vectors, budgets and limits, against the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle_cases import cases, drawn
from tests.oracle_runs import check

pytestmark = pytest.mark.usefixtures("roughly")


@drawn
@given(cases("features"), st.sampled_from(["selection", "composition"]))
def test_runs_with_limits_select_what_the_oracle_selects(case, last):
    """Floors, caps, budgets in tokens and one threshold for all shards are right."""
    check(case, last)

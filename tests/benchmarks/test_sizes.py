"""Recipes that the study of sizes compares."""

import pytest

from benchmarks.sizes import ARMS

BY_NAME = {arm.name: arm for arm in ARMS}


@pytest.mark.parametrize(
    ("auc", "pruned", "weight"), [(0.95, 0.7, 0.81), (0.7, 0.4, 0.16), (0.4, 0, 0)]
)
def test_the_rule_and_its_filter_are_what_the_default_recipe_resolves(auc, pruned, weight):
    """By t = 2 AUC - 1, min(0.7, t) is pruned and lambda is t squared (docs/evidence.md)."""
    assert BY_NAME["rule"].at(auc) == pytest.approx((pruned, weight))
    assert BY_NAME["filter, random"].at(auc)[0] == pytest.approx(pruned)

"""Groups of packages whose texts studies read."""

from itertools import chain, combinations

from benchmarks.debian_packages import PACKAGES


def test_no_package_is_in_two_groups():
    """Texts of a study are new if no other group has their package."""
    groups = {name: {*chain(*map(str.split, group))} for name, group in PACKAGES.items()}
    assert all(groups.values())
    for one, other in combinations(groups, 2):
        assert not groups[one] & groups[other], (one, other)

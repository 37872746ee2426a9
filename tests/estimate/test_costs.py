"""The laws of the stages: found again from their own values, and never negative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from datamask.config.outputs import Report
from datamask.estimate.costs import Measurement, Size, fit, size_of

SIZES = [(1, 1000), (3, 3000), (3, 12000), (3, 48000)]


def measured(stage: str, size: Size, seconds: float) -> Measurement:
    """A stage that took so long."""
    return Measurement(
        stage=stage,
        size=size,
        seconds=seconds,
        cpu_seconds=2 * seconds,
        disk_bytes=int(1000 * seconds),
        source_bytes=0,
    )


@hypothesis_settings(deadline=None)
@given(fixed=st.floats(0, 10), a_shard=st.floats(0, 5), a_document=st.floats(0, 1e-2))
def test_a_linear_law_is_found(fixed: float, a_shard: float, a_document: float) -> None:
    """From values of a law at four small sizes its value at a large one, within their error."""
    report = Report()

    def law(shards: int, documents: int) -> float:
        return fixed + a_shard * shards + a_document * documents

    found = fit(
        [
            measured("selection", size_of(shards, documents, 0.6, report), law(shards, documents))
            for shards, documents in SIZES
        ]
    )
    for shards, documents in [(2, 2000), (20, 320_000)]:
        size = size_of(shards, documents, 0.6, report)
        expected = law(shards, documents)
        assert found.at("seconds", size) == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert found.at("cpu_seconds", size) == pytest.approx(2 * expected, rel=1e-3, abs=1e-6)
        assert found.at("source_bytes", size) == 0


@hypothesis_settings(deadline=None)
@given(seconds=st.lists(st.floats(0.001, 100), min_size=4, max_size=4))
def test_no_size_has_a_negative_cost(seconds: list[float]) -> None:
    """Whatever was measured, also if less took longer; and a larger run never costs less."""
    report = Report()
    found = fit(
        [
            measured("subset", size_of(shards, documents, 0.6, report), value)
            for (shards, documents), value in zip(SIZES, seconds, strict=True)
        ]
    )
    costs = [
        found.at("seconds", size_of(shards, 10_000 * shards, 0.6, report))
        for shards in (1, 10, 100, 10_000)
    ]
    assert costs[0] >= 0 and costs == sorted(costs)


def test_the_report_is_bounded_by_its_sample() -> None:
    """A report whose time is that of its sample alone does not grow with the corpus."""
    report = Report(sample_documents=5000)
    others = [Report(map_documents=450), Report(sample_documents=450, map_documents=450)]
    sizes = [size_of(3, 3000, 0.6, one) for one in (report, *others)]
    sizes += [size_of(1, 1000, 0.6, report), size_of(3, 30_000, 0.6, report)]

    def law(size: Size) -> float:
        return 2 + 0.001 * size.sampled + 0.01 * size.mapped

    found = fit([measured("report", size, law(size)) for size in sizes])
    large = size_of(1000, 10**9, 0.6, report)
    assert (large.sampled, large.mapped) == (5000, 3000)
    assert found.at("seconds", large) == pytest.approx(2 + 5 + 30, rel=0.01)


def test_sizes_are_counted_by_hand() -> None:
    """60 of 100 documents are left; the sample is of at most 32 shards; pairs are within shards."""
    size = size_of(4, 100, 0.6, Report(sample_documents=20))
    assert (size.sampled, size.pairs) == (20, 20 * 15)
    size = size_of(64, 640, 0.5, Report(sample_documents=5000))
    assert (size.sampled, size.pairs) == (32 * 5, 32 * 5 * 5)

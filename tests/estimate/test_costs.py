"""The laws of the stages: found again from their own values, and never negative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.estimate.costs import Measurement, Size, fit, size_of

SIZES = [(1, 1000), (3, 3000), (3, 12000), (3, 48000)]


def settings(**report: int) -> Settings:
    """With a sample of this size for the report."""
    return parse_settings({"report": report})


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
    plain = settings()

    def law(shards: int, documents: int) -> float:
        return fixed + a_shard * shards + a_document * documents

    found = fit(
        [
            measured("selection", size_of(shards, documents, 0.6, plain), law(shards, documents))
            for shards, documents in SIZES
        ]
    )
    for shards, documents in [(2, 2000), (20, 320_000)]:
        size = size_of(shards, documents, 0.6, plain)
        expected = law(shards, documents)
        assert found.at("seconds", size) == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert found.at("cpu_seconds", size) == pytest.approx(2 * expected, rel=1e-3, abs=1e-6)
        assert found.at("source_bytes", size) == 0


@hypothesis_settings(deadline=None)
@given(seconds=st.lists(st.floats(0.001, 100), min_size=4, max_size=4))
def test_no_size_has_a_negative_cost(seconds: list[float]) -> None:
    """Whatever was measured, also if less took longer; and a larger run never costs less."""
    plain = settings()
    found = fit(
        [
            measured("subset", size_of(shards, documents, 0.6, plain), value)
            for (shards, documents), value in zip(SIZES, seconds, strict=True)
        ]
    )
    costs = [
        found.at("seconds", size_of(shards, 10_000 * shards, 0.6, plain))
        for shards in (1, 10, 100, 10_000)
    ]
    assert costs[0] >= 0 and costs == sorted(costs)


def test_the_report_is_bounded_by_its_sample() -> None:
    """A report whose time is that of its sample alone does not grow with the corpus."""
    usual = settings(sample_documents=5000)
    others = [settings(map_documents=450), settings(sample_documents=450, map_documents=450)]
    sizes = [size_of(3, 3000, 0.6, one) for one in (usual, *others)]
    sizes += [size_of(1, 1000, 0.6, usual), size_of(3, 30_000, 0.6, usual)]

    def law(size: Size) -> float:
        return 2 + 0.001 * size.sampled + 0.01 * size.mapped

    found = fit([measured("report", size, law(size)) for size in sizes])
    large = size_of(1000, 10**9, 0.6, usual)
    assert (large.sampled, large.mapped) == (5000, 3000)
    assert found.at("seconds", large) == pytest.approx(2 + 5 + 30, rel=0.01)


def test_sizes_are_counted_by_hand() -> None:
    """60 of 100 documents are left; the sample is of at most 32 shards; pairs are within shards."""
    size = size_of(4, 100, 0.6, settings(sample_documents=20))
    assert (size.sampled, size.pairs) == (20, 20 * 15)
    size = size_of(64, 640, 0.5, settings(sample_documents=5000))
    assert (size.sampled, size.pairs) == (32 * 5, 32 * 5 * 5)


@pytest.mark.parametrize("rounds", [1, 5])
def test_what_is_kept_of_samples_does_not_grow_with_the_corpus(rounds: int) -> None:
    """Measured where every document is drawn; of a billion documents, what the docs say is."""
    chosen = parse_settings({"selection": {"scope": "corpus", "rounds": rounds}})
    sizes = [size_of(shards, documents, 0.6, chosen) for shards, documents in SIZES[:3]]
    large = size_of(1000, 10**9, 0.6, chosen)
    # 1.5 kB for a vector, 5 MB for the sums of a shard; the largest sample and a second one.
    kept = {"corpus_statistics": 65_536 + 16_384, "outcome": 16_384}
    for stage, most in kept.items():
        values = [5000.0 * one.shards + 1.5 * 0.6 * one.documents for one in sizes]
        found = fit([measured(stage, *pair) for pair in zip(sizes, values, strict=True)])
        expected = 1000 * (5000 * 1000 + 1.5 * most)
        assert found.at("disk_bytes", large) == pytest.approx(expected, rel=1e-3), stage
    whole = fit([measured("round", one, 0.012 * one.documents) for one in sizes])
    assert whole.at("disk_bytes", large) == pytest.approx(12 * 10**9, rel=1e-3)


def test_a_total_of_a_round_takes_as_long_as_its_sample() -> None:
    """What is learned, and what stands for others."""
    chosen = parse_settings({"selection": {"scope": "corpus", "sample_documents": 4000}})
    sizes = [size_of(shards, documents, 1.0, chosen) for shards, documents in SIZES]
    assert [one.stand_ins for one in sizes] == [1000, 3000, 4000, 4000]
    for rounds in (1, 20):
        given = parse_settings({"selection": {"scope": "corpus", "rounds": rounds}})
        drawn = [size_of(shards, documents, 1.0, given) for shards, documents in SIZES]
        total = fit([measured("round_total", one, 1e-4 * one.documents) for one in drawn[:3]])
        last = size_of(100, 10**8, 1.0, given)
        assert total.at("seconds", last) == pytest.approx(8.192, rel=1e-3)

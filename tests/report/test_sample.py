"""The report's sample, worked out again by brute force: density, neighbours, beginnings, map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from datamask.config.compute import Compute
from datamask.report import chart_data, redundancy, sample
from datamask.report.redundancy import neighbours_path, sample_path
from datamask.report.sample import embedding_map
from datamask.runs.run import Run, shard_seed
from datamask.source.texts import MOST_CHARACTERS
from tests.report.figures import REPORT, by_place, candidates, texts


def test_the_sample_is_of_candidates_in_proportion(
    run: Run, documents: list[dict[str, Any]]
) -> None:
    """As many as asked for, each once, none that pruning dropped; shards by their size."""
    rows = pq.read_table(sample_path(run)).to_pylist()
    places = [(row["shard"], row["row"]) for row in rows]
    known = by_place(documents)
    assert len(set(places)) == len(places) == REPORT["sample_documents"]
    assert all(known[place]["dropped"] is None for place in places)
    assert [known[place]["id"] for place in places] == [row["id"] for row in rows]
    total = sum(row["dropped"] is None for row in documents)
    for shard in range(run.num_shards):
        share = len(candidates(documents, shard)) / total * len(rows)
        assert abs(sum(place[0] == shard for place in places) - share) <= 1
    assert sum(row["x"] is not None for row in rows) == REPORT["map_documents"]
    kept = sum(row["selected"] for row in documents)
    assert sum(row["diverse"] for row in rows) == len(rows) * kept // total


def test_density_is_the_mean_cosine_to_ten_neighbours(
    run: Run, documents: list[dict[str, Any]]
) -> None:
    """By brute force over all documents of the shard."""
    known = by_place(documents)
    for row in pq.read_table(sample_path(run)).to_pylist():
        own = known[row["shard"], row["row"]]
        cosines = sorted(
            float(own["vector"] @ other["vector"])
            for other in candidates(documents, row["shard"])
            if other["id"] != own["id"]
        )
        assert row["density"] == pytest.approx(np.mean(cosines[-10:]), abs=1e-5)


def test_density_in_a_large_shard_is_among_a_draw(
    run: Run, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest of the documents drawn with the shard's seed, the document itself left out."""
    monkeypatch.setattr(sample, "COMPARED_FOR_DENSITY", 14)
    rows = candidates(documents, 0)
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, 0)))
    generator.permutation(len(rows))  # the random selection
    drawn = [rows[place] for place in generator.permutation(len(rows))[:14]]
    found = sample._sample_shard(run, 0, 20, 5, Compute()).documents.to_pylist()
    assert len(found) == 20
    for row in found:
        own = by_place(documents)[0, row["row"]]
        others = [other for other in drawn if other["id"] != own["id"]]
        cosines = sorted(float(own["vector"] @ other["vector"]) for other in others)
        assert row["density"] == pytest.approx(np.mean(cosines[-10:]), abs=1e-5)


def test_the_beginning_is_the_texts_own(run: Run, documents: list[dict[str, Any]]) -> None:
    """On one line, cut at the length set; only for documents on the map."""
    source = texts(run)
    for row in pq.read_table(sample_path(run)).to_pylist():
        if row["x"] is None:
            assert row["beginning"] is None
            continue
        whole = " ".join(source[row["id"]].split())
        if len(whole) <= MOST_CHARACTERS:
            assert row["beginning"] == whole
        else:
            assert len(row["beginning"]) <= MOST_CHARACTERS
            assert whole.startswith(row["beginning"].removesuffix("…"))


def test_neighbours_are_the_nearest_of_their_own_set(
    run: Run, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brute force for the sets that the files define; rates and curve follow from the cosines."""
    monkeypatch.setattr(redundancy, "NEAR_DUPLICATE_COSINE", 0.6)
    known = by_place(documents)
    rows = pq.read_table(neighbours_path(run)).to_pylist()
    for row in rows:
        own = known[row["shard"], row["row"]]
        if row["set"] == "random":
            continue
        key = {"candidates": "quality"}.get(row["set"], row["set"])
        others = [
            other
            for other in candidates(documents, row["shard"])
            if other["id"] != own["id"] and (key == "quality" or other[key])
        ]
        assert key == "quality" or own[key]
        best = max((float(own["vector"] @ other["vector"]) for other in others), default=0.0)
        assert row["cosine"] == pytest.approx(best, abs=1e-5)
    shown = redundancy.redundancy(run)
    chart = redundancy.neighbours(run)
    for series in chart.series:
        name = next(key for key, text in chart_data.NAMES.items() if text == series.name)
        cosines = [row["cosine"] for row in rows if row["set"] == name]
        assert shown[name]["documents"] == len(cosines)
        assert shown[name]["mean"] == pytest.approx(sum(cosines) / len(cosines))
        near = sum(cosine >= redundancy.NEAR_DUPLICATE_COSINE for cosine in cosines)
        share = near / len(cosines)
        assert shown[name]["near_duplicates"] == pytest.approx(share)
        size = sum(
            row["dropped"] is None if name == "candidates" else row["selected"] for row in documents
        )
        variance = share * (1 - share) / len(cosines) * (size - len(cosines)) / (size - 1)
        assert shown[name]["error"] == pytest.approx(variance**0.5)
        for place in (20, 50, 80):
            share = 100 * sum(cosine >= place / 100 for cosine in cosines) / len(cosines)
            assert series.y[place] == pytest.approx(share)


@pytest.mark.parametrize("product", ["float32", "bfloat16"])
@pytest.mark.parametrize("number", [1, 10])
def test_nearest_documents_are_those_of_all_cosines(
    product: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many blocks, with copies and near-ties, in either product; a document has no own."""
    monkeypatch.setattr(sample, "BLOCK", 1)
    monkeypatch.setattr(sample, "fastest_products", lambda device: product)
    generator = np.random.default_rng(0)
    # Each document has more copies than are kept, which bfloat16 cannot put in order.
    vectors = np.repeat(generator.standard_normal((4, 24)), 80, axis=0)
    vectors += np.tile(np.logspace(-5, 0, 80), 4)[:, None] * generator.standard_normal((320, 24))
    vectors = generator.permutation(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    vectors = vectors.astype(np.float16)
    rows, others = np.arange(1, 320, 2), np.sort(generator.permutation(320)[:200])
    exact = vectors.astype(np.float64)
    cosines = exact[rows] @ exact[others].T
    cosines[rows[:, None] == others] = -2
    expected = np.sort(cosines)[:, -number:].mean(1)
    found = sample.mean_of_nearest(vectors, rows, others, number, torch.device("cpu"))
    assert found == pytest.approx(expected, abs=1e-6)
    alone = sample.mean_of_nearest(vectors, rows[:1], rows[:1], number, torch.device("cpu"))
    assert alone.tolist() == [0]


def test_nearest_documents_do_not_depend_on_how_products_are_divided() -> None:
    """The same bytes together with one thread as one by one with two."""
    vectors = np.random.default_rng(0).standard_normal((1500, 768))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    rows, device, before = np.arange(1500), torch.device("cpu"), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        together = sample.mean_of_nearest(vectors, rows[:50], rows, 3, device)
        torch.set_num_threads(2)
        alone = [sample.mean_of_nearest(vectors, rows[[row]], rows, 3, device) for row in rows[:50]]
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == np.concatenate(alone).tolist()


def test_equal_documents_are_near_on_the_map() -> None:
    """Three far groups stay apart; the same input gives the same map."""
    generator = np.random.default_rng(0)
    centres = np.eye(3, 16).repeat(20, axis=0)
    features = centres + 0.05 * generator.standard_normal(centres.shape)
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    places = embedding_map(features, seed=3)
    assert np.array_equal(places, embedding_map(features, seed=3))
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    group = np.arange(60) // 20
    assert (group[distance.argmin(1)] == group).mean() > 0.95
    assert embedding_map(np.ones((9, 4), np.float32), seed=0).tolist() == [[0.0, 0.0]] * 9

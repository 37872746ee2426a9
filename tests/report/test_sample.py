"""The report's sample, worked out again by brute force: extremes, neighbours, texts, map."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.report import redundancy, sample
from datamask.report.redundancy import SETS, neighbours_path, sample_path
from datamask.report.sample import _quality_gains, embedding_map
from datamask.source.texts import MOST_CHARACTERS
from tests.conftest import nightly
from tests.finished import finish
from tests.report.figures import SIZES, by_place, candidates, texts


def test_the_sample_is_of_candidates_in_proportion(run, documents):
    """As many as asked for, each once, none that pruning dropped; shards by their size."""
    rows = [row for row in pq.read_table(sample_path(run)).to_pylist() if row["kind"] == "random"]
    places = [(row["shard"], row["row"]) for row in rows]
    known = by_place(documents)
    assert len(set(places)) == len(places) == SIZES["SAMPLED_DOCUMENTS"]
    assert all(known[place]["dropped"] is None for place in places)
    assert [known[place]["id"] for place in places] == [row["id"] for row in rows]
    total = sum(row["dropped"] is None for row in documents)
    for shard in range(run.num_shards):
        share = len(candidates(documents, shard)) / total * len(rows)
        assert abs(sum(place[0] == shard for place in places) - share) <= 1
    assert all(row["x"] is not None for row in rows)


def test_extremes_are_those_of_the_shard(run, documents):
    """Nearest to the threshold on both sides, surest, best left out, and dropped by reason."""
    rows = [row for row in pq.read_table(sample_path(run)).to_pylist() if row["kind"] != "random"]
    most = -(-SIZES["EXTREMES"] // run.num_shards)
    known = by_place(documents)
    for shard in range(run.num_shards):
        kept = [row for row in candidates(documents, shard) if row["selected"]]
        left = [row for row in candidates(documents, shard) if not row["selected"]]
        expected = {
            "kept, near the threshold": sorted(row["logit"] for row in kept),
            "left out, near the threshold": sorted((row["logit"] for row in left), reverse=True),
            "kept, highest logit": sorted((row["logit"] for row in kept), reverse=True),
            "left out, best quality": sorted((row["quality"] for row in left), reverse=True),
        }
        for kind, values in expected.items():
            some = [
                known[shard, r["row"]] for r in rows if (r["shard"], r["kind"]) == (shard, kind)
            ]
            key = "quality" if "quality" in kind else "logit"
            assert [row[key] for row in some] == pytest.approx(values[:most])
        gone = Counter(row["dropped"] for row in documents if row["shard"] == shard)
        shown = Counter(
            r["kind"] for r in rows if r["shard"] == shard and known[shard, r["row"]]["dropped"]
        )
        assert shown == {reason: min(n, most) for reason, n in gone.items() if reason}


def test_the_nearest_is_a_selected_document(run, documents):
    """By brute force over all selected documents of the shard, the document itself left out."""
    known = by_place(documents)
    for row in pq.read_table(sample_path(run)).to_pylist():
        own = known[row["shard"], row["row"]]
        if own["dropped"]:
            assert row["nearest"] is None and row["cosine"] is None
            continue
        cosines = {
            other["id"]: float(own["vector"] @ other["vector"])
            for other in candidates(documents, row["shard"])
            if other["selected"] and other["id"] != own["id"]
        }
        assert row["cosine"] == pytest.approx(max(cosines.values()), abs=1e-5)
        assert cosines[row["nearest"]] == pytest.approx(row["cosine"], abs=1e-5)


@pytest.mark.parametrize("scope", ["shard", *nightly("corpus")])
def test_quality_is_what_twins_differ_by(scope, tmp_path):
    """Documents with the same vector differ in their logits by what quality adds, and no more."""
    generator = np.random.default_rng(0)
    vectors = np.repeat(generator.standard_normal((30, 8)), 2, axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = pa.table(
        {
            "chunk_id": [f"{row:02d}" for row in range(60)],
            "quality_score": generator.random(60),
            "feature_arr": pa.array(vectors.astype(np.float32).tolist(), pa.list_(pa.float32())),
        }
    )
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "0.parquet", row_group_size=30)
    chosen = {
        "source": {"path": str(tmp_path / "source"), "layout": "features"},
        "plan": {"rows_per_shard": 30},
        "embedding": {"dimension": 8},
        "selection": {"ratio": 0.2, "metric": "disf", "quality_weight": 0.4, "scope": scope},
    }
    twins = finish(tmp_path / "run", parse_settings(chosen), "composition")
    for shard in range(2):
        documents = pq.read_table(twins.path("documents", shard))
        parts = 0.4 * _quality_gains(twins, shard, documents)
        logits = documents["logit"].to_numpy()
        pairs = [(at, at + 1) for at in range(0, 30, 2) if (logits[at : at + 2] < 0).all()]
        assert len(pairs) > 5
        for first, second in pairs:
            differ = parts[first] - parts[second]
            assert differ == pytest.approx(logits[first] - logits[second], abs=1e-5) != 0


def test_the_text_is_the_beginning_of_the_documents(run):
    """Cut at the length set; of documents on the map, and of extremes."""
    source = texts(run)
    for row in pq.read_table(sample_path(run)).to_pylist():
        if row["text"] is None:
            assert row["x"] is None and row["kind"] == "random"
            continue
        whole = " ".join(source[row["id"]].split())
        assert len(row["text"]) <= MOST_CHARACTERS and whole.startswith(row["text"].rstrip("…"))


def test_neighbours_are_the_nearest_of_their_own_set(run, documents, monkeypatch):
    """Brute force for the sets that the files define; rates and curve follow from the cosines."""
    monkeypatch.setattr(redundancy, "NEAR_DUPLICATE_COSINE", 0.6)
    known = by_place(documents)
    rows = pq.read_table(neighbours_path(run)).to_pylist()
    for row in rows:
        own = known[row["shard"], row["row"]]
        if row["set"] == "random":
            continue
        key = row["set"]
        others = [
            other
            for other in candidates(documents, row["shard"])
            if other["id"] != own["id"] and other[key]
        ]
        assert own[key]
        best = max((float(own["vector"] @ other["vector"]) for other in others), default=0.0)
        assert row["cosine"] == pytest.approx(best, abs=1e-5)
    shown = redundancy.redundancy(run)
    size = sum(row["selected"] for row in documents)
    for name in SETS:
        cosines = [row["cosine"] for row in rows if row["set"] == name]
        assert shown[name]["documents"] == len(cosines)
        assert shown[name]["mean"] == pytest.approx(sum(cosines) / len(cosines))
        share = sum(cosine >= redundancy.NEAR_DUPLICATE_COSINE for cosine in cosines) / len(cosines)
        assert shown[name]["near_duplicates"] == pytest.approx(share)
        variance = share * (1 - share) / len(cosines) * (size - len(cosines)) / (size - 1)
        assert shown[name]["error"] == pytest.approx(variance**0.5)


def test_nearest_documents_are_those_of_all_cosines(monkeypatch):
    """Over many blocks, with copies and near-ties, alone and together; a document has no own."""
    monkeypatch.setattr(sample, "BLOCK", 17)
    monkeypatch.setattr(sample, "QUERIES", 50)
    monkeypatch.setattr(sample, "GROUP", 3)
    generator = np.random.default_rng(0)
    vectors = np.repeat(generator.standard_normal((4, 24)), 80, axis=0)
    vectors += np.tile(np.logspace(-5, 0, 80), 4)[:, None] * generator.standard_normal((320, 24))
    vectors = generator.permutation(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    vectors = vectors.astype(np.float16)
    rows, others = np.arange(1, 320, 2), np.sort(generator.permutation(320)[:200])
    exact = vectors.astype(np.float64)
    cosines = exact[rows] @ exact[others].T
    cosines[rows[:, None] == others] = -2
    found, at = sample.nearest(vectors, rows, others)
    assert found == pytest.approx(cosines.max(1), abs=1e-6)
    assert np.einsum("qd,qd->q", exact[rows], exact[at]) == pytest.approx(found)
    assert not (at == rows).any() and np.isin(at, others).all()
    alone = [sample.nearest(vectors, rows[[one]], others) for one in range(20)]
    assert [float(part[0][0]) for part in alone] == found[:20].tolist()
    for compared in (rows[:1], rows[:0]):  # the document itself, and none
        found, at = sample.nearest(vectors, rows[:1], compared)
        assert (found.tolist(), at.tolist()) == ([0], [-1])


def test_equal_documents_are_near_on_the_map():
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

"""One selection over all shards, through real runs: rounds, bytes after crashes, sums, terms."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.runs.stages import learning_stages
from datamask.selection import sampling, sums
from tests.conftest import nightly
from tests.finished import corpus, rows_of, table_of
from tests.selection.runs import SCOPES, kept, learn

ONE_SCOPE = [SCOPES[0], *nightly(*SCOPES[1:])]


@pytest.mark.parametrize("selection", ONE_SCOPE)
def test_workers_and_crashes_change_no_byte(tmp_path, source, selection):
    """Four workers; and a folder from which files were lost in the middle of a round."""
    run = learn(tmp_path / "one", source, selection=selection)
    other = learn(tmp_path / "four", source, workers=4, selection=selection)
    broken = tmp_path / "broken"
    shutil.copytree(run.root, broken)
    lost = [
        broken / "selection",
        broken / "threshold.parquet",
        broken / "learning" / "00001.parquet",
    ]
    last = f"{run.last_round:02d}"
    lost += [broken / "round" / last / "00002.parquet", broken / "totals" / "01.parquet"]
    for path in lost:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    again = learn(broken, source, selection=selection)
    for stage in learning_stages(run.settings):
        for unit in range(run.num_units(stage)):
            expected = run.path(stage, unit).read_bytes()
            assert other.path(stage, unit).read_bytes() == expected
            assert again.path(stage, unit).read_bytes() == expected


@pytest.mark.slow
def test_rounds_end_when_the_corpus_has_settled(tmp_path, source, caplog):
    """Not before; too few rounds are a warning, and a run with more goes on to the same bytes."""
    few = {"scope": "corpus", "metric": "pairwise", "rounds": 2}
    run = learn(tmp_path / "run", source, selection=few)
    assert "selection.rounds" in caplog.text
    assert run.receipt("learning", 0).metrics["stopped_by"] == "rounds"
    first = run.path("round_total", 2).read_bytes()
    caplog.clear()
    run = learn(tmp_path / "run", source, selection={**few, "rounds": 20})
    last = run.last_round
    assert 2 < last < 20
    assert run.path("round_total", 2).read_bytes() == first
    objective = [
        run.receipt("round_total", number).metrics["objective"] for number in range(last + 1)
    ]
    rises = [
        (objective[number] - objective[number - 2]) / (objective[number] - objective[0])
        for number in range(2, last + 1)
    ]
    assert rises[-1] <= run.settings.selection.tolerance < min(rises[:-1])
    assert "selection.rounds" not in caplog.text
    assert not run.local_path("round_total", last + 1).exists()
    assert run.receipt("learning", 0).metrics["stopped_by"] == "tolerance"
    other = learn(tmp_path / "other", source, selection={**few, "rounds": 20})
    for shard in range(run.num_shards):
        assert all((row["logit"] > 0) == row["selected"] for row in rows_of(run, shard))
        assert (
            other.path("selection", shard).read_bytes() == run.path("selection", shard).read_bytes()
        )


def test_sums_of_rounds_are_those_of_the_logits(tmp_path, source, monkeypatch):
    """Against numpy over all embeddings, though later rounds read those that may move.

    Nothing of the first round is applied, and a part of later ones.
    """
    monkeypatch.setattr(sampling, "SAMPLE", 40)
    monkeypatch.setattr(sampling, "STAND_INS", 16)
    chosen = {"scope": "corpus", "quality_weight": 0.0, "rounds": 4, "tolerance": 0.0}
    run = learn(tmp_path / "run", source, selection=chosen)
    shards = range(run.num_shards)
    features = [
        np.stack(pq.read_table(run.path("embeddings", shard))["feature_arr"].to_numpy())
        for shard in shards
    ]
    every = np.concatenate(features).astype(np.float64)
    present, shares = every.T @ every * 30 / len(every), []
    for after in range(1, 5):
        total, count = 0.0, 0.0
        share = run.receipt("round_total", after).metrics["share"]
        for shard, unit in zip(shards, run.round_units(after), strict=True):
            rows = features[shard].astype(np.float64)
            logits = pq.read_table(run.path("round", unit))["proposed"][0].values.to_numpy()
            proposed = 1 / (1 + np.exp(-logits.astype(np.float64)))
            moments, _ = sums.read_moments(run, "round", [unit])
            assert float(moments.count) == pytest.approx(proposed.sum(), rel=1e-4)
            second = (rows * proposed[:, None]).T @ rows
            np.testing.assert_allclose(moments.second_DD.numpy(), second, rtol=1e-3, atol=1e-5)
            total, count = total + second, count + proposed.sum()
        present = (1 - share) * present + share * total * 30 / count
        [moments] = sums.read_moments(run, "round_total", [after])
        np.testing.assert_allclose(moments.second_DD.numpy(), present, rtol=1e-3, atol=1e-5)
        shares.append(share)
    assert shares[0] == 0 and shares[1] > 0 and any(0 < share < 1 for share in shares)
    learned = [pq.read_table(run.path("learning", shard))["logit"].to_numpy() for shard in shards]
    best = np.sort(np.concatenate(learned).astype(np.float64))[::-1]
    cut = run.receipt("threshold").metrics
    assert cut["threshold"] == (best[29] + best[30]) / 2
    assert cut["selected"] == [(logits > cut["threshold"]).sum() for logits in learned]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["corpus", "shard"])
def test_the_outcome_is_of_what_is_selected_and_of_top_quality(
    tmp_path, source, scope, monkeypatch
):
    """Against numpy, with a sample of few documents besides."""
    monkeypatch.setattr(sampling, "STAND_INS", 4)
    run = learn(tmp_path / "run", source, selection={"scope": scope, "rounds": 2})
    table = table_of(run, "quality").to_pylist()
    quality = [row["quality"] for row in table if row["dropped"] is None]
    selected = table_of(run, "selection")["selected"].to_pylist()
    vectors = np.array(table_of(run, "embeddings")["feature_arr"].to_pylist(), np.float64)
    best = np.isin(np.arange(len(quality)), np.argsort(quality)[-sum(selected) :])
    masks = [np.array(selected), best][: 2 if scope == "corpus" else 1]
    written = sums.read_moments(run, "outcome", range(run.num_shards))
    for moments, mask in zip(written, masks, strict=True):
        assert float(moments.count) == mask.sum()
        second = vectors[mask].T @ vectors[mask]
        np.testing.assert_allclose(moments.second_DD.numpy(), second, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [*ONE_SCOPE, {"scope": "corpus", "method": "random"}])
def test_a_shard_with_nothing_left_selects_nothing(tmp_path, selection):
    """Twelve blank documents are a shard; the others make up the whole budget."""
    folder = corpus(tmp_path / "source")
    for name in ("2.parquet", "3.parquet"):
        (folder / name).unlink()
    table = pq.read_table(folder / "1.parquet")
    place = table.schema.get_field_index("text")
    texts = [" "] * 12 + table["text"].to_pylist()[12:]
    table = table.set_column(place, "text", pa.array(texts))
    pq.write_table(table, folder / "1.parquet", row_group_size=12)
    run = learn(tmp_path / "run", folder, plan={"rows_per_shard": 12}, selection=selection)
    metrics = run.receipt("threshold").metrics
    candidates_left = [run.receipt("selection", shard).rows for shard in range(run.num_shards)]
    empty = [shard for shard, rows in enumerate(candidates_left) if not rows]
    assert empty
    assert all(metrics["selected"][shard] == 0 for shard in empty)
    assert sum(metrics["selected"]) == len(kept(run)) > 0

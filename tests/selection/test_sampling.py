"""The sample of the corpus: whose documents it has, and how large it gets."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamask.learning import exchange
from datamask.runs.run import Run
from datamask.selection import sampling
from datamask.selection.documents import read_survivors
from tests.finished import table_of
from tests.selection.runs import learn

CORPUS = {"scope": "corpus", "metric": "pairwise", "rounds": 2}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of 32 documents and 16 stand-ins, of a corpus of 96."""
    monkeypatch.setattr(sampling, "SAMPLE", 32)
    monkeypatch.setattr(sampling, "STAND_INS", 16)


def chosen(run: Run, start: int, stop: int) -> list[tuple[float, ...]]:
    """The quality of sampled documents, which identifies them."""
    columns = sampling.Drawn.read(run).columns(start, stop)
    return [round(value, 12) for value in columns["sample_quality"].tolist()]


@pytest.mark.slow
def test_samples_are_nested_stratified_and_the_second_is_disjoint(tmp_path, source):
    """By the documents' own quality, all of which differ."""
    run = learn(tmp_path / "run", source, selection=CORPUS)
    of_shard = []
    for shard in range(run.num_shards):
        table = pq.read_table(run.path("quality", shard)).to_pylist()
        of_shard.append({round(row["quality"], 12) for row in table if row["dropped"] is None})
    corpus = set().union(*of_shard)
    small, large, second = chosen(run, 0, 16), chosen(run, 0, 32), chosen(run, 32, 48)
    assert [len(one) for one in (small, large)] == [16, 32] and len(second) >= 14
    assert set(small) < set(large) < corpus and set(second) < corpus
    assert not set(large) & set(second)
    for values in of_shard:
        assert abs(len(values & set(large)) - 32 * len(values) / len(corpus)) <= 1
    stands = pq.read_table(run.path("round_total", 0))["sample_quality"][0].as_py()
    assert {round(value, 12) for value in stands} == set(small)


@pytest.mark.slow
def test_what_is_learned_does_not_stand_for_the_corpus(tmp_path, source, monkeypatch):
    """As many are expected of both as are asked of the corpus: others count for those not drawn."""
    seen, learn_sample = [], exchange.learn_sample

    def watched(terms, totals, sample, *rest):
        seen.append(sample.quality_N.tolist())
        return learn_sample(terms, totals, sample, *rest)

    monkeypatch.setattr(exchange, "learn_sample", watched)
    run = learn(tmp_path / "run", source, selection=CORPUS)
    stands = set(np.float32(chosen(run, 0, 16)).tolist())
    for values in seen:
        assert len(values) == 32 and not stands & set(values)
    expected = 0.0
    for shard, unit in enumerate(run.round_units(1)):
        documents = read_survivors(run, shard)
        drawn = sampling.drawn_rows(run, documents)
        number = len(sampling.sampled_rows(run, documents))
        logits = np.array(pq.read_table(run.path("round", unit))["proposed"][0].as_py())
        inclusion = 1 / (1 + np.exp(-logits))
        expected += inclusion[drawn[number:]].sum() + inclusion[drawn[:number]].sum() * 64 / 16
    total = run.receipt("round_total", 0).metrics["documents"]
    assert expected == pytest.approx(total, rel=1e-4)
    # In the next round, those that stand for others have the share of others.
    logits = np.array(pq.read_table(run.path("round_total", 1))["sample_logits"][0].as_py())
    assert (1 / (1 + np.exp(-logits))).sum() == pytest.approx(16 / 96 * total, rel=1e-4)


@pytest.mark.slow
def test_rounds_select_as_many_as_asked(tmp_path, source, monkeypatch):
    """Where a sample predicted another number: logits expect that, rounds less so, masks keep S."""
    monkeypatch.setattr(sampling, "SAMPLE", 16)
    chosen = {"scope": "corpus", "rounds": 3, "tolerance": 0.0, "quality_weight": 0.8}
    run = learn(tmp_path / "run", source, selection=chosen)
    totals = [run.receipt("round_total", number).metrics for number in range(4)]
    asked = totals[0]["documents"]
    inclusion = np.full(96, asked / 96)
    for number in (1, 2):
        files = [pq.read_table(run.path("round", unit)) for unit in run.round_units(number)]
        proposed = np.concatenate([file["proposed"][0].as_py() for file in files])
        share = totals[number]["share"]
        inclusion = inclusion * (1 - share) + share / (1 + np.exp(-proposed.astype(np.float64)))
        assert inclusion.sum() == pytest.approx(totals[number]["expected"], rel=1e-3)
    first, second, third = (abs(total["expected"] - asked) for total in totals[1:])
    assert first > 3 * second > 0
    assert third > run.num_shards / 2
    in_masks = (table_of(run, "learning")["logit"].to_numpy() > 0).sum()
    assert abs(in_masks - asked) <= run.num_shards / 2


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "learnt", "is_confirmed"), [(81, 80, True), (96, 96, False)])
def test_a_small_corpus_leaves_others_if_not_all_are_learned(
    tmp_path, source, monkeypatch, sample, learnt, is_confirmed
):
    """Of 96 documents: the sample is as large as the stand-ins allow, or the whole corpus."""
    monkeypatch.setattr(sampling, "SAMPLE", sample)
    found = learn(tmp_path / "run", source, selection=CORPUS).receipt("round_total").metrics
    assert found["sample"]["documents"] == learnt
    assert (found["sample"]["shortfall"] is not None) == is_confirmed

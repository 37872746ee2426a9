"""A budget in tokens is met to within one document, over all shards and in each."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import SettingsError
from datamask.planning.plan import plan_run
from tests.finished import corpus, finish, rows_of, settings, table_of, word_tokenizer
from tests.selection.runs import kept, learn


def test_each_shard_keeps_about_its_tokens(tmp_path, source):
    """In scope `shard` the budget is dealt by tokens, and documents between shards hardly move."""
    run = learn(tmp_path / "run", source, selection={"tokens": 1200})
    total = [run.receipt("quality", shard).metrics["tokens"] for shard in range(run.num_shards)]
    by_shard = {row["id"]: row["tokens"] for row in kept(run)}
    for shard in range(run.num_shards):
        found = sum(by_shard.get(row["id"], 0) for row in rows_of(run, shard))
        assert found == pytest.approx(1200 * total[shard] / sum(total), abs=90)


def test_tokens_are_counted_where_the_source_has_none(tmp_path):
    """By any tokenizer.json; here words, as Python splits them."""
    folder = corpus(tmp_path / "source")
    for path in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["token_count"]), path)
    tokenizer = {"tokenizer": word_tokenizer(tmp_path / "tokenizer.json")}
    with pytest.raises(SettingsError, match=r"selection\.tokens.*source\.tokenizer"):
        plan_run(tmp_path / "run", settings(folder, selection={"tokens": 500}))
    run = learn(tmp_path / "run", folder, source=tokenizer, selection={"tokens": 500})
    texts = pq.read_table(folder, columns=["id", "text"]).to_pylist()
    length = {row["id"]: len(row["text"].split()) for row in texts}
    for row in table_of(run, "scores").to_pylist():
        assert row["tokens"] == length[row["id"]]
    word_tokenizer(tmp_path / "tokenizer.json", more=1)
    other = plan_run(run.root, run.settings)
    assert other.state("scores", 0) == "stale"


@pytest.mark.parametrize("counted_by", ["column", "source.tokenizer", "tokens.tokenizer"])
def test_an_empty_document_has_no_tokens(tmp_path, counted_by):
    """Null, empty text and white space count as 0 tokens, whatever counts the tokens."""
    folder = corpus(tmp_path / "source")
    empty, names = [None, "", "  \n"], ["0-03", "0-04", "2-07"]
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            if row["id"] in names:
                number = names.index(row["id"])
                row |= {"text": empty[number], "token_count": [None, 7, 0][number]}
            if counted_by != "column":
                del row["token_count"]
        pq.write_table(pa.Table.from_pylist(rows), path)
    group, _, _ = counted_by.partition(".")
    tokenizer = {"tokenizer": word_tokenizer(tmp_path / "tokenizer.json")}
    more = {} if counted_by == "column" else {group: tokenizer}
    selection = {"tokens": 500}
    run = finish(tmp_path / "run", settings(folder, selection=selection, **more), "scores")
    counts = {row["id"]: row["tokens"] for row in table_of(run, "scores").to_pylist()}
    assert {name for name, count in counts.items() if not count} == {*names}
    assert None not in counts.values()

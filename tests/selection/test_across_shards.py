"""One selection over all shards, through real runs: bytes, budgets, limits, duplicates."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.errors import InputError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.learning import scales
from datamask.planning.plan import plan_run
from datamask.report.markdown import number, report_markdown
from datamask.runs.run import Run
from datamask.runs.stages import learning_stages
from datamask.selection import sums
from tests.finished import corpus, settings


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of thirty documents."""
    return corpus(tmp_path_factory.mktemp("corpus") / "source")


def learn(root: Path, folder: Path, *, workers: int = 1, **groups: object) -> Run:
    """A run up to its masks."""
    run = plan_run(root, settings(folder, **groups))
    compute = Compute(workers=workers)
    for stage in ("scores", "quality", "embeddings", *learning_stages(run.settings)):
        run_stage(run, stage, compute)
    return run


def kept(run: Run) -> list[dict[str, object]]:
    """Facts of the selected documents, in the order of the source."""
    rows: list[dict[str, object]] = []
    for shard in range(run.num_shards):
        mask = pq.read_table(run.path("selection", shard))
        chosen = mask.filter(mask["selected"])["chunk_id"].to_pylist()
        facts = {row["id"]: row for row in pq.read_table(run.path("scores", shard)).to_pylist()}
        rows += [facts[name] for name in chosen]
    return rows


def candidates(run: Run) -> list[tuple[float, float, str]]:
    """(−logit, −quality, id) of all documents that could be kept, from the run's files."""
    found = []
    for shard in range(run.num_shards):
        logits = pq.read_table(run.path("learning", shard)).to_pylist()
        quality = {
            r["id"]: r["quality"] for r in pq.read_table(run.path("quality", shard)).to_pylist()
        }
        found += [(-r["logit"], -quality[r["chunk_id"]], r["chunk_id"]) for r in logits]
    return sorted(found)


SCOPES = [{"scope": "corpus", "rounds": 2}, {"tokens": 700}, {"scope": "corpus", "tokens": 700}]


@pytest.mark.parametrize("selection", SCOPES)
def test_workers_and_crashes_change_no_byte(tmp_path: Path, source: Path, selection: dict) -> None:
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
    lost += [broken / "round" / "02" / "00002.parquet", broken / "totals" / "01.parquet"]
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


def test_rounds_end_when_the_corpus_has_settled(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before; fewer allowed is a warning, and more of them go on from there to the same."""
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
        assert (
            other.path("selection", shard).read_bytes() == run.path("selection", shard).read_bytes()
        )


@pytest.mark.parametrize(
    "selection", [{"scope": "corpus"}, {"scope": "corpus", "method": "top_quality"}]
)
def test_in_scope_corpus_the_sign_of_the_logit_is_the_selection(
    tmp_path: Path, source: Path, selection: dict
) -> None:
    """With one threshold for all shards."""
    run = learn(tmp_path / "run", source, selection=selection)
    masks = [pq.read_table(run.path("selection", shard)) for shard in range(run.num_shards)]
    table = pa.concat_tables(masks).to_pylist()
    assert all((row["logit"] > 0) == row["selected"] for row in table)
    assert sum(row["selected"] for row in table) == 30


def test_documents_without_a_group_are_a_group(tmp_path: Path) -> None:
    """Null, empty and blank are "(none)": capped as every group, shown in every table."""
    folder = corpus(tmp_path / "source")
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        given = [[None, "", " \t", "de"][row % 4] for row in range(len(table))]
        place = table.schema.get_field_index("language")
        pq.write_table(table.set_column(place, "language", pa.array(given)), path)
    limits = [{"column": "language", "cap": 0.5}]
    run = learn(tmp_path / "run", folder, selection={"limits": limits})
    languages = [row["language"] for row in kept(run)]
    assert languages.count(None) == languages.count("de") == 15
    for stage in ("documents", "composition"):
        run_stage(run, stage, Compute())
    rows = query(run, "SELECT * FROM groups WHERE kind = 'language'")
    assert {row["name"]: row["documents_after"] for row in rows} == {"(none)": 15, "de": 15}
    assert sum(row["documents_before"] for row in rows) == 120
    assert sum(row["share_after"] for row in rows) == pytest.approx(1)
    count = "SELECT count(*) AS n FROM selection WHERE language = '(none)'"
    assert query(run, count) == [{"n": 15}]
    named = [{"column": "language", "value": "(none)", "cap": 0.2}]
    run = learn(tmp_path / "named", folder, selection={"limits": named})
    assert [row["language"] for row in kept(run)].count(None) == 6


def test_the_sums_are_those_of_the_documents(tmp_path: Path, source: Path) -> None:
    """`totals/0` against numpy over all embeddings; packing the matrix loses nothing."""
    run = learn(tmp_path / "run", source, selection={"scope": "corpus", "rounds": 1})
    features = np.concatenate(
        [
            np.stack(pq.read_table(run.path("embeddings", shard))["feature_arr"].to_numpy())
            for shard in range(run.num_shards)
        ]
    ).astype(np.float64)
    moments, _ = sums.read_moments(run, "round_total", 0)
    assert float(moments.count) == len(features)
    np.testing.assert_allclose(moments.first_D.numpy(), features.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        moments.second_DD.numpy(), features.T @ features, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("scope", ["shard", "corpus"])
def test_a_budget_of_tokens_is_met_within_one_document(
    tmp_path: Path, source: Path, scope: str
) -> None:
    """Without the last kept document there would be too few tokens; the order is the logits'."""
    run = learn(tmp_path / "run", source, selection={"scope": scope, "tokens": 900})
    documents = kept(run)
    tokens = sum(row["tokens"] for row in documents)
    order = {key[2]: place for place, key in enumerate(candidates(run))}
    last = max(documents, key=lambda row: order[row["id"]])
    assert tokens - last["tokens"] < 900 <= tokens
    assert {order[row["id"]] for row in documents} == set(range(len(documents)))
    run_stage(run, "subset", Compute())
    written = [pq.read_table(path) for path in sorted((run.root / "subset").glob("*.parquet"))]
    assert sum(sum(table["token_count"].to_pylist()) for table in written) == tokens


def test_each_shard_keeps_about_its_tokens(tmp_path: Path, source: Path) -> None:
    """In scope `shard` the budget is dealt by tokens, and documents between shards hardly move."""
    run = learn(tmp_path / "run", source, selection={"tokens": 1200})
    total = [run.receipt("quality", shard).metrics["tokens"] for shard in range(run.num_shards)]
    by_shard = {row["id"]: row["tokens"] for row in kept(run)}
    for shard in range(run.num_shards):
        ids = pq.read_table(run.path("selection", shard))["chunk_id"].to_pylist()
        found = sum(by_shard.get(name, 0) for name in ids)
        assert found == pytest.approx(1200 * total[shard] / sum(total), abs=90)


def test_tokens_are_counted_where_the_source_has_none(tmp_path: Path) -> None:
    """By any tokenizer.json; here words, as Python splits them."""
    folder = corpus(tmp_path / "source")
    for path in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["token_count"]), path)
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(SettingsError, match=r"selection\.tokens.*source\.tokenizer"):
        plan_run(tmp_path / "run", settings(folder, selection={"tokens": 500}))
    tokenizer = {"tokenizer": str(tmp_path / "tokenizer.json")}
    run = learn(tmp_path / "run", folder, source=tokenizer, selection={"tokens": 500})
    texts = pq.read_table(folder, columns=["id", "text"]).to_pylist()
    length = {row["id"]: len(row["text"].split()) for row in texts}
    for shard in range(run.num_shards):
        for row in pq.read_table(run.path("scores", shard)).to_pylist():
            assert row["tokens"] == length[row["id"]]
    words.add_tokens(["river"])
    words.save(str(tmp_path / "tokenizer.json"))
    other = plan_run(run.root, run.settings)
    assert other.state("scores", 0) == "stale"


def test_a_document_without_tokens_is_named(tmp_path: Path) -> None:
    """Before anything is embedded: document, shard, row, column."""
    folder = corpus(tmp_path / "source")
    path = folder / "1.parquet"
    table = pq.read_table(path)
    counts = table["token_count"].to_pylist()
    generous = {"quality": {"prune_fraction": 0.0}, "selection": {"tokens": 500}}
    counts[4] = None
    place = table.schema.get_field_index("token_count")
    pq.write_table(
        table.set_column(place, "token_count", pa.array(counts)), path, row_group_size=12
    )
    with pytest.raises(InputError, match=r"shard 00000, row 34, column token_count: document 1-04"):
        learn(tmp_path / "run", folder, **generous)


def test_more_tokens_than_there_are_is_one_line(tmp_path: Path, source: Path) -> None:
    """Told when tokens are known, before anything is embedded."""
    with pytest.raises(SettingsError, match=r"selection\.tokens: 999999 tokens are to be kept"):
        learn(tmp_path / "run", source, selection={"tokens": 999_999})


@pytest.mark.parametrize("scope", ["shard", "corpus"])
def test_floors_and_caps_hold_over_all_shards(tmp_path: Path, source: Path, scope: str) -> None:
    """The budget to the document, the floor reached, no domain above its cap."""
    limits = [{"column": "language", "value": "de", "floor": 0.6}]
    run = learn(tmp_path / "floor", source, selection={"scope": scope, "limits": limits})
    documents = kept(run)
    assert len(documents) == 30
    assert sum(row["language"] == "de" for row in documents) >= 18
    capped = [{"column": "domain", "cap": 0.2}]
    run = learn(tmp_path / "cap", source, selection={"scope": scope, "limits": capped})
    documents = kept(run)
    domains = [row["domain"] for row in documents]
    assert len(documents) == 30
    assert max(domains.count(name) for name in set(domains)) <= 6


def test_caps_of_tokens_skip_what_does_not_fit(tmp_path: Path, source: Path) -> None:
    """The shards keep what the rules keep of the logits in the files, a document at a time."""
    limits = [{"column": "domain", "cap": 0.22}]
    run = learn(tmp_path / "run", source, selection={"tokens": 900, "limits": limits})
    facts = {
        row["id"]: row
        for shard in range(run.num_shards)
        for row in pq.read_table(run.path("scores", shard)).to_pylist()
    }
    taken: dict[str, int] = {}
    expected, total, skipped = set(), 0, 0
    for _, _, name in candidates(run):
        row = facts[name]
        fits = taken.get(row["domain"], 0) + row["tokens"] <= round(0.22 * 900)
        if fits and total < 900:
            taken[row["domain"]] = taken.get(row["domain"], 0) + row["tokens"]
            total += row["tokens"]
            expected.add(name)
        skipped += not fits and total < 900
    assert {row["id"] for row in kept(run)} == expected
    assert run.receipt("threshold").metrics["units"] == total >= 900
    assert skipped
    with pytest.raises(SettingsError, match=r"caps leave 450 tokens, 900 are to be kept"):
        capped = [{"column": "domain", "cap": 0.1}]
        learn(tmp_path / "other", source, selection={"tokens": 900, "limits": capped})
    assert not (tmp_path / "other" / "embeddings").exists()


def test_impossible_limits_are_told_before_embedding(tmp_path: Path, source: Path) -> None:
    """A floor above what is left, a column that the source lacks."""
    limits = [{"column": "language", "value": "fi", "floor": 0.1}]
    with pytest.raises(SettingsError, match="floor of language fi asks for 3 documents, only 0"):
        learn(tmp_path / "run", source, selection={"limits": limits})
    assert not (tmp_path / "run" / "embeddings").exists()
    lacking = {"columns": {"language": "tongue"}}
    with pytest.raises(SettingsError, match=r"no column `tongue`; set source\.columns\.language"):
        learn(tmp_path / "other", source, source=lacking, selection={"limits": limits})


def test_quality_alone_is_the_top_of_the_corpus(tmp_path: Path, source: Path) -> None:
    """Lambda 1, the method `top_quality`, and sorting in Python: the same documents."""
    corpus_wide = {"scope": "corpus"}
    learned = learn(
        tmp_path / "one", source, selection={**corpus_wide, "quality_weight": 1.0, "rounds": 1}
    )
    ranked = learn(tmp_path / "two", source, selection={**corpus_wide, "method": "top_quality"})
    rows = [
        (-row["quality"], row["id"])
        for shard in range(ranked.num_shards)
        for row in pq.read_table(ranked.path("quality", shard)).to_pylist()
        if row["dropped"] is None
    ]
    best = {name for _, name in sorted(rows)[:30]}
    assert {row["id"] for row in kept(ranked)} == best
    assert {row["id"] for row in kept(learned)} == best


def test_the_same_text_is_kept_once_wherever_it_is(tmp_path: Path) -> None:
    """Copies in any shard are dropped, the first stays; `keep` keeps them; blanks are no copies."""
    folder = corpus(tmp_path / "source")
    table = pq.read_table(folder / "3.parquet")
    copied = pq.read_table(folder / "0.parquet")["text"].to_pylist()[:12]
    texts = copied + table["text"].to_pylist()[12:]
    place = table.schema.get_field_index("text")
    pq.write_table(table.set_column(place, "text", pa.array(texts)), folder / "3.parquet")
    run = learn(tmp_path / "run", folder)
    rows = [
        row
        for shard in range(run.num_shards)
        for row in pq.read_table(run.path("quality", shard)).to_pylist()
    ]
    dropped = {row["id"] for row in rows if row["dropped"] == "duplicate"}
    assert dropped == {f"3-{row:02d}" for row in range(12)}
    counts = [run.receipt("quality", shard).metrics["dropped"] for shard in range(run.num_shards)]
    assert sum(found["duplicate"] for found in counts) == 12
    # Of the 107 that are left and have text, a fifth is pruned.
    assert run.receipt("quality", 0).metrics["kept_total"] == 107 - 21
    kept_run = learn(tmp_path / "keep", folder, quality={"duplicates": "keep"})
    assert kept_run.receipt("quality", 0).metrics["kept_total"] == 119 - 23


@pytest.mark.parametrize("selection", [*SCOPES, {"scope": "corpus", "method": "random"}])
def test_a_shard_with_nothing_left_selects_nothing(tmp_path: Path, selection: dict) -> None:
    """Twelve blank documents are a shard; the others make up the whole budget."""
    folder = corpus(tmp_path / "source")
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


def test_a_copy_without_a_score_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    """The first of the copies that can be selected is kept."""
    folder = corpus(tmp_path / "source")
    table = pq.read_table(folder / "0.parquet")
    texts, scores = table["text"].to_pylist(), table["edu"].to_pylist()
    texts[5], scores[2] = texts[2], None
    for name, values in (("text", texts), ("edu", scores)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values))
    pq.write_table(table, folder / "0.parquet")
    score = {"name": "edu", "kind": "column", "column": "edu", "missing": "drop"}
    run = learn(tmp_path / "run", folder, quality={"scores": [score], "prune_fraction": 0.0})
    rows = {row["id"]: row["dropped"] for row in pq.read_table(run.path("quality", 0)).to_pylist()}
    assert (rows["0-02"], rows["0-05"]) == ("missing-score", None)


def by_definition(features: np.ndarray, quality: np.ndarray, metric: str) -> dict[str, float]:
    """Values of the terms for some documents of the corpus."""
    count = len(features)
    if metric == "pairwise":
        value = (np.square(features.sum(0)).sum() - count) / (count * (count - 1))
    else:
        correlation = np.corrcoef(features.T)
        value = (np.square(correlation).sum() - len(correlation)) / 10_000
    return {"quality": float(quality.mean()), metric: float(value)}


@pytest.mark.parametrize(
    "selection",
    [
        {"metric": "pairwise", "quality_weight": 0.3},
        {"metric": "disf", "limits": [{"column": "domain", "cap": 0.2}]},
        {"metric": "pairwise", "method": "random"},
        {"metric": "pairwise", "tokens": 900, "scale_terms": False},
    ],
)
def test_terms_are_those_of_the_corpus(
    tmp_path: Path, source: Path, selection: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours, random and top quality against numpy over the embeddings of all shards in one piece."""
    monkeypatch.setattr(scales, "PRECISION", 0.0125)
    run = learn(tmp_path / "run", source, selection={"scope": "corpus", "rounds": 1, **selection})
    for stage in ("documents", "composition"):
        run_stage(run, stage, Compute())
    parts = []
    for shard in range(run.num_shards):
        facts = pq.read_table(run.path("quality", shard)).to_pylist()
        quality = {row["id"]: row["quality"] for row in facts}
        for mask, vector in zip(
            pq.read_table(run.path("selection", shard)).to_pylist(),
            pq.read_table(run.path("embeddings", shard))["feature_arr"].to_pylist(),
            strict=True,
        ):
            parts.append((mask["chunk_id"], quality[mask["chunk_id"]], mask["selected"], vector))
    ids, scores, selected, vectors = (list(column) for column in zip(*parts, strict=True))
    features, quality = np.array(vectors, np.float64), np.array(scores)
    ours = np.flatnonzero(selected)
    best = sorted(range(len(ids)), key=lambda row: (-quality[row], ids[row]))[: len(ours)]
    generator = np.random.default_rng(0)
    random = [
        by_definition(features[rows], quality[rows], selection["metric"])
        for rows in (generator.choice(len(ids), len(ours), replace=False) for _ in range(4000))
    ]
    table = {row["term"]: row for row in query(run, "SELECT * FROM terms")}
    objective = dict.fromkeys(("selected", "random", "top_quality"), 0.0)
    weights = (run.settings.selection.quality_weight, run.settings.selection.quality_weight - 1)
    for name, weight in zip(("quality", selection["metric"]), weights, strict=True):
        row, values = table[name], [found[name] for found in random]
        for which, rows in (("selected", ours), ("top_quality", best)):
            exact = by_definition(features[rows], quality[rows], selection["metric"])[name]
            assert row[which] == pytest.approx(exact, rel=1e-3, abs=1e-5)
        assert abs(row["random"] - np.mean(values)) < 0.1 * np.std(values)
        assert row["random_std"] == pytest.approx(np.std(values), rel=0.06)
        scaled = run.settings.selection.scale_terms
        # With a budget of tokens the scale is for as many documents as were expected.
        assert row["scale"] == (pytest.approx(row["random_std"], rel=0.06) if scaled else 1.0)
        for which in objective:
            objective[which] += weight * row[which] / row["scale"]
    for which, value in objective.items():
        assert table["objective"][which] == pytest.approx(value)
    assert not query(run, "SELECT * FROM shards WHERE objective IS NOT NULL")
    (totals,) = query(run, "SELECT * FROM totals WHERE selection = 'random'")
    characters = query(run, "SELECT avg(characters) AS mean FROM documents WHERE dropped IS NULL")
    assert totals["mean_characters"] == pytest.approx(characters[0]["mean"])
    rendered = report_markdown(run)
    assert f"| objective | {number(table['objective']['selected'])} |" in rendered

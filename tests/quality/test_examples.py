"""Scores from examples: whether they tell what the examples are, before anything is embedded."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import DatamaskError, InputError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.quality.held_out import is_drawn
from datamask.runs.run import Run
from tests.finished import table_of

WORDS = {
    "recipe": ["whisk", "butter", "flour", "sugar", "oven", "eggs", "bake", "until", "golden"],
    "log": ["error", "warning", "debug", "thread", "socket", "timeout", "retry", "kernel"],
}


def text_of(kind: str, number: int) -> str:
    """A text of forty words of its kind, each with a number of its own."""
    generator = np.random.default_rng([len(kind), number])
    return " ".join(generator.choice(WORDS[kind], 40)) + f" n{number}"


def corpus(folder: Path, kinds: list[str]) -> Path:
    """A source of two files with a text of each kind, in order."""
    folder.mkdir()
    for part in range(2):
        rows = range(part, len(kinds), 2)
        table = {
            "id": [f"d{row}" for row in rows],
            "text": [text_of(kinds[row], row) for row in rows],
            "url": [f"https://www.{kinds[row]}.org/{row}" for row in rows],
        }
        pq.write_table(pa.table(table), folder / f"{part}.parquet")
    return folder


def planned(
    tmp_path: Path,
    score: dict[str, Any],
    kinds: list[str],
    name: str = "run",
    selection: dict[str, Any] | None = None,
    groups: dict[str, Any] | None = None,
    **evaluation: Any,
) -> Run:
    """A run with one score of kind `examples` over a corpus of these kinds."""
    source = tmp_path / "source"
    source = source if source.exists() else corpus(source, kinds)
    settings = {
        "source": {"path": str(source), "groups": groups or {}},
        "plan": {"rows_per_shard": 97},
        "quality": {"scores": [{"name": "taste", "kind": "examples", **score}]},
        "embedding": {"method": "lexical"},
        "evaluation": evaluation,
        "selection": selection or {},
    }
    return plan_run(tmp_path / name, parse_settings(settings))


def examples_file(folder: Path, kind: str, number: int = 120) -> Path:
    """A Parquet file of texts that the corpus does not have."""
    path = folder / f"{kind}-{number}.parquet"
    texts = [text_of(kind, 10_000 + row) for row in range(number)]
    pq.write_table(pa.table({"text": texts}), path)
    return path


KINDS = ["recipe" if row % 4 == 0 else "log" for row in range(400)]


def scores_of(run: Run) -> dict[str, float]:
    """The score of each document, by id."""
    for stage in ("example_models", "scores"):
        run_stage(run, stage, Compute())
    table = table_of(run, "scores").to_pydict()
    return dict(zip(table["id"], table["taste"], strict=True))


def separated(scores: dict[str, float], rows: range) -> tuple[list[float], list[float]]:
    """The scores of the recipes and of the logs among some documents."""
    recipes = [scores[f"d{row}"] for row in rows if KINDS[row] == "recipe"]
    return recipes, [scores[f"d{row}"] for row in rows if KINDS[row] == "log"]


def test_documents_like_the_examples_have_the_best_scores(tmp_path):
    """All 100 recipes are above all 300 logs, which random documents are mostly made of."""
    run = planned(tmp_path, {"path": str(examples_file(tmp_path, "recipe"))}, KINDS)
    recipes, logs = separated(scores_of(run), range(400))
    assert min(recipes) > max(logs)
    figures = run.receipt("example_models").metrics["taste"]
    assert figures["kind"] == "logistic" and figures["examples"] == 120
    assert figures["others"] == 400 and figures["copies"] == 0
    # A quarter of the random documents are recipes too, so 0.875 is the best that can be.
    assert 0.8 < figures["auc"] < 0.9


def test_labels_of_two_and_of_more_values_are_followed(tmp_path):
    """Documents without a label are ranked by the words of those that have one."""
    for kind, grade in (("logistic", [0.0, 1.0]), ("ridge", [2.0, 5.0])):
        grades = [grade[KINDS[row] == "recipe"] for row in range(120)]
        if kind == "ridge":
            grades = [number + row % 3 for row, number in enumerate(grades)]
        path = tmp_path / f"labels-{kind}.parquet"
        pq.write_table(pa.table({"id": [f"d{row}" for row in range(120)], "grade": grades}), path)
        run = planned(tmp_path, {"labels": str(path), "column": "grade"}, KINDS, path.stem)
        recipes, logs = separated(scores_of(run), range(120, 400))
        assert min(recipes) > max(logs)
        assert run.receipt("example_models").metrics["taste"]["kind"] == kind


def test_examples_that_are_documents_too_are_not_random_documents(tmp_path):
    """Copies of the examples in the source are left out of the other side, and counted."""
    path = tmp_path / "copies.parquet"
    rows = [row for row in range(400) if KINDS[row] == "recipe"]
    pq.write_table(pa.table({"text": [text_of("recipe", row) for row in rows]}), path)
    run = planned(tmp_path, {"path": str(path)}, KINDS)
    run_stage(run, "example_models", Compute())
    figures = run.receipt("example_models").metrics["taste"]
    assert (figures["copies"], figures["others"]) == (100, 300)
    assert figures["auc"] > 0.999


def test_a_score_is_not_refused_for_the_numbers_of_its_texts(tmp_path):
    """Five of eight random documents resemble the examples, and more than examples."""
    kinds = ["recipe" if row % 8 < 5 else "log" for row in range(800)]
    least = 0.3
    score = {"path": str(examples_file(tmp_path, "recipe")), "least_correlation": least}
    run = planned(tmp_path, score, kinds)
    run_stage(run, "example_models", Compute())
    figures = run.receipt("example_models").metrics["taste"]
    assert figures["correlation"] < least < 2 * figures["auc"] - 1


def test_examples_like_any_document_are_refused(tmp_path):
    """Nothing can be learned from texts that are drawn as the source is."""
    path = tmp_path / "same.parquet"
    texts = [text_of(KINDS[row % 400], 20_000 + row) for row in range(200)]
    pq.write_table(pa.table({"text": texts}), path)
    run = planned(tmp_path, {"path": str(path)}, KINDS)
    with pytest.raises(InputError, match="least_correlation"):
        run_stage(run, "example_models", Compute())


def test_a_group_like_any_other_is_refused(tmp_path, monkeypatch):
    """The error names the source, because the examples come from it."""
    monkeypatch.setitem(WORDS, "recipe", WORDS["log"])
    run = planned(tmp_path, {"where": {"column": "domain", "value": "recipe.org"}}, KINDS)
    with pytest.raises(InputError, match="least_correlation") as refused:
        run_stage(run, "example_models", Compute())
    assert f"file {tmp_path / 'source'}" in str(refused.value)


def test_a_group_of_the_source_can_be_the_examples(tmp_path):
    """Its documents against those of other groups; held-out documents are on neither side."""
    where = {"column": "domain", "value": "recipe.org"}
    run = planned(tmp_path, {"where": where}, KINDS)
    recipes, logs = separated(scores_of(run), range(400))
    assert min(recipes) > max(logs)
    figures = run.receipt("example_models").metrics["taste"]
    assert (figures["examples"], figures["others"], figures["auc"]) == (100, 300, 1.0)
    less = planned(tmp_path, {"where": where}, KINDS, "less", hold_out=0.1)
    with pytest.raises(InputError, match=r"domain recipe\.org\): only 9\d different texts"):
        run_stage(less, "example_models", Compute())


def named_text(row: int, book: int) -> str:
    """A text like any document, and two names that the pieces of one book share."""
    names = ["".join(chr(97 + int(digit)) * 2 for digit in f"{book:05d}{n}") for n in (1, 2)]
    return f"{text_of(KINDS[row % 400], row)} {' '.join(names * 3)}"


def pieces(folder: Path, books: int, *, shuffled: bool) -> Path:
    """300 pieces of some books, over a source of documents that are pieces of a book each."""
    if not (folder / "source").exists():
        table = {"id": range(400), "text": [named_text(row, 1000 + row) for row in range(400)]}
        (folder / "source").mkdir()
        pq.write_table(pa.table(table), folder / "source" / "a.parquet")
    rows = [
        (named_text(30_000 + row, row * books // 300), row * books // 300) for row in range(300)
    ]
    order = np.random.default_rng(0).permutation(300) if shuffled else range(300)
    texts, names = zip(*(rows[row] for row in order), strict=True)
    path = folder / f"pieces-{books}-{shuffled}.parquet"
    pq.write_table(pa.table({"text": texts, "book": names}), path)
    return path


def test_pieces_of_few_texts_do_not_praise_a_score(tmp_path, caplog):
    """A score of texts like any document is refused, whether groups are known by order or by name.

    Shuffled and unnamed, ten books praise it; then the warning has the figures.
    """
    for name, shuffled, column in (("order", False, ""), ("name", True, "book")):
        path = pieces(tmp_path, 10, shuffled=shuffled)
        run = planned(tmp_path, {"path": str(path), "group_column": column}, KINDS, name)
        with pytest.raises(InputError, match="least_correlation"):
            run_stage(run, "example_models", Compute())
    path = pieces(tmp_path, 10, shuffled=True)
    caplog.clear()
    run = planned(tmp_path, {"path": str(path)}, KINDS)
    run_stage(run, "example_models", Compute())
    figures = run.receipt("example_models").metrics["taste"]
    assert figures["auc"] > 0.9 and figures["groups"]["texts"] == 300
    assert figures["groups"]["examples"] < 0.6 * figures["groups"]["random"]
    warned = [record for record in caplog.records if "group_column" in record.message]
    assert len(warned) == 1 and warned[0].levelname == "WARNING"
    few = pieces(tmp_path, 4, shuffled=True)
    with pytest.raises(DatamaskError, match="only 4 groups"):
        planned(tmp_path, {"path": str(few), "group_column": "book"}, KINDS, "few")
    with pytest.raises(DatamaskError, match="group_column"):
        parse_settings({"quality": {"scores": [{"kind": "heuristic", "group_column": "book"}]}})


def test_a_file_that_is_sorted_by_kind_is_named(tmp_path, caplog):
    """Five kinds with words of their own: sorted, no block knows the words of another.

    The same texts shuffled, or with a column that names their texts, give no such warning.
    """
    drawn = np.random.default_rng(1).integers(9000, size=(200, 20))
    texts = [
        " ".join(f"word{row // 40}{chr(97 + word % 26)}{word}" for word in words)
        for row, words in enumerate(drawn)
    ]
    shuffled = [texts[row] for row in np.random.default_rng(0).permutation(200)]
    named = {"text": texts, "book": [str(row) for row in range(200)]}
    tables = {"sorted": {"text": texts}, "shuffled": {"text": shuffled}, "named": named}
    figures, warned = {}, {}
    for name, table in tables.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        score = {"path": str(tmp_path / f"{name}.parquet"), "least_correlation": -1}
        score |= {"group_column": "book"} if name == "named" else {}
        run = planned(tmp_path, score, ["recipe"] * 400, name)
        caplog.clear()
        run_stage(run, "example_models", Compute())
        figures[name] = run.receipt("example_models").metrics["taste"].get("order")
        warned[name] = [record for record in caplog.records if "sorted by kind" in record.message]
    assert figures["sorted"]["blocks"] < 0.65 < 0.8 < figures["sorted"]["random"]
    assert abs(figures["shuffled"]["blocks"] - figures["shuffled"]["random"]) < 0.04
    assert figures["named"] is None
    assert [len(warned[name]) for name in tables] == [1, 0, 0]


def test_the_log_asks_how_much_of_the_source_is_wanted(tmp_path, caplog):
    """At most 2 - 2 AUC, with which a person can see that examples are one-sided."""
    run = planned(tmp_path, {"path": str(examples_file(tmp_path, "recipe"))}, KINDS)
    with caplog.at_level("INFO"):
        run_stage(run, "example_models", Compute())
    auc = run.receipt("example_models").metrics["taste"]["auc"]
    assert 0.2 < 2 - 2 * auc < 0.4  # a quarter are recipes
    assert any(f"= {2 - 2 * auc:.0%} of the source" in record.message for record in caplog.records)
    assert run.receipt("example_models").metrics["taste"]["groups"]["texts"] == 120


@pytest.mark.parametrize(
    "budget", [{"documents": 300}, {"ratio": 0.75}, {"tokens": 12_000}, {"ratio": 0.3}], ids=str
)
def test_the_rule_gives_way_to_a_budget(tmp_path, budget):
    """As many of the worst are pruned as the budget spares, and no more than the rule prunes."""
    source = corpus(tmp_path / "source", KINDS)
    for path in source.glob("*.parquet"):
        table = pq.read_table(path)
        tokens = pa.array([41 if "error" in text else 39 for text in table["text"].to_pylist()])
        pq.write_table(table.append_column("token_count", tokens), path)
    run = planned(
        tmp_path, {"path": str(examples_file(tmp_path, "recipe"))}, KINDS, selection=budget
    )
    scores_of(run)
    run_stage(run, "quality", Compute())
    table = table_of(run, "quality").to_pydict() | table_of(run, "scores").to_pydict()
    columns = (table[name] for name in ("quality", "id", "tokens", "dropped"))
    rows = sorted(zip(*columns, strict=True))
    pruned = [row for row in rows if row[3] == "pruned"]
    assert rows[: len(pruned)] == pruned
    left = sum(row[2] for row in rows[len(pruned) :])
    if "tokens" in budget:
        assert left >= 12_000 > left - rows[len(pruned)][2]
    else:
        assert len(pruned) == (280 if budget == {"ratio": 0.3} else 100)
    share = run.receipt("quality", 0).metrics["prune_fraction"]
    assert int(share * 400 + 0.5) == len(pruned)


def test_too_few_examples_are_refused_when_planned(tmp_path):
    """Before any work: the number, the file and the column; a repeated text counts once."""
    few = examples_file(tmp_path, "recipe", 99)
    table = pq.read_table(few)
    pq.write_table(pa.concat_tables([table, table]), few)
    with pytest.raises(DatamaskError, match=r"99"):
        planned(tmp_path, {"path": str(few)}, KINDS)


@pytest.mark.parametrize(
    ("rows", "column", "problem"),
    [
        ([(row, 1) for row in range(120)], "score", "all labels are 1"),
        ([(row % 110, row) for row in range(120)], "score", "an id occurs more than once"),
        ([(row, row) for row in range(99)], "score", "only 99 labels"),
        ([(row, row or 1e31) for row in range(120)], "score", r"a label of 1e\+31"),
        ([(row, row) for row in range(120)], "other", "column other"),
    ],
)
def test_what_is_wrong_with_labels_is_said_when_planned(tmp_path, rows, column, problem):
    """Labels that separate nothing, that are ambiguous, too few, or not there."""
    path = tmp_path / "labels.csv"
    path.write_text("id,score\n" + "".join(f"d{row},{label}\n" for row, label in rows))
    with pytest.raises(DatamaskError, match=problem):
        planned(tmp_path, {"labels": str(path), "column": column}, KINDS)


def test_labels_that_words_do_not_tell_are_refused(tmp_path):
    """Random labels of many values rank nothing: the run stops with the number."""
    path = tmp_path / "labels.csv"
    labels = np.random.default_rng(0).normal(size=400)
    path.write_text("id,score\n" + "".join(f"d{row},{of}\n" for row, of in enumerate(labels)))
    run = planned(tmp_path, {"labels": str(path)}, KINDS)
    with pytest.raises(InputError, match=r"rank correlation .* below least_correlation 0\.3"):
        run_stage(run, "example_models", Compute())


def test_held_out_documents_have_no_label(tmp_path):
    """Labels of documents that models are scored on are not learned from."""
    path = tmp_path / "labels.csv"
    lines = (f"d{row},{int(KINDS[row] == 'recipe')}\n" for row in range(200))
    path.write_text("id,score\n" + "".join(lines))
    run = planned(tmp_path, {"labels": str(path)}, KINDS, hold_out=0.2)
    run_stage(run, "example_models", Compute())
    figures = run.receipt("example_models").metrics["taste"]
    names = [f"d{row}" for row in range(200)]
    query = f"SELECT count(*) FROM (SELECT unnest(?) AS id) WHERE NOT {is_drawn(run.settings)}"
    ((left,),) = duckdb.connect().execute(query, [names]).fetchall()
    assert figures["examples"] + figures["others"] == left < 180

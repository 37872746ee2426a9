"""Classes of classifiers as groups, against transformers, fastText's weights and a column."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.models import random_bert
from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution.attempts import ShardsFailedError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.planning.preview import preview
from datamask.publishing.card import recipe
from datamask.quality import classes, example_texts
from datamask.quality.in_groups import rows_in_groups
from datamask.runs.run import Run
from datamask.source.groups import read_groups
from tests.finished import WORDS, finish, selected_ids, settings, table_of
from tests.quality.classifiers import (
    fasttext_file,
    fixed_words,
    in_windows,
    outputs,
    probability,
    random_classifier,
)
from tests.quality.test_examples import planned
from tests.quality.test_in_groups import JARGON, SITES, site_text, sites_corpus

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

ON_CPU = Compute(device="cpu", embedding_batch=2)
GRADES = ["bad", "fair", "good"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models of three classes that read 8 tokens, of one output, without a head; of fastText."""
    folder = tmp_path_factory.mktemp("models")
    words = fixed_words(folder / "words")
    return {
        "none": str(random_bert(folder / "made", WORDS, hidden=32, layers=1).parent / "bert"),
        "one": random_classifier(folder / "one", words, ["edu"]),
        "grades": random_classifier(folder / "grades", words, GRADES),
        "short": random_classifier(folder / "short", words, GRADES, most=8),
        "fasttext": str(fasttext_file(folder / "model.bin")),
    }


def by_model(model: str) -> dict[str, str]:
    """Settings of groups that are the classes of a transformers model."""
    return {"kind": "classifier", "model": model}


def by_fasttext(path: str | Path) -> dict[str, str]:
    """Settings of groups that are the labels of a fastText model."""
    return {"kind": "fasttext", "path": str(path)}


def in_order(source: Path) -> list[tuple[Path, pa.Table]]:
    """The files of a source, in order."""
    return [(path, pq.read_table(path)) for path in sorted(source.glob("*.parquet"))]


def with_text(classes: list[str], texts: list[str]) -> list[str | None]:
    """The classes, None for texts without words."""
    return [name if text.strip() else None for name, text in zip(classes, texts, strict=True)]


def labels_of(texts: list[str]) -> list[str | None]:
    """The better of two labels by fastText's weights; None without words."""
    return with_text(["hq" if probability(text) > 0.5 else "cc" for text in texts], texts)


@pytest.fixture(scope="module")
def with_columns(
    source: Path, models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The source with two more columns, computed without datamask: grade and label."""
    folder = tmp_path_factory.mktemp("columns")
    for path, table in in_order(source):
        texts = [text or "" for text in table["text"].to_pylist()]
        best = outputs(models["grades"], texts).argmax(axis=1)
        grades = pa.array(with_text([GRADES[at] for at in best], texts), pa.string())
        labels = pa.array(labels_of(texts), pa.string())
        made = table.append_column("by_grade", grades).append_column("by_label", labels)
        pq.write_table(made, folder / path.name, row_group_size=12)
    return folder


def wanted(**more: Any) -> dict[str, Any]:
    """Settings that use both kinds of groups wherever a kind can be named."""
    edu = {"name": "edu", "kind": "column", "column": "edu", "normalise_within": "grade"}
    like = {"name": "like", "kind": "examples", "where": {"column": "label", "value": "cc"}}
    return {
        "quality": {
            "scores": [edu, {**like, "least_correlation": -1}],
            "near_duplicates": {"prefer": [{"column": "label", "value": "hq"}]},
        },
        "selection": {
            "limits": [
                {"column": "grade", "value": "good", "floor": 0.5},
                {"column": "label * grade", "cap": 0.6},
            ],
            **{"method": "top_quality", "metric": ""},
        },
        **more,
    }


@pytest.fixture(scope="module")
def runs(source, with_columns, models, tmp_path_factory):
    """The same selection by classes and by columns that have them."""
    root = tmp_path_factory.mktemp("runs")
    by_classes = {"grade": by_model(models["grades"]), "label": by_fasttext(models["fasttext"])}
    chosen = {
        "classes": settings(source, source={"groups": by_classes}, **wanted()),
        "columns": settings(
            with_columns, source={"groups": {"grade": "by_grade", "label": "by_label"}}, **wanted()
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_texts, "LEAST_LABELS", 5)
        return [finish(root / name, made, "composition", ON_CPU) for name, made in chosen.items()]


def test_classes_are_those_of_the_models_themselves(runs, with_columns):
    """Of each document; the empty one has none."""
    by_classes, _ = runs
    expected = pa.concat_tables([table for _, table in in_order(with_columns)])
    groups = table_of(by_classes, "groups")
    for name, column in (("grade", "by_grade"), ("label", "by_label")):
        assert groups[name].to_pylist() == expected[column].to_pylist()
        assert len(set(groups[name].to_pylist())) > 2
        some = np.arange(7, by_classes.shard_rows(0), 2)
        read = read_groups(by_classes, 0, [name], some)[name].to_pylist()
        assert read == [expected[column][row].as_py() for row in some.tolist()]
    assert None in groups["grade"].to_pylist()


def test_a_long_text_has_the_class_of_its_windows_together(source, models, tmp_path):
    """The highest mean probability over three windows of 8 tokens, where it is clearly so."""
    asked = settings(source, source={"groups": {"own": by_model(models["short"])}})
    run = finish(tmp_path / "run", asked, "groups", ON_CPU)
    made = np.array(table_of(run, "groups")["own"].to_pylist())[::6]
    texts = [text for _, table in in_order(source) for text in table["text"].to_pylist()][::6]
    mean = in_windows(models["grades"], texts, lambda outputs: outputs.softmax(1))
    first, second = np.sort(mean, axis=1)[:, :-3:-1].T
    is_clear = first - second > 0.02  # weights by half characters
    assert is_clear.sum() > 8
    assert made[is_clear].tolist() == np.array(GRADES)[mean.argmax(axis=1)][is_clear].tolist()


def test_classes_serve_wherever_columns_do(runs):
    """Limits of cells, examples, normalisation, preferred copies and the report's figures."""
    by_classes, by_columns = runs
    assert selected_ids(by_classes) == selected_ids(by_columns)
    assert table_of(by_classes, "quality") == table_of(by_columns, "quality")
    for table in ("groups", "score_explained"):
        rows = [
            query(run, f"SELECT * FROM {table} WHERE kind IN ('grade', 'label') ORDER BY ALL")
            for run in runs
        ]
        assert rows[0] == rows[1] != []


def test_a_further_classifier_computes_its_own_classes_alone(source, models, tmp_path, monkeypatch):
    """A second one leaves the classes of the first, scores and mask; what reads groups is stale."""
    groups = {"label": by_fasttext(models["fasttext"])}
    chosen = {"selection": {"method": "top_quality", "metric": ""}}
    before = settings(source, source={"groups": groups}, **chosen)
    run = finish(tmp_path / "run", before, "documents", ON_CPU)
    labels = table_of(run, "groups")["label"]
    groups["grade"] = by_model(models["grades"])
    run = plan_run(tmp_path / "run", settings(source, source={"groups": groups}, **chosen))
    for stage in ("scores", "quality", "selection"):
        assert {*run.states(stage)} == {"done"}
    for stage in ("classes", "groups", "documents"):
        assert {*run.states(stage)} == {"stale"}
    pins = run.pinned_revisions | {"classes:label": "another"}
    repinned = replace(run, pinned_revisions=pins)
    assert repinned.fingerprint("groups", 0) != run.fingerprint("groups", 0)
    computed, real = [], classes._classes

    def noted(run: Run, documents: Any, total: int, name: str, *rest: Any) -> Any:
        computed.append(name)
        return real(run, documents, total, name, *rest)

    monkeypatch.setattr(classes, "_classes", noted)
    for stage in ("classes", "groups"):
        run_stage(run, stage, ON_CPU)
    assert computed == ["grade"] * run.num_shards
    now = table_of(run, "groups")
    assert now["label"] == labels and None in now["grade"].to_pylist()


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no such folder": (by_model("/nowhere/model"), "no folder /nowhere/model"),
    "no head": (by_model("none"), "no trained head for sequence classification"),
    "one output": (by_model("one"), "one output"),
    "no file": (by_fasttext("/nowhere.bin"), "no file /nowhere.bin"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_without_classes_is_refused_when_planned(case, source, models):
    """In one line that names the group, before any work."""
    given, message = WRONG[case]
    given = {**given, **{k: models[v] for k, v in given.items() if k == "model" and v in models}}
    with pytest.raises(SettingsError, match=rf"source\.groups\.own.*{message}") as caught:
        preview(settings(source, source={"groups": {"own": given}}))
    assert "\n" not in str(caught.value)


def test_a_classifier_needs_texts(tmp_path, models):
    """Layout `features` has none."""
    table = {"chunk_id": ["a"], "quality_score": [0.5], "feature_arr": [[0.6, 0.8]]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    asked = settings(
        tmp_path,
        source={"layout": "features", "groups": {"own": by_fasttext(models["fasttext"])}},
        embedding={"dimension": 2},
        quality={"scores": [], "prune_fraction": 0},
    )
    with pytest.raises(SettingsError, match=r"source\.groups\.own: needs text"):
        preview(asked)


@pytest.mark.parametrize("kind", ["grades", "fasttext"])
def test_a_model_that_changed_after_planning_is_refused(kind, source, models, tmp_path):
    """The digest of a folder or file is pinned."""
    if kind == "grades":
        copied = Path(shutil.copytree(models[kind], tmp_path / "model"))
        changed, by = copied / "notes.txt", by_model(str(copied))
    else:
        changed = Path(shutil.copy(models[kind], tmp_path / "model.bin"))
        by = by_fasttext(changed)
    run = plan_run(tmp_path / "run", settings(source, source={"groups": {"own": by}}))
    changed.write_bytes(b"changed")
    with pytest.raises(ShardsFailedError, match="has changed since the run was planned"):
        run_stage(run, "classes", ON_CPU)


def test_limits_of_classes_are_checked_when_the_classes_are_known(source, models, tmp_path):
    """Planning cannot count them; the stage that counts what is left refuses, before embedding."""
    limits = [{"column": "label", "value": "hq", "floor": 0.99}]
    asked = settings(
        source,
        source={"groups": {"label": by_fasttext(models["fasttext"])}},
        selection={"limits": limits, "ratio": 0.5},
    )
    run = plan_run(tmp_path / "run", asked)
    with pytest.raises(SettingsError, match="the floor of label hq asks for"):
        finish(tmp_path / "run", asked, "embeddings", ON_CPU)
    assert {*run.states("classes")} == {"done"} and {*run.states("embeddings")} == {"missing"}


def site_model(path: Path) -> Path:
    """A fastText model that knows each site by its words."""
    words = [(word, at) for at, site in enumerate(SITES) for word in JARGON[site].split()]
    vectors = np.zeros((len(words) + 1, len(SITES)), np.float32)
    vectors[np.arange(1, len(words) + 1), [at for _, at in words]] = 9
    labels = [f"__label__{site}" for site in SITES]
    known = [word for word, _ in words]
    return fasttext_file(path, known, labels, vectors, np.eye(len(SITES), dtype=np.float32))


def test_a_score_from_examples_without_addresses_is_judged_by_class(tmp_path):
    """Examples of one site are compared with documents of its class, as they are by their domain.

    The score is judged inside that class, with the same numbers.
    """
    sites_corpus(tmp_path)
    model, judged = site_model(tmp_path / "sites.bin"), {}
    texts = [site_text("cook", 0.6, 5000 + row) for row in range(200)]
    for name in ("domain", "site"):
        table = {"text": texts}
        if name == "domain":
            table["url"] = ["http://cook.org/x"] * 200
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        more = {"normalise_within": name} if name == "site" else {}
        score = {"path": str(tmp_path / f"{name}.parquet"), **more}
        run = planned(tmp_path, score, [], f"run-{name}", groups={"site": by_fasttext(model)})
        for stage in ("classes", "example_models", "scores_in_groups"):
            run_stage(run, stage, ON_CPU)
        figures = run.receipt("example_models").metrics["taste"]
        assert figures["matched"] == name and figures["others"] == 250
        for row in rows_in_groups(run):
            judged[f"{name} {row['kind']}"] = [row["name"], row["texts"], row["auc"]]
    assert judged["domain site"] == judged["site site"] == ["cook", *judged["domain domain"][1:]]
    assert judged["site site"][1] == 450


def test_the_card_names_the_classifiers(runs):
    """With the commit or digest that was planned."""
    by_classes, _ = runs
    told, pins = recipe(by_classes), by_classes.pinned_revisions
    assert pins["classes:grade"] in told and pins["classes:label"][:16] in told

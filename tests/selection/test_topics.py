"""Topics through real runs: three planted subjects, their names, and every use of them."""

import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans

from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.selection import Topics
from datamask.errors import DatamaskError
from datamask.evaluation import texts
from datamask.execution.pipeline import rebuild, run_stage
from datamask.planning.applying import settings_to_apply
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.selection.topics import cluster, name_topics, nearest
from tests.finished import finish, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SUBJECTS = {
    "cooking": ["onion", "garlic", "butter", "oven", "recipe", "sauce"],
    "law": ["court", "judge", "appeal", "statute", "lawyer", "verdict"],
    "sport": ["goal", "match", "league", "coach", "score", "striker"],
}
COMMON = ["the", "and", "with", "from", "that", "this"]
TOPICS = {"number": 3}
TOPIC_STAGES = ("topic_model", "topics")


def write(folder: Path, seed: int, number: int = 60) -> Path:
    """Three files of *number* documents of three subjects; the id names the subject."""
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for file in range(3):
        subjects = [[*SUBJECTS][(row + file) % 3] for row in range(number)]
        table = {
            "id": [f"{file}-{subject}-{row}" for row, subject in enumerate(subjects)],
            "text": [" ".join(generator.choice(SUBJECTS[s] + COMMON, 40)) for s in subjects],
            "edu": generator.standard_normal(number),
        }
        pq.write_table(pa.table(table), folder / f"{file}.parquet", row_group_size=25)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One corpus for all."""
    return write(tmp_path_factory.mktemp("topics") / "source", 1)


@pytest.fixture(scope="module")
def done(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with topics, up to its composition."""
    root = tmp_path_factory.mktemp("done") / "run"
    return finish(root, settings(source, topics=TOPICS), "composition")


def subject(name: str) -> str:
    """The subject that an id names."""
    return name.split("-")[1]


def topic_of(run: Run) -> dict[str, str]:
    """The topic that `documents` has of each subject, which must be one."""
    rows = query(run, "SELECT id, topic FROM documents WHERE dropped IS NULL")
    pairs = {(subject(row["id"]), row["topic"]) for row in rows}
    assert len(pairs) == len(SUBJECTS), pairs
    return dict(pairs)


def test_topics_are_the_planted_subjects_named_by_their_words(done):
    """One topic per subject; words that all subjects share are in no name; the others have none."""
    for name, topic in topic_of(done).items():
        assert len(topic.split()) == 3 and {*topic.split()} <= {*SUBJECTS[name]}
    others = query(done, "SELECT DISTINCT topic FROM documents WHERE dropped IS NOT NULL")
    assert [row["topic"] for row in others] == ["(none)"]


def test_a_document_has_the_topic_of_the_nearest_direction(done):
    """Compared with float64 products of numpy; the directions are unit vectors."""
    model = pq.read_table(done.path("topic_model"))
    directions = np.array(model["direction"].to_pylist(), np.float64)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-6)
    names = np.array(model["topic"].to_pylist())
    for shard in range(done.num_shards):
        vectors = pq.read_table(done.path("embeddings", shard))["feature_arr"].to_pylist()
        best = (np.array(vectors, np.float64) @ directions.T).argmax(1)
        assert pq.read_table(done.path("topics", shard))["topic"].to_pylist() == [*names[best]]


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_limits_and_balance_of_topics(done, tmp_path, scope):
    """Caps and a floor are met exactly, target shares nearly; no topic is computed again."""
    topics = topic_of(done)
    limits = [
        {"column": "topic", "value": topics["law"], "floor": 0.5},
        {"column": "topic", "value": topics["sport"], "cap": 0.1},
    ]
    shares = {"column": "topic", "shares": {topics["law"]: 0.6, topics["sport"]: 0.1}}
    balance = [{"name": "group_balance", "weight": 5.0, "options": shares}]
    source = Path(done.settings.source.path)

    def kept(**selection: object) -> Counter[str]:
        chosen = settings(
            source, topics=TOPICS, selection={"scope": scope, "rounds": 20, **selection}
        )
        root = shutil.copytree(done.root, tmp_path / min(selection))
        written = {name: (root / done.name(name)).stat().st_ino for name in TOPIC_STAGES}
        run = finish(root, chosen, "documents")
        assert {name: run.path(name).stat().st_ino for name in TOPIC_STAGES} == written
        rows = table_of(run, "documents").to_pylist()
        return Counter(row["topic"] for row in rows if row["selected"])

    limited = kept(limits=limits)
    assert limited[topics["law"]] >= 0.5 * limited.total() - 0.5
    assert limited[topics["sport"]] <= 0.1 * limited.total() + 0.5
    balanced = kept(more_terms=balance)
    assert abs(balanced[topics["law"]] / balanced.total() - 0.6) < 0.1
    assert abs(balanced[topics["sport"]] / balanced.total() - 0.1) < 0.1


@pytest.mark.slow
def test_rounds_go_on_after_a_heavy_balance_has_been_met(tmp_path):
    """With 20 times the weight, shares are as wanted too, and quality is nearly as high."""
    source, plan = write(tmp_path / "source", 1, 1000), {"rows_per_shard": 1000}
    first = finish(tmp_path / "first", settings(source, topics=TOPICS, plan=plan), "topic_model")
    names = pq.read_table(first.path("topic_model"))["topic"].to_pylist()
    (law,) = [name for name in names if {*name.split()} <= {*SUBJECTS["law"]}]
    quality = {}
    for weight in (1.0, 20.0):
        options = {"column": "topic", "shares": {law: 0.6}}
        terms = [{"name": "group_balance", "weight": weight, "options": options}]
        selection = {"scope": "corpus", "more_terms": terms}
        chosen = settings(source, topics=TOPICS, plan=plan, selection=selection)
        run = finish(shutil.copytree(first.root, tmp_path / str(weight)), chosen, "documents")
        kept = [row for row in table_of(run, "documents").to_pylist() if row["selected"]]
        assert abs(np.mean([row["topic"] == law for row in kept]) - 0.6) < 0.05
        quality[weight] = np.mean([row["quality"] for row in kept])
    assert quality[20.0] > 0.9 * quality[1.0]


def test_a_topic_that_there_is_not_is_refused_when_planned(done):
    """Where topics are known, limits and terms name one of them, or are told which there are."""
    law, given = topic_of(done)["law"], done.settings.given()
    balance = {"column": "topic", "shares": {"no topic": 0.5}}
    terms = [{"name": "group_balance", "weight": 1, "options": balance}]
    asked = {
        law: {"limits": [{"column": "topic", "value": law[:-1], "cap": 0.5}]},
        "(none)": {"more_terms": terms},
    }
    for told, more in asked.items():
        settings = parse_settings({**given, "selection": {**given["selection"], **more}})
        with pytest.raises(DatamaskError, match=re.escape(told)):
            plan_run(done.root, settings)
    assert open_run(done.root).settings == done.settings


@pytest.mark.slow
def test_new_documents_have_the_topics_of_the_mask_model(done, tmp_path):
    """Names and directions come from the finished run, though the new source has one subject."""
    folder = write(tmp_path / "new", 2)
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        is_law = [subject(name) == "law" for name in table["id"].to_pylist()]
        pq.write_table(table.filter(pa.array(is_law)), path)
    applied = settings_to_apply(done, done.settings.source.model_copy(update={"path": str(folder)}))
    run = rebuild(tmp_path / "applied", applied)
    topics = query(run, "SELECT DISTINCT topic FROM documents WHERE dropped IS NULL")
    assert [row["topic"] for row in topics] == [topic_of(done)["law"]]
    assert not (run.root / "topic_model.parquet").exists()


@pytest.mark.slow
def test_a_mask_model_without_topics_gives_none(source, tmp_path):
    """It is refused when planned."""
    learnt = finish(tmp_path / "learnt", settings(source), "mask_model")
    applied = settings_to_apply(learnt, learnt.settings.source)
    with pytest.raises(DatamaskError, match="its run has no topics"):
        plan_run(tmp_path / "applied", applied.model_copy(update={"topics": Topics()}))


def test_limits_of_topics_need_topics(source, tmp_path):
    """In one line, before anything is computed."""
    limits = {"limits": [{"column": "topic", "cap": 0.5}]}
    with pytest.raises(DatamaskError, match="limits: the run has no") as refused:
        plan_run(tmp_path / "run", settings(source, selection=limits))
    assert "\n" not in str(refused.value)


def test_names_are_the_words_of_largest_share_and_rarity():
    """Worked out by hand: shares of texts with the word, times the logarithm of their rarity."""
    texts = [("apple pear of", 0), ("apple of of", 0), ("stone of", 1), ("stone lake of xy", 1)]
    # Topic 0: apple 1 * ln 2 = 0.69, pear 0.5 * ln 4 = 0.69 (after apple), of 0.
    assert name_topics(texts, np.array([2, 2])) == ["apple pear", "lake stone"]
    assert name_topics([("12 34", 0), ("ab", 1)], np.array([1, 5])) == ["topic 2", "topic 1"]
    assert name_topics([], np.array([3, 4, 3])) == ["topic 2", "topic 1", "topic 3"]
    same = [("lake", 0), ("lake", 1), ("", 2)]
    assert name_topics(same, np.array([1, 1, 1])) == ["lake", "lake 2", "topic 3"]


def test_few_or_equal_vectors_make_few_topics():
    """No more than there are different vectors, numbered without gaps, and no warning."""
    vector = np.eye(3, 8, dtype=np.float32)
    for rows, expected in (([0], 1), ([0] * 40, 1), ([0, 1, 2] * 20, 3)):
        features = vector[rows]
        directions = cluster(features, 5, 3)
        assert len(directions) == len(np.unique(nearest(features, directions))) == expected


@pytest.mark.slow
def test_held_out_documents_are_scored_by_topic(source, tmp_path, monkeypatch):
    """Each is in the set of its subject's topic, though no held-out document trains the topics."""
    monkeypatch.setattr(texts, "LEAST_DOCUMENTS", 5)
    held_out = {"hold_out": 0.3, "hold_out_by": "topic", "model": "tiny", "tokens": 1000}
    evaluation = {**held_out, "arms": ["ours", "random"]}
    run = plan_run(tmp_path / "run", settings(source, topics=TOPICS, evaluation=evaluation))
    for stage in ("scores", "quality", "embeddings", "topic_model", "tokenizer", "held_out"):
        run_stage(run, stage, Compute())
    rows = pq.read_table(run.path("held_out")).to_pylist()
    quality = table_of(run, "quality").to_pylist()
    drawn = {row["id"] for row in quality if row["dropped"] == "held_out"}
    assert {row["id"] for row in rows} == drawn and len(drawn) > 30
    pairs = {(subject(row["id"]), row["set"]) for row in rows}
    names = {*pq.read_table(run.path("topic_model"))["topic"].to_pylist()}
    assert len(pairs) == len(SUBJECTS) and {topic for _, topic in pairs} == names


def test_topics_are_as_tight_as_those_of_k_means_on_documents():
    """Mean cosine with the mean beside scikit-learn; 1 and 2 threads give equal bytes."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((12, 1, 48)) + 0.8 * generator.standard_normal((12, 9, 48))
    rows = centres.reshape(-1, 48)[generator.integers(0, 108, 6000)]
    rows += 1.2 * generator.standard_normal(rows.shape)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def tightness(labels: np.ndarray) -> float:
        sums = [rows[labels == topic].sum(0) for topic in np.unique(labels)]
        return float(sum(map(np.linalg.norm, sums)) / len(rows))

    threads = torch.get_num_threads()
    directions = []
    for number in (1, 2):
        torch.set_num_threads(number)
        directions.append(cluster(rows, 12, 0))
    torch.set_num_threads(threads)
    assert len(directions[0]) == 12 and directions[0].tobytes() == directions[1].tobytes()
    rival = MiniBatchKMeans(12, n_init=3, random_state=0).fit_predict(rows)
    assert tightness(nearest(rows, directions[0])) > tightness(rival)

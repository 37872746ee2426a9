"""A whole evaluation: held-out texts, the content of arms, trained models and their results."""

import json
import math
import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from datamask.config.compute import Compute
from datamask.evaluation import texts, training
from datamask.evaluation.arms import drawn_tokens
from datamask.evaluation.export import export_models
from datamask.evaluation.ngram import Trigrams, bits_by_text
from datamask.evaluation.results import read_results
from datamask.execution.pipeline import run_stage
from datamask.report.evaluation import evaluation_markdown
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests import finished
from tests.evaluation import small

pytestmark = pytest.mark.usefixtures("roughly")

SEED, SHARE = 0, 0.2
OTHER_RUNS = ("without", "with")
ARMS = ["ours", "random", "top_quality", *OTHER_RUNS, "listed", "changed", "rewritten"]

finish = partial(finished.finish, last="evaluation")


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two other runs of it, a list of ids, and questions with answers."""
    home = tmp_path_factory.mktemp("evaluation")
    for name, share in (("without", 0.0), ("with", SHARE)):
        chosen = small.settings(source, {"method": "random"}, hold_out=share, arms=[])
        finished.finish(home / name, chosen, "selection")
    texts = {name: row["text"] for name, row in small.source_table(source).items()}
    held_out = {texts[name] for name in small.drawn(SEED, SHARE, [*texts])}
    listed = [name for name, text in texts.items() if text.strip() and text not in held_out]
    (home / "ids.txt").write_text("\n".join(listed[::2]) + "\n")
    rows = [
        {"question": text[:90], "answer": text[90:200], "subject": f"s{number % 2}"}
        for number, text in enumerate([*texts.values()][20:90])
    ]
    del rows[40]["subject"]
    small.write_lines(home / "questions.jsonl", rows)
    words = [text.split() for text in list(texts.values())[100:140]]
    rows = [
        {"query": " ".join(some[:9]), "choices": [*some[9:12], "no such word"][: 3 + row % 2]}
        | {"gold": str(row % 3) if row % 2 else row % 3}
        for row, some in enumerate(words)
    ]
    small.write_lines(home / "choices.jsonl", rows)
    (home / "rewritten").mkdir()
    for file in range(2):
        some = list(texts.values())[file * 30 :][:30]
        rewritten = [{"text": " ".join(reversed(text.split()))} for text in some]
        small.write_lines(home / f"rewritten/{file}.jsonl", [*rewritten, {"text": " "}])
    copies = [{"text": text} for text in sorted(held_out)[:5]]
    small.write_lines(home / "rewritten/copies.jsonl", copies)
    return home


@pytest.fixture(scope="module")
def run(source: Path, folder: Path) -> Run:
    """A finished evaluation with an arm of every kind."""
    arms: list[Any] = ["ours", "random", "top_quality"]
    arms += [{"name": name, "kind": "run", "path": str(folder / name)} for name in OTHER_RUNS]
    arms.append({"name": "listed", "kind": "ids", "path": str(folder / "ids.txt")})
    arms.append({"name": "changed", "change": {"method": "random"}})
    arms.append({"name": "rewritten", "kind": "texts", "path": str(folder / "rewritten")})
    questions = {"path": str(folder / "questions.jsonl"), "column": "answer", "prompt": "question"}
    questions["group_column"] = "subject"
    choices = {"path": str(folder / "choices.jsonl"), "column": "choices", "prompt": "query"}
    sets = [{"name": "questions", **questions}, {"name": "choices", "gold": "gold", **choices}]
    chosen = small.settings(source, arms=arms, sets=sets, hold_out_by="language")
    return finish(folder / "run", chosen)


def arm_rows(run: Run, name: str) -> list[dict[str, Any]]:
    """The documents of an arm."""
    rows = pq.read_table(run.path("arms", ARMS.index(name))).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return rows


def bits_of(run: Run, arm: str) -> np.ndarray:
    """The bits of both seeds' models of an arm, by seed and held-out text."""
    names = [f"evaluation/training/{arm}-seed{seed}-rate0.004.parquet" for seed in "01"]
    return np.stack([pq.read_table(run.root / name)["bits"].to_numpy() for name in names])


def ids(run: Run, name: str) -> set[str]:
    """The ids in an arm."""
    return {row["id"] for row in arm_rows(run, name)}


def near_copies(run: Run, source: Path) -> set[str]:
    """Documents that share most 5-grams with one that is held out, and are not held out."""
    texts = {name: row["text"].split() for name, row in small.source_table(source).items()}
    ngrams = {n: {tuple(t[i : i + 5]) for i in range(len(t) - 4)} for n, t in texts.items()}
    held_out = {row["id"] for row in small.quality(run) if row["dropped"] == "held_out"}
    copies = set()
    for name, other in product({*texts} - held_out, held_out):
        union = len(ngrams[name] | ngrams[other])
        alike = len(ngrams[name] & ngrams[other]) / union if union else 0
        assert alike < 0.5 or alike > 0.9, "nothing in this corpus is in doubt"
        if alike > 0.9:
            copies.add(name)
    return copies


def test_held_out_are_those_that_the_rule_draws_and_their_equals(source, run):
    """By MD5 of seed and id; a text that occurs twice is held out twice; none is selected."""
    rows = small.source_table(source)
    drawn = {n for n in small.drawn(SEED, SHARE, [*rows]) if rows[n]["text"].strip()}
    texts = {rows[name]["text"] for name in drawn}
    expected = {name for name, row in rows.items() if row["text"] in texts}
    assert 30 < len(drawn) < len(expected)
    assert {r["id"] for r in small.quality(run) if r["dropped"] == "held_out"} == expected
    assert not finished.selected_ids(run) & expected
    scored = pq.read_table(run.path("held_out")).to_pylist()
    assert {row["id"] for row in scored if row["in_all"]} == drawn
    assert not any(row["in_all"] for row in scored if row["set"] == "questions")
    german = {name for name in drawn if rows[name]["language"] == "de"}
    assert {row["id"] for row in scored if row["set"] == "(other groups)"} == german
    for name in ARMS:
        assert not ids(run, name) & expected, name


def test_seeds_are_trained_on_different_text(run):
    """No document twice until all of the arm are used; then from the first one again."""
    arm = ARMS.index("random")
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    known = sorted(row["tokens"] for row in arm_rows(run, "random"))
    size = sum(len(text) + 1 for text in known)
    wanted = run.settings.evaluation.tokens
    assert wanted and 2 * wanted < size
    seeds = range(-(-size // wanted) + 1)
    drawn = [training.drawn_tokens(run, arm, seed, separator).tolist() for seed in seeds]
    assert all(len(tokens) == wanted for tokens in drawn)
    stream = [token for tokens in drawn for token in tokens]
    ends = [place for place, token in enumerate(stream[:size]) if token == separator]
    starts = [0, *(end + 1 for end in ends)]
    texts = [stream[start:end] for start, end in zip(starts, ends, strict=False)]
    assert sorted(texts) == known
    assert texts != known, "a random order"
    again = seeds[-1] * wanted % size
    assert drawn[-1] == (stream[:size] * 2)[again : again + wanted]


def test_arms_are_the_documents_that_they_are_named_after(source, folder, run):
    """Each kind, derived anew from the source, the files of quality and other runs.

    Near-copies of held-out texts may be selected, but models are not trained on them; how many
    there were is noted.
    """
    rows, copies = small.quality(run), near_copies(run, source)
    assert len(copies) > 5
    metrics = run.receipt("evaluation").metrics
    assert metrics["copies"][ARMS.index("ours")] == len(finished.selected_ids(run) & copies) > 0
    held_out = {row["id"] for row in rows if row["dropped"] == "held_out"}
    assert ids(run, "ours") == finished.selected_ids(run) - copies
    candidates = {row["id"] for row in rows if row["dropped"] in (None, "pruned")}
    pruned = {row["id"] for row in rows if row["dropped"] == "pruned"}
    assert ids(run, "random") <= candidates - copies
    assert ids(run, "random") & pruned
    assert metrics["available"][1] == len(candidates)
    ranked = sorted(
        (row for row in rows if row["dropped"] is None), key=lambda r: (-r["quality"], r["id"])
    )
    best = {row["id"] for row in ranked[: len(finished.selected_ids(run))]}
    assert ids(run, "top_quality") == best - copies
    without, same = (finished.selected_ids(open_run(folder / name)) for name in OTHER_RUNS)
    assert without & held_out
    assert ids(run, "without") == without - held_out - copies
    assert ids(run, "with") == ids(run, "changed") == same - copies
    listed = {*(folder / "ids.txt").read_text().split()}
    assert ids(run, "listed") <= listed - copies
    assert len(ids(run, "listed")) > 50


def test_tokens_are_those_of_the_texts(source, run):
    """Decoded, they are the documents, and what is held out and short enough."""
    known, tokenizer = small.source_table(source), texts.read_tokenizer(run)
    for name in ARMS[:-1]:
        for row in arm_rows(run, name):
            assert tokenizer.decode(row["tokens"]) == known[row["id"]]["text"]
    for row in pq.read_table(run.path("held_out")).to_pylist():
        text = tokenizer.decode(row["tokens"][row["prefix"] :])
        text = text.lstrip() if row["set"] == "choices" else text
        assert len(text.encode()) == row["bytes"]
        if row["set"] == "questions":
            assert 0 < row["prefix"] <= 32
        elif row["set"] != "choices":
            assert row["prefix"] == 0
            assert known[row["id"]]["text"] == text


def test_the_results_are_means_over_the_trained_models(run):
    """For every set a row per arm and per pair, from the files of the models alone."""
    rows = read_results(run)
    held_out = pq.read_table(run.path("held_out")).to_pylist()
    members = {"all": [row["in_all"] for row in held_out]}
    for name in ("en", "(other groups)", "questions", "choices"):
        members[name] = [row["set"] == name and row["right"] is not False for row in held_out]
    assert rows[0]["set"] == "questions"
    assert {row["set"] for row in rows} == {*members}
    assert len(rows) == len(members) * (len(ARMS) + len(ARMS) * (len(ARMS) - 1) // 2)
    sizes = np.array([row["bytes"] for row in held_out])
    for name, is_member in members.items():
        means = {}
        for arm in ARMS:
            bits = bits_of(run, arm).mean(axis=0)
            means[arm] = bits[is_member].sum() / sizes[is_member].sum()
        for row in (row for row in rows if row["set"] == name):
            assert (row["documents"], row["seeds"]) == (sum(is_member), 2)
            expected = means[row["arm"]]
            if row["other"]:
                expected -= means[row["other"]]
                assert row["low"] <= row["bits_per_byte"] <= row["high"]
                assert row["verdict"] in ("better", "worse", "undecided")
            assert row["bits_per_byte"] == pytest.approx(expected, abs=1e-12)


def test_an_arm_of_texts_has_the_texts_of_its_files(source, folder, run):
    """Those with words and without copies of held-out text, by the common tokenizer."""
    known = [row["text"] for row in small.source_table(source).values()]
    decode, rows = texts.read_tokenizer(run).decode, arm_rows(run, "rewritten")
    expected = sorted(" ".join(reversed(text.split())) for text in known[:60] if text.strip())
    assert sorted(decode(row["tokens"]) for row in rows) == expected
    assert {row["shard"] for row in rows} == {-1}
    metrics = run.receipt("arms", ARMS.index("rewritten")).metrics
    assert (metrics["documents"], metrics["copies"]) == (len(expected), 5)
    assert metrics["tokens"] == sum(len(row["tokens"]) + 1 for row in rows)


def test_the_accuracy_of_multiple_choice(run, folder):
    """From the bits of the models alone: the answer with the fewest bits per byte is chosen."""
    questions = [json.loads(line) for line in (folder / "choices.jsonl").read_text().splitlines()]
    rows = pq.read_table(run.path("held_out")).to_pylist()
    at = iter([number for number, row in enumerate(rows) if row["set"] == "choices"])
    tokenizer = texts.read_tokenizer(run)
    numbers = [[next(at) for _ in question["choices"]] for question in questions]
    assert next(at, None) is None
    for question, of_question in zip(questions, numbers, strict=True):
        for choice, (number, text) in enumerate(zip(of_question, question["choices"], strict=True)):
            tokens = rows[number]["tokens"][rows[number]["prefix"] :]
            assert tokenizer.decode(tokens) == f" {text}"
            assert rows[number]["bytes"] == len(text)
            assert rows[number]["right"] == (choice == int(question["gold"]))
    sizes, right = np.array([row["bytes"] for row in rows]), [int(q["gold"]) for q in questions]
    accuracy = {}
    for arm in ARMS:
        per_byte = bits_of(run, arm) / sizes
        chosen = np.stack([per_byte[:, answers].argmin(axis=1) for answers in numbers], axis=1)
        accuracy[arm] = np.mean(chosen == right)
    for row in (row for row in read_results(run) if row["set"] == "choices"):
        assert row["chance"] == pytest.approx((1 / 3 + 1 / 4) / 2)
        expected = accuracy[row["arm"]] - (accuracy[row["other"]] if row["other"] else 0)
        assert row["accuracy"] == pytest.approx(expected)
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["accuracy_verdict"] in (
            ("better", "worse", "undecided") if row["other"] else [None]
        )
    lines = evaluation_markdown(run).splitlines()
    (text,) = (line for line in lines if line.startswith("Multiple choice"))
    for arm in ARMS:
        shown = re.search(rf" {arm} ([\d.]+) \(", text)
        assert shown and float(shown[1]) == pytest.approx(100 * accuracy[arm], abs=0.051)
    assert {row["accuracy"] for row in read_results(run) if row["set"] == "all"} == {None}


def test_exported_models_need_nothing_of_this_package(run, tmp_path):
    """Loaded by transformers from a folder, one gives a text the bits that the run has."""
    folders = export_models(run, tmp_path)
    assert len(folders) == run.num_units("training")
    rows = pq.read_table(run.path("held_out")).to_pylist()
    number = next(n for n, row in enumerate(rows) if row["in_all"] and 30 < len(row["tokens"]) < 64)
    tokenizer = AutoTokenizer.from_pretrained(folders[3])
    text = texts.read_tokenizer(run).decode(rows[number]["tokens"])
    tokens = tokenizer(text, return_tensors="pt").input_ids
    assert tokens[0].tolist() == [tokenizer.bos_token_id, *rows[number]["tokens"]]
    model = AutoModelForCausalLM.from_pretrained(folders[3])
    with torch.inference_mode():
        nats = float(model(tokens, labels=tokens).loss) * (tokens.shape[1] - 1)
    bits = pq.read_table(run.path("training", 3))["bits"][number].as_py()
    assert nats / math.log(2) == pytest.approx(bits, rel=1e-5)


def test_groups_of_a_set_count_once(run):
    """From the bits of the models: the mean of two subjects; a text without one is in neither."""
    held_out = pq.read_table(run.path("held_out")).to_pylist()
    subjects = [row["group"] for row in held_out if row["set"] == "questions"]
    assert min(subjects.count(name) for name in ("s0", "s1")) > 30 and None in subjects
    sizes = np.array([row["bytes"] for row in held_out])
    for arm in read_results(run)[: len(ARMS)]:
        bits = bits_of(run, arm["arm"]).mean(axis=0)
        members = [np.array([row["group"] == name for row in held_out]) for name in ("s0", "s1")]
        means = [bits[rows].sum() / sizes[rows].sum() for rows in members]
        assert (arm["set"], arm["groups"], arm["few"]) == ("questions", 2, 2)
        assert arm["mean"] == pytest.approx(np.mean(means), abs=1e-12)
    text = evaluation_markdown(run)
    assert "2 groups counted once" in text and "mean over 2 groups" in text
    assert {row["group"] for row in held_out if row["set"] == "en"} == {"en"}


def test_a_long_text_is_cut_and_its_bytes_are_those_of_its_tokens(run, monkeypatch):
    """At `SCORED_TOKENS`, or at a sequence if that is longer; a prompt is not counted."""
    tokenizer = texts.read_tokenizer(run)
    monkeypatch.setattr(texts, "SCORED_TOKENS", 100)
    text = " ".join(f"word{number}" for number in range(400))
    for context, most in ((64, 100), (128, 128)):
        row = texts._encoded(tokenizer, context, text=text, prompt=text)
        assert row["prefix"] == context // 2
        assert len(row["tokens"]) == context // 2 + most
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert row["tokens"][row["prefix"] :] == whole[:most]
        assert row["bytes"] == len(tokenizer.decode(whole[:most]).encode())


@pytest.mark.slow
def test_bits_are_the_librarys_own_loss(run, monkeypatch):
    """Sequence by sequence, without padding: the loss that transformers computes for labels."""
    path = run.path("training", 0)
    before, models = path.read_bytes(), []
    score = training.score

    def kept(model: torch.nn.Module, *rest: Any) -> Any:
        models.append(model)
        return score(model, *rest)

    monkeypatch.setattr(training, "score", kept)
    training.train(run, 0, Compute(working_set_bytes=2**21))
    little_memory = pq.read_table(path)["bits"].to_numpy()
    training.train(run, 0, Compute())
    assert path.read_bytes() == before
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    bits = pq.read_table(path)["bits"].to_numpy()
    assert little_memory == pytest.approx(bits, rel=1e-4)
    for row, found in zip(pq.read_table(run.path("held_out")).to_pylist(), bits, strict=True):
        tokens = torch.tensor([[separator, *row["tokens"]]])
        labels = tokens.clone()
        labels[0, : row["prefix"] + 1] = -100
        nats = 0.0
        for start in range(0, len(row["tokens"]), 64):
            some, due = (of[:, start : start + 65].clone() for of in (tokens, labels))
            due[:, 0] = -100
            with torch.inference_mode():
                loss = models[1](input_ids=some, labels=due).loss
            nats += float(loss) * int((due >= 0).sum())
        assert found == pytest.approx(nats / math.log(2), rel=1e-4)


@pytest.mark.slow
def test_training_gives_the_same_bytes_with_two_workers(folder, run):
    """Anew in another folder; the arms too. Both seeds of the first two arms."""
    two = Compute(workers=2)
    again = finished.finish(folder / "again", run.settings, "arms", two)
    assert small.contents(again, "arms") == small.contents(run, "arms")
    run_stage(again, "training", two, shards=[0, 1, 2, 3])
    trained = small.contents(again)
    assert len(trained) == 4
    assert trained.items() <= small.contents(run).items()
    assert len(small.contents(run)) == 2 * len(ARMS)


def test_the_ngram_figure_is_the_mean_over_what_seeds_draw(run):
    """In bits per byte of the first set, by counting the texts of each seed apart."""
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    held_out = pq.read_table(run.path("held_out"))
    held_out = held_out.filter(pc.equal(held_out["set"], "questions")).to_pylist()
    texts = [np.array(row["tokens"]) for row in held_out]
    prefixes = [row["prefix"] for row in held_out]
    shown = {
        row["arm"]: row["ngram"]
        for row in read_results(run)
        if row["set"] == "questions" and row["other"] is None
    }
    for number, name in enumerate(ARMS):
        bits = []
        for seed in range(run.settings.evaluation.seeds):
            drawn = drawn_tokens(run, number, seed, separator)
            model = Trigrams(np.append(separator, drawn), separator + 1)
            bits.append(bits_by_text(model, texts, prefixes).sum())
        size = sum(row["bytes"] for row in held_out)
        assert shown[name] == pytest.approx(np.mean(bits) / size)
        assert len({*bits}) > 1

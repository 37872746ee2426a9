"""Distilling a static embedder, against the model's own vectors and plain numpy."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.embedding import random_bert
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.loose_texts import embed_texts
from datamask.embedding.static import distil
from tests.malformed.commands import run_main

TEXTS = ["river stone market", "stone river window garden", "a winter morning by the river"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights, whose tokenizer pads."""
    return random_bert(tmp_path_factory.mktemp("model"), TEXTS, hidden=32, layers=2)


def test_a_text_is_the_mean_of_its_weighted_tokens(model: Path, tmp_path: Path) -> None:
    """As a run embeds with it, against the recipe worked out here from the model's own vectors."""
    from sentence_transformers import SentenceTransformer

    distil(str(model), TEXTS, tmp_path / "static", 8)
    settings = Embedding(model=str(tmp_path / "static"), dimension=8, prefix="")
    found = embed_texts(TEXTS, settings, Compute(device="cpu"))
    assert found.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    whole = SentenceTransformer(str(model), device="cpu")
    vocabulary = whole.tokenizer.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    # A text of one word is that token between the special tokens; words stand for themselves.
    own = {word: whole.encode(word) for word in words if word.isalpha()}
    static = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    table = static[0].embedding.weight.detach().numpy().astype(np.float64)
    for text, vector in zip(TEXTS, found, strict=True):
        mean = table[[vocabulary[word] for word in text.split()]].mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-3)
    # The texts' means have no common direction any more.
    counts = Counter(word for text in TEXTS for word in text.split())
    total = sum(counts.values())
    weight = {word: 1e-3 / (1e-3 + counts[word] / total) for word in own}
    rows = np.stack([table[vocabulary[word]] / weight[word] for word in own])
    centred = np.stack(list(own.values())) - np.mean(list(own.values()), axis=0)
    kept = rows - rows.mean(0)
    # Distances of tokens are the model's, but for the lost dimensions and the common direction.
    gram, expected = kept @ kept.T, centred @ centred.T
    assert np.corrcoef(gram.ravel(), expected.ravel())[0, 1] > 0.6


def test_the_command_gives_the_same_folder_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte; the folder loads as the embedder that the command's last line names."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    contents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        command = ["distil", str(model), str(texts), str(folder), "--column=body", "--dimension=8"]
        assert run_main(command) == 0
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append({path.relative_to(folder): path.read_bytes() for path in paths})
    assert contents[0] == contents[1]
    assert f"embedding.model={folder} --set embedding.dimension=8" in capsys.readouterr().out
    distil(str(model), TEXTS, tmp_path / "three", 8)
    encoded = [
        embed_texts(TEXTS, Embedding(model=str(tmp_path / name), dimension=8), Compute())
        for name in ("two", "three")
    ]
    np.testing.assert_array_equal(*encoded)


REFUSED = {
    "no model": ({"model": "missing"}, "model to distil: no folder .*missing"),
    "damaged model": ({"model": "damaged"}, "cannot be loaded"),
    "no texts": ({"texts": "missing"}, "missing"),
    "blank texts": ({"texts": "blank.txt"}, "all texts are blank"),
    "texts without tokens": ({"texts": "unknown.txt"}, "no token in the texts"),
    "too wide": ({"--dimension": 64}, "64 is above the 32"),
    "output exists": ({"folder": "damaged"}, "exists already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_clear_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """One line, no traceback, and no output."""
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{}")
    for name, text in (("texts", TEXTS[0]), ("blank", " \n"), ("unknown", "\u200b")):
        (tmp_path / f"{name}.txt").write_text(text)
    changed, message = REFUSED[case]
    paths = {"model": model, "texts": "texts.txt", "folder": "static"} | changed
    width = paths.pop("--dimension", 8)
    places = [str(tmp_path / path) for path in paths.values()]
    assert run_main(["distil", *places, f"--dimension={width}"]) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown) and len(shown.splitlines()) == 1, shown
    assert not (tmp_path / "static").exists()

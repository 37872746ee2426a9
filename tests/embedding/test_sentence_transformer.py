"""Vectors against sentence-transformers' own, a text at a time; what a bad model provokes; pins."""

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks.models import random_bert
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding import chunked, sentence_transformer
from datamask.embedding.chunked import computed_chunks
from datamask.embedding.loose_texts import embed_texts
from datamask.embedding.pinning import PIN, folder_digest, pin_model
from datamask.embedding.sentence_transformer import Encoder, embed, load_model, tokenise
from datamask.errors import DeviceMemoryError, InputError, SettingsError
from datamask.runs import checkpoints
from tests import windows
from tests.finished import WORDS

WIDTH = 32
generator = np.random.default_rng(0)
TEXTS = [" ".join(generator.choice(WORDS, size)) for size in generator.integers(1, 60, 50)]
TEXTS += ["", "market " * 700]
NAMES = [f"document-{row}" for row in range(len(TEXTS))]
ON_CPU = Compute(device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights."""
    return random_bert(tmp_path_factory.mktemp("model"), TEXTS, hidden=WIDTH, layers=2)


@pytest.fixture
def settings(folder: Path) -> Embedding:
    """Settings that name it."""
    return Embedding(model=str(folder), dimension=WIDTH, max_tokens=64)


@pytest.fixture
def encoder(settings: Embedding) -> Encoder:
    """The model on the CPU."""
    return load_model(settings, folder_digest(Path(settings.model)), ON_CPU)


def embedded(encoder: Encoder, settings: Embedding, batch: int | None = 4) -> np.ndarray:
    """Vectors of all texts."""
    return embed(encoder, tokenise(encoder, TEXTS, settings, batch, 1), settings, NAMES)


@pytest.mark.parametrize("batch", [1, 4, 1000, None])
def test_vectors_are_those_of_the_library(encoder, settings, folder, batch):
    """Each is what `encode` of a model loaded apart gives for the text alone, also if it is cut."""
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(folder), device="cpu")
    reference.max_seq_length = settings.max_tokens
    alone = [reference.encode(["query: " + text], normalize_embeddings=True)[0] for text in TEXTS]
    found = embedded(encoder, settings, batch)
    assert np.abs(found - np.stack(alone)).max() < 1e-5
    together = reference.encode(["query: " + text for text in TEXTS], normalize_embeddings=True)
    assert np.einsum("nd,nd->n", found, together).min() > 0.9999


def test_a_chunk_in_work_is_reported_and_survives_a_kill(encoder, settings, tmp_path, monkeypatch):
    """By batch: documents grow, and a kill loses one batch, again and again; the same bytes."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0)
    source = pa.array(NAMES), pa.array(TEXTS), pa.array(range(len(TEXTS)))
    batch = pa.RecordBatch.from_arrays([*source], names=["id", "content", "row"])
    forwards, reported = 0, list[int]()
    forward_once, save = sentence_transformer._forward, checkpoints.Checkpoints.save

    def counted(model: Any, features: Any) -> Any:
        nonlocal forwards
        forwards += 1
        return forward_once(model, features)

    def vectors() -> np.ndarray:
        kept = checkpoints.Checkpoints(SimpleNamespace(root=tmp_path), "embeddings", 0)
        made = computed_chunks(
            [batch],
            len(TEXTS),
            lambda part: tokenise(encoder, part.column(1).to_pylist(), settings, 4, 1),
            lambda part, ready: {"vectors": embed(encoder, ready, settings, NAMES)},
            kept,
        )
        return np.concatenate([state["vectors"] for _, state in made])

    monkeypatch.setattr(sentence_transformer, "_forward", counted)
    monkeypatch.setattr(chunked, "advance", lambda done, total: reported.append(done))
    whole = vectors()
    of_whole, seen = forwards, reported[:]
    assert seen == sorted(seen) and len({*seen}) > 5 and seen[-1] == len(TEXTS)
    shutil.rmtree(tmp_path / "checkpoints")
    forwards = kills = 0

    def killed(self: Any, name: str, state: Any) -> None:
        save(self, name, state)
        if name.endswith("-part"):
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.Checkpoints, "save", killed)
    while kills < 100:
        try:
            found = vectors()
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills > 5 and forwards == of_whole and (found == whole).all()


def test_long_texts_are_embedded_in_windows(encoder, settings):
    """Against the library, a window at a time: the mean of unit vectors, by shares of the text."""
    long = [" ".join(generator.choice(WORDS, size)) for size in (150, 400, 3000)] + ["xy" * 400]
    texts = [*long[:2], *TEXTS, *long[2:]]
    names = [f"document-{row}" for row in range(len(texts))]
    prepared = tokenise(encoder, texts, settings, 4, 3)
    found, share = embed(encoder, prepared, settings, names), prepared.share_read()
    alone = embed(encoder, tokenise(encoder, texts, settings, 4, 1), settings, names)
    fast = encoder.model.tokenizer

    def held(text: str) -> int:
        cut = fast("query: " + text, truncation=True, max_length=64, return_offsets_mapping=True)
        is_whole = len(fast("query: " + text)["input_ids"]) <= 64
        return len(text) if is_whole else max(stop for _, stop in cut["offset_mapping"]) - 7

    def judge(window: str) -> np.ndarray:
        vector = encoder.model.encode(["query: " + window], normalize_embeddings=True)[0]
        return np.asarray(vector, np.float64)

    for row, text in enumerate(texts):
        expected = windows.mean(text, held(text), 3, judge)
        expected /= np.linalg.norm(expected)
        spans = windows.by_hand(text, held(text), 3)
        taken = [(start, start + held(text[start:stop])) for start, stop in spans]
        assert share[row] == pytest.approx(windows.read(taken, len(text)))
        if len(spans) == 1:
            assert (found[row] == alone[row]).all() and share[row] == 1
        assert np.abs(found[row] - expected).max() < 1e-3, row  # weights are by half characters
    assert (share < 1).sum() >= 2 and np.abs(found - alone).max() > 0.02
    order = np.random.default_rng(1).permutation(len(texts))
    other = tokenise(encoder, [texts[row] for row in order], settings, 7, 3)
    assert np.abs(embed(encoder, other, settings, names) - found[order]).max() < 1e-5


def test_a_static_model_embeds(folder, tmp_path):
    """One vector per token and no limit on tokens: vectors are the library's own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = SentenceTransformer(str(folder), device="cpu").tokenizer.backend_tokenizer
    table = np.random.default_rng(1).normal(size=(tokenizer.get_vocab_size(), 8))
    static = StaticEmbedding(tokenizer, embedding_weights=table.astype(np.float32))
    reference = SentenceTransformer(modules=[static], device="cpu")
    reference.save(str(tmp_path / "static"))
    settings = Embedding(model=str(tmp_path / "static"), dimension=8)
    found = embed_texts(TEXTS, settings, ON_CPU)
    texts = ["query: " + text for text in TEXTS]
    expected = reference.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_truncated_vectors_are_those_of_the_library(encoder, settings):
    """The first numbers, with unit length again; refused unless asked for, and if too many."""
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(settings.model, device="cpu", truncate_dim=12)
    reference.max_seq_length = settings.max_tokens
    texts = ["query: " + text for text in TEXTS]
    expected = reference.encode(texts, normalize_embeddings=True)
    shorter = settings.model_copy(update={"dimension": 12, "truncate": True})
    revision = folder_digest(Path(settings.model))
    found = embedded(load_model(shorter, revision, ON_CPU), shorter)
    assert found.shape == (len(TEXTS), 12)
    assert np.einsum("nd,nd->n", found, expected).min() > 0.9999
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    refused = {"dimension": 12}, {"dimension": WIDTH + 1, "truncate": True}
    for change, remedy in zip(refused, (r"embedding\.truncate=true", f"={WIDTH}$"), strict=True):
        with pytest.raises(SettingsError, match=remedy):
            load_model(settings.model_copy(update=change), revision, ON_CPU)


def test_bfloat16_is_the_precision_of_the_weights(encoder, settings):
    """All weights are bfloat16; the vectors are close to float32's, and unit rows of float32."""
    half = settings.model_copy(update={"dtype": "bfloat16"})
    model = load_model(half, folder_digest(Path(settings.model)), ON_CPU)
    assert {weight.dtype for weight in model.model.parameters()} == {torch.bfloat16}
    found, exact = embedded(model, half), embedded(encoder, settings)
    assert found.dtype == np.float32
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6
    assert 0.996 < np.einsum("nd,nd->n", found, exact).min() < 0.999999


def test_a_default_prompt_of_the_model_is_kept(encoder, settings):
    """A prefix that a model puts before every text by itself is put here too."""
    model = encoder.model
    before = embedded(encoder, settings)
    model.prompts, model.default_prompt_name = {"mine": "winter winter "}, "mine"
    try:
        expected = model.encode(["query: " + text for text in TEXTS], normalize_embeddings=True)
        assert np.abs(embedded(encoder, settings) - expected).max() < 1e-5
        assert np.abs(before - expected).max() > 1e-2
    finally:
        model.prompts, model.default_prompt_name = {}, None


def test_tokens_and_padding_are_counted(encoder, settings):
    """The tensors that go to the device hold the counted tokens, and no batch is too large."""
    found = tokenise(encoder, TEXTS, settings, 3, 1)
    masks = [features["attention_mask"] for features in found.features]
    assert found.counts["padded_tokens"] == sum(mask.numel() for mask in masks)
    assert found.counts["tokens"] == sum(int(mask.sum()) for mask in masks)
    assert max(mask.numel() for mask in masks) <= 3 * settings.max_tokens
    whole = [len(encoder.model.tokenizer("query: " + text)["input_ids"]) for text in TEXTS]
    assert max(whole) > 512
    assert found.counts["whole_tokens"] == sum(whole)
    assert found.counts["cut"] == sum(count > settings.max_tokens for count in whole)
    for length in (64, 128, 256, 512):
        expected = sum(min(count, length) for count in whole)
        assert found.counts[f"tokens_at_{length}"] == expected
    default = tokenise(encoder, TEXTS, settings, None, 1).batches
    assert 1 < len(default) < len(found.batches)
    assert sorted(np.concatenate(found.batches)) == list(range(len(TEXTS)))


def test_two_devices_work_at_once(settings, folder, monkeypatch):
    """Each device has a model of its own, and neither waits until the other is done."""
    both = threading.Barrier(2, timeout=60)
    real = sentence_transformer._load

    def meet(*_: Any) -> None:
        both.wait()

    def meeting(embedding: Embedding, pin: str, device: str) -> Encoder:
        encoder = real(embedding, pin, "cpu")
        encoder.model.register_forward_pre_hook(meet)
        return encoder

    monkeypatch.setattr(sentence_transformer, "_load", meeting)
    pin = folder_digest(folder)
    encoders = [load_model(settings, pin, Compute(device=f"cuda:{gpu}")) for gpu in (6, 7)]
    assert encoders[0].model is not encoders[1].model
    found: dict[int, np.ndarray] = {}

    def work(gpu: int) -> None:
        found[gpu] = embedded(encoders[gpu], settings)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found[0] == found[1]).all()


def test_a_batch_that_does_not_fit_is_halved(encoder, settings, monkeypatch):
    """With room for two texts all are embedded the same; with room for none it is one line."""
    expected = embedded(encoder, settings)
    real = sentence_transformer._forward
    room = 2

    def short(model: Any, features: dict[str, Any]) -> Any:
        if len(features["input_ids"]) > room:
            raise torch.OutOfMemoryError("out of memory")
        return real(model, features)

    monkeypatch.setattr(sentence_transformer, "_forward", short)
    assert np.abs(embedded(encoder, settings, 16) - expected).max() < 1e-5
    room = 0
    with pytest.raises(DeviceMemoryError, match="one text does not fit"):
        embedded(encoder, settings)


class Failing(torch.nn.Module):
    """The last module of a model that gives NaN for texts with a word, in a batch or always."""

    def __init__(self, token: int, always: bool) -> None:
        """Which word, and whether also alone."""
        super().__init__()
        self.token, self.always = token, always

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Spoil."""
        bad = (features["input_ids"] == self.token).any(dim=1)
        if self.always or len(bad) > 1:
            features["sentence_embedding"][bad] = float("nan")
        return features


@pytest.mark.parametrize("always", [False, True])
def test_nan_is_retried_alone_and_named_if_it_lasts(encoder, settings, always):
    """A text that fails in a batch alone is embedded; one that always fails is named."""
    expected = embedded(encoder, settings)
    texts = [text for text in TEXTS if "copper" not in text] + ["one copper coin"]
    at = TEXTS.index(next(text for text in TEXTS if "copper" not in text))
    token = encoder.model.tokenizer.convert_tokens_to_ids("copper")
    encoder.model.add_module("failing", Failing(token, always))
    try:
        prepared = tokenise(encoder, texts, settings, 4, 3)
        if always:
            with pytest.raises(InputError, match=f"document {NAMES[len(texts) - 1]}, alone"):
                embed(encoder, prepared, settings, NAMES)
        else:
            found = embed(encoder, prepared, settings, NAMES)
            assert np.isfinite(found).all()
            assert np.abs(found[0] - expected[at]).max() < 1e-5
    finally:
        del encoder.model.failing


def test_a_model_without_tokens_is_served(tmp_path):
    """A bag of words goes through in batches of texts, and its vectors are the library's."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW, Dense

    torch.manual_seed(0)
    SentenceTransformer(modules=[BoW(WORDS), Dense(len(WORDS), 16)]).save(str(tmp_path / "model"))
    settings = Embedding(model=str(tmp_path / "model"), dimension=16, prefix="")
    encoder = load_model(settings, folder_digest(tmp_path / "model"), ON_CPU)
    found = embedded(encoder, settings, 4)
    expected = encoder.model.encode(TEXTS, normalize_embeddings=True)
    assert np.abs(found - expected).max() < 1e-5


def test_pins(tmp_path):
    """A folder's pin follows its files; a commit and the lexical embedder need no network."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").write_bytes(b"one")
    before = pin_model(Embedding(model=str(tmp_path)))
    assert pin_model(Embedding(model=str(tmp_path))) == before
    (tmp_path / "weights").write_bytes(b"two")
    assert pin_model(Embedding(model=str(tmp_path))) != before
    assert pin_model(Embedding(model="a/b", revision="a" * 40)) == {PIN: "a" * 40}
    assert pin_model(Embedding(method="lexical")) == {PIN: "lexical-1"}

"""Names of special tokens that stand in a text: whatever the tokenizer, they are text."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from datamask.report.findings import findings_of
from datamask.source.token_counts import as_text, count_tokens, encode, special_tokens
from tests.finished import WORDS, finish, settings, table_of, word_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<tool_call>", "</s>"]


def of_bytes() -> Tokenizer:
    """As of GPT-2 and Qwen: two special tokens, two that are added only, one of white space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=alphabet, special_tokens=SPECIAL[:2]
    )
    tokenizer.train_from_iterator([" ".join([*WORDS, *SPECIAL])] * 5, trainer)
    tokenizer.add_tokens([AddedToken(name) for name in (*SPECIAL[2:], "   ")])
    return tokenizer


def of_pieces() -> Tokenizer:
    """As of T5: control tokens are pieces of the vocabulary."""
    letters = sorted({*"".join(SPECIAL), *"".join(WORDS), *"X \u2603"})
    pieces = [("<unk>", 0.0), *((name, 0.0) for name in SPECIAL), ("▁", -2.0)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((one, -3.0) for one in letters)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    return tokenizer


def of_words(tmp_path: Path) -> Tokenizer:
    """One token for a word, special ones too, which nobody added."""
    path = word_tokenizer(tmp_path / "words.json", of=[*WORDS, *SPECIAL[1:]])
    return Tokenizer.from_file(path)


@pytest.fixture(scope="module", params=["bytes", "pieces", "words"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One of each kind, as `load_tokenizer` sets it."""
    if request.param == "words":
        return as_text(of_words(tmp_path_factory.mktemp("words")))
    return as_text(of_bytes() if request.param == "bytes" else of_pieces())


@trials(deadline=None)
@given(st.lists(st.sampled_from([*SPECIAL[:2], "</s>", "river", "X", "\u2603", "   ", "<", "|>"])))
def test_no_text_has_a_special_token(tokenizer, parts):
    """Texts without such a name have the tokens that the library gives."""
    texts = ["".join(parts), " ".join(parts)]
    special = {number for name, number in special_tokens(tokenizer).items() if name in SPECIAL}
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    found = list(encode(tokenizer, texts))
    assert not special & {number for ids in found for number in ids}
    assert count_tokens(tokenizer, pa.array(texts)).to_pylist() == [len(ids) for ids in found]
    for text, ids, known in zip(texts, found, plain, strict=True):
        if not any(name in text for name in SPECIAL):
            assert ids == known
        if isinstance(tokenizer.model, models.BPE):
            assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_each_document_has_one_end(tmp_path):
    """In the token files of a run, whose budget counts the same tokens; the report counts them."""
    rows = [{"id": f"{n:03d}", "text": f"{' '.join(WORDS[:6])} x{n}", "edu": n} for n in range(90)]
    for row in rows[::9]:
        row["text"] = f"river <|endoftext|> stone <|endoftext|> {row['id']}"
    (tmp_path / "source").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source" / "a.parquet")
    tokens = {"tokenizer": word_tokenizer(tmp_path / "tokenizer.json")}
    budget = {"tokens": 400, "method": "random"}
    run = finish(
        tmp_path / "run", settings(tmp_path / "source", tokens=tokens, selection=budget), "tokens"
    )
    subset = pq.read_table(run.root / "subset").to_pylist()
    concerned = sum("<|endoftext|>" in row["text"] for row in subset)
    flat = np.fromfile(run.root / "tokens" / "00000.bin", np.uint16)
    assert concerned and (flat == 1).sum() == len(subset)
    counted = table_of(run, "scores").to_pylist()
    of_id = {row["id"]: row["tokens"] for row in counted}
    ledger = pq.read_table(run.path("order")).to_pylist()
    assert {row["id"]: row["tokens"] for row in ledger} == {
        row["id"]: of_id[row["id"]] for row in subset
    }
    finish(tmp_path / "run", run.settings, "composition")
    [finding] = [one for one in findings_of(run) if one.name == "special tokens"]
    assert finding.text.startswith(f"{concerned} ")

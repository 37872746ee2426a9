"""A corpus of real texts whose kinds are known, as studies of recipes read it.

Corpora are those of `benchmarks.noisy_crawl` and `benchmarks.kinds`. Scores, MinHash clusters and
trigrams are the product's. Vectors are computed once and kept in the corpora's folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.loose_texts import embed_texts
from datamask.evaluation.ngram import Trigrams, bits_by_text
from datamask.evaluation.texts import NGRAM, SCORED_TOKENS, SIMILARITY, train_tokenizer
from datamask.hygiene.minhash import cluster, sign
from datamask.hygiene.words import hash_ngrams, split_words
from datamask.quality.example_texts import RANDOM_DOCUMENTS
from datamask.quality.word_model import example_scores, features_of, fit_words
from datamask.source.token_counts import encode

WINDOWS = 1
"""Windows of a text: the figures are of texts that are judged by their beginning."""

VOCABULARY = 2048


class Corpus:
    """A corpus without near-copies of held-out texts, its vectors and its scores."""

    def __init__(self, folder: Path, setting: str, fold: int, embedding: Embedding) -> None:
        names = ("", "-held-out", "-examples")
        tables = [pq.read_table(folder / f"{setting}-{fold}{name}.parquet") for name in names]
        candidates, held_out, examples = tables
        texts = pa.concat_tables([held_out, candidates])["text"].to_pylist()
        labels, first = _clusters(texts), held_out.num_rows
        is_kept = ~np.isin(labels[first:], labels[:first])
        _, firsts = np.unique(candidates["id"].to_pylist(), return_index=True)  # exact copies
        is_kept &= np.isin(np.arange(len(is_kept)), firsts)
        self.documents = candidates.filter(pa.array(is_kept))
        self.texts: list[str] = self.documents["text"].to_pylist()
        self.kinds = np.array(self.documents["domain"].to_pylist())
        self.examples: list[str] = examples["text"].to_pylist()
        self.seed = fold
        self.wanted = set(held_out["domain"].to_pylist())
        tokenizer = _tokenizer(folder)
        self.tokens = [np.array(ids, np.int64) for ids in encode(tokenizer, self.texts)]
        self.costs = np.array([len(ids) + 1 for ids in self.tokens])
        scored = encode(tokenizer, held_out["text"].to_pylist())
        self.held_out = [np.array(ids[:SCORED_TOKENS], np.int64) for ids in scored]
        self.held_out_bytes = np.array(
            [len(tokenizer.decode(ids.tolist()).encode()) for ids in self.held_out]
        )
        self.held_out_kinds = np.array(held_out["domain"].to_pylist())
        self.vectors = _vectors(folder, fold, self.documents, embedding)
        self.quality, self.auc = self._scores()

    def _scores(self) -> tuple[np.ndarray, float]:
        """The score of each document, as the product computes it, and its AUC.

        The examples are in a random order: it is tested on parts of all kinds.
        """
        drawn = np.random.default_rng([self.seed, 1]).permutation(len(self.texts))
        rows = drawn[:RANDOM_DOCUMENTS]
        features, _ = features_of([*self.examples, *(self.texts[row] for row in rows)], WINDOWS)
        targets = np.repeat([1.0, 0.0], [len(self.examples), len(rows)])
        model, figures, _ = fit_words(features, targets)
        return example_scores(self.texts, model, WINDOWS)[0], figures["auc"]

    @cached_property
    def is_good(self) -> np.ndarray:
        """Whether a document is of a kind that is held out; near-copies are."""
        return np.isin(self.kinds, [*self.wanted, "copy"])

    @cached_property
    def distinct(self) -> np.ndarray:
        """The rows of the best document of each cluster of near-duplicates."""
        order = np.argsort(-self.quality, kind="stable")
        labels = _clusters([self.texts[row] for row in order])
        return np.sort(order[labels == np.arange(len(labels))])

    def bits(self, chosen: np.ndarray, budget: int, seed: int) -> np.ndarray:
        """Of each held-out text, by trigrams of *budget* tokens of chosen documents."""
        order = np.random.default_rng([self.seed, seed, 2]).permutation(chosen)
        texts = [np.append(self.tokens[row], VOCABULARY) for row in order]
        stream = np.concatenate([[VOCABULARY], *texts])[: budget + 1]
        model = Trigrams(stream, VOCABULARY + 1)
        return bits_by_text(model, self.held_out, [0] * len(self.held_out))


def _clusters(texts: Sequence[str]) -> np.ndarray:
    words = split_words(pa.array(texts, pa.large_string()))
    return cluster(sign(hash_ngrams(words, NGRAM)), SIMILARITY)


def _tokenizer(folder: Path) -> Any:
    """Byte pairs, learned once from the texts of `tokens.parquet` and kept in another file."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    texts = pq.read_table(folder / "tokens.parquet")["text"].to_pylist()
    tokenizer = train_tokenizer(texts, VOCABULARY)
    tokenizer.save(str(path))
    return tokenizer


def _vectors(folder: Path, fold: int, documents: pa.Table, embedding: Embedding) -> np.ndarray:
    """The vectors of documents; those of a fold and of a model are kept in a file."""
    of_model = f"-{Path(embedding.model).name}" if embedding.model != Embedding().model else ""
    path = folder / f"vectors{of_model}-{fold}.npz"
    known: dict[str, np.ndarray] = {}
    if path.exists():
        with np.load(path) as stored:
            known = dict(zip(stored["ids"].tolist(), stored["vectors"], strict=True))
    ids, texts = documents["id"].to_pylist(), documents["text"].to_pylist()
    new = {name: text for name, text in zip(ids, texts, strict=True) if name not in known}
    if new:
        compute = Compute(device="cpu", embedding_batch=8)
        made = embed_texts(list(new.values()), embedding, compute, WINDOWS).astype(np.float16)
        known |= dict(zip(new, made, strict=True))
        np.savez(path, ids=np.array(list(known)), vectors=np.stack(list(known.values())))
    return np.stack([known[name] for name in ids]).astype(np.float32)


def read_results(path: Path) -> list[list[Any]]:
    """Setting, fold, share, arm and figures of each result."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean, half the width of its 95 % interval, and the p value of Student's t."""
    values, freedom = np.asarray(differences), len(differences) - 1
    if freedom < 1 or not values.any():
        return float(values.mean()), float("nan"), 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    p_value = 2 * stats.t.sf(abs(values.mean()) / error, freedom)
    return float(values.mean()), float(stats.t.ppf(0.975, freedom) * error), float(p_value)

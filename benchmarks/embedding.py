"""Effect of padding, overlap and compilation on embedding: ratios within one run.

All methods embed the same docstrings with the same model with random weights (`benchmarks.models`)
on one core; tokenisation may use another core. Every round runs all methods, and the minimum time
of each counts, because the machine may be shared. CPU seconds are less sensitive to other load, but
only wall-clock seconds show the effect of overlap.

    python -m benchmarks.embedding                        # a small model: tokenising matters
    python -m benchmarks.embedding --hidden 384 --layers 6 --rows 300
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.models import random_bert

BATCH = 32
PREFIX = "query: "


@dataclass(slots=True)
class Measured:
    """Minimum times over all rounds, and tokens including padding."""

    seconds: float = float("inf")
    cpu_seconds: float = float("inf")
    tokens: int = 0
    padded_tokens: int = 0


def main() -> None:
    """Create texts and model, measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=500, help="texts sorted together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--corpus", type=Path, default=Path("runs/demo-corpus"))
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(1)
    corpus = pq.read_table(arguments.corpus, columns=["text"])["text"].to_pylist()
    chosen = np.random.default_rng(0).permutation(len(corpus))[: arguments.rows]
    texts = [corpus[row] for row in chosen]
    with tempfile.TemporaryDirectory() as folder:
        path = random_bert(
            Path(folder), corpus, hidden=arguments.hidden, layers=arguments.layers, vocabulary=20000
        )
        methods = _methods(path, texts, arguments.hidden, arguments.chunk, arguments.compile)
        found = {name: Measured() for name in methods}
        vectors = {}
        for round_number in range(arguments.rounds + 1):
            for name, method in methods.items():
                start, used = time.perf_counter(), time.process_time()
                vectors[name], tokens, padded = method()
                if not round_number:
                    continue  # warming up
                best = found[name]
                best.seconds = min(best.seconds, time.perf_counter() - start)
                best.cpu_seconds = min(best.cpu_seconds, time.process_time() - used)
                best.tokens, best.padded_tokens = tokens, padded
    for one in vectors.values():
        assert np.abs(one - vectors["arrival"]).max() < 1e-4
    _print(found, arguments.rows)


def _methods(
    path: Path, texts: list[str], hidden: int, chunk: int, compiled: bool
) -> dict[str, Callable[[], tuple[np.ndarray, int, int]]]:
    import torch

    from datamask.config.compute import Compute
    from datamask.config.inputs import Embedding
    from datamask.embedding.forward import Tokenised
    from datamask.embedding.pinning import folder_digest
    from datamask.embedding.read_ahead import read_ahead
    from datamask.embedding.sentence_transformer import (
        Encoder,
        embed,
        load_model,
        tokenise,
    )

    settings = Embedding(model=str(path), dimension=hidden, prefix=PREFIX)
    pin = folder_digest(path)
    encoder = load_model(settings, pin, Compute(device="cpu"))
    chunks = [texts[start : start + chunk] for start in range(0, len(texts), chunk)]

    def by_count(key: Callable[[str], int]) -> tuple[np.ndarray, int, int]:
        """Batches of a fixed number of texts, sorted by *key* within a chunk."""
        parts, tokens, padded = [], 0, 0
        for part in chunks:
            order = sorted(range(len(part)), key=lambda row: key(part[row]))
            matrix = np.empty((len(part), hidden), np.float32)
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                features = encoder.model.preprocess([PREFIX + part[row] for row in rows])
                tokens += int(features["attention_mask"].sum())
                padded += features["attention_mask"].numel()
                with torch.inference_mode():
                    matrix[rows] = encoder.model(features)["sentence_embedding"].numpy()
            parts.append(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))
        return np.concatenate(parts), tokens, padded

    def by_tokens(encoder: Encoder, ahead: bool) -> tuple[np.ndarray, int, int]:
        """The batches of the stage, with and without reading ahead."""
        parts, tokens, padded = [], 0, 0

        def prepare(part: list[str]) -> Tokenised:
            return tokenise(encoder, part, settings, BATCH)

        for made in read_ahead(chunks, prepare) if ahead else map(prepare, chunks):
            tokens += made.tokens
            padded += made.padded_tokens
            parts.append(embed(encoder, made, settings, made.texts))
        return np.concatenate(parts), tokens, padded

    methods = {
        "arrival": lambda: by_count(lambda text: 0),
        "characters": lambda: by_count(len),
        "tokens": lambda: by_tokens(encoder, False),
        "tokens, read ahead": lambda: by_tokens(encoder, True),
    }
    if compiled:
        other = load_model(settings, pin, Compute(device="cpu", compile_model=True))
        methods["tokens, read ahead, compiled"] = lambda: by_tokens(other, True)
    return methods


def _print(found: dict[str, Measured], rows: int) -> None:
    base = found["arrival"]
    print("| batches | padding | documents/s | CPU time per document | documents/s here |")
    print("|:--|--:|--:|--:|--:|")
    for name, one in found.items():
        print(
            f"| {name} | {1 - one.tokens / one.padded_tokens:.1%} "
            f"| ×{base.seconds / one.seconds:.2f} | ×{one.cpu_seconds / base.cpu_seconds:.2f} "
            f"| {rows / one.seconds:.0f} |"
        )


if __name__ == "__main__":
    main()

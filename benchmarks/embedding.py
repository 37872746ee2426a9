"""Speed of embedding compared with `SentenceTransformer.encode`: ratios within one run.

All methods embed the same docstrings with the same model. Every round runs all methods, and the
minimum time of each counts, because the machine may be shared. `encode` sorts texts by characters,
at several batch sizes; the stage's path sorts by tokens, at several numbers of tokens per batch,
and tokenises ahead in another thread. The cosine is the smallest to the vectors of `encode`. The
gains are of a tenth selected by these vectors (DiSF and facility location, lambda 0), valued on
those of `encode`, as a share of the gain of what the latter select.
Runtimes other than PyTorch are compared if they are installed: openvino, or onnxruntime with onnx
and onnxscript. They get the batches of the stage's default.

    python -m benchmarks.embedding                     # a small model with random weights
    python -m benchmarks.embedding --model runs/all-MiniLM-L6-v2 --max-tokens 128
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.learner import coverage
from benchmarks.models import random_bert
from benchmarks.whole_selection import SUBSETS, correlation

TEXTS_PER_BATCH = (8, 16, 32, 64)
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOKENS_PER_BATCH = (512, 1024, 4096, 16_384)


@dataclass(slots=True)
class Measured:
    """Minimum times over all rounds, the share of padding, and the vectors."""

    vectors: np.ndarray
    padding: float | None
    seconds: float = float("inf")
    cpu_seconds: float = float("inf")


Method = Callable[[], tuple[np.ndarray, float | None]]


def main() -> None:
    """Load texts and model, measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder; none: a BERT with random weights")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=4096, help="texts sorted together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=Path("runs/demo-corpus"))
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(arguments.threads)
    corpus = pq.read_table(arguments.corpus, columns=["text"])["text"].to_pylist()
    chosen = np.random.default_rng(0).permutation(len(corpus))[: arguments.rows]
    texts = [corpus[row] for row in chosen]
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or random_bert(
            Path(folder), corpus, hidden=arguments.hidden, layers=arguments.layers, vocabulary=20000
        )
        methods = _methods(model, texts, arguments)
        _print(_measured(methods, arguments.rounds), arguments.rows)


def _measured(methods: dict[str, Method], rounds: int) -> dict[str, Measured]:
    found = {}
    for name, method in methods.items():
        found[name] = Measured(*method())  # warming up
    for _ in range(rounds):
        for name, method in methods.items():
            start, used = time.perf_counter(), time.process_time()
            method()
            best = found[name]
            best.seconds = min(best.seconds, time.perf_counter() - start)
            best.cpu_seconds = min(best.cpu_seconds, time.process_time() - used)
    return found


def _methods(path: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, Method]:
    from sentence_transformers import SentenceTransformer

    from datamask.config.compute import Compute
    from datamask.config.inputs import Embedding
    from datamask.embedding import forward
    from datamask.embedding.chunked import read_ahead
    from datamask.embedding.pinning import folder_digest
    from datamask.embedding.sentence_transformer import Encoder, embed, load_model, tokenise

    library = SentenceTransformer(str(path), device="cpu")
    library.max_seq_length = min(library.max_seq_length or 512, arguments.max_tokens)
    width = library.get_embedding_dimension()
    pin, size = folder_digest(path), arguments.chunk
    chunks = [texts[start : start + size] for start in range(0, len(texts), size)]

    def encode(batch: int) -> tuple[np.ndarray, None]:
        return library.encode(texts, batch_size=batch, normalize_embeddings=True), None

    def stage(encoder: Encoder, settings: Embedding, most: int) -> tuple[np.ndarray, float]:
        forward.TOKENS_PER_BATCH["cpu"] = most
        parts, tokens, padded = [], 0, 0
        for made in read_ahead(chunks, lambda part: tokenise(encoder, part, settings, None, 1)):
            tokens += made.counts["tokens"]
            padded += made.counts["padded_tokens"]
            parts.append(embed(encoder, made, settings, made.windows.texts))
        return np.concatenate(parts), 1 - tokens / padded

    def staged(dtype: str, most: int) -> Method:
        settings = Embedding(
            model=str(path),
            dimension=width,
            prefix="",
            max_tokens=arguments.max_tokens,
            dtype=dtype,
        )
        compute = Compute(device="cpu")
        encoder = load_model(settings, pin, compute)
        return lambda: stage(encoder, settings, most)

    best = forward.TOKENS_PER_BATCH["cpu"]
    methods: dict[str, Method] = {
        f"encode, {batch} texts": lambda batch=batch: encode(batch)  # type: ignore[misc]
        for batch in TEXTS_PER_BATCH
    }
    methods |= {f"float32, {most} tokens": staged("float32", most) for most in TOKENS_PER_BATCH}
    methods[f"bfloat16, {best} tokens"] = staged("bfloat16", best)
    settings = Embedding(
        model=str(path), dimension=width, prefix="", max_tokens=arguments.max_tokens
    )
    for name, run in _runtimes(library, arguments.threads).items():
        encoder = Encoder(Exported(library, run))
        methods[name] = functools.partial(stage, encoder, settings, best)
    return methods


class Exported:
    """A model whose forward pass another runtime computes."""

    def __init__(self, model: Any, run: Callable[[list[np.ndarray]], np.ndarray]) -> None:
        self.model, self.run = model, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        """The embeddings of a batch, as the model gives them."""
        import torch

        arrays = [features[name].numpy() for name in INPUTS if name in features]
        return {"sentence_embedding": torch.from_numpy(self.run(arrays))}


def _runtimes(model: Any, threads: int) -> dict[str, Callable[[list[np.ndarray]], np.ndarray]]:
    """What OpenVINO and ONNX Runtime make of a model, by name; those that are installed."""
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return self.model(dict(zip(names, tensors, strict=True)))["sentence_embedding"]

    # Texts of two lengths: without padding, transformers traces no mask.
    texts = ["two texts", "of other numbers of tokens"]
    example = model.tokenizer(texts, padding=True, return_tensors="pt")
    names = [name for name in INPUTS if name in example]
    traced, tensors = Positional().eval(), tuple(example[name] for name in names)
    made: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {}
    if importlib.util.find_spec("openvino"):
        made["OpenVINO, float32"] = _openvino(traced, tensors, threads)
    if importlib.util.find_spec("onnxruntime"):
        made |= _onnxruntime(traced, tensors, names, threads)
    return made


def _openvino(
    traced: Any, tensors: tuple[Any, ...], threads: int
) -> Callable[[list[np.ndarray]], np.ndarray]:
    openvino: Any = importlib.import_module("openvino")
    frontend: Any = importlib.import_module("openvino.frontend")
    decoders: Any = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    # `openvino.convert_model` does the same, and sends telemetry.
    pytorch = frontend.FrontEndManager().load_by_framework("pytorch")
    decoder = decoders.TorchScriptPythonDecoder(traced, example_input=tensors)
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    converted = pytorch.convert(pytorch.load(decoder))
    compiled = openvino.Core().compile_model(converted, "CPU", options)
    return lambda arrays: compiled(arrays)[0].copy()


def _onnxruntime(
    traced: Any, tensors: tuple[Any, ...], names: list[str], threads: int
) -> dict[str, Callable[[list[np.ndarray]], np.ndarray]]:
    import torch

    runtime: Any = importlib.import_module("onnxruntime")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads

    def loaded(file: Path) -> Callable[[list[np.ndarray]], np.ndarray]:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0]

    with tempfile.TemporaryDirectory() as folder:
        exact, small = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        sizes = {name: {0: "texts", 1: "tokens"} for name in names} | {"vectors": {0: "texts"}}
        torch.onnx.export(
            traced,
            tensors,
            str(exact),
            input_names=names,
            output_names=["vectors"],
            dynamic_axes=sizes,
            dynamo=False,
        )
        traced.eval()  # the export leaves the model in training mode
        kind = quantization.QuantType.QInt8
        quantization.quantize_dynamic(exact, small, weight_type=kind, per_channel=True)
        return {
            "ONNX Runtime, float32": loaded(exact),
            "ONNX Runtime, int8 weights": loaded(small),
        }


def _print(found: dict[str, Measured], rows: int) -> None:
    base = [one for name, one in found.items() if name.startswith("encode")]
    seconds = min(one.seconds for one in base)
    cpu_seconds = min(one.cpu_seconds for one in base)
    print(
        "| method | padding | documents/s | to encode's best | per CPU second | the same | cosine "
        "| gain: DiSF | facility location |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
    exact = base[0].vectors
    own = _gains(exact, exact)
    for name, one in found.items():
        padding = "–" if one.padding is None else f"{one.padding:.1%}"
        cosine = np.einsum("nd,nd->n", one.vectors, base[0].vectors).min()
        print(
            f"| {name} | {padding} | {rows / one.seconds:.1f} | ×{seconds / one.seconds:.2f} "
            f"| {rows / one.cpu_seconds:.1f} | ×{cpu_seconds / one.cpu_seconds:.2f} "
            f"| {cosine:.6f} | "
            + " | ".join(
                f"{100 * gain / best:.1f} %"
                for gain, best in zip(_gains(one.vectors, exact), own, strict=True)
            )
            + " |"
        )


def _gains(vectors: np.ndarray, exact: np.ndarray) -> list[float]:
    """The gain over random subsets, by exact vectors, of what others select."""
    import datamask

    rows = len(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gains = []
    values: dict[str, Callable[[np.ndarray], float]] = {
        "disf": lambda some: correlation(exact[some].astype(np.float64)),
        "facility_location": lambda some: coverage(exact.astype(np.float64), some, rows),
    }
    for metric, value in values.items():
        chosen = datamask.select(
            unit.astype(np.float32), np.zeros(rows), ratio=0.1, metric=metric, quality_weight=0
        ).indices
        drawn = [np.random.default_rng(k).permutation(rows)[: len(chosen)] for k in range(SUBSETS)]
        gains.append(value(chosen) - float(np.mean([value(some) for some in drawn])))
    return gains


if __name__ == "__main__":
    main()

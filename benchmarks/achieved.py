"""What the learner makes of the hardware: products, rates and memory of its ranking."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.inputs import WIDTHS


@contextmanager
def counted_products() -> Iterator[dict[str, float]]:
    """CPU seconds of the ranking and of the products that guide it, their FLOP, bytes, memory."""
    from datamask.learning import learner
    from datamask.learning.data import ShardData

    found = {"ranking": 0.0, "seconds": 0.0, "operations": 0.0, "bytes": 0.0, "memory": 0.0}
    rank, multiply, read = learner.learn, ShardData.product, ShardData.blocks

    def timed(*given: Any) -> Any:
        found.update(dict.fromkeys(found, 0.0))
        start = time.process_time()
        with largest_memory() as memory:
            ranking = rank(*given)
        found["ranking"], found["memory"] = time.process_time() - start, memory[0]
        return ranking

    def reading(data: ShardData, *given: Any) -> Iterator[Any]:
        for part, features in read(data, *given):
            if not found["ranking"]:
                found["bytes"] += features.numel() * data.features.itemsize
            yield part, features

    def counted(data: ShardData, one: Any, other: Any) -> Any:
        start = time.process_time()
        product = multiply(data, one, other)
        if not found["ranking"]:
            found["seconds"] += time.process_time() - start
            found["operations"] += 2 * one.shape[0] * one.shape[1] * other.shape[1]
        return product

    with (
        patch.object(learner, "learn", timed),
        patch.object(ShardData, "product", counted),
        patch.object(ShardData, "blocks", reading),
    ):
        yield found


@contextmanager
def largest_memory() -> Iterator[list[int]]:
    """Most bytes of memory that are taken meanwhile, without mapped files (Linux; else 0)."""
    status = Path("/proc/self/status")

    def taken() -> int:
        lines = status.read_text().splitlines() if status.exists() else []
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before, found, is_over = taken(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            found[0] = max(found[0], taken() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def ceilings(device: str) -> str:
    """Peak rates of the device for matrix products and copies, measured now."""
    import torch

    def seconds(work: Any) -> float:
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / 5

    size = 8192 if device.startswith("cuda") else 2048
    found = []
    for kind in (torch.float32, torch.bfloat16):
        one = torch.randn(size, size, device=device).to(kind)
        took = seconds(lambda one=one: one @ one)
        found.append(f"{2 * size**3 / took / 1e12:.2f} TFLOP/s {str(kind).removeprefix('torch.')}")
    block = torch.empty(2**28, dtype=torch.uint8, device=device)
    took = seconds(lambda: block.clone())
    return ", ".join([*found, f"{2 * len(block) / took / 1e9:.0f} GB/s"])


def achieved(row: dict[str, Any]) -> str:
    """Products of `expected` on DiSF that guide its ranking, on a CPU: number, share, rate."""
    products = row.get("products")
    if not products or not row["method"].startswith("expected") or row["metric"] != "disf":
        return ""
    number = products["operations"] / (2 * row["rows"] * WIDTHS[row["data"]] ** 2)
    share = products["seconds"] / products["ranking"]
    rate = products["operations"] / products["seconds"] / 1e9
    shown = f"{number:.1f} products, {share:.0%} of {products['ranking']:.1f} s, {rate:.0f} GFLOP/s"
    if "bytes" in products:
        passes = products["bytes"] / (2 * row["rows"] * WIDTHS[row["data"]])
        shown += f", {passes:.1f} passes, {products['bytes'] / 1e9 / products['ranking']:.1f} GB/s"
        shown += f", {products['memory'] / 2**20:.0f} MiB"
    return shown

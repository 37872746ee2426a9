"""Stage `training`: train one language model on an arm, and measure its bits for held-out text.

Models of different arms with the same seed begin with the same weights, draw documents by the same
hash, and take as many steps. The weights that are scored are the mean over the last fifth of the
steps, which removes most of the noise between seeds (docs/log.md#evaluation).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors.torch import save
from torch import Tensor

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.embedding.forward import device_name
from datamask.errors import DeviceMemoryError
from datamask.evaluation.arms import drawn_tokens
from datamask.evaluation.models import make_model, preset
from datamask.evaluation.units import Trial, trials_of
from datamask.objectives.threads import one_thread
from datamask.runs import schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.files import replace_file
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.storage.unchanged import content_digest, pinned

logger = logging.getLogger(__name__)

# Chosen by experiment: docs/log.md#evaluation.
WARM_UP = 0.05
LAST_RATE = 0.1
AVERAGED = 0.2
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
LARGEST_GRADIENT = 1.0
OTHERS_RATE = 3.0
POINTS = 50
BYTES_PER_LOGIT = 12
HOPELESS = 0.5
"""Points of a curve; bytes that a step needs for each logit; seconds between lines of the log; and
bits per token above an untrained model's at which a model has diverged."""


@one_thread()  # Gradients round differently with each number.
def train(run: Run, unit: int, compute: Compute) -> Receipt:
    """Train a model, and write its weights and the bits that it needs for each held-out text.

    The receipt's metrics: `steps`, `tokens` (seen, repetitions included), `parameters`, `curve`
    (tokens seen, and mean bits per token since the point before), and `diverged`, the reason why
    the model was given up, or null. A model that diverged has no rows.

    Raises:
        DeviceMemoryError: not even one sequence fits on the device.
        SettingsError: the model cannot be made.
    """
    trial, evaluation = trials_of(run)[unit], run.settings.evaluation
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    name = run.unit_label("training", unit)
    sequences = _sequences(run, trial, separator)
    device = torch.device(device_name(compute))
    how = (run.fingerprint("training", unit), [device.type, compute.working_set_bytes])
    checkpoints = Checkpoints(run, "training", unit, how)
    with model_as_planned(run):
        training = _Training(evaluation, trial, separator + 1, run.settings.seed, device, compute)
    training.resume(checkpoints)
    try:
        for step in training.steps(sequences):
            if checkpoints.due():
                checkpoints.save("state", training.state())
            bits_now = f", {training.curve[-1][1]:.2f} bits per token" if training.curve else ""
            advance(step, training.num_steps(sequences), "steps", bits_now)
        diverged = training.problem()
        held_out = run.read_output("held_out", columns=["set", "id", "tokens", "prefix"])
        bits, model = None, training.averaged_model()
        if not diverged:
            context = training.size.context
            bits = score(model, held_out, separator, context, compute)
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"training: {name}: not enough device memory; lower compute.working_set_bytes"
        ) from error
    _keep(run, unit, model)
    table = schemas.TRAINING.empty_table()
    if bits is not None:
        columns = [held_out["set"], held_out["id"], pa.array(bits)]
        table = pa.Table.from_arrays(columns, schema=schemas.TRAINING)
    metrics = {
        "steps": training.step,
        "tokens": training.step * (sequences.shape[1] - 1) * preset(evaluation).batch,
        "parameters": sum(weight.numel() for weight in training.weights),
        "curve": [[tokens, round(bits, 6)] for tokens, bits in training.curve],
        "diverged": diverged,
    }
    return write_output(run, "training", unit, schemas.TRAINING, [table], metrics)


def model_as_planned(run: Run) -> contextlib.AbstractContextManager[Any]:
    """While a configuration of the user's own is read, refuse one that changed since planning."""
    planned = run.pinned_revisions.get("training:model")
    path = f"{run.settings.evaluation.model}/config.json"
    return pinned(path, planned, content_digest) if planned else contextlib.nullcontext()


def _keep(run: Run, unit: int, model: torch.nn.Module) -> None:
    """Write the weights of a trained model beside its bits."""
    weights = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
    with replace_file(run.root / run.beside("training", unit)[0], run.storage) as temporary:
        temporary.write_bytes(save(weights))


def _sequences(run: Run, trial: Trial, separator: int) -> npt.NDArray[np.int64]:
    """Return token sequences, one longer than the context: input, and the same shifted by one."""
    stream = drawn_tokens(run, trial.arm, trial.seed, separator)
    width = min(preset(run.settings.evaluation).context, len(stream) - 1)
    number = (len(stream) - 1) // width
    positions = np.arange(number)[:, None] * width + np.arange(width + 1)
    return np.asarray(stream[positions])


class _Training:
    """A model in training: weights, optimiser, average, curve and step."""

    def __init__(
        self,
        evaluation: Evaluation,
        trial: Trial,
        vocabulary: int,
        seed: int,
        device: torch.device,
        compute: Compute,
    ) -> None:
        self.size = preset(evaluation)
        self.epochs = evaluation.epochs
        self.rate = trial.rate
        self.seeds = (seed, trial.seed)
        self.model = make_model(evaluation, vocabulary, shard_seed(seed, trial.seed)).to(device)
        self.weights: list[Tensor] = list(self.model.parameters())
        self.average = [torch.zeros_like(weight) for weight in self.weights]
        self.averaged = self.step = 0
        self.curve: list[tuple[int, float]] = [(0, math.log2(vocabulary))]
        self.since = (0.0, 0)
        logits = self.size.context * vocabulary
        self.at_once = max(1, compute.working_set_bytes // (logits * BYTES_PER_LOGIT))
        self.optimizers = _optimizers(self.model)
        state_of = {
            weight: optimizer.state[weight]
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for weight in group["params"]
        }
        self.states = [state_of[weight] for weight in self.weights]

    def num_steps(self, sequences: npt.NDArray[np.int64]) -> int:
        """Return the steps of the whole training."""
        return self.epochs * max(1, len(sequences) // self.size.batch)

    def steps(self, sequences: npt.NDArray[np.int64]) -> Iterator[int]:
        """Train; yield after each step. Training ends early if the loss is not a number."""
        total = self.num_steps(sequences)
        per_epoch, batch = total // self.epochs, self.size.batch
        while self.step < total and math.isfinite(self.curve[-1][1]):
            epoch, at = divmod(self.step, per_epoch)
            order = np.random.Generator(np.random.PCG64([*self.seeds, epoch]))
            chosen = order.permutation(len(sequences))[at * batch : (at + 1) * batch]
            bits = self._step(torch.from_numpy(sequences[chosen]), self.step / total)
            self.step += 1
            if self.step > (1 - AVERAGED) * total:
                self.averaged += 1
                for mean, weight in zip(self.average, self.weights, strict=True):
                    mean.lerp_(weight.detach(), 1 / self.averaged)
            summed, number = self.since[0] + bits, self.since[1] + 1
            self.since = (summed, number)
            if self.step * POINTS // total > (self.step - 1) * POINTS // total:
                seen = self.step * batch * (sequences.shape[1] - 1)
                self.curve.append((seen, summed / number))
                self.since = (0.0, 0)
            yield self.step

    def _step(self, sequences: Tensor, progress: float) -> float:
        """Take one step; return the mean bits per token before it."""
        rising = min(1.0, (progress + 1e-9) / WARM_UP)
        falling = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * progress)) / 2
        for optimizer, factor in zip(self.optimizers, (1.0, OTHERS_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = self.rate * factor * rising * falling
        nats = 0.0
        for some in torch.split(sequences, self.at_once):
            loss = token_nats(self.model, some).sum() / (len(sequences) * (some.shape[1] - 1))
            loss.backward()  # type: ignore[no-untyped-call]
            nats += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.weights, LARGEST_GRADIENT)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return nats / math.log(2)

    def problem(self) -> str | None:
        """Say why the model cannot be compared; None if it can."""
        last = self.curve[-1][1]
        if math.isfinite(last) and last < self.curve[0][1] + HOPELESS:
            return None
        return f"{last:.3g} bits per token after step {self.step}, {self.curve[0][1]:.3g} at first"

    def averaged_model(self) -> torch.nn.Module:
        """Return the model with the averaged weights."""
        with torch.no_grad():
            for mean, weight in zip(self.average, self.weights, strict=True):
                weight.copy_(mean)
        return self.model

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that determines the steps to come, as arrays."""
        arrays = {}
        each = zip(self.weights, self.average, self.states, strict=True)
        for number, (weight, mean, state) in enumerate(each):
            for key, value in {"weight": weight.detach(), "average": mean, **state}.items():
                arrays[f"{number}-{key}"] = torch.as_tensor(value).cpu().numpy()
        progress = np.array([self.step, self.averaged, *self.since])
        return {**arrays, "progress": progress, "curve": np.array(self.curve)}

    def resume(self, checkpoints: Checkpoints) -> None:
        """Go on from a checkpoint, if there is one."""
        arrays = checkpoints.load("state")
        if arrays is None:
            return
        progress, curve = arrays.pop("progress"), arrays.pop("curve")
        device = self.weights[0].device
        with torch.no_grad():
            for name, value in arrays.items():
                number, _, key = name.partition("-")
                at, tensor = int(number), torch.from_numpy(value)
                if key == "weight":
                    self.weights[at].copy_(tensor)
                elif key == "average":
                    self.average[at].copy_(tensor)
                else:
                    # Optimisers keep numbers of steps on the host.
                    self.states[at][key] = tensor.to(device) if tensor.ndim else tensor
        step, averaged, bits, sequences = progress.tolist()
        self.step, self.averaged, self.since = int(step), int(averaged), (bits, int(sequences))
        self.curve = [(int(tokens), bits) for tokens, bits in curve.tolist()]
        logger.info("training: resumed after step %d", self.step)


def _optimizers(model: Any) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Make Muon for the matrices between layers, AdamW for embeddings and vectors."""
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    tables.append(model.get_output_embeddings() or tables[0])
    of_tokens = {id(module.weight) for module in tables}
    weights = list(model.parameters())
    hidden = [weight for weight in weights if weight.ndim == 2 and id(weight) not in of_tokens]
    others = [weight for weight in weights if weight.ndim != 2 or id(weight) in of_tokens]
    muon = torch.optim.Muon(hidden, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return muon, torch.optim.AdamW(others, betas=BETAS, weight_decay=0.0)


def token_nats(model: torch.nn.Module, sequences: Tensor) -> Tensor:
    """Return the negative log likelihood of tokens after the first: [sequences, width - 1]."""
    device = next(model.parameters()).device
    sequences = sequences.to(device)
    fast: Any = contextlib.nullcontext()
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        fast = torch.autocast("cuda", torch.bfloat16)
    with fast:
        logits = model(input_ids=sequences[:, :-1]).logits
    flat = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), sequences[:, 1:].flatten(), reduction="none"
    )
    return flat.view(len(sequences), -1)


def score(
    model: torch.nn.Module, held_out: pa.Table, separator: int, context: int, compute: Compute
) -> npt.NDArray[np.float64]:
    """Return the bits that a model needs for the tokens of each text after its prefix.

    A text is read as in training: in sequences of *context* tokens. Each token is predicted from
    the earlier ones of its sequence, and the first from the token before it.

    Args:
        model: predicts the next token.
        held_out: columns `tokens` and `prefix`.
        separator: the token before each text.
        context: tokens of a sequence.
        compute: gives the memory to use.
    """
    texts = [[separator, *tokens] for tokens in held_out["tokens"].to_pylist()]
    prefixes = held_out["prefix"].to_pylist()
    bits = np.zeros(len(texts))
    sequences = [
        (index, start, text[start : start + context + 1])
        for index, text in enumerate(texts)
        for start in range(0, len(text) - 1, context)
    ]
    sequences.sort(key=lambda sequence: -len(sequence[2]))
    model.eval()
    while sequences:
        width = len(sequences[0][2])
        size = max(1, compute.working_set_bytes // (width * (separator + 1) * BYTES_PER_LOGIT))
        some, sequences = sequences[:size], sequences[size:]
        batch = torch.full((len(some), width), separator)
        for row, (_, _, tokens) in enumerate(some):
            batch[row, : len(tokens)] = torch.tensor(tokens)
        with torch.inference_mode():
            nats = token_nats(model, batch).double().cpu().numpy()
        for row, (index, start, tokens) in enumerate(some):
            scored = nats[row, max(0, prefixes[index] - start) : len(tokens) - 1]
            bits[index] += scored.sum() / math.log(2)
    return bits

"""The language models of an evaluation: presets and configurations of the user's own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from datamask.config.evaluation import Evaluation
from datamask.errors import SettingsError, one_line

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's size, and a budget that suits it (docs/log.md#evaluation).

    Args:
        layers, width, heads: of the decoder.
        vocabulary: of the tokenizer that is trained for it.
        context: tokens in a training sequence.
        batch: sequences in a step.
        tokens: default of `evaluation.tokens`.
        learning_rates: default of `evaluation.learning_rates`.
        per_second: tokens of training on one core (docs/evaluation.md; estimated from size for
            30M).
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    batch: int
    tokens: int
    learning_rates: tuple[float, ...]
    per_second: float

    @property
    def weight_bytes(self) -> int:
        """Size of a model's file, in float32; input and output share their embeddings."""
        of_layer = self.width * (4 * self.width + 3 * (self.width * 8 // 3) + 2)
        return 4 * ((self.vocabulary + 2) * self.width + self.layers * of_layer)


PRESETS = {
    "tiny": Preset(2, 64, 2, 2048, 64, 8, 400_000, (4e-3, 8e-3), 16_000),
    "15M": Preset(8, 320, 5, 16_384, 1024, 64, 300_000_000, (1e-3, 2e-3), 550),
    "30M": Preset(10, 448, 7, 16_384, 1024, 64, 600_000_000, (7e-4, 1.5e-3), 275),
}


def preset(evaluation: Evaluation) -> Preset:
    """Return the preset of the settings; the user's own configuration uses the preset of 15M."""
    return PRESETS.get(evaluation.model, PRESETS["15M"])


def budget_tokens(evaluation: Evaluation) -> int:
    """Return the tokens of text that train every model."""
    return evaluation.tokens or preset(evaluation).tokens


def learning_rates(evaluation: Evaluation) -> tuple[float, ...]:
    """Return the learning rates that every arm is trained with."""
    return evaluation.learning_rates or preset(evaluation).learning_rates


def num_models(evaluation: Evaluation) -> int:
    """Return the number of models that are trained: for each arm, seed and learning rate."""
    return len(evaluation.arms) * evaluation.seeds * len(learning_rates(evaluation))


def weight_bytes(evaluation: Evaluation) -> int:
    """Return the size of all trained models' files; 0 for a configuration of the user's own."""
    own = PRESETS.get(evaluation.model)
    return num_models(evaluation) * own.weight_bytes if own else 0


def training_explained(evaluation: Evaluation) -> list[str]:
    """Say to people how much is trained and kept, and how long that takes without a GPU."""
    if not evaluation.arms:
        return []
    arms, seeds, rates = len(evaluation.arms), evaluation.seeds, len(learning_rates(evaluation))
    size, models = preset(evaluation), num_models(evaluation)
    of_all = weight_bytes(evaluation)
    kept = f"{decimal(of_all // models)} each, {decimal(of_all)} in all"
    kept = kept if of_all else "4 bytes for each parameter"
    times = f", {evaluation.epochs} times" if evaluation.epochs > 1 else ""
    lines = [
        f"Evaluation trains {models} models ({arms} arms, {seeds} seeds, {rates} "
        f"learning rates) on {budget_tokens(evaluation):,d} tokens each{times}; compute.workers "
        f"says how many at once. Their weights are kept in RUN/evaluation: {kept}."
    ]
    seconds = models * budget_tokens(evaluation) * evaluation.epochs / size.per_second
    text = f"On one core without a GPU, that is about {duration(seconds)}."
    if evaluation.model != "tiny":
        text += " Model `tiny` takes a minute for a million tokens, and decides little "
        text += "(evaluation.model)."
    return [*lines, text]


def duration(seconds: float) -> str:
    """Write seconds in words, in the largest fitting unit."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return "a minute or two"


def configuration(evaluation: Evaluation, vocabulary: int) -> Any:
    """Return the model's configuration (transformers).

    Args:
        evaluation: names the model.
        vocabulary: number of tokens, including the one between documents.

    Raises:
        SettingsError: it is neither a preset nor a folder with the configuration of a decoder.
    """
    from transformers import AutoConfig, LlamaConfig

    if evaluation.model in PRESETS:
        size = PRESETS[evaluation.model]
        return LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=size.width,
            intermediate_size=size.width * 8 // 3,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            max_position_embeddings=size.context,
            tie_word_embeddings=True,
            use_cache=False,
        )
    try:
        if not (Path(evaluation.model) / "config.json").is_file():
            raise ValueError("no such folder with a config.json")
        config = AutoConfig.from_pretrained(evaluation.model, trust_remote_code=False)
    except Exception as error:  # The library raises errors of many kinds.
        raise SettingsError(
            f"evaluation.model: {evaluation.model}: {one_line(error)}; use {', '.join(PRESETS)} or "
            "a folder with the configuration of a transformers decoder"
        ) from None
    config.vocab_size, config.use_cache = vocabulary, False
    return config


_one_at_a_time = threading.Lock()


def make_model(evaluation: Evaluation, vocabulary: int, seed: int) -> torch.nn.Module:
    """Make a model with weights drawn by *seed*. Errors are as in `configuration`."""
    import torch

    # The library draws weights with the generator of the process, and threads that import it at the
    # same time see half of it.
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        try:
            make: Any = AutoModelForCausalLM.from_config
            model: torch.nn.Module = make(
                configuration(evaluation, vocabulary), dtype=torch.float32
            )
        except (ValueError, KeyError) as error:
            raise SettingsError(
                f"evaluation.model: {evaluation.model} is not a decoder ({one_line(error)}); use "
                f"{', '.join(PRESETS)} or a folder with the configuration of one"
            ) from None
    return model

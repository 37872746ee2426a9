"""Write the trained models of an evaluation as folders that transformers and others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datamask.evaluation.models import make_model
from datamask.evaluation.texts import read_tokenizer
from datamask.evaluation.training import model_as_planned
from datamask.evaluation.units import trials_of
from datamask.runs.run import Run

SEPARATOR = "<|document|>"
"""Name of the token that stands before each text, unless the tokenizer has such a token."""


def export_models(run: Run, folder: Path) -> list[Path]:
    """Write a folder for each model that did not diverge, named by arm, seed and learning rate.

    Each has config.json, model.safetensors and a tokenizer that puts the separator of documents
    before a text, as in training. No code of this package is needed to load them.
    """
    from safetensors.torch import load_file
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    evaluation, vocabulary = run.settings.evaluation, run.receipt("tokenizer").metrics["vocabulary"]
    tokenizer = read_tokenizer(run)
    separator = SEPARATOR
    while tokenizer.token_to_id(separator) is not None:
        separator = f"{separator[:-2]}_|>"
    tokenizer.add_special_tokens([separator])
    tokenizer.encode_special_tokens = False
    tokenizer.post_processor = TemplateProcessing(
        single=f"{separator} $A", special_tokens=[(separator, vocabulary)]
    )
    with model_as_planned(run):
        model: Any = make_model(evaluation, vocabulary + 1, seed=0)
    tokenizer_type: Any = PreTrainedTokenizerFast
    model.config.use_cache, written = True, []
    for unit, _ in enumerate(trials_of(run)):
        if run.receipt("training", unit).metrics["diverged"]:
            continue
        path = folder / Path(run.name("training", unit)).stem
        model.load_state_dict(load_file(run.fetch(run.beside("training", unit)[0])), strict=False)
        model.save_pretrained(path)
        names = {"bos_token": separator, "eos_token": separator, "pad_token": separator}
        tokenizer_type(tokenizer_object=tokenizer, **names).save_pretrained(path)
        written.append(path)
    return written

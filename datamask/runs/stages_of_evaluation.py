"""The stages that compare selections by training, as in `runs.stages`."""

from __future__ import annotations

from datamask.runs import stage_settings as of
from datamask.runs.stage import Stage

EVALUATION = (
    Stage(
        "tokenizer",
        2,
        "datamask.evaluation.texts:make_tokenizer",
        settings=of.reads_texts("evaluation.model", "seed"),
        after_all=("quality",),
        file="evaluation/tokenizer.parquet",
        where=of.evaluates,
    ),
    Stage(
        "held_out",
        8,
        "datamask.evaluation.texts:encode_held_out",
        settings=of.held_out,
        after_all=("quality", "tokenizer"),
        more_inputs=lambda s: ("topic_model",) if s.evaluation.hold_out_by == "topic" else (),
        pinned_with=("example_models",),
        file="evaluation/held_out.parquet",
        where=of.evaluates,
    ),
    Stage(
        "arms",
        5,
        "datamask.evaluation.arms:make_arm",
        "unit",
        settings=lambda s: s.evaluation.tokens,
        after_all=("quality", "tokenizer", "held_out"),
        where=of.evaluates,
        units="datamask.evaluation.units:arm_units",
    ),
    Stage(
        "training",
        4,
        "datamask.evaluation.training:train",
        "unit",
        settings=lambda s: s.evaluation.model_dump(
            mode="json", include={"model", "tokens", "epochs"}
        ),
        on_device=True,
        after_all=("tokenizer", "held_out"),
        where=of.evaluates,
        units="datamask.evaluation.units:training_units",
        before="datamask.evaluation.arms:check_tokens",
    ),
    Stage(
        "evaluation",
        7,
        "datamask.evaluation.results:evaluate",
        settings=of.reads(
            *("evaluation.arms.name", "evaluation.tokens", "evaluation.epochs"),
            *("evaluation.learning_rates", "evaluation.seeds"),
        ),
        after_all=("arms", "training"),
        file="evaluation.parquet",
        where=of.evaluates,
    ),
)
"""In the order in which they run."""

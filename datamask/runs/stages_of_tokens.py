"""The stages that hand tokens to trainers, as in `runs.stages`."""

from __future__ import annotations

from datamask.config.settings import Settings
from datamask.runs import stage_settings as of
from datamask.runs.stage import Stage


def _makes_tokens(settings: Settings) -> bool:
    return settings.tokens is not None


TOKENS = (
    Stage(
        "tokenised",
        2,
        "datamask.tokens.tokenise:tokenise",
        "unit",
        settings=of.reads("tokens.end_of_document", "source.columns.text", "source.id_column"),
        where=_makes_tokens,
        units="datamask.tokens.tokenise:units",
    ),
    Stage(
        "order",
        2,
        "datamask.tokens.order:put_in_order",
        settings=of.reads("tokens.order", "tokens.phases", "seed", "selection.training_tokens"),
        after_all=("repeats", "documents", "tokenised"),
        file="tokens/order.parquet",
        where=_makes_tokens,
    ),
    Stage(
        "tokens",
        2,
        "datamask.tokens.files:write_tokens",
        "unit",
        after_all=("tokenised", "order"),
        suffix=".json",
        where=_makes_tokens,
        units="datamask.tokens.files:units",
    ),
)
"""In the order in which they run."""

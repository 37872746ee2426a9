"""`datamask embed`: vectors of other texts."""

from __future__ import annotations

from pathlib import Path

import click

from datamask.cli.options import config_option, set_option


@click.command("embed")
@click.argument("texts")
@click.argument("vectors", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--column", default="text", show_default=True, help="Column of Parquet and JSON lines."
)
@config_option
@set_option
def embed_command(
    texts: str, vectors: Path, column: str, config: Path | None, overrides: tuple[str, ...]
) -> None:
    """Embed TEXTS and write VECTORS (.npy), for the objective `target`.

    TEXTS is a file, folder, glob or URL of Parquet, JSON lines or plain text (one text per file).
    The encoder is that of the settings, so the vectors are comparable with those of such a run.

    \b
    datamask embed benchmark.jsonl target.npy --config my.yaml
    """  # noqa: D301 - click wants the character itself
    import numpy as np

    from datamask.config.loading import load_settings
    from datamask.embedding.loose_texts import embed_texts, read_texts
    from datamask.errors import SettingsError
    from datamask.runs.files import replace_file

    if vectors.suffix != ".npy":
        raise SettingsError(f"{vectors}: name a file that ends in .npy")
    settings, compute = load_settings(config, overrides)
    found = embed_texts(read_texts(texts, column), settings.embedding, compute)
    with replace_file(vectors) as temporary, temporary.open("wb") as file:
        np.save(file, found)
    click.echo(f"{vectors}: {len(found)} vectors of {found.shape[1]} numbers")

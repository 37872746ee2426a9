"""`datamask embed` and `datamask distil`: vectors of other texts, and a static embedder."""

from __future__ import annotations

from pathlib import Path

import click

from datamask.cli.options import config_option, set_option

column_option = click.option(
    "--column", default="text", show_default=True, help="Column of Parquet and JSON lines."
)


@click.command("embed")
@click.argument("texts")
@click.argument("vectors", type=click.Path(dir_okay=False, path_type=Path))
@column_option
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


@click.command("distil")
@click.argument("model")
@click.argument("texts")
@click.argument("folder", type=click.Path(path_type=Path))
@column_option
@click.option("--dimension", default=256, show_default=True, help="Width of its vectors.")
def distil_command(model: str, texts: str, folder: Path, column: str, dimension: int) -> None:
    """Distil a static embedder from MODEL into FOLDER, for `embedding.model`.

    TEXTS is your corpus (file, folder, glob or URL, as for `datamask embed`), of which a sample is
    read. The static model embeds much faster on a CPU than MODEL, and ignores word order.

    \b
    datamask distil sentence-transformers/all-MiniLM-L6-v2 /data/fineweb static-MiniLM
    """  # noqa: D301 - click wants the character itself
    from datamask.embedding.loose_texts import read_texts
    from datamask.embedding.static import MOST_TEXTS, distil

    distil(model, read_texts(texts, column, MOST_TEXTS), folder, dimension)
    click.echo(
        f"{folder}: static model; use --set embedding.model={folder} "
        f"--set embedding.dimension={dimension}"
    )

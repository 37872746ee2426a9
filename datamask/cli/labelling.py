"""`datamask label`: labels of a sample of texts, by a model or by the user, for a score."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from datamask.cli.options import output_option, root_argument
from datamask.cli.progress import shown_progress
from datamask.cli.tables import print_rows
from datamask.config.compute import Compute
from datamask.config.loading import load_rubric
from datamask.config.rubric import Rubric
from datamask.errors import SettingsError
from datamask.quality.labelling import Labels, sample, settings_of, write_labels
from datamask.runs.in_progress import working
from datamask.runs.opening import open_run
from datamask.storage.file_locks import held
from datamask.storage.location import Root

NUMBERS = {"endpoint": 500, "user": 200}
"""Texts to label, unless --texts says how many."""


@click.command()
@root_argument
@click.option(
    "--rubric",
    "rubric_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with questions, model and bounds; `datamask settings rubric` lists its keys.",
)
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible endpoint, up to /v1.")
@click.option(
    "--texts", type=click.IntRange(1, 50_000), help="Number of texts; default 500, by hand 200."
)
@output_option(
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of labels and journal; default RUN/labels/NAME.",
)
def label(
    root: Root,
    rubric_file: Path | None,
    endpoint: str | None,
    texts: int | None,
    output: Path | None,
) -> None:
    """Label texts of RUN for a score of your own: by a model, or by you in this terminal.

    The texts are spread over the present quality and the domains. Prints the settings that make a
    score of the labels. The same command resumes.

    \b
    datamask label runs/mine --rubric rubric.yaml --endpoint http://localhost:8000/v1
    datamask label runs/mine                        200 texts, one key each
    """  # noqa: D301 - click wants the character itself
    rubric, run = load_rubric(rubric_file), open_run(root)
    name = rubric_file.stem if rubric_file else "labels"
    if output is None and run.address != str(run.root):
        raise SettingsError(f"{run.address}: name a local folder for the labels: -o FOLDER")
    folder = output or run.root / "labels" / (name if endpoint else f"{name}-by-hand")
    folder.mkdir(parents=True, exist_ok=True)
    number = texts or NUMBERS["endpoint" if endpoint else "user"]
    with held(folder / "lock", False, str(folder)):
        drawn = sample(run, number, rubric.characters, Compute())
        if endpoint is None:
            raise SettingsError("not yet")
        from datamask.quality.asking import Endpoint

        asked = Endpoint(endpoint, rubric, folder / "journal.jsonl")
        with shown_progress(), working("label"):
            labels = asked.label(drawn)
        _finish(folder, rubric, labels)
    click.echo(
        f"{len(labels):,d} of {len(drawn):,d} texts labelled, {asked.without_grades:,d} without "
        f"valid grades; {asked.requests:,d} requests, {asked.tokens:,d} tokens in all"
    )
    if asked.error:
        raise asked.error


def _finish(folder: Path, rubric: Rubric, labels: Labels) -> None:
    """Write the labels, and print how often each grade was given, and the settings."""
    path = folder.absolute() / "labels.jsonl"
    write_labels(path, labels)
    rows = []
    for axis in rubric.axes:
        counts = sorted(Counter(grades[axis.name] for grades in labels.values()).items())
        rows.append((axis.name, ", ".join(f"{number} of {grade}" for grade, number in counts)))
    print_rows(("axis", "labels"), rows, "table")
    click.echo(f"\n{settings_of(path, labels, rubric)}\n")

"""`datamask label`: label a sample of texts, by a model or by the user, for a score."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import termios
import textwrap
import tty
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import click

from datamask.cli.options import output_option, root_argument
from datamask.cli.progress import shown_progress
from datamask.cli.terminal import print_rows
from datamask.config.compute import Compute
from datamask.config.loading import load_rubric
from datamask.config.rubric import Rubric
from datamask.errors import SettingsError
from datamask.quality.labelling import (
    REFIT_AFTER,
    Labels,
    Sampled,
    append,
    by_disagreement,
    read_journal,
    sample,
    settings_of,
    write_labels,
)
from datamask.runs.in_progress import working
from datamask.runs.opening import open_run
from datamask.storage.file_locks import held
from datamask.storage.local import Storage
from datamask.storage.location import Root
from datamask.storage.names import inside

SKIP, UNDO, QUIT = "s", "u", "q"
"""Keys of the user, besides digits."""

NUMBERS = {"endpoint": 500, "user": 200}
"""Number of texts to label, unless --texts is given."""


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
    """Label texts of RUN for a score of your own.

    A model labels them, or you do in this terminal. The texts are spread over the present quality
    and the domains. Prints the settings that make a score of the labels. The same command resumes.

    \b
    datamask label runs/mine --rubric rubric.yaml --endpoint http://localhost:8000/v1
    datamask label runs/mine                        200 texts, one key each
    """  # noqa: D301 - click wants the character itself
    rubric, run = load_rubric(rubric_file), open_run(root)
    name = rubric_file.stem if rubric_file else "labels"
    if output is None and run.address != str(run.root):
        raise SettingsError(f"{run.address}: name a local folder for the labels: -o FOLDER")
    folder = output or inside(run.root, f"labels/{name if endpoint else f'{name}-by-hand'}")
    storage = run.storage if output is None else None
    folder.mkdir(parents=True, exist_ok=True)
    if endpoint is None and not sys.stdin.isatty():
        raise SettingsError("no terminal to ask you in; name an --endpoint")
    number = texts or NUMBERS["endpoint" if endpoint else "user"]
    with held(inside(folder, "lock"), False, str(folder)):
        journal = inside(folder, "journal.jsonl")
        known = list(dict.fromkeys(line["id"] for line in read_journal(journal)))
        drawn = sample(run, max(number, len(known)), rubric.characters, Compute(), known)
        if endpoint is None:
            with contextlib.closing(_keys()) as keys:
                labels = _labels_by_hand(rubric, drawn, journal, keys)
            _finish(folder, rubric, labels, storage)
            click.echo(f"{len(labels):,d} of {len(drawn):,d} texts labelled")
            return
        from datamask.quality.asking import Endpoint

        asked = Endpoint(endpoint, rubric, journal)
        with shown_progress(), working("label"):
            labels = asked.label(drawn)
        _finish(folder, rubric, labels, storage)
    if asked.is_interrupted:
        raise KeyboardInterrupt
    click.echo(
        f"{len(labels):,d} of {len(drawn):,d} texts labelled, {asked.without_grades:,d} without "
        f"valid grades; {asked.requests:,d} requests, {asked.tokens:,d} tokens in all"
    )
    if asked.error:
        raise asked.error


def _labels_by_hand(
    rubric: Rubric, texts: Sequence[Sampled], journal: Path, keys: Iterator[str]
) -> Labels:
    """Ask the user for a key for each text, until all have one or the user quits."""
    if len(rubric.axes) > 1 or rubric.axes[0].highest > 9:
        raise SettingsError("by hand, a rubric has one axis, up to 9: a key for each text")
    [axis] = rubric.axes
    by_id, given = {sampled.id: sampled for sampled in texts}, dict[str, str]()
    for line in read_journal(journal):
        if line["question"] == axis.question and line["id"] in by_id:
            _press(given, line["id"], line["key"])
    digits = [str(grade) for grade in range(axis.lowest, axis.highest + 1)]
    queue, fitted = list(texts), -1
    while len(given) < len(texts):
        labels = {key: int(pressed) for key, pressed in given.items() if pressed != SKIP}
        if len(labels) // REFIT_AFTER != fitted:
            queue, fitted = by_disagreement(texts, labels), len(labels) // REFIT_AFTER
        asked = next(sampled.id for sampled in queue if sampled.id not in given)
        _show(by_id[asked].text, f"{len(given) + 1:,} of {len(texts):,}  {axis.question}")
        click.echo(f"{digits[0]}-{digits[-1]}, {SKIP} skip, {UNDO} undo, {QUIT} quit: ", nl=False)
        pressed = next(key for key in keys if key in (*digits, SKIP, UNDO, QUIT))
        click.echo(pressed)
        if pressed == QUIT:
            break
        if pressed == UNDO:
            if not given:
                continue
            asked = next(reversed(given))
            queue.insert(0, by_id[asked])
        append(journal, {"id": asked, "question": axis.question, "key": pressed})
        _press(given, asked, pressed)
    return {key: {axis.name: int(pressed)} for key, pressed in given.items() if pressed != SKIP}


def _press(given: dict[str, str], asked: str, pressed: str) -> None:
    """Record the key pressed for a text; undo erases it."""
    given[asked] = pressed
    if pressed == UNDO:
        del given[asked]


def _keys() -> Generator[str, None, None]:
    """Yield the characters that the user types, without Enter; the end of the input quits.

    Keys typed ahead are kept, which `click.getchar` would drop.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSANOW)
        while typed := os.read(terminal, 1024).decode(errors="replace"):
            yield from "" if typed.startswith("\x1b") else typed  # such as an arrow
        yield QUIT
    except KeyboardInterrupt:
        yield QUIT
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _show(text: str, title: str) -> None:
    """Print the beginning of a text that fits in the terminal, each line after a bar.

    The bar keeps a text from looking like the question.
    """
    wide, high = shutil.get_terminal_size()
    shown = [part for line in text.splitlines() for part in textwrap.wrap(line, wide - 4)]
    click.echo("\n" + "\n".join(f"  | {line}" for line in shown[: max(high - 5, 5)]))
    click.echo(title)


def _finish(folder: Path, rubric: Rubric, labels: Labels, storage: Storage | None) -> None:
    """Write the labels, and print how often each grade was given, and the settings."""
    path = inside(folder, "labels.jsonl")
    write_labels(path, labels, storage)
    rows = []
    for axis in rubric.axes:
        counts = sorted(Counter(grades[axis.name] for grades in labels.values()).items())
        rows.append((axis.name, ", ".join(f"{number:,} of {grade}" for grade, number in counts)))
    print_rows(("axis", "labels"), rows, "table")
    click.echo(f"\n{settings_of(path.absolute(), labels, rubric)}\n")


COMMANDS = (label,)

"""The `datamask` command: the pipeline without Prefect, and inspection of runs.

Every error is one line on standard error. The exit status is 2 for errors that the user must fix,
75 for transient errors, and 70 for bugs. Heavy modules are imported only when they are needed.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import threading
import traceback
from typing import Any

import click

from datamask import __version__
from datamask.cli.terminal import escaped_output, print_text
from datamask.errors import DatamaskError, check_secrets, exit_status, known, lines
from datamask.showing import printable

NOISY_LOGGERS = (
    *("httpx", "httpx2", "sentence_transformers", "transformers", "huggingface_hub"),
    *("aiobotocore", "botocore"),
)

# fmt: off
FIRST = (
    ("compare", "inspection", "Compare runs of one source: overlap, differences, terms."),
    ("evaluate", "rebuilding", "Train small language models on selections of RUN."),
    ("extend", "rebuilding", "Select again, from all documents, after files were added."),
    ("init", "planning", "Write a commented settings file from a look at SOURCE."),
    ("open", "open_pages", "Open the report of RUN in a browser, or serve it."),
    ("plan", "planning", "Check the input, divide it into shards, estimate the time."),
    ("query", "inspection", "Run read-only SQL on RUN."),
    ("rebuild", "rebuilding", "Run every stage: text in, selected subset out."),
    ("report", "rebuilding", "Write report and pictures of RUN again."),
    ("status", "inspection", "Show which parts of RUN are done, stale or missing."),
    ("sweep", "rebuilding", "Make a run for each value of a setting, and compare them."),
)
MORE = (
    ("apply", "rebuilding", "Judge new documents by the mask model of RUN."),
    ("deploy", "deploying", "Register the flows with a Prefect server."),
    ("doctor", "inspection", "Check this machine: device, disk, Hub, Prefect server."),
    ("embed", "inspection", "Embed TEXTS and write VECTORS, for the objective `target`."),
    ("ingest", "planning", "Convert the files of SOURCE to Parquet in FOLDER."),
    ("label", "labelling", "Label texts of RUN for a score of your own."),
    ("rerun-failed", "rebuilding", "Resume RUN with its own settings."),
    ("seen", "inspection", "List the documents that training on tokens of RUN saw."),
    ("settings", "inspection", "List settings with default, type, range and meaning."),
    ("verify", "inspection", "Read every byte of RUN and compare it with its checksum."),
)
# fmt: on


class Later(click.Command):
    """A command of the module *home* of this package, which is imported when the command is used.

    The help of all commands needs only their names and lines.
    """

    def __init__(self, name: str, home: str, line: str) -> None:
        super().__init__(name, short_help=line)
        self.home = home

    def loaded(self) -> click.Command:
        """Import the command."""
        module = importlib.import_module(f"datamask.cli.{self.home}")
        commands: tuple[click.Command, ...] = module.COMMANDS
        [command] = (command for command in commands if command.name == self.name)
        return command

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """See `click.Command.make_context`; what follows uses the command of the context."""
        return self.loaded().make_context(*arguments, **options)


class Commands(click.Group):
    """All commands; the help lists commands in `MORE` under `more` only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names that the help shows."""
        return sorted({"more", *(name for name, *_ in FIRST)})


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__)
@click.option("-q", "--quiet", is_flag=True, help="Only warnings and errors.")
@click.pass_context
def cli(context: click.Context, quiet: bool) -> None:
    """Select pre-training data by quality and diversity.

    A RUN is a folder, or the URL of a folder in an object store (s3://bucket/prefix, gs://...). It
    contains all results and its settings. The same command resumes an interrupted run, on any
    machine.

    \b
    datamask init /data/fineweb                     a first settings file, from a look at it
    datamask rebuild runs/mine --config my.yaml     text in, selected subset out
    datamask open runs/mine                         the report, in a browser
    datamask status runs/mine                       what is done, stale or missing
    datamask report runs/mine                       what was selected and why, as a page
    datamask evaluate runs/mine                     which selection trains a better model
    datamask compare runs/mine runs/other           which documents runs share
    datamask sweep runs/mine --over KEY=VALUES      a run for each value of a setting
    datamask query runs/mine "select ..."           SQL on the run
    datamask extend runs/mine                       select from added files too
    datamask more                                   further commands

    Completion in the shell: eval "$(_DATAMASK_COMPLETE=bash_source datamask)", or zsh_source,
    fish_source.
    """  # noqa: D301 - click wants the character itself
    check_secrets()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    # Read when huggingface_hub is imported: `cli.progress` shows what is at work.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    # A log on a full disk would write a traceback for every line.
    logging.raiseExceptions = False
    for noisy in NOISY_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.WARNING)


@cli.group(invoke_without_command=True)
@click.pass_context
def more(context: click.Context) -> None:
    """List further commands; `datamask verify RUN` is short for `datamask more verify RUN`."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for row in (*FIRST, *MORE):
    cli.add_command(Later(*row))
for row in MORE:
    more.add_command(cli.commands[row[0]])


def main() -> None:
    """Enter the command: report errors in one line and an exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the terminal cannot encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    with escaped_output():
        _run()


def _run() -> None:
    try:
        cli(prog_name="datamask", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"; see `{context.command_path} --help`" if context else ""
        text = printable(error.format_message().rstrip("."))
        click.echo(f"datamask: {text}{hint}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("interrupted; run the same command again to resume", err=True)
        if any(not thread.daemon for thread in threading.enumerate()[1:]):
            os._exit(130)  # After a second Ctrl-C, Python would wait for these threads.
        sys.exit(130)
    except BrokenPipeError:
        # The reader closed the output, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        sys.exit(told(error))


def told(raised: Exception) -> int:
    """Write an error to standard error, a bug with its traceback; return the exit status."""
    error = known(raised)
    if isinstance(error, DatamaskError | OSError):
        for line in lines(error):
            print_text(line, to_stderr=True)
    else:
        click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
        reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        click.echo(f"datamask: a bug in datamask ({reason}); please report it", err=True)
    return exit_status(error)


if __name__ == "__main__":
    main()

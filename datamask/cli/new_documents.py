"""The commands `datamask apply` and `datamask extend`, for documents that come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from datamask.cli.options import RunPlace, root_argument, set_option

if TYPE_CHECKING:
    from datamask.config.settings import Settings
    from datamask.storage.location import Root


@click.command("apply")
@root_argument
@click.argument("new", metavar="NEW", type=RunPlace())
@set_option
def apply_command(root: Root, new: Root, overrides: tuple[str, ...]) -> None:
    """Judge new documents by the mask model of RUN, without learning; NEW is their run.

    NEW has the settings of RUN, with its mask model instead of a budget. Documents are kept if they
    are worth as much as those that RUN kept, however many they are.

    \b
    datamask apply runs/mine runs/march --set source.path=/data/march
    datamask apply runs/mine runs/march --set source.path=/data/march --set embedding.keep=false
    """  # noqa: D301 - click wants the character itself
    from datamask.cli.rebuilding import rebuild_and_show
    from datamask.config.loading import load_settings
    from datamask.planning.applying import check_source, settings_to_apply
    from datamask.runs.opening import open_run, run_exists

    learnt = open_run(root)

    def change(own: Settings | None) -> Settings:
        return check_source(load_settings(None, overrides, own or settings_to_apply(learnt))[0])

    before = open_run(new).settings if run_exists(new) else None
    change(before)
    _, compute = load_settings(None, overrides, before)
    rebuild_and_show(new, change, compute)


@click.command("extend")
@root_argument
@set_option
def extend_command(root: Root, overrides: tuple[str, ...]) -> None:
    """Select again, from all documents, after files were added to the source of RUN.

    The files that RUN was planned with must be as they were. Their documents keep their shards and
    embeddings, and the added files become further shards. Selection, subset, report and
    publication of RUN are replaced. To keep RUN, use `datamask rebuild NEW --from RUN` instead.

    \b
    datamask extend runs/mine
    """  # noqa: D301 - click wants the character itself
    from datamask.cli.given import asked_for
    from datamask.cli.rebuilding import rebuild_and_show

    settings, compute = asked_for(root, None, overrides)
    rebuild_and_show(root, settings, compute, extend=True)

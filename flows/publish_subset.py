"""The flow that publishes the subset."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.outputs import Publication
from datamask.errors import SettingsError
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings


@flow(name="publish-subset", flow_run_name="publication of {root}")
@ends_in_one_line
def publish_subset(
    root: RootParameter,
    publication: Publication | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Publish the subset with its card, verify it, and tag it.

    The worker's HF_TOKEN is used; a token is never a parameter.

    Args:
        root: the run's folder, or its URL.
        publication: where and as what; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: redo what is done already.
    """
    run = with_settings(root, compute, publication=publication)
    if run.settings.publication is None:
        raise SettingsError(
            f'{root}: publication: not set; give --param \'publication={{"repository": '
            '"owner/name", "license": "..."}\''
        )
    fan_out(run, "publication", compute, force=force)

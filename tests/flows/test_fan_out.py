"""A flow meets failing shards, on a real (throw-away) Prefect server."""

import functools
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import yaml
from prefect.artifacts import Artifact
from prefect.context import TaskRunContext

from datamask.config.compute import Compute
from datamask.config.loading import load_settings, parse_settings
from datamask.errors import InputError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from tests.faults.comparison import contents
from tests.finished import up_to

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

REPOSITORY = Path(__file__).parents[2]


def planned(tmp_path: Path, corpus: Path) -> Run:
    """Three shards of twenty documents, planned."""
    settings = parse_settings(
        {
            "source": {"path": str(corpus), "layout": "features"},
            "plan": {"rows_per_shard": 20},
            "embedding": {"dimension": 8},
            "selection": {"steps": 5, "ratio": 0.2, "metric": "disf"},
        }
    )
    return plan_run(tmp_path / "run", settings)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Name and payload of the events that flows emit in this process."""
    from prefect.events import emit_event

    emitted: list[tuple[str, dict[str, Any]]] = []

    def emit(event: str, payload: dict[str, Any], **given: Any) -> Any:
        emitted.append((event, payload))
        return emit_event(event=event, payload=payload, **given)

    monkeypatch.setattr("flows.orchestration.events.emit_event", emit)
    return emitted


class Told(logging.Handler):
    """Keeps of each error the name of the task run whose log has it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.task_runs: list[str | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the task run of the thread that logs."""
        context = TaskRunContext.get()
        self.task_runs.append(context and context.task_run.name)


@pytest.mark.usefixtures("prefect")
def test_a_bad_shard_stops_no_other_and_is_named(tmp_path, corpus, events):
    """The flow ends Failed with shard and remedy; run again, it redoes that shard only."""
    from flows.orchestration.artifacts import titled
    from flows.stages import embed_shards, import_quality, learn_masks

    run = planned(tmp_path, corpus)
    assert import_quality(run.root, return_state=True).is_completed()
    assert embed_shards(run.root, return_state=True).is_completed()
    run.path("selection", 1).mkdir(parents=True)
    told = Told()
    logging.getLogger("datamask.execution.attempts").addHandler(told)
    state = learn_masks(run.root, compute=Compute(workers=2), return_state=True)
    logging.getLogger("datamask.execution.attempts").removeHandler(told)
    assert told.task_runs == ["selection-00001"]
    shown = Artifact.get(titled(run, "selection-progress")["key"])
    assert shown.data == pytest.approx(200 / 3) and str(run.root) in shown.description
    assert state.is_failed()
    assert state.message.startswith("selection: 1 of 3 shards failed: 00001 (")
    assert f"rerun-failed/local --param root={run.root}`" in state.message
    assert [run.state("selection", unit) for unit in range(3)] == ["done", "missing", "done"]
    ended = {payload["stage"] for event, payload in events if event == "datamask.stage.completed"}
    assert {"scores", "embeddings"} <= ended and "selection" not in ended
    event, payload = events[-1]
    assert (event, payload["stage"], payload["shard"]) == (
        "datamask.shard.failed",
        "selection",
        "00001",
    )
    assert (payload["documents"], payload["tokens"]) == (60, None)
    before = [run.path("selection", unit).stat().st_ino for unit in (0, 2)]
    run.path("selection", 1).rmdir()
    assert learn_masks(run.root, return_state=True).is_completed()
    assert [event for event, payload in events if payload["stage"] == "selection"] == [
        "datamask.shard.failed",
        "datamask.stage.completed",
    ]
    assert run.remaining("selection") == []
    assert [run.path("selection", unit).stat().st_ino for unit in (0, 2)] == before
    assert learn_masks(run.root, shards=[2], force=True, return_state=True).is_completed()
    assert run.path("selection", 2).stat().st_ino != before[1]
    assert run.path("selection", 0).stat().st_ino == before[0]


@pytest.mark.usefixtures("prefect")
def test_a_published_dataset_is_an_asset_and_an_event(tmp_path, corpus, events, monkeypatch):
    """With address, version and run; documents and objective are those of the run's files.

    Only if this flow run has published, and if something changed on the Hub by that.
    """
    from prefect import flow

    from flows.orchestration.artifacts import show_publication

    emitted: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.events.emit_event", lambda **event: emitted.append(event))
    run = planned(tmp_path, corpus)
    for stage in up_to(run, "composition"):
        run_stage(run, stage, Compute())
    url = "https://huggingface.co/datasets/team/subset"
    record = {"url": url, "tag": "v1", "commit": "c0ffee", "new_commit": False, "new_tag": False}
    show = flow(lambda worked: show_publication(run, worked), name="shown")

    def shown(worked: set[str], **changes: bool) -> int:
        content = json.dumps(record | changes)
        run.path("publication").write_text(content, encoding="utf-8")
        show(worked)
        count = len(events)
        events.clear()
        return count

    assert shown(set(), new_commit=True, new_tag=True) == 0, "an earlier launch has published"
    assert shown({"publication"}) == 0, "the Hub had it all"
    assert not [each for each in emitted if "asset" in each["event"]]
    assert shown({"publication"}, new_tag=True) == 1
    emitted.clear()
    content = json.dumps(record | {"new_commit": True})
    run.path("publication").write_text(content, encoding="utf-8")
    show({"publication"})
    (asset,) = (
        each for each in emitted if each["event"] == "prefect.asset.materialization.succeeded"
    )
    assert asset["resource"]["prefect.resource.id"] == url
    assert asset["payload"] == {"tag": "v1", "commit": "c0ffee", "run": str(run.root)}
    ((event, payload),) = events
    assert event == "datamask.subset.published"
    assert {**record, "new_commit": True}.items() <= payload.items()
    assert payload["documents"] == pq.read_table(run.root / "subset").num_rows
    with duckdb.connect(run.path("composition"), read_only=True) as database:
        value = "SELECT sum(selected) FROM terms WHERE term = 'objective'"
        assert database.sql(value).fetchall() == [(payload["objective"],)]


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_ray_on_this_machine_makes_the_same_files(tmp_path, corpus, monkeypatch):
    """As threads do; with either a bad shard is named, and stops no other of its task."""
    from flows.stages import learn_masks

    pytest.importorskip("prefect_ray", reason="datamask-pipeline[ray] is not installed")
    found = {}
    for engine in ("threads", "ray"):
        (tmp_path / engine).mkdir()
        run = planned(tmp_path / engine, corpus)
        compute = Compute(engine=engine)
        monkeypatch.setattr("datamask.execution.batches.TASKS_PER_SLOT", 1e-6)  # one task
        for stage in up_to(run, "embeddings"):
            run_stage(run, stage, Compute())
        run.path("selection", 0).mkdir(parents=True)
        state = learn_masks(run.root, compute=compute, return_state=True)
        assert state.is_failed()
        assert state.message.startswith("selection: 1 of 3 shards failed: 00000 (")
        assert [run.state("selection", unit) for unit in range(3)] == ["missing", "done", "done"]
        run.path("selection", 0).rmdir()
        found[engine] = contents(run.root)
    assert found["ray"] == found["threads"]


def test_a_users_error_is_told_once(caplog):
    """Prefect's second report of a known error, with its traceback, has level DEBUG."""
    import flows.orchestration.fan_out  # noqa: F401 - it adds the filter

    logger = logging.getLogger("prefect.flow_runs")

    def shown(level: int, error: Exception) -> list[tuple[int, bool]]:
        caplog.clear()
        caplog.set_level(level, logger.name)
        logger.addHandler(caplog.handler)
        try:
            raise error
        except Exception:
            logger.error("Engine execution exited with unexpected exception", exc_info=True)
        finally:
            logger.removeHandler(caplog.handler)
        return [(record.levelno, record.exc_info is not None) for record in caplog.records[:1]]

    assert shown(logging.INFO, InputError("no files found")) == []
    assert shown(logging.DEBUG, InputError("no files found")) == [(logging.DEBUG, True)]
    assert shown(logging.INFO, RuntimeError("a bug")) == [(logging.ERROR, True)]


@pytest.mark.usefixtures("prefect")
def test_settings_that_are_given_change_nothing_else(tmp_path, corpus):
    """A group given to a flow or by an automation is merged, as by --set; lists are replaced."""
    from datamask.config.evaluation import Evaluation
    from datamask.config.loading import with_groups
    from datamask.config.selection import Selection
    from datamask.runs.opening import open_run
    from flows.orchestration.fan_out import with_settings

    run = planned(tmp_path, corpus)
    before = run.settings
    given = {"selection": Selection(ratio=0.5), "subset": None}
    assert with_settings(run.root, Compute(), **given).settings.selection.ratio == 0.5
    found = open_run(run.root).settings
    assert found.selection == before.selection.model_copy(update={"ratio": 0.5})
    assert found.selection.metric == "disf" != Selection().metric
    assert (found.source, found.plan) == (before.source, before.plan)
    held = Evaluation(hold_out=0.1, model="tiny", arms=("ours", "random"))
    found = with_groups(found, {"evaluation": held})
    found = with_groups(
        found, {"evaluation": Evaluation(arms=("random", "top_quality"))}
    ).evaluation
    assert (found.hold_out, found.model) == (0.1, "tiny")
    assert [arm.name for arm in found.arms] == ["random", "top_quality"]
    nested = parse_settings({"columns": {"text": "body"}}, type(before.source))
    merged = before.changed_by({"source": nested}).source
    assert merged.columns.text == "body" and merged.path == before.source.path
    assert merged.columns.id == before.source.columns.id


def test_a_form_fills_in_nothing():
    """The page of a deployment gives what a parameter's schema has as default: no group has any."""
    from prefect import Flow
    from prefect.utilities.callables import parameter_schema

    from flows import rebuild, stages, sweep

    flows = {
        name: value
        for module in (rebuild, stages, sweep)
        for name, value in vars(module).items()
        if isinstance(value, Flow)
    }
    assert len(flows) > 8
    for flow in flows.values():
        for name, schema in parameter_schema(flow).properties.items():
            assert not isinstance(schema.get("default"), dict), (flow.name, name)
            assert "$ref" not in schema and "allOf" not in schema, (flow.name, name)


@pytest.mark.usefixtures("prefect", "undrawn")
def test_a_finished_run_is_published_whatever_its_source_has_become(tmp_path, corpus):
    """Its folder has grown, or is gone: other settings of publication concern neither."""
    from datamask.config.outputs import Publication
    from datamask.runs.opening import open_run
    from flows.stages import publish_subset

    run = planned(tmp_path, corpus)
    given = {"license": "mit", "dry_run": True}
    publish = functools.partial(publish_subset, run.root, return_state=True)
    copy = corpus / "more.parquet"
    copy.write_bytes((corpus / "part.parquet").read_bytes())
    assert publish(publication=Publication(**given)).is_failed(), "it is not finished"
    for stage in up_to(run, "report"):
        run_stage(run, stage, Compute())
    assert publish(publication=Publication(**given)).is_completed()
    copy.unlink()
    (corpus / "part.parquet").unlink()
    assert publish(publication=Publication(**given, tag="v2")).is_completed()
    found = open_run(run.root)
    assert found.settings.publication.tag == "v2" and found.state("publication") == "done"


@pytest.mark.usefixtures("prefect")
def test_rebuild_begins_no_stage_after_a_failed_one(tmp_path, corpus):
    """Vectors that cannot be written end the run Failed, with the reason as its own message."""
    from flows.rebuild import rerun_failed

    run = planned(tmp_path, corpus)
    run.path("embeddings", 0).mkdir(parents=True)
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign,assignment]
    logging.getLogger("datamask.watched").addHandler(handler)
    try:
        state = rerun_failed(run.root, return_state=True)
    finally:
        logging.getLogger("datamask.watched").removeHandler(handler)
    # `--watch` shows only what is logged to the flow run itself, and stages are others.
    assert any(one.getMessage().startswith("scores: 3 of 3 done in") for one in logged)
    flow_runs = {vars(one)["flow_run_id"] for one in logged}
    assert flow_runs == {str(state.state_details.flow_run_id)}
    assert state.is_failed()
    assert state.message.startswith("embeddings: 1 of 3 shards failed: 00000 (")
    assert run.remaining("embeddings") == [0]
    assert run.remaining("selection") == [0, 1, 2]


def test_configurations_load_and_the_demo_deployment_is_the_demo():
    """Both files are valid, and rebuild/demo asks for exactly what demo.yaml says."""
    folder = REPOSITORY / "deployments"
    settings, compute = load_settings(folder / "demo.yaml")
    assert load_settings(folder / "fineweb.yaml")[0].selection.rollouts == 128
    deployments = yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"]
    demo = next(item for item in deployments if item["name"] == "demo")
    parameters = dict(demo["parameters"])
    assert parameters.pop("root") == "runs/demo"
    assert parse_settings({"compute": parameters.pop("compute")}, _Computed).compute == compute
    assert parse_settings(parameters) == settings


class _Computed(Compute.__base__):  # type: ignore[misc,name-defined]
    compute: Compute


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_rounds_over_all_shards_are_stages_of_the_flow(tmp_path, corpus):
    """A round that fails in one shard stops before its sum; run again, it is summed."""
    from flows.stages import learn_masks

    run = planned(tmp_path, corpus)
    for stage in up_to(run, "embeddings"):
        run_stage(run, stage, Compute())
    selection = run.settings.selection.model_copy(update={"scope": "corpus", "rounds": 2})
    blocked = run.root / "round" / "02" / "00001.parquet"
    blocked.mkdir(parents=True)
    state = learn_masks(run.root, selection=selection, return_state=True)
    assert state.is_failed()
    assert state.message.startswith("round/02: 1 of 3 shards failed: 00001 (")
    assert not (run.root / "totals" / "02.parquet").exists()
    blocked.rmdir()
    assert learn_masks(run.root, compute=Compute(workers=2), return_state=True).is_completed()
    assert run.root.joinpath("totals", "02.parquet").exists()


@pytest.mark.usefixtures("prefect")
def test_a_publication_that_waits_for_others_says_so(caplog):
    """As many tasks publish as the server allows; with a free slot nothing is said."""
    from prefect.client.orchestration import get_client

    from flows.orchestration.task_runners import tell_of_wait
    from tasks.stages import HUB

    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(HUB, 1)
        tell_of_wait("publication")
        assert not [record for record in caplog.records if HUB in record.args]
        task_run = uuid.uuid4()
        client.increment_v1_concurrency_slots(names=[HUB], task_run_id=task_run)
        tell_of_wait("selection")
        tell_of_wait("publication")
        client.decrement_v1_concurrency_slots(
            names=[HUB], task_run_id=task_run, occupancy_seconds=1
        )
        client.delete_concurrency_limit_by_tag(HUB)
    [record] = [record for record in caplog.records if HUB in record.args]
    assert record.levelno == logging.WARNING and record.args[:2] == ("publication", 1)

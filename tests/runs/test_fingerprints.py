"""A fingerprint holds exactly the settings that its stage reads, by a record of all reads."""

import pkgutil
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.execution import attempts
from datamask.execution.pipeline import run_stage
from datamask.planning.applying import settings_to_apply
from datamask.planning.plan import plan_run
from datamask.runs.receipt import canonical_json
from datamask.runs.run import Run
from datamask.runs.stages import STAGES, stages_of
from tests.conftest import mostly_nightly
from tests.finished import corpus, finish, settings, word_tokenizer
from tests.runs.recording import IN_TABLE, recording

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

CORPUS = {"scope": "corpus"}
GROUPED = {"normalisation": "rank", "normalise_within": "language", "missing": 0.0}
SCORES = [{"name": "edu", "kind": "column", "column": "edu", **GROUPED}, {"name": "form"}]
BALANCE = {"column": "topic", "shares": {"(none)": 0.5}}
LIMITS = [{"column": "language", "cap": 0.8}]
TRAINED = {
    "hold_out": 0.2,
    "model": "tiny",
    "tokens": 1000,
    "seeds": 2,
    "learning_rates": [0.004],
    "arms": ["ours", "top_quality", {"name": "more", "change": {"ratio": 0.5}}],
}

OTHER = {"name": "other", "change": {"metric": "pairwise"}}

RUNS: dict[str, dict[str, Any]] = {
    "screened": {
        "publication": {"license": "mit", "dry_run": True},
        "quality": {"duplicates": "drop", "scores": SCORES},
        "selection": {"estimator": "policy_gradient", "rollouts": 8},
    },
    "rounds": {"selection": {**CORPUS, "rounds": 3}},
    "one_pass": {"selection": {**CORPUS, "rounds": 1}},
    "tokens": {
        "selection": {
            "limits": LIMITS,
            "tokens": 900,
            "max_repeat": 2,
            "repeat_caps": [{"column": "language", "value": "de", "most": 1}],
            "training_documents": 30,
        }
    },
    "random": {"selection": {**CORPUS, "method": "random"}},
    "topics": {
        "topics": {"number": 2},
        "quality": {"scores": SCORES},
        "selection": {
            "limits": [{"column": "topic", "cap": 0.9}],
            "more_terms": [{"name": "group_balance", "weight": 1, "options": BALANCE}],
        },
        "evaluation": {**TRAINED, "hold_out_by": "topic"},
    },
    "top_quality": {"selection": {**CORPUS, "method": "top_quality"}},
    "files": {"selection": {"documents": 20, "method": "greedy"}},
    "for_trainers": {
        "selection": {"tokens": 900, "max_repeat": 2, "training_tokens": 1500},
        "tokens": {"phases": [{"share": 0.8}, {"share": 0.2, "where": "edu > 0"}]},
    },
    "evaluation": {"evaluation": TRAINED, "selection": {"ratio": 0.4}},
    "followed": {
        "selection": {"metric": None, "quality_weight": None, "ratio": 0.4},
        "evaluation": {**TRAINED, "hold_out": 0.1, "arms": ["ours", OTHER]},
    },
    "judged": {"topics": {"number": 2}},
}

ELSEWHERE = {
    "source.path": "the plan has the digests of the source's files",
    "plan": "it cannot change in the life of a run, and the plan is part of every fingerprint",
    "selection.mask_model": "its content is pinned",
    "tokens.tokenizer": "its definition is pinned",
    "quality.scores.missing": "a score that must not be missing is refused again by `quality`",
    "evaluation.arms.path": "its content is pinned",
    "evaluation.seeds": "models of more seeds go on drawing from the text encoded for fewer",
    "source.groups": "where it has names there is a stage `groups`, which has it",
    "selection.max_repeat": "above 1 there is a stage `repeats`, which has it",
    "selection.rounds": "whether it is 1 is known; else it only ends the rounds (`STAGES`)",
}
"""Settings that are read, and why they need not be in the fingerprint of who reads them."""

LISTED = {
    "benchmark_ngrams": ("evaluation.sets", "quality.near_duplicates.against", "source"),
    "earlier_signatures": ("evaluation.sets", "quality.contamination.sets"),
    "held_out": ("quality.near_duplicates.against", "quality.contamination.sets"),
    "report": ("publication",),
}
"""Settings that are read because references of all stages are listed to find those of one, or
because the settings of a proposed command, which have no publication, are checked."""

BY_UNIT = {"arms": ("selection", "embeddings"), "tokenised": ("subset",)}
"""Inputs of single units of a stage."""

UNREAD = {
    "publication": ("publication.private",),  # a dry run does not need it
    "arms": ("evaluation.arms.name",),  # the name of the file
    "scores": ("quality.scores.kind",),  # the class of a score is its kind
    "mask_model": ("selection.estimator",),  # facility location has no model with any
    # Empty where there are labels.
    "example_models": ("quality.scores.path", "quality.scores.where"),
}
"""Settings in a fingerprint that the stage itself does not read in these runs."""

LEARNER = {
    *("selection.batch_fraction", "selection.estimator"),
    *("selection.swap_refinement", "selection.tolerance"),
}
"""Settings of how a mask is learned, which is known where all documents are selected."""

CHECKED = (
    *("selection.ratio", "selection.documents", "selection.tokens", "selection.limits"),
    *("selection.training_documents", "selection.training_tokens", "selection.max_repeat"),
)
"""Settings that `quality` compares with its counts, as every launch does (test_impossible.py)."""


def covers(key: str, other: str) -> bool:
    """Return True if one is the other or a group that it is in."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def own(run: Run, name: str) -> set[str]:
    """The settings in the fingerprint of a stage and its units, without those of its inputs."""
    stage = STAGES[name]
    with recording(IN_TABLE) as keys:
        canonical_json(stage.settings(run.settings))
        for unit in pkgutil.resolve_name(stage.units)(run) if stage.units else ():
            canonical_json(unit.settings)
    return keys


@pytest.fixture(
    scope="module",
    params=mostly_nightly(["screened", "tokens"], RUNS),
)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, dict[str, set[str]]]:
    """A run, and the settings that each of its stages read."""
    folder = tmp_path_factory.mktemp("recorded")
    groups = dict(RUNS[request.param])
    if request.param == "screened":
        (folder / "known.txt").write_text("river stone market window garden")
        sets = [{"name": "known", "path": str(folder / "known.txt")}]
        earlier = pa.table({"id": ["earlier"], "text": ["river stone market window garden"]})
        pq.write_table(earlier, folder / "earlier.parquet")
        near: dict[str, Any] = {"against": [str(folder / "earlier.parquet")]}
        near["prefer"] = [{"column": "language", "value": "de"}]
        more = {"contamination": {"sets": sets, "ngram": 3}, "near_duplicates": near}
        groups["quality"] = {**groups["quality"], **more}
    if request.param == "files":
        ids = [f"{file}-{row:02d}" for file in range(4) for row in range(30)]
        labels = pa.table({"key": ids, "mark": [float(len(name) * ord(name[-1])) for name in ids]})
        pq.write_table(labels, folder / "labels.parquet")
        at = {"path": str(folder / "labels.parquet"), "id_column": "key", "column": "mark"}
        labels = {"labels": at["path"], "id_column": "key", "column": "mark"}
        fitted = {"name": "fitted", "kind": "examples", **labels, "least_correlation": -1}
        scores = [{"name": "mark", "kind": "file", **at}, fitted]
        groups["quality"] = {"scores": scores, "prune_fraction": 0.1}
    if request.param == "followed":
        texts = [f"garden window {number}" for number in range(100)]
        pq.write_table(pa.table({"text": texts}), folder / "examples.parquet")
        score = {"name": "fitted", "kind": "examples", "path": str(folder / "examples.parquet")}
        groups["quality"] = {"scores": [score], "prune_fraction": None}
    if request.param == "for_trainers":
        tokenizer = word_tokenizer(folder / "tokenizer.json")
        groups["tokens"] = {**groups["tokens"], "tokenizer": tokenizer}
    source = corpus(folder / "source")
    columns = pq.read_table(source / "1.parquet").to_pydict()
    columns["edu"][5] = 0.0
    if request.param == "screened":
        columns["edu"][5] = None
        columns["text"][7] = f"{columns['text'][6]} river"
    pq.write_table(pa.table(columns), source / "1.parquet")
    chosen = settings(source, **groups)
    if request.param == "judged":
        learnt = finish(folder / "learnt", chosen, "mask_model")
        chosen = settings_to_apply(learnt, learnt.settings.source)
    run = plan_run(folder / "run", chosen)
    reads: dict[str, set[str]] = {}
    original = attempts._work

    def work(run: Run, stage: str, *more: Any) -> None:
        with recording() as keys:
            original(replace(run), stage, *more)  # which has resolved nothing yet
        reads.setdefault(stage, set()).update(keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "_work", work)
        for stage in stages_of(run.settings):
            run_stage(run, stage, Compute())
    return run, reads


def test_what_a_stage_reads_is_in_its_fingerprint(recorded):
    """In its own part or in that of its inputs, or there is a reason why it need not be."""
    run, reads = recorded
    chain: dict[str, set[str]] = {"round_total": own(run, "round_total")}  # of the round before
    missing = {}
    for name in stages_of(run.settings):
        stage = STAGES[name]
        known = own(run, name).union(
            *(chain[one] for one in BY_UNIT.get(name, ())),
            *(chain.get(one, ()) for one in (*stage.after, *stage.after_all)),
            *(chain[one] for one in stage.more_inputs(run.settings)),
        )
        chain[name] = known
        known = known.union(ELSEWHERE, LISTED.get(name, ()), CHECKED if name == "quality" else ())
        left = {key for key in reads.get(name, ()) if not any(covers(key, one) for one in known)}
        missing |= {name: sorted(left)} if left else {}
    assert not missing


def test_what_is_in_a_fingerprint_is_read(recorded):
    """By the stage itself: another value never repeats work for nothing."""
    run, reads = recorded
    unread: dict[str, list[str]] = {}
    for name in stages_of(run.settings):
        known = reads.get(name, set()).union(UNREAD.get(name, ()))
        if name == "selection" and run.receipt(name, 0).metrics.get("stopped_by") == "all selected":
            known |= LEARNER
        keys = own(run, name) if name in reads else ()  # `round` has no unit without learning
        left = {key for key in keys if not any(covers(key, one) for one in known)}
        unread |= {name: sorted(left)} if left else {}
    assert not unread

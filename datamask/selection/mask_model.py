"""Stage `mask_model`: the selection as a function of a document, for documents that come later.

docs/one-pass.md describes its files; reading them executes no code. The model stands for the
selection of all shards. In scope `corpus` it has the logits of the run, unless the judge learned
from the sample selects better (`_better`). In scope `shard` it has the logits of the run if there
is one shard, else one threshold that keeps the same fraction of a sample of the corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import InputError, SettingsError, one_line
from datamask.learning import published
from datamask.learning.data import ShardData
from datamask.learning.exchange import check_scope, gain_over_random
from datamask.learning.mask_model import KINDS, Judged, MaskModel, TermGain, mask_model
from datamask.learning.moment_gradient import along
from datamask.objectives.formula import formula, indicator_names
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm, is_linear, with_unit
from datamask.runs import budget
from datamask.runs.files import replace_file, write_text_file
from datamask.runs.opening import versions
from datamask.runs.run import Run, digest
from datamask.selection import sampling, sums
from datamask.selection.model_file import ABOUT, FORMAT, TENSORS, corrupt
from datamask.selection.terms import score_names, terms_of
from datamask.source.opening import open_binary

MOST_LOST = 0.1
"""The gain at the final sums becomes the model if it loses at most this fraction of the judge's
gain on a sample (docs/log.md#rounds)."""

LEAST_GAIN = -3.0
"""Minimum gain of a model over random documents of a sample, in deviations of random selections
(docs/log.md#rounds)."""


def make_mask_model(run: Run, compute: Compute) -> None:
    """Write `mask_model/`."""
    about: dict[str, Any] = {"format": FORMAT, "unavailable": _unavailable(run)}
    topics = None
    if run.settings.topics is not None:
        run.receipt("topic_model")
        topics = run.read_output("topic_model")
    path = run.local_path("mask_model")
    if not about["unavailable"]:
        model, facts, about["unavailable"] = _build(run, compute)
    if not about["unavailable"]:
        tensors = _to_bytes(model, topics)
        about |= {"topics": topics["topic"].to_pylist()} if topics else {}
        about |= facts | {"tensors_sha256": hashlib.sha256(tensors).hexdigest()}
        with replace_file(path.with_name(TENSORS), run.storage) as temporary:
            temporary.write_bytes(tensors)
    rows = about.get("documents", 0)
    metrics = {"unavailable": about["unavailable"]}
    about["receipt"] = asdict(run.make_receipt("mask_model", 0, rows, metrics))
    text = json.dumps(about | {"digest": digest(about)}, indent=1, sort_keys=True) + "\n"
    write_text_file(path, text, run.storage)


def _unavailable(run: Run) -> str:
    """Say why the mask of a run is not a function of a document; empty if it is."""
    settings, quality = run.settings, run.receipt("quality", 0).metrics
    try:
        check_scope(terms_of(run))
    except SettingsError as error:
        return one_line(error).removeprefix("selection.scope: ")
    if settings.selection.estimator == "policy_gradient":
        return "estimator `policy_gradient` publishes ranks, not gains"
    within = [s.name for s in settings.scores if s.normalise_within != "none"]
    if within:
        return f"score {within[0]} is normalised within groups, which later documents may not share"
    if settings.selection.num_rounds and run.receipt("learning", 0).metrics["drawn"]:
        return "many documents are as good as those selected, which were drawn from them"
    kept = sum(run.receipt("selection", s).metrics["num_selected"] for s in range(run.num_shards))
    if not 0 < kept < quality["kept_total"]:
        total = quality["kept_total"]
        return f"{kept:,} of {total:,} candidates are kept, so there is no threshold"
    return ""


def _build(run: Run, compute: Compute) -> tuple[MaskModel, dict[str, Any], str]:
    """Return the model, its description in model.json, and the reason if it is useless, else ""."""
    selection, shards = run.in_force.selection, range(run.num_shards)
    level = sums.level_of_quality(run)
    quality = run.receipt("quality", 0).metrics
    moments, *_ = sums.read_moments(run, "outcome", shards)
    kept, candidates = float(moments.count), quality["kept_total"]
    sample = sampling.Drawn.read(run, "outcome").data(0, sampling.STAND_INS, compute)
    parts = [sums.read_lists(run, "outcome", ("sample_selected",), shard) for shard in shards]
    is_kept = np.concatenate([part["sample_selected"] for part in parts])
    unit = kept
    if selection.scope == "corpus":
        state = sums.CorpusState.read(run, run.last_round)
        terms, moments = state.corpus.terms, state.corpus.moments
        unit = float(moments.count)
    else:
        terms = _terms_of_shards(run)
    model = mask_model(terms, moments, unit)
    judged = model.judge(sample, is_kept)
    threshold = published.threshold_of(judged.logits, int(is_kept.sum()))
    if selection.scope == "corpus":
        threshold = unit * state.total.dual_price + run.receipt("threshold").metrics["threshold"]
    model = replace(model, threshold=threshold)
    active = [term for term in terms if term.weight != 0]
    if selection.scope == "corpus" and not is_linear(active):
        model = _better(run, state, model, sample, kept / candidates, compute)
    logits = torch.from_numpy(model.judge(sample).logits)
    gained, deviation = gain_over_random(sample, logits, active, kept, kept / candidates)
    reason = "it would select worse than random: the documents are good together, not one by one"
    about = {
        "terms": _about_terms(model, active, judged),
        "objective": formula(selection),
        "unit": model.unit,
        "threshold": model.threshold,
        "documents": int(kept),
        "candidates": candidates,
        "source_documents": run.num_documents,
        "sampled": len(is_kept),
        "scope": selection.scope,
        "shards": run.num_shards,
        "budget": budget.total_units(selection, run.num_documents),
        "budget_unit": "documents" if selection.tokens is None else "tokens",
        "seed": run.settings.seed,
        "versions": versions(),
        **about_scores(run.settings, run.pinned_revisions),
        **{name: quality[name] for name in ("normalisation", "least_quality", "length_edges")},
        "centre": level.centre,
        "quality_unit": level.unit,
        "score_names": score_names(run),
        "embedding": about_embedding(run.settings, run.pinned_revisions),
    }
    is_useless = gained < LEAST_GAIN * deviation
    return model, about, reason if is_useless else ""


def _about_terms(
    model: MaskModel, terms: Sequence[WeightedTerm], judged: Judged
) -> list[dict[str, Any]]:
    """Describe the weighted terms for model.json, with their gains in a sample."""
    return [
        {
            "name": term.name,
            "kind": term.kind,
            "options": {},  # Programs that read models of 0.1.0 expect the key.
            "weight": weighted.weight,
            "factor": term.factor,
            "orders": [len(term.slope.first_D) > 0, len(term.slope.second_DD) > 0],
            "mean": float(judged.gains[term.name].mean()),
            "deviation": float(judged.gains[term.name].std()),
        }
        for term, weighted in zip(model.terms, terms, strict=True)
    ]


def _better(
    run: Run,
    state: sums.CorpusState,
    model: MaskModel,
    sample: ShardData,
    share: float,
    compute: Compute,
) -> MaskModel:
    """Return the gain at the final sums or, if it selects clearly better from a sample, the judge.

    Where sums have not settled, or diversity alone decides, documents of the highest gain can all
    fill the same gap. In a small corpus, the gain of a document that is already in the sums says
    nothing about others, so they are not compared. After a single pass it is always the judge.
    """
    rounds, slope = state.number, state.corpus.judge.slope
    if rounds > 1 and (state.first.sample or {})["shortfall"] is None:
        return model
    others = sampling.not_learned(sampling.Drawn.read(run), compute) if rounds == 1 else sample
    values = along(slope, others).numpy().astype(np.float64)
    threshold = published.threshold_of(values, round(share * len(values)))
    judge = replace(model, learned=slope, threshold=threshold)
    if rounds == 1:
        return judge
    documents = float(model.moments.count)
    gained, most = (
        gain_over_random(sample, torch.from_numpy(logits), state.corpus.active, documents, share)[0]
        for logits in (model.judge(sample).logits, judge.judge(sample).logits)
    )
    return judge if gained < (1 - MOST_LOST) * most else model


def _terms_of_shards(run: Run) -> tuple[WeightedTerm, ...]:
    """Scale the terms so that a document counts as much as in its shard on average."""
    metrics = [run.receipt("selection", shard).metrics for shard in range(run.num_shards)]
    counts = {shard: each["num_selected"] for shard, each in enumerate(metrics)}
    terms = []
    for term in terms_of(run):
        name = term.objective.name
        total = sum(count / metrics[s]["scales"][name] for s, count in counts.items() if count)
        terms.append(replace(term, scale=sum(counts.values()) / total if total else 1.0))
    return with_unit(terms, 1 / sums.level_of_quality(run).unit)  # receipts are as reported


def about_scores(settings: Settings, pinned_revisions: Mapping[str, str]) -> dict[str, Any]:
    """Return what two runs must share in their scores so that one model can judge both."""
    compared = {"name", "weight", "normalisation", "missing"}
    scores = []
    for score in settings.scores:
        facts = score.model_dump(mode="json", include=compared)
        facts["fill_value"] = score.filled or 0.0
        facts |= {"head": "", "label": ""} | score.model_facts
        facts["windows"] = settings.source.windows if score.reads_text else 1
        pin = pinned_revisions[score.pin_key] if score.model_facts else ""
        scores.append(facts | {"revision": pin})
    return {"scores": scores, "indicators": list(indicator_names(settings.selection))}


def about_embedding(settings: Settings, pinned_revisions: Mapping[str, str]) -> dict[str, Any]:
    """Return what two runs must share in their vectors so that one model can judge both."""
    embedding = settings.embedding
    if settings.vector_column:  # Any vectors of the user's own, wherever they are.
        return {"method": "features", "dimension": embedding.dimension}
    facts = {"method": embedding.method, "dimension": embedding.dimension}
    facts |= {"windows": settings.source.windows} if settings.source.windows > 1 else {}
    if embedding.has_model:
        # The name of a folder says nothing on another machine; its digest does.
        facts |= {"model": embedding.model if not Path(embedding.model).is_absolute() else ""}
        facts |= embedding.model_dump(mode="json", include={"prefix", "max_tokens", "truncate"})
    return facts | {"revision": pinned_revisions.get("embeddings:model", "")}


def _unpack(tensors: Mapping[str, np.ndarray], name: str, names: list[str]) -> Moments:
    parts = (tensors[f"{name}.{part}"] for part in ("sums", "first", "second"))
    return sums.moments_from(names, *parts)


def _to_bytes(model: MaskModel, topics: pa.Table | None) -> bytes:
    from safetensors.numpy import save

    parts = {f"term{index}": term.slope for index, term in enumerate(model.terms)}
    parts |= {"moments": model.moments} | ({"learned": model.learned} if model.learned else {})
    tensors = {}
    for name, moments in parts.items():
        row = sums.moment_row(moments)
        tensors[f"{name}.sums"] = np.asarray([row["count"], row["quality"], *row["scores"]])
        tensors |= {f"{name}.{part}": row[part] for part in ("first", "second")}
    if topics is not None:
        tensors["topics"] = np.asarray(topics["direction"].to_pylist(), np.float32)
    saved: bytes = save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)})
    return saved


def read_model(folder: str, about: dict[str, Any]) -> MaskModel:
    """Read the mask model of a folder. No code is executed.

    Args:
        folder: as for `read_about`.
        about: what `read_about` returned.

    Raises:
        InputError: model.safetensors is missing, or a term is unknown.
        CorruptFileError: it is truncated, or not the file that model.json describes.
    """
    path, names = f"{folder.rstrip('/')}/{TENSORS}", about["score_names"]
    tensors = _read_tensors(path, about)
    try:
        for term in about["terms"]:
            if term["kind"] not in KINDS:
                problem = f"term {term['kind']} is not built in (any more); learn the model again"
                raise InputError(problem, path=path)
        gains = (
            TermGain(
                **{name: term[name] for name in ("name", "kind", "factor")},
                slope=_unpack(tensors, f"term{index}", names),
            )
            for index, term in enumerate(about["terms"])
        )
        moments = _unpack(tensors, "moments", names)
        learned = _unpack(tensors, "learned", names) if "learned.sums" in tensors else None
        return MaskModel(tuple(gains), moments, about["unit"], about["threshold"], learned)
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(path, error) from None


def read_topics(folder: str, about: dict[str, Any]) -> tuple[list[str], np.ndarray]:
    """Read the names of the topics and their directions. Errors are as in `read_model`."""
    return about["topics"], _read_tensors(f"{folder.rstrip('/')}/{TENSORS}", about)["topics"]


def _read_tensors(path: str, about: dict[str, Any]) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with open_binary(path) as file:
        content = file.read()
    try:
        if hashlib.sha256(content).hexdigest() != about["tensors_sha256"]:
            raise ValueError(f"its SHA-256 is not the one in {ABOUT}")
        tensors: dict[str, np.ndarray] = load(content)
        return tensors
    except (SafetensorError, ValueError) as error:
        raise corrupt(path, error) from None

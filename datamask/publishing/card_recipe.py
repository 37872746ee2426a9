"""How the subset was selected, for the dataset card."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from datamask.config.inputs import Score
from datamask.config.selection import Selection
from datamask.runs.run import Run
from datamask.source.opening import SOURCE_PIN


def shown_path(path: str) -> str:
    """A path for strangers: a URL without credentials and query, else the last component."""
    url = urlsplit(path)
    if url.scheme and url.netloc and url.scheme != "file":
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    return path.rstrip("/").rpartition("/")[2]


def _rounds(run: Run) -> str:
    from datamask.analysis.composition import query

    rows = query(run, "SELECT settled FROM rounds ORDER BY round")
    rising = "" if rows[-1]["settled"] else " (**the objective was still rising after the last**)"
    return f"{len(rows)} rounds between shards{rising}"


def recipe(run: Run) -> str:
    """The settings that decide what is selected, as a table."""
    from datamask.objectives.weighted import formula

    settings = run.settings
    selection = settings.selection
    method = f"`{selection.method}`"
    if selection.method == "mask":
        method += (
            f", {_rounds(run)}, one threshold for all"
            if selection.num_rounds
            else f", at most {selection.steps:,} steps a shard"
        )
    copies = "kept once" if settings.quality.duplicates == "drop" else "all kept"
    scores = "; ".join(_score(run, score) for score in (*settings.scores, *settings.probes))
    rows = [
        ("Source", _source(run)),
        ("Budget", _budget(selection)),
        ("Method", method),
        ("Objective", formula(selection)),
        ("Quality", scores),
        ("Pruned before embedding", f"worst {settings.prune_fraction:.0%}"),
        ("Documents with the same text", copies),
        ("Embeddings", _encoder(run)),
        ("Shards", f"{run.num_shards:,}"),
        ("Seed", str(settings.seed)),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in versions_text(run).items()),
        ),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _score(run: Run, score: Score) -> str:
    parts = [score.kind, score.normalisation, f"weight {score.weight:g}"]
    if score.kind == "classifier":
        revision = run.pinned_revisions.get(f"classifier_scores:{score.name}", "not pinned")
        parts[0] = f"classifier `{shown_model(score.model)}` at revision `{revision}`"
    elif score.kind == "fasttext":
        digest = run.pinned_revisions.get(f"scores:{score.name}", "")
        parts[0] = f"fastText `{shown_path(score.path)}` (SHA-256 `{digest[:16]}…`)"
    elif score.kind == "probe":
        fitted = run.receipt("probe").metrics[score.name]
        parts[0] = (
            f"{fitted['kind']} probe on the embeddings, fitted to {fitted['labels']:,} labels; "
            f"cross-validated rank correlation {fitted['correlation']:.3f}"
        )
    parts += [f"`{value}`" for value in (score.head, score.label) if value]
    if score.normalise_within != "none":
        parts.append(f"within each {score.normalise_within}")
    return f"`{score.name}` ({', '.join(parts)})"


def _budget(selection: Selection) -> str:
    if selection.tokens is not None:
        budget = f"{selection.tokens:,} tokens"
    elif selection.documents is not None:
        budget = f"{selection.documents:,} documents"
    else:
        budget = f"{selection.ratio:g} of the source's documents"
    for limit in selection.limits:
        group = f"{limit.column} {limit.value}" if limit.value else f"each {limit.column}"
        budget += f"; {group} {limit.floor:.2%} to {limit.cap:.2%} of it"
    return budget


def _source(run: Run) -> str:
    commit = run.pinned_revisions.get(SOURCE_PIN)
    return f"`{shown_path(run.settings.source.path)}`" + (f" at `{commit}`" if commit else "")


def _encoder(run: Run) -> str:
    embedding = run.settings.embedding
    width = f"{embedding.dimension} dimensions"
    if run.settings.source.layout == "features":
        return f"given by the source, {width}"
    if embedding.method == "lexical":
        return f"`lexical` (hashed n-grams, no model), {width}"
    if not embedding.has_model:
        return (
            f"`{embedding.method}`, version {run.pinned_revisions.get('embeddings:model')}, {width}"
        )
    revision = run.pinned_revisions.get("embeddings:model", "not pinned")
    model = shown_model(embedding.model)
    return f"`{model}` at revision `{revision}`, prefix `{embedding.prefix}`, {width}"


def shown_model(model: str) -> str:
    """A model's name as published: of a local folder, its last part."""
    # A Hub name has at most one slash; anything else is a folder on the machine that ran.
    is_folder = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return shown_path(model) if is_folder else model


def versions_text(run: Run) -> dict[str, str]:
    """The package versions that the run was planned with."""
    record: dict[str, Any] = json.loads((run.root / "run.json").read_text(encoding="utf-8"))
    versions: dict[str, str] = record["versions"]
    return versions

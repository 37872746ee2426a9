"""Description of the selection for the dataset card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from datamask.analysis.composition import query
from datamask.config.inputs import Score
from datamask.config.selection import Selection
from datamask.objectives.weighted import formula
from datamask.runs.run import Run
from datamask.source.opening import SOURCE_PIN


def shown_path(path: str) -> str:
    """A URL without credentials and query; of any other path, the last component."""
    url = urlsplit(path)
    if url.scheme and url.netloc and url.scheme != "file":
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    return path.rstrip("/").rpartition("/")[2]


def recipe(run: Run) -> str:
    """The settings that determine the selection, as a Markdown table."""
    settings = run.settings
    selection = settings.selection
    method = f"`{selection.method}`"
    if selection.num_rounds:
        rounds = query(run, "SELECT settled FROM rounds ORDER BY round")
        rising = "" if rounds[-1]["settled"] else " (**the objective was still rising at the end**)"
        method += f", {len(rounds)} rounds across shards{rising}, one threshold for all shards"
        if selection.one_pass:
            method = f"`{selection.method}`, learned from a sample of all shards, one threshold"
    elif selection.mask_model:
        method = "the mask model of an earlier selection, applied without learning"
    elif selection.method == "mask":
        method += f", at most {selection.steps:,} steps per shard"
    copies = "kept once" if settings.quality.duplicates == "drop" else "all kept"
    scores = "; ".join(_score(run, score) for score in (*settings.scores, *settings.probes))
    rows = [
        ("Source", _source(run)),
        ("Budget", _budget(selection)),
        *([("Training", _training(selection))] if selection.max_repeat > 1 else []),
        ("Method", method),
        ("Objective", formula(selection)),
        ("Quality", scores),
        ("Pruned before embedding", f"worst {settings.prune_fraction:.0%}"),
        ("Documents with the same text", copies),
        *_screening(run),
        ("Embeddings", _encoder(run)),
        ("Shards", f"{run.num_shards:,}"),
        ("Seed", str(settings.seed)),
        ("Versions", ", ".join(map(" ".join, versions_of(run).items()))),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _screening(run: Run) -> Iterator[tuple[str, str]]:
    from datamask.analysis.screening import near_duplicates
    from datamask.report.markdown import cell

    near, known = run.settings.quality.near_duplicates, run.settings.quality.contamination
    if near is not None:
        found = near_duplicates(run)
        earlier = f", of which {found['earlier']:,} repeat earlier datasets" if near.against else ""
        how = f"MinHash of {near.ngram}-grams of words, similarity of at least {near.similarity:g}"
        yield "Near-duplicates", f"{found['dropped']:,} dropped{earlier} ({how})"
    if known is not None:
        names = ", ".join(cell(one.name) for one in known.sets)
        verb = "dropped" if known.action == "drop" else "flagged, not dropped"
        what = f"documents that share {known.ngram} consecutive words are {verb}"
        yield "Benchmarks", f"{names}: {what}"


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
    if selection.mask_model:
        budget = "what the threshold of the mask model keeps"
    elif selection.tokens is not None:
        budget = f"{selection.tokens:,} tokens"
    elif selection.documents is not None:
        budget = f"{selection.documents:,} documents"
    else:
        budget = f"{selection.ratio:g} of the source's documents"
    for limit in selection.limits:
        group = f"{limit.column} {limit.value}" if limit.value else f"each {limit.column}"
        budget += f"; {group} {limit.floor:.2%} to {limit.cap:.2%} of it"
    return budget


def _training(selection: Selection) -> str:
    unit = "documents" if selection.training_documents else "tokens"
    most = selection.max_repeat
    return f"{selection.training:,} {unit}, no document more than {most} times (column `repeat`)"


def _source(run: Run) -> str:
    commit = run.pinned_revisions.get(SOURCE_PIN)
    return f"`{shown_path(run.settings.source.path)}`" + (f" at `{commit}`" if commit else "")


def _encoder(run: Run) -> str:
    embedding = run.settings.embedding
    width = f"{embedding.dimension} dimensions"
    if run.settings.source.layout == "features":
        return f"from the source, {width}"
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
    """A model's name on the Hub; of a local folder, the last component."""
    # Hub names have at most one slash.
    is_folder = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return shown_path(model) if is_folder else model


def versions_of(run: Run) -> dict[str, str]:
    """Versions of the packages that planned the run."""
    versions: dict[str, str] = json.loads((run.root / "run.json").read_bytes())["versions"]
    return versions

"""The dataset card: what was selected and how, from the run's own record and figures.

The header is what the Hub indexes and the viewer loads by; its license is the one of the settings.
Nothing in the card names the machine that made it: a path is shown only if it is a URL, without
credentials, and otherwise by its last component.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from datamask.config import Publication, Settings
from datamask.errors import RunError
from datamask.store import Run

TAG = "datamask"
"""The tag by which a repository is known to be ours (see `is_our_card`)."""

PAPER = """\
@misc{datamask2025,
  title         = {Joint Selection for Large-Scale Pre-Training Data via Policy Gradient-based
                   Mask Learning},
  author        = {Fan, Ziqing and Xian, Yuqiao and Sun, Yan and Shen, Li},
  year          = {2025},
  eprint        = {2512.24265},
  archivePrefix = {arXiv},
  primaryClass  = {cs.CL},
}"""

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


def size_category(documents: int) -> str:
    """The Hub's name for a number of documents, such as `1K<n<10K`; bounds go to the larger."""
    for step, name in enumerate(_SIZES):
        if documents < 10 ** (step + 3):
            return f"n<{name}" if step == 0 else f"{_SIZES[step - 1]}<n<{name}"
    return f"n>{_SIZES[-1]}"


def shown_path(path: str) -> str:
    """A path for strangers: a URL without credentials and query, else the last component."""
    url = urlsplit(path)
    if url.scheme and url.netloc and url.scheme != "file":
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    return path.rstrip("/").rpartition("/")[2]


def is_our_card(content: str) -> bool:
    """Whether a repository's README.md was written by `card_text`."""
    from huggingface_hub import DatasetCard

    try:
        tags = DatasetCard(content, ignore_metadata_errors=True).data.get("tags")
    except (ValueError, TypeError, AttributeError, yaml.YAMLError):
        return False
    return isinstance(tags, list) and TAG in tags


def card_text(run: Run, publication: Publication) -> str:
    """The README.md of the published dataset.

    Args:
        run: with an up-to-date subset and composition.
        publication: license, languages, title and citation.

    Raises:
        RunError: subset or composition is missing or stale.
    """
    from huggingface_hub import DatasetCardData

    from datamask.report.markdown import report_markdown

    if run.state("composition") != "done":
        raise RunError(
            f"{run.path('composition')}: {run.state('composition')}; run stage `composition` first"
        )
    receipts = [run.receipt("subset", unit) for unit in range(run.num_units("subset"))]
    documents = sum(receipt.rows for receipt in receipts)
    title = publication.pretty_name or publication.repository.rpartition("/")[2] or "Subset"
    data = DatasetCardData(
        language=list(publication.languages),
        license=publication.license,
        pretty_name=title,
        size_categories=[size_category(documents)],
        source_datasets=list(publication.source_datasets) or None,
        task_categories=["text-generation"],
        tags=["data-selection", TAG, "arxiv:2512.24265"],
        configs=[
            {
                "config_name": "default",
                "default": True,
                "data_files": [{"split": "train", "path": "data/train-*.parquet"}],
            }
        ],
    )
    parts = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {title}",
        _introduction(run, documents),
        "## How it was selected",
        _recipe(run),
        "## Figures",
        report_markdown(run).strip(),
        "## How to load it",
        _loading(publication),
        "## How to reproduce it",
        _reproduction(run),
        "## Limitations",
        _limitations(run.settings),
        "## Citation",
        f"```bibtex\n{PAPER}\n```",
    ]
    if publication.citation:
        parts.append(f"The source:\n\n```bibtex\n{publication.citation.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _introduction(run: Run, documents: int) -> str:
    source = shown_path(run.settings.source.path) or "its source"
    method = run.settings.selection.method
    how = (
        "for quality and diversity at once by mask learning "
        "([DATAMASK](https://arxiv.org/abs/2512.24265))"
        if method == "mask"
        else f"by `{method}`, a comparator for mask learning "
        "([DATAMASK](https://arxiv.org/abs/2512.24265))"
    )
    return (
        f"{documents:,} of {run.num_documents:,} documents of `{source}` "
        f"({documents / run.num_documents:.2%}), selected {how}. Each row has the source's columns "
        "and three more: `quality` (combined quality score), `logit` (the score the cut was made "
        "by) and `shard` (the group of documents it was compared with)."
    )


def _recipe(run: Run) -> str:
    settings = run.settings
    selection = settings.selection
    budget = (
        f"{selection.documents:,} documents"
        if selection.documents is not None
        else f"{selection.ratio:g} of the source's documents"
    )
    method = f"`{selection.method}`"
    if selection.method == "mask":
        method += f", at most {selection.steps:,} steps a shard"
    objective = (
        f"λ · quality + (1 − λ) · {selection.metric}, λ = {selection.quality_weight:g}"
        + ("" if selection.scale_terms else ", terms not scaled")
        + "".join(f", {term.weight:+g} · {term.name}" for term in selection.more_terms)
    )
    scores = ", ".join(
        f"`{score.name}` ({score.kind}, {score.normalisation}, weight {score.weight:g})"
        for score in settings.scores
    )
    rows = [
        ("Source", f"`{shown_path(settings.source.path)}`"),
        ("Budget", budget),
        ("Method", method),
        ("Objective", objective),
        ("Quality", scores),
        ("Pruned before embedding", f"worst {settings.prune:.0%}"),
        ("Embeddings", _encoder(run)),
        ("Shards", f"{run.num_shards:,}"),
        ("Seed", str(settings.seed)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in _versions(run).items())),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _encoder(run: Run) -> str:
    embedding = run.settings.embedding
    width = f"{embedding.dimension} dimensions"
    if run.settings.source.layout == "features":
        return f"given by the source, {width}"
    if embedding.method == "lexical":
        return f"`lexical` (hashed n-grams, no model), {width}"
    revision = run.pins.get("embeddings:model", "not pinned")
    model = _shown_model(embedding.model)
    return f"`{model}` at revision `{revision}`, prefix `{embedding.prefix}`, {width}"


def _shown_model(model: str) -> str:
    # A Hub name has at most one slash; anything else is a folder on the machine that ran.
    is_folder = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return shown_path(model) if is_folder else model


def _versions(run: Run) -> dict[str, str]:
    record: dict[str, Any] = json.loads((run.root / "run.json").read_text())
    versions: dict[str, str] = record["versions"]
    return versions


def _loading(publication: Publication) -> str:
    name = publication.repository or "owner/name"
    revision = publication.tag
    return f"""\
```python
from datasets import load_dataset

dataset = load_dataset("{name}", split="train", revision="{revision}")
```

```sql
-- DuckDB
SELECT count(*), avg(quality) FROM 'hf://datasets/{name}@{revision}/data/*.parquet';
```"""


def _reproduction(run: Run) -> str:
    version = _versions(run).get("datamask-pipeline", "")
    settings = run.settings.model_dump(mode="json", exclude={"publication"}, exclude_defaults=True)
    settings["seed"] = run.settings.seed
    if "source" in settings:
        settings["source"]["path"] = shown_path(run.settings.source.path)
    for score in settings.get("quality", {}).get("scores", ()):
        if score.get("path"):
            score["path"] = shown_path(score["path"])
    if "model" in settings.get("embedding", {}):
        settings["embedding"]["model"] = _shown_model(run.settings.embedding.model)
    if "embeddings:model" in run.pins and run.settings.embedding.method != "lexical":
        settings.setdefault("embedding", {})["revision"] = run.pins["embeddings:model"]
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()
    return f"""\
With datamask-pipeline {version} and the versions above, and this as `config.yaml`:

```yaml
{text}
```

```sh
datamask rebuild runs/again --config config.yaml
```

The same input, settings and seed give the same files."""


def _limitations(settings: Settings) -> str:
    lines = [
        "The selection knows nothing of facts, personal data or harmful content; what the source "
        "contains may be here too, under the source's terms.",
        "Documents compete within their shard, not across the whole corpus.",
        "Quality and diversity are what the scores and embeddings above measure; look at the "
        "length figures before training, since many scores favour some lengths.",
    ]
    if settings.source.layout == "documents" and settings.embedding.method == "lexical":
        lines.append(
            "**The embeddings are lexical**: diversity was measured by shared words and "
            "characters, not by meaning. That is good for demonstrations, tests and "
            "near-duplicates; use a sentence encoder for data to train on."
        )
    if any(score.kind == "heuristic" for score in settings.scores):
        lines.append(
            "Quality comes from simple rules of form (length, symbols, repetition, stop words), "
            "not from a trained scorer."
        )
    return "\n".join(f"- {line}" for line in lines)

"""The dataset card: what was selected and how, from the run's own record and figures.

The header is what the Hub indexes and the viewer loads by; its license is the one of the settings.
Nothing in the card names the machine that made it: a path is shown only if it is a URL, without
credentials, and otherwise by its last component.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import yaml

from datamask.config.outputs import Publication
from datamask.config.settings import Settings
from datamask.errors import RunError
from datamask.publishing.card_recipe import recipe, shown_model, shown_path, versions_text
from datamask.publishing.card_schema import dataset_info, size_category
from datamask.publishing.configurations import Configuration
from datamask.runs.run import Run
from datamask.runs.schemas import added_columns
from datamask.source.opening import SOURCE_PIN

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

_REVISION = r"^(hf://datasets/[^/@]+/[^/@]+)(@(refs/(convert|pr)/)?[^/]+)?"
"""A Hub path's repository and, where it has one, its revision."""

LEAST_LANGUAGE_SHARE = 0.01
"""Share of the subset from which a language of the source's column is named in the header: below it
are mostly errors of language identification."""

_LANGUAGE_CODE = r"[a-z]{2,3}"
"""ISO 639, the codes that the Hub accepts."""


def is_our_card(content: str) -> bool:
    """Whether a repository's README.md was written by `card_text`."""
    from huggingface_hub import DatasetCard

    try:
        tags = DatasetCard(content, ignore_metadata_errors=True).data.get("tags")
    except (ValueError, TypeError, AttributeError, yaml.YAMLError):
        return False
    return isinstance(tags, list) and TAG in tags


def card_text(
    run: Run,
    publication: Publication,
    configs: Sequence[Configuration],
    pictures: Sequence[str] = (),
) -> str:
    """The README.md of the published dataset.

    Args:
        run: with an up-to-date subset and composition.
        publication: license, languages, title and citation.
        configs: the dataset's configurations, `default` first.
        pictures: names of the files in `pictures/`, without `.png`.

    Raises:
        RunError: subset or composition is missing or stale.
    """
    from datamask.report.markdown import report_markdown
    from datamask.report.warnings import warnings_markdown

    state = run.state("composition")
    if state != "done":
        path = run.local_path("composition")
        raise RunError(f"{path}: {state}; run stage `composition` first")
    documents = configs[0].rows
    languages = _languages(run)
    title = publication.pretty_name or publication.repository.rpartition("/")[2] or "Subset"
    parts = [
        f"---\n{_metadata(publication, configs, languages, title)}\n---\n",
        f"# {title}",
        _introduction(run, publication, documents),
        *filter(None, [warnings_markdown(run).strip()]),
        "## What is in it",
        _contents(configs),
        *_language_shares(languages),
        "## How to load it",
        _loading(run, publication, configs),
        "## How it was selected",
        recipe(run),
        "## Before and after",
        report_markdown(run).strip(),
        *_length_bias(run),
        *_gallery(pictures),
        "## How to reproduce it",
        _reproduction(run),
        "## Limitations",
        _limitations(run.settings),
        "## Licence",
        f"`{publication.license}`, the licence of the source.",
        "## Citation",
        f"```bibtex\n{PAPER}\n```",
    ]
    if publication.citation:
        parts.append(f"The source:\n\n```bibtex\n{publication.citation.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _metadata(
    publication: Publication,
    configs: Sequence[Configuration],
    languages: Mapping[str, float],
    title: str,
) -> str:
    """The YAML that the Hub reads."""
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        language=list(publication.languages)
        or [
            name
            for name, share in languages.items()
            if share >= LEAST_LANGUAGE_SHARE and re.fullmatch(_LANGUAGE_CODE, name)
        ]
        or None,
        license=publication.license,
        pretty_name=title,
        size_categories=[size_category(configs[0].rows)],
        source_datasets=list(publication.source_datasets) or None,
        task_categories=["text-generation"],
        tags=["data-selection", TAG, "arxiv:2512.24265"],
        configs=[
            {
                "config_name": config.name,
                **({"default": True} if config.name == "default" else {}),
                "data_files": [{"split": "train", "path": config.pattern}],
            }
            for config in configs
        ],
        dataset_info=[dataset_info(config) for config in configs],
    )
    return str(data.to_yaml())


def _introduction(run: Run, publication: Publication, documents: int) -> str:
    source = f"`{shown_path(run.settings.source.path) or 'its source'}`"
    if publication.source_datasets:
        links = (
            f"[{name}](https://huggingface.co/datasets/{name})"
            for name in publication.source_datasets
        )
        source += f" ({', '.join(links)})"
    quality, logit, shard = added_columns(run.settings.subset.column_prefix).names
    method = run.settings.selection.method
    how = (
        "for quality and diversity at once by mask learning "
        "([DATAMASK](https://arxiv.org/abs/2512.24265))"
        if method == "mask"
        else f"by `{method}`, a comparator for mask learning "
        "([DATAMASK](https://arxiv.org/abs/2512.24265))"
    )
    compared = (
        "the part of the source it came from; documents of all shards were compared"
        if run.settings.selection.scope == "corpus"
        else "the group of documents it was compared with"
    )
    return (
        f"{documents:,} of {run.num_documents:,} documents of {source} "
        f"({documents / run.num_documents:.2%}), selected {how}. Each row has the source's columns "
        f"and three more: `{quality}` (combined quality score), `{logit}` (marginal gain when "
        f"learning ended, less the threshold) and `{shard}` ({compared})."
    )


def _contents(configs: Sequence[Configuration]) -> str:
    rows = [
        (f"`{config.name}`", f"{config.rows:,}", f"{config.stored_bytes:,}", config.about)
        for config in configs
    ]
    lines = ["| configuration | documents | bytes | |", "|:---|---:|---:|:---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _languages(run: Run) -> dict[str, float]:
    """Shares of the subset's documents by the source's `language` column, the largest first."""
    from datamask.analysis.composition import query

    rows = query(
        run,
        "SELECT name, share_after FROM groups WHERE kind = 'language' AND documents_after > 0 "
        "ORDER BY documents_after DESC, name",
    )
    return {row["name"]: row["share_after"] for row in rows}


def _language_shares(languages: dict[str, float]) -> list[str]:
    from datamask.report.markdown import cell

    if not languages:
        return []
    named = {name: share for name, share in languages.items() if share >= LEAST_LANGUAGE_SHARE}
    shares = [f"{cell(name)} {share:.1%}" for name, share in named.items()]
    rest = len(languages) - len(named)
    shares += [f"{rest} more with less than {LEAST_LANGUAGE_SHARE:.0%} each"] if rest else []
    return [f"Languages, by the source's own column: {', '.join(shares)}."]


def _loading(run: Run, publication: Publication, configs: Sequence[Configuration]) -> str:
    name = publication.repository or "owner/name"
    revision = publication.tag
    others = [config.name for config in configs if config.name != "default"]
    another = (
        f'\n{others[-1]} = load_dataset("{name}", "{others[-1]}", split="train", '
        f'revision="{revision}")'
        if others and others[-1].isidentifier()
        else ""
    )
    path = f"hf://datasets/{name}@{revision}/{configs[0].pattern}"
    quality = added_columns(run.settings.subset.column_prefix).names[0]
    return f"""\
```python
from datasets import load_dataset

dataset = load_dataset("{name}", split="train", revision="{revision}"){another}
```

```sql
-- DuckDB
SELECT count(*), avg({quality}) FROM '{path}';
```

```python
import polars

documents = polars.scan_parquet("{path}")
```"""


_LENGTH_BIAS = """
WITH edges AS (SELECT q20, q40, q60, q80 FROM lengths WHERE selection = 'source'),
banded AS (
    SELECT (characters > q20)::INT + (characters > q40)::INT + (characters > q60)::INT
        + (characters > q80)::INT AS band, *
    FROM documents, edges WHERE characters IS NOT NULL
)
SELECT min(characters) AS least, max(characters) AS most, count(*) AS source,
    count(*) FILTER (dropped IS NULL) AS candidates, count(*) FILTER (selected) AS selected,
    count(*) FILTER (top_quality) AS top_quality
FROM banded GROUP BY band ORDER BY band
"""


def _length_bias(run: Run) -> list[str]:
    """Shares of documents by length: five bands that are equally large in the source."""
    from datamask.analysis.composition import query

    rows = query(run, _LENGTH_BIAS)
    if not rows:
        return []
    names = ("source", "candidates", "selected", "top_quality")
    totals = {name: max(sum(row[name] for row in rows), 1) for name in names}
    lines = [
        "| characters | source | left by pruning | selected | top quality |",
        "|:---|---:|---:|---:|---:|",
    ]
    for row in rows:
        shares = " | ".join(f"{row[name] / totals[name]:.1%}" for name in names)
        lines.append(f"| {row['least']:,} – {row['most']:,} | {shares} |")
    about = (
        "Documents by length, in bands that hold a fifth of the source each. A selection without a "
        "bias for length would keep a fifth of each; `top quality` is what quality alone would do."
    )
    return ["### Length bias", about, "\n".join(lines)]


def _gallery(pictures: Sequence[str]) -> list[str]:
    if not pictures:
        return []
    first = ("curve-objective", "map")
    ordered = sorted(pictures, key=lambda name: (name not in first, name))
    shown = [f"![{name.replace('-', ' ')}](pictures/{quote(name)}.png)" for name in ordered]
    return ["## Pictures", *shown]


def _reproduction(run: Run) -> str:
    version = versions_text(run).get("datamask-pipeline", "")
    settings = run.settings.model_dump(mode="json", exclude={"publication"}, exclude_defaults=True)
    settings["seed"] = run.settings.seed
    if "source" in settings:
        path = shown_path(run.settings.source.path)
        commit = run.pinned_revisions.get(SOURCE_PIN)
        # The commit in the place of a branch: what is read again is what was read.
        settings["source"]["path"] = re.sub(_REVISION, rf"\1@{commit}", path) if commit else path
    for score in settings.get("quality", {}).get("scores", ()):
        if score.get("path"):
            score["path"] = shown_path(score["path"])
        if score.get("model"):
            score["model"] = shown_model(score["model"])
            name = score.get("name", "heuristic")
            score["revision"] = run.pinned_revisions.get(f"classifier_scores:{name}")
    if "model" in settings.get("embedding", {}):
        settings["embedding"]["model"] = shown_model(run.settings.embedding.model)
    if "embeddings:model" in run.pinned_revisions and run.settings.embedding.has_model:
        settings.setdefault("embedding", {})["revision"] = run.pinned_revisions["embeddings:model"]
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
        "Quality and diversity are what the scores and embeddings above measure; look at the "
        "length figures before training, since many scores favour some lengths.",
    ]
    if settings.selection.scope == "shard":
        lines.insert(1, "Documents compete within their shard, not across the whole corpus.")
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

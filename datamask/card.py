"""The dataset card: what was selected and how, from the run's own record and figures.

The header is what the Hub indexes and the viewer loads by; its license is the one of the settings.
Nothing in the card names the machine that made it: a path is shown only if it is a URL, without
credentials, and otherwise by its last component.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pyarrow as pa
import yaml

from datamask.config import Publication, Selection, Settings
from datamask.errors import RunError
from datamask.hub_configs import Configuration
from datamask.merging import OURS
from datamask.sources import SOURCE_PIN, source_schema
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

_REVISION = r"^(hf://datasets/[^/@]+/[^/@]+)(@(refs/(convert|pr)/)?[^/]+)?"
"""A Hub path's repository and, where it has one, its revision."""

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
    from huggingface_hub import DatasetCardData

    from datamask.report.markdown import report_markdown

    if run.state("composition") != "done":
        raise RunError(
            f"{run.path('composition')}: {run.state('composition')}; run stage `composition` first"
        )
    documents = configs[0].rows
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
                "config_name": config.name,
                **({"default": True} if config.name == "default" else {}),
                "data_files": [{"split": "train", "path": config.pattern}],
            }
            for config in configs
        ],
        dataset_info=[_dataset_info(config) for config in configs],
    )
    parts = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {title}",
        _introduction(run, publication, documents),
        "## What is in it",
        _contents(configs),
        "## How to load it",
        _loading(publication, configs),
        "## How it was selected",
        _recipe(run),
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


def _introduction(run: Run, publication: Publication, documents: int) -> str:
    source = f"`{shown_path(run.settings.source.path) or 'its source'}`"
    if publication.source_datasets:
        links = (
            f"[{name}](https://huggingface.co/datasets/{name})"
            for name in publication.source_datasets
        )
        source += f" ({', '.join(links)})"
    replaced = [name for name in source_schema(run).names if name in OURS.names]
    note = f" ({', '.join(replaced)} of the source is replaced)" if replaced else ""
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
        "and three more: `quality` (combined quality score), `logit` (marginal gain when learning "
        f"ended, less the threshold) and `shard` ({compared}){note}."
    )


def _rounds(run: Run) -> str:
    from datamask.composition import query

    rows = query(run.root, "SELECT settled FROM rounds ORDER BY round")
    rising = "" if rows[-1]["settled"] else " (**the objective was still rising after the last**)"
    return f"{len(rows)} rounds between shards{rising}"


def _recipe(run: Run) -> str:
    settings = run.settings
    selection = settings.selection
    method = f"`{selection.method}`"
    if selection.method == "mask":
        method += (
            f", {_rounds(run)}, one threshold for all"
            if selection.num_rounds
            else f", at most {selection.steps:,} steps a shard"
        )
    objective = (
        f"λ · quality + (1 − λ) · {selection.metric}, λ = {selection.quality_weight:g}"
        + ("" if selection.scale_terms else ", terms not scaled")
        + "".join(f", {term.weight:+g} · {term.name}" for term in selection.more_terms)
    )
    copies = "kept once" if settings.quality.duplicates == "drop" else "all kept"
    scores = ", ".join(
        f"`{score.name}` ({score.kind}, {score.normalisation}, weight {score.weight:g})"
        for score in settings.scores
    )
    rows = [
        ("Source", _source(run)),
        ("Budget", _budget(selection)),
        ("Method", method),
        ("Objective", objective),
        ("Quality", scores),
        ("Pruned before embedding", f"worst {settings.prune:.0%}"),
        ("Documents with the same text", copies),
        ("Embeddings", _encoder(run)),
        ("Shards", f"{run.num_shards:,}"),
        ("Seed", str(settings.seed)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in _versions(run).items())),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


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
    commit = run.pins.get(SOURCE_PIN)
    return f"`{shown_path(run.settings.source.path)}`" + (f" at `{commit}`" if commit else "")


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


def _dataset_info(config: Configuration) -> dict[str, Any]:
    """What `datasets` checks a download against: columns, rows and sizes."""
    features = [_feature(field) for field in config.schema]
    return {
        "config_name": config.name,
        # Better none than wrong ones: `datasets` then takes them from the files.
        **({} if None in features else {"features": features}),
        "splits": [
            {"name": "train", "num_bytes": config.memory_bytes, "num_examples": config.rows}
        ],
        "download_size": config.stored_bytes,
        "dataset_size": config.memory_bytes,
    }


def _feature(field: pa.Field) -> dict[str, Any] | None:
    """A column in the words of `datasets`; None for types not known here."""
    kind = field.type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _dtype(kind.value_type)
        length = {"length": kind.list_size} if pa.types.is_fixed_size_list(kind) else {}
        return None if inner is None else {"name": field.name, "list": inner, **length}
    dtype = _dtype(kind)
    return None if dtype is None else {"name": field.name, "dtype": dtype}


def _dtype(kind: pa.DataType) -> str | None:
    names = {"double": "float64", "float": "float32", "halffloat": "float16"}
    is_plain = pa.types.is_primitive(kind) and not pa.types.is_date(kind)
    is_plain = is_plain and not pa.types.is_time(kind) and not pa.types.is_duration(kind)
    if not (is_plain or str(kind) in ("string", "large_string", "binary", "large_binary")):
        return None
    return names.get(str(kind), str(kind))


def _contents(configs: Sequence[Configuration]) -> str:
    rows = [
        (f"`{config.name}`", f"{config.rows:,}", f"{config.stored_bytes:,}", config.about)
        for config in configs
    ]
    lines = ["| configuration | documents | bytes | |", "|:---|---:|---:|:---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _loading(publication: Publication, configs: Sequence[Configuration]) -> str:
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
    return f"""\
```python
from datasets import load_dataset

dataset = load_dataset("{name}", split="train", revision="{revision}"){another}
```

```sql
-- DuckDB
SELECT count(*), avg(quality) FROM '{path}';
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
    from datamask.composition import query

    rows = query(run.root, _LENGTH_BIAS)
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
    version = _versions(run).get("datamask-pipeline", "")
    settings = run.settings.model_dump(mode="json", exclude={"publication"}, exclude_defaults=True)
    settings["seed"] = run.settings.seed
    if "source" in settings:
        path = shown_path(run.settings.source.path)
        commit = run.pins.get(SOURCE_PIN)
        # The commit in the place of a branch: what is read again is what was read.
        settings["source"]["path"] = re.sub(_REVISION, rf"\1@{commit}", path) if commit else path
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

"""Write the dataset card: what was selected and how, from the run's record and results.

The Hub indexes the header, and its viewer loads the configurations that it names; the license comes
from the settings. The card does not reveal the machine: a URL is shown without credentials, any
other path by its last component.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from huggingface_hub import DatasetCard, DatasetCardData

from datamask.analysis.summary import near_duplicates, open_composition, query, tokens_of
from datamask.config.evaluation import Evaluation
from datamask.config.outputs import MOST_DUMPS, Publication
from datamask.config.scores import HeuristicScore
from datamask.config.screening import WORDS
from datamask.config.selection import FROM_RECIPE, NO_GROUP, without_budget
from datamask.config.settings import Settings
from datamask.objectives.formula import formula
from datamask.publishing.configurations import Configuration
from datamask.quality.classes import pin_key
from datamask.quality.examples import example_figures
from datamask.report.answer import answer
from datamask.report.charts import read_captions
from datamask.report.evaluation import evaluation_markdown
from datamask.report.markdown import report_markdown
from datamask.report.rendering import cell, render, shown_model, shown_path
from datamask.runs.run import Run
from datamask.runs.schemas import added_columns
from datamask.source.opening import SOURCE_PIN

TEMPLATES = Path(__file__).parent / "templates"

TAG = "datamask"
"""Tag that identifies repositories written by datamask (see `is_our_card`)."""

_REVISION = r"^(hf://datasets/[^/@]+/[^/@]+)(@(refs/(convert|pr)/)?[^/]+)?"
"""Matches the repository and optional revision of a Hub path."""

LEAST_LANGUAGE_SHARE = 0.01
"""Smallest fraction of the subset with which a language is named in the header; smaller ones are
mostly errors of language identification."""


def is_our_card(content: str) -> bool:
    """Return True if `card_text` wrote a repository's README.md."""
    try:
        tags = DatasetCard(content, ignore_metadata_errors=True).data.get("tags")
    except (ValueError, TypeError, AttributeError, yaml.YAMLError):
        return False
    return isinstance(tags, list) and TAG in tags


_SIGNATURE = "<!-- SHA-256 of the text above: "


def signed(card: str) -> str:
    """Append the checksum of a card's text, in a last line that the Hub's page does not show."""
    return f"{card}{_SIGNATURE}{hashlib.sha256(card.encode()).hexdigest()} -->\n"


def is_edited(content: str) -> bool:
    """Return True if somebody has changed a `signed` card."""
    card, signature, _ = content.rpartition(_SIGNATURE)
    return bool(signature) and signed(card) != content


def card_text(
    run: Run,
    publication: Publication,
    configs: Sequence[Configuration],
    pictures: Sequence[str] = (),
) -> str:
    """Write the README.md of the published dataset.

    The first of *configs* is `default`; *pictures* are names in `pictures/`, without `.png`.

    Raises:
        RunError: subset or composition is missing or stale.
    """
    run.receipt("composition")
    settings = run.settings
    title = publication.repository.rpartition("/")[2] or "Subset"
    repository = publication.repository or "owner/name"
    quality, logit, shard, *repeat = added_columns(settings).names
    dataset = "".join(re.findall(r"^hf://datasets/([^/@]+/[^/@]+)", settings.source.path))
    last, is_text = configs[-1].name, settings.source.layout == "documents"
    count_dumps = f"SELECT count(DISTINCT dump) AS n FROM documents WHERE dump <> '{NO_GROUP}'"
    with open_composition(run, "totals"):  # DuckDB opens the file once for all queries
        languages = _languages(run)
        return render(
            "card.md",
            TEMPLATES,
            metadata=_metadata(publication, configs, languages, title, dataset),
            title=title,
            run=run,
            selection=settings.selection,
            publication=publication,
            documents=configs[0].rows,
            source=shown_path(settings.source.path) or "its source",
            dataset=dataset,
            most_dumps=MOST_DUMPS,
            quality=quality,
            logit=logit,
            shard=shard,
            repeat=repeat[0] if repeat else "",
            answer=answer(run).markdown,
            configurations=configs,
            num_dumps=query(run, count_dumps)[0]["n"],
            is_by_dump=any(file.dump for file in run.subset_files),
            languages=languages,
            least_share=LEAST_LANGUAGE_SHARE,
            repository=repository,
            other=last if last != "default" and last.isidentifier() else "",
            path=f"hf://datasets/{repository}@{publication.tag}/{configs[0].pattern}",
            recipe=recipe(run).strip(),
            trained=evaluation_markdown(run).strip(),
            report=report_markdown(run).strip(),
            pictures=_pictures(run, pictures),
            version=_versions(run).get("datamask-pipeline", ""),
            settings=_settings(run),
            lexical=is_text and settings.embedding.method == "lexical",
            heuristic=any(isinstance(score, HeuristicScore) for score in settings.scores),
            judging=_judging(settings),
        )


def recipe(run: Run) -> str:
    """List the settings that determine the selection, as a Markdown table."""
    selection = run.in_force.selection
    return render(
        "recipe.md",
        TEMPLATES,
        run=run,
        selection=selection,
        shown=run.settings.relocated(shown_path, shown_model),
        pins=run.pinned_revisions,
        commit=run.pinned_revisions.get(SOURCE_PIN),
        rounds=query(run, "SELECT settled FROM rounds ORDER BY round"),
        formula=formula(selection),
        pruned=run.in_force.prune_fraction,
        near=near_duplicates(run),
        words=WORDS,
        tokens=tokens_of(run),
        from_examples=example_figures(run),
        versions=_versions(run),
    )


def _versions(run: Run) -> dict[str, str]:
    """Return versions of the packages that planned the run."""
    versions: dict[str, str] = json.loads((run.root / "run.json").read_bytes())["versions"]
    return versions


def _judging(settings: Settings) -> str:
    """Return what --set must add to the run's settings to apply its mask model."""
    values = {"scope": "shard"} | without_budget()
    changes = [
        f" --set selection.{name}={json.dumps(value)}"
        for name, value in values.items()
        if getattr(settings.selection, name) != value
    ]
    # The new run's arms would learn, and train on the new documents.
    changes += [" --set evaluation={}"] if settings.evaluation != Evaluation() else []
    return "".join(changes)


def _metadata(
    publication: Publication,
    configs: Sequence[Configuration],
    languages: Mapping[str, float],
    title: str,
    dataset: str,
) -> str:
    """Write the YAML header."""
    # The Hub accepts codes of ISO 639 alone.
    named = (name for name, share in languages.items() if share >= LEAST_LANGUAGE_SHARE)
    codes = [name for name in named if re.fullmatch(r"[a-z]{2,3}", name)]
    data = DatasetCardData(
        language=codes or None,
        license=publication.license,
        pretty_name=title,
        size_categories=[size_category(configs[0].rows)],
        source_datasets=[dataset] if dataset else None,
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
        dataset_info=[  # `datasets` verifies a download with these.
            {
                "config_name": config.name,
                "splits": [
                    {"name": "train", "num_bytes": config.memory_bytes, "num_examples": config.rows}
                ],
                "download_size": config.stored_bytes,
                "dataset_size": config.memory_bytes,
            }
            for config in configs
        ],
    )
    return str(data.to_yaml())


_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


def size_category(documents: int) -> str:
    """Return the Hub's category of a number of documents, such as `1K<n<10K` (1000 included)."""
    for step, name in enumerate(_SIZES):
        if documents < 10 ** (step + 3):
            return f"n<{name}" if step == 0 else f"{_SIZES[step - 1]}<n<{name}"
    return f"n>{_SIZES[-1]}"


_FIRST_PICTURES = ("tradeoff", "map")


def _pictures(run: Run, names: Sequence[str]) -> list[dict[str, str]]:
    """Return name, alternative text and caption of each picture."""
    captions = read_captions(run)
    first = [name for name in _FIRST_PICTURES if name in names]
    others = sorted({*names} - {*first})
    pictures = []
    for name in (*first, *others):
        title, note = captions.get(name, (name.replace("-", " "), ""))
        title = title[:1].upper() + title[1:]
        caption = f"{title}. {note}".strip() if name in captions else ""
        pictures.append({"name": name, "alt": cell(title), "caption": cell(caption)})
    return pictures


def _languages(run: Run) -> dict[str, float]:
    """Return fractions of the subset's documents by column `language`, the largest first."""
    rows = query(
        run,
        "SELECT name, share_after FROM groups WHERE kind = 'language' AND documents_after > 0 "
        "ORDER BY documents_after DESC, name",
    )
    return {row["name"]: row["share_after"] for row in rows}


def _settings(run: Run) -> str:
    """Write the settings that repeat the run, as YAML."""
    shown = run.settings.relocated(shown_path, shown_model)
    settings = shown.model_dump(mode="json", exclude={"publication"}, exclude_defaults=True)
    settings["seed"] = shown.seed
    of_recipe = {name: getattr(shown.selection, name) for name in FROM_RECIPE}
    settings["selection"] = settings.get("selection", {}) | of_recipe
    if shown.weight_follows:
        del settings["selection"]["quality_weight"]
    commit = run.pinned_revisions.get(SOURCE_PIN)
    if commit:
        # A branch may move; the commit is what the run read.
        settings["source"]["path"] = re.sub(_REVISION, rf"\1@{commit}", shown.source.path)
    for arm in settings.get("evaluation", {}).get("arms", ()):
        for term in arm.get("change", {}).get("more_terms", ()):
            if term.get("path"):
                term["path"] = shown_path(term["path"])
    for number, own in enumerate(shown.quality.scores):
        score = settings["quality"]["scores"][number] = own.without_defaults()
        if score.get("model"):
            name = score.get("name", "heuristic")
            score["revision"] = run.pinned_revisions.get(f"classifier_scores:{name}")
    for name, by in shown.source.classifiers.items():
        if by.kind == "classifier":
            settings["source"]["groups"][name]["revision"] = run.pinned_revisions[pin_key(name)]
    if "embeddings:model" in run.pinned_revisions and run.settings.embedding.has_model:
        settings.setdefault("embedding", {})["revision"] = run.pinned_revisions["embeddings:model"]
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return text.strip()

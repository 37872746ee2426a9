"""Preview a launch: resolve settings, examine the source, cut shards, collect problems."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.config.inputs import Embedding, Source
from datamask.config.scores import Score
from datamask.config.settings import Settings
from datamask.embedding.pinning import pin_model
from datamask.embedding.vector_files import PIN as VECTORS_PIN
from datamask.embedding.vector_files import digest_of_files, open_files
from datamask.errors import DatamaskError, InputError, SettingsError, gathering, together
from datamask.evaluation.models import weight_bytes
from datamask.evaluation.pinning import pin_evaluation
from datamask.evaluation.questions import check_questions
from datamask.evaluation.sizes import size_problems
from datamask.hygiene.references import reference_digest, references
from datamask.planning.preflight_schema import (
    column_problems,
    objective_problems,
    token_problems,
)
from datamask.publishing.access import check_access
from datamask.quality.classes import pin_classes, pin_key
from datamask.quality.kinds import KINDS
from datamask.runs.budget import Counts, budget_problems
from datamask.runs.run import Run
from datamask.runs.schemas import MADE_IDS, OF_PARQUET, SIGNATURE_BYTES, SKETCH_BYTES, Piece
from datamask.runs.subset_files import expected_documents
from datamask.source.completed import lacking_ids, makes_ids, with_fields, with_folders
from datamask.source.convert import not_converted, source_files
from datamask.source.opening import SOURCE_PIN, digest_file, opening, resolve_path
from datamask.source.originals import FOLDER
from datamask.source.reading import SourceFile, read_footers
from datamask.source.token_counts import tokenizer_digest
from datamask.source.types import unify_schemas
from datamask.tokens.order import check_phases
from datamask.tokens.tokenise import pin_tokenizer

logger = logging.getLogger(__name__)

Convert = Callable[[str, Sequence[str], Settings], tuple[list[str], dict[str, str]]]
"""Calls `source.convert.convert` for some files of a source at its path."""

_LEARNERS = ("corpus_statistics", "learning", "selection")
"""Stages that first read the objective; settings decide which of them a run has."""


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """A plan before it is written.

    Args:
        settings: with absolute paths.
        pinned_revisions: see `create_run`.
        pieces: the cut.
        documents: rows in the source.
        bytes: size of the source's files.
        disk: estimated bytes needed, by folder of the run.
        schema: the source's columns.
        problems: errors that a launch would raise; later checks add theirs.
    """

    settings: Settings
    pinned_revisions: dict[str, str]
    pieces: tuple[Piece, ...]
    documents: int
    bytes: int
    disk: dict[str, int]
    schema: pa.Schema
    problems: list[DatamaskError]

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.pieces[-1].shard + 1 if self.pieces else 0


def preview(settings: Settings) -> PlanPreview:
    """Plan a run without writing it: run the cheap checks of `plan_run`, and raise their errors."""
    plan = examine(settings)
    if plan.problems:
        raise together(plan.problems)
    return plan


def cut(
    files: Iterable[SourceFile], rows_per_shard: int, bytes_per_shard: int
) -> tuple[Piece, ...]:
    """Cut files into shards of consecutive rows, none above the limits.

    Row groups stay whole unless one alone exceeds a limit; then it is split evenly by rows. A row
    larger than *bytes_per_shard* is a shard by itself. Every row is in exactly one piece. The
    pieces are in order of shard.
    """
    pieces: list[Piece] = []
    shard = rows_in = bytes_in = 0
    for file in files:
        for group, (rows, size) in enumerate(file.groups):
            if not rows:
                continue
            most = max(1, min(rows_per_shard, rows * bytes_per_shard // max(size, 1)))
            count = -(-rows // most)
            for number in range(count):
                start, stop = rows * number // count, rows * (number + 1) // count
                weight = size * stop // rows - size * start // rows
                too_many = rows_in + stop - start > rows_per_shard
                if rows_in and (too_many or bytes_in + weight > bytes_per_shard):
                    shard, rows_in, bytes_in = shard + 1, 0, 0
                rows_in += stop - start
                bytes_in += weight
                _append(pieces, shard, file, group, start, stop - start, weight)
    return tuple(pieces)


def _append(
    pieces: list[Piece], shard: int, file: SourceFile, group: int, skip: int, rows: int, size: int
) -> None:
    """Add rows of a row group; if they continue the last piece, extend it."""
    first = group
    if pieces and pieces[-1].shard == shard and pieces[-1].path == file.path:
        last = pieces.pop()
        first, skip = last.first_row_group, last.skip_rows
        rows, size = rows + last.rows, size + last.bytes
    pieces.append(Piece(shard, file.path, first, group - first + 1, skip, rows, size, file.digest))


def _cut_after(
    before: Run | None, files: list[SourceFile], settings: Settings
) -> tuple[Piece, ...]:
    """Cut files; if all files of a planned run are among them, its shards come first, unchanged."""
    planned: tuple[Piece, ...] = ()
    if before is not None and before.settings.plan == settings.plan and before.plan_path.exists():
        paths = {(stable_path(file.path), file.digest): file.path for file in files}
        pairs = [((stable_path(piece.path), piece.digest), piece) for piece in before.pieces]
        if all(key in paths for key, _ in pairs):
            planned = tuple(replace(piece, path=paths[key]) for key, piece in pairs)
    known = {piece.path for piece in planned}
    more = [file for file in files if file.path not in known]
    new = cut(more, settings.plan.rows_per_shard, settings.plan.bytes_per_shard)
    first = planned[-1].shard + 1 if planned else 0
    return (*planned, *(replace(piece, shard=first + piece.shard) for piece in new))


def stable_path(path: str) -> str:
    """Remove from a path the commit, which moves when files are added; of a copy, keep its name."""
    return re.sub(rf"^(hf://[^@]*)@[0-9a-f]{{40}}(?=/)|^.*/(?={FOLDER}/)", r"\1", path)


def examine(
    settings: Settings,
    before: Run | None = None,
    *,
    publishing: bool = True,
    extend: bool = False,
    convert: Convert | None = None,
) -> PlanPreview:
    """Preview `plan_run` as far as is known, with the problems that cheap checks find.

    Args:
        settings: as given.
        before: the run as it is, or the run that a new one starts from; its shards, if the source
            still has them all, and its revisions stay.
        publishing: if True, ask the Hub if the token may publish.
        extend: if True, read a source on the Hub at its newest commit.
        convert: converts the files of a source that are not Parquet (`source.convert`).
    """
    # Absolute paths let a run be continued from any folder.
    settings = settings.relocated(resolve_path, _resolve_model)
    problems: list[DatamaskError] = []
    pins: dict[str, str] = {}
    files: list[SourceFile] = []
    schema = pa.schema([])
    # Built-in terms depend on the settings alone, and a run's terms have been checked.
    is_new = before is None or before.settings != settings or settings.selection.has_custom_terms
    of_settings = list(objective_problems(settings)) if is_new else []
    with gathering(problems):
        if not settings.source.path:
            raise SettingsError("source.path: required; a folder, glob or URL of files")
        known = None if extend else before
        if known is not None and known.settings.source.path == settings.source.path:
            # This holds even if the branch has moved since.
            pins |= {key: of for key, of in known.pinned_revisions.items() if key == SOURCE_PIN}
        else:
            pins |= pin_source(settings.source)
        path = pinned_path(settings.source.path, pins)
        paths, to_convert = source_files(path)
        if to_convert and not of_settings:
            if convert is None:
                raise not_converted(settings.source.path, len(to_convert))
            copies, more_pins = convert(path, to_convert, settings)
            paths, pins = [*paths, *copies], pins | more_pins
        files, unreadable = read_footers(paths)
        problems += unreadable
    are_all = bool(files) and not problems
    if files:
        source = settings.source
        full = [(file.path, with_folders(file.schema, file.path, source)) for file in files]
        schema = full[0][1]
        with gathering(problems):
            schema = unify_schemas(full, source.union)
            if MADE_IDS not in pins:  # as for converted copies
                problems += lacking_ids(full, schema, source)
        if makes_ids(schema, source):
            logger.warning("%s: no column %s; file and row are the ids", path, source.id_column)
            pins[MADE_IDS] = OF_PARQUET
        schema = with_fields(schema, source, _named_columns(settings))
        named = {getattr(problem, "column", None) for problem in problems}
        in_columns = column_problems(settings, schema)
        problems += [p for p in in_columns if getattr(p, "column", "") not in named]
        problems += token_problems(settings, schema)
    documents = sum(rows for file in files for rows, _ in file.groups)
    size = sum(file.size for file in files)
    disk: dict[str, int] = {}
    if are_all and not documents:
        problem = "no rows in any of its files; check the path"
        problems.append(InputError(problem, path=settings.source.path))
    elif are_all:
        counts = counts_of_footers(settings, documents)
        budgeting = list(budget_problems(settings.selection, counts))
        problems += budgeting
        text = sum(bytes_of for file in files for _, bytes_of in file.groups)
        problems += size_problems(settings, text, before)
        disk = {} if budgeting else _disk_needed(settings, documents, size)
    problems += of_settings
    has_tokens = settings.source.columns.token_count in schema.names
    pins |= _other_pins(settings, before, has_tokens, problems, publishing=publishing)
    pieces = _cut_after(before, files, settings)
    return PlanPreview(settings, pins, pieces, documents, size, disk, schema, problems)


def _named_columns(settings: Settings) -> list[str]:
    """List the columns of the source that settings name."""
    scores = [score.source_column for score in settings.scores]
    vectors = [settings.vector_column] if not settings.vector_files else []
    return [name for name in (*dict(settings.source.columns).values(), *scores, *vectors) if name]


def _other_pins(
    settings: Settings,
    before: Run | None,
    has_tokens: bool,
    problems: list[DatamaskError],
    *,
    publishing: bool,
) -> dict[str, str]:
    """Return pins of score files, references, models and tokenizer; add failures to *problems*."""
    pins: dict[str, str] = {}
    for score in settings.scores:
        with gathering(problems):
            pins |= _score_pin(score, settings, before)
    for name, by in settings.source.classifiers.items():
        if settings.source.layout == "documents":
            with gathering(problems):
                pins[pin_key(name)] = pin_classes(name, by, before)
    for key, path, columns in references(settings):
        with gathering(problems):
            pins[key] = reference_digest(path, columns)
            check_questions(settings.evaluation, key)
    if publishing and settings.publication is not None:
        with gathering(problems):
            check_access(settings.publication)
    if settings.has_vectors and settings.vector_files:
        with gathering(problems):
            digest = digest_of_files(open_files(settings))
            pins |= dict.fromkeys((VECTORS_PIN, "embeddings:files"), digest)
    elif settings.has_vectors and not settings.vector_column:
        with gathering(problems):
            pins |= _kept_pin(settings.embedding, before) or pin_model(settings.embedding)
    for path in filter(None, (term.path for term in settings.selection.more_terms)):
        with gathering(problems):
            pins |= dict.fromkeys([f"{stage}:{path}" for stage in _LEARNERS], digest_file(path))
    with gathering(problems):
        pins |= pin_evaluation(settings)
    if settings.selection.mask_model:
        with gathering(problems):
            from datamask.planning.preflight_model import pin_model_of

            pins |= pin_model_of(settings, pins)
    if settings.tokens is not None:
        with gathering(problems):
            check_phases(settings)
            pins |= pin_tokenizer(settings)
    if settings.source.tokenizer and not has_tokens:
        with gathering(problems):
            pins["scores:tokenizer"] = tokenizer_digest(settings.source.tokenizer)
    return pins


def _resolve_model(model: str) -> str:
    """Make a model's file or folder an absolute path; a name on the Hub stays as it is."""
    return resolve_path(model) if model and Path(model).exists() else model


def _kept_pin(now: Embedding, before: Run | None) -> dict[str, str]:
    """Return the pin of a planned run if it has the same model on the Hub."""
    same = attrgetter("model", "revision", "method")
    is_same = before is not None and same(now) == same(before.settings.embedding)
    if before is None or not is_same or not now.has_model or Path(now.model).exists():
        return {}
    return {key: of for key, of in before.pinned_revisions.items() if key.startswith("embeddings:")}


def _score_pin(score: Score, settings: Settings, before: Run | None) -> dict[str, str]:
    """Identify the files or the model of a score; empty if it has none."""
    if score.reads_text and settings.source.layout == "features":
        return {}
    pin = KINDS[type(score)].pin(score, before)
    return {score.pin_key: pin} if pin else {}


def counts_of_footers(settings: Settings, documents: int) -> Counts:
    """Count the documents that are left if as few are pruned as the settings can mean."""
    if not settings.least_pruned:
        return Counts(documents)
    left = documents - int(Fraction(str(settings.least_pruned)) * documents)
    return Counts(documents, left, f"quality.prune_fraction {settings.least_pruned}")


def _disk_needed(settings: Settings, documents: int, size: int) -> dict[str, int]:
    """Estimate the bytes on disk by folder of the run, from bytes per document."""
    survivors = counts_of_footers(settings, documents).left or documents
    total = expected_documents(settings.selection, documents, size)
    stages = [score.stage for score in settings.scores]
    needed = {
        "classifier_scores": 20 * stages.count("classifier_scores") * documents,
        "classes": 2 * len(settings.source.classifiers) * documents,
        "file_scores": 10 * stages.count("file_scores") * documents,
        "vector_places": 12 * documents * bool(settings.has_vectors and settings.vector_files),
        "scores": 100 * documents,
        "screening": (SIGNATURE_BYTES + SKETCH_BYTES + 40)
        * (documents if settings.quality.near_duplicates else 0),
        "quality": 60 * documents,
        "embeddings": settings.embedding.bytes_per_vector * survivors * settings.has_vectors,
        "selection": 40 * survivors,
        "documents": 100 * documents,
        "subset": size * total // documents,
        "evaluation": weight_bytes(settings.evaluation),
    }
    return {name: of for name, of in needed.items() if of}


def pin_source(source: Source) -> dict[str, str]:
    """The current commit of a Hub source, by the key `scores:source`; empty for other sources."""
    if not source.path.startswith("hf://"):
        return {}
    from huggingface_hub import HfApi, HfFileSystem

    with opening(source.path):
        at: Any = HfFileSystem().resolve_path(source.path)
        facts = HfApi().repo_info(at.repo_id, repo_type=at.repo_type, revision=at.revision)
    return {SOURCE_PIN: str(facts.sha)}


def pinned_path(path: str, pinned_revisions: dict[str, str]) -> str:
    """A Hub path at its pinned commit; other paths as they are."""
    commit = pinned_revisions.get(SOURCE_PIN)
    if commit is None or not path.startswith("hf://"):
        return path
    from huggingface_hub import HfFileSystem

    at: Any = HfFileSystem().resolve_path(path)
    kind = "" if at.repo_type == "model" else f"{at.repo_type}s/"
    tail = f"/{at.path_in_repo}" if at.path_in_repo else ""
    return f"hf://{kind}{at.repo_id}@{commit}{tail}"

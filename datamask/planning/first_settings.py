"""Write a first settings file, from a look at the source: `datamask init`.

The look reads all footers and a few rows, and changes nothing. Comments next to the settings say
what was found and what the user must decide.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from datamask import __version__
from datamask.config.inputs import Columns, Embedding, Source
from datamask.config.loading import parse_settings
from datamask.config.scores import RESERVED_SCORE_NAMES
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, InputError, one_line, together
from datamask.planning.preflight_schema import column_problems
from datamask.source.columns import is_id, is_numeric, is_text, is_vector
from datamask.source.completed import UUID, batches_of, with_fields, with_folders
from datamask.source.convert import first_records, source_files
from datamask.source.opening import open_parquet, resolve_path
from datamask.source.reading import plain_schema, plain_type, read_footers
from datamask.source.types import unify_schemas

ROWS, FIRST_VECTORS = 1000, 20
"""Number of rows, and of vectors, that are read of the first file."""

HEAD_BYTES = 2**24
"""Records that are converted for a look: so many bytes of the first file, decompressed."""

NAMES = {
    "text": "text content raw_content document body article",
    "id": "id doc_id docid document_id uuid warc-record-id key url",
    "dump": "dump snapshot crawl subset source dataset",
    "url": "url uri source_url link",
    "language": "language lang language_code",
    "token_count": "token_count num_tokens n_tokens token_num",
}
"""Names by which a column is recognised, the likeliest first."""

TEXTS = " ".join(names for key, names in NAMES.items() if key != "token_count").split()
"""Names of columns of text."""

SCORE = re.compile(r"score|quality|rating|grade|edu|prob", re.IGNORECASE)
NO_SCORE = re.compile(
    r"lang|token|length|_id$|minhash|toxic|nsfw|adult|spam|hate|perplexity|ppl", re.IGNORECASE
)
"""Names of numbers that measure something else, or whose low values are good."""

VECTOR = re.compile(r"emb|vec|feature", re.IGNORECASE)
"""Names of vectors, which are preferred to other lists of numbers."""

LEAST_WIDTH = 16
"""Shorter lists of numbers are something else, such as the probabilities of classes."""

MOST_SHARD_ROWS = 1_000_000
BYTES_PER_NUMBER = 8
"""Bytes per number of an embedding in learning: float16 in memory, float32 on its way there."""


@dataclass(frozen=True, slots=True)
class Look:
    """The findings of `look`.

    Args:
        settings: those that differ from the defaults, as in a settings file.
        comments: by key of a group, what was found there.
        lines: a summary for people.
        problems: what a run would refuse.
    """

    settings: dict[str, Any]
    comments: dict[str, str]
    lines: tuple[str, ...]
    problems: tuple[DatamaskError, ...]


def look(path: str) -> Look:
    """Look at the files of a source: a folder, file, glob or URL.

    Raises:
        InputError: the source has no files of a known format, or one cannot be read.
    """
    paths, to_convert = source_files(path)
    if paths:
        seen = _look_at(path, paths)
        if not to_convert:
            return seen
        more = f" in Parquet files; {len(to_convert):,} files more to convert, not counted"
        return replace(seen, lines=(seen.lines[0] + more, *seen.lines[1:]))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "first.parquet"
        first_records(to_convert[0], HEAD_BYTES, copy, TEXTS)
        seen = _look_at(path, [str(copy)])
    about = f"{len(to_convert):,} files to convert; looked at the first records of {to_convert[0]}"
    return replace(seen, lines=(about, *seen.lines[1:]), comments=seen.comments | {"plan": ""})


def _look_at(path: str, paths: Sequence[str]) -> Look:
    files, unreadable = read_footers(paths)
    if unreadable:
        raise together(unreadable)
    source_of_files = Source(path=path)
    full = [(file.path, with_folders(file.schema, file.path, source_of_files)) for file in files]
    schema = unify_schemas(full, union=True)
    differs = any({*of.names} != {*schema.names} for _, of in full)
    rows = sum(count for file in files for count, _ in file.groups)
    size = sum(count for file in files for _, count in file.groups)
    if not rows:
        raise InputError("has no rows", path=path)
    filled = next(file for file in files if any(count for count, _ in file.groups))
    group = next(number for number, (count, _) in enumerate(filled.groups) if count)
    with open_parquet(filled.path) as file:
        names = [name for name in schema.names if not pa.types.is_nested(schema.field(name).type)]
        # Without a group, all groups of a remote file may be fetched.
        batch = next(batches_of(file, names, source_of_files, [group], ROWS))
        first = pa.Table.from_batches([batch])
        known = [schema.field(f.name) if pa.types.is_null(f.type) else f for f in first.schema]
        first = first.cast(plain_schema(pa.schema(known)))
        widths = _widths(file, group)
    has_features = {"chunk_id", "feature_arr"} <= {*schema.names}
    columns, scores, standard = {}, [], Embedding()
    source: dict[str, Any] = {"path": resolve_path(path), **({"union": True} if differs else {})}
    embedding: dict[str, Any] = {"model": standard.model, "prefix": standard.prefix}
    if has_features:
        source["layout"] = "features"
        # A column without vectors is reported by `column_problems`.
        embedding = {"dimension": widths["feature_arr"]} if "feature_arr" in widths else {}
    else:
        if widths:
            own = next(filter(VECTOR.search, widths), next(iter(widths)))
            embedding = {"method": "column", "column": own, "dimension": widths[own]}
        columns = _columns(schema, first)
        defaults = Columns()
        other = {key: name for key, name in columns.items() if name != getattr(defaults, key)}
        source |= {"columns": other} if other else {}
        scores = _scores(schema, {*columns.values()})
    shard_rows = _shard_rows(embedding.get("dimension", standard.dimension))
    settings: dict[str, Any] = {
        "source": source,
        "plan": {"rows_per_shard": shard_rows},
        **({"quality": {"scores": scores}} if scores else {}),
        "embedding": embedding,
        "selection": {"ratio": 0.1},
    }
    total = f"{len(files):,} file{'s' * (len(files) != 1)}, {rows:,d} documents"
    total += f", {size / 10**6:,.1f} MB uncompressed"
    plan = "the embeddings of a shard fit in a quarter of this machine's memory; shards: "
    comments = {
        "source": _about_columns(schema, columns, first),
        "plan": plan + str(-(-rows // shard_rows)),
        "selection": "the worst by score are pruned, and the rest is covered (selection.metric); "
        "quality_weight (lambda, 0 to 1) weighs quality in addition",
    }
    lines = [total, *comments["source"].split("\n")]
    parsed: Settings = parse_settings(settings)
    if not has_features:
        without = _without(paths, [score["column"] for score in scores])
        about, pruned = _about_scores(scores, without), parsed.prune_fraction
        lines += about.split("\n")
        of_model = "without the Hub: a local folder as model; `method: lexical` for a trial"
        own_vectors = "the source has vectors, so no model is needed; delete these lines to embed "
        comments |= {
            "quality": f"{about}\nthe worst {pruned:.0%} are not embedded (quality.prune_fraction)",
            "embedding": f"{own_vectors}the texts by {standard.model}" if widths else of_model,
        }
    problems = column_problems(parsed, with_fields(schema, parsed.source, ()))
    return Look(settings, comments, tuple(lines), tuple(problems))


def _widths(file: pq.ParquetFile, group: int) -> dict[str, int]:
    """Return the widths of the columns of vectors, by name, as the first rows have them."""
    names = [field.name for field in file.schema_arrow if is_vector(field.type)]
    if not names:
        return {}
    first = next(file.iter_batches(FIRST_VECTORS, row_groups=[group], columns=names))
    all_widths = {name: pc.unique(pc.list_value_length(first[name])).drop_null() for name in names}
    of = {name: widths[0].as_py() for name, widths in all_widths.items() if len(widths) == 1}
    return {
        name: width for name, width in of.items() if width >= LEAST_WIDTH or name == "feature_arr"
    }


def settings_text(look: Look, name: str) -> str:
    """Write the settings as YAML with comments; the first lines name the file."""
    lines = [
        f"# Settings of DATAMASK, written by `datamask init` {__version__}. Next:",
        f"#   datamask plan runs/mine --config {name} --dry-run     shards and disk space",
        f"#   datamask rebuild runs/mine --config {name}",
        "# `datamask settings KEY` explains a key or a group, such as selection.metric; keys that",
        "# are absent have their defaults.",
        f"# Found: {one_line(look.lines[0])}",
        *(f"# TO DO: {one_line(problem)}" for problem in look.problems),
    ]
    for group in ("source", "plan", "quality", "embedding", "selection"):
        comments = look.comments.get(group, "").split("\n")
        lines += ["", *(f"# {one_line(line)}" for line in comments if line)]
        if group in look.settings:
            written = yaml.safe_dump({group: look.settings[group]}, sort_keys=False)
            lines += written.rstrip().split("\n")
    return "\n".join(lines) + "\n"


def _is_id(kind: pa.DataType) -> bool:
    """Return True if a source may have ids of this type."""
    return is_id(kind) or kind == UUID


FITS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    **dict.fromkeys(NAMES, (is_text, "text")),
    "id": (_is_id, "text, integers or UUIDs"),
    "token_count": (is_numeric, "numbers"),
}
"""Types that a column can have, and in words."""


def _named(schema: pa.Schema, key: str) -> list[str]:
    """List the columns that are named like *key*, the likeliest first."""
    # A dotted name belongs to a value within a record (`source.formats`).
    lower = {name.lower().rpartition(".")[2]: name for name in reversed(schema.names)}
    lower |= {name.lower(): name for name in schema.names}
    return [lower[name] for name in NAMES[key].split() if name in lower]


def _columns(schema: pa.Schema, first: pa.Table) -> dict[str, str]:
    """Return the source's column for each of datamask's: by name; text and id by content too."""
    kinds = {name: plain_type(schema.field(name).type) for name in schema.names}
    columns = {}
    for key in NAMES:
        fitting = [name for name in _named(schema, key) if FITS[key][0](kinds[name])]
        if fitting:
            columns[key] = fitting[0]
    texts = [name for name, kind in kinds.items() if is_text(kind)]
    if "text" not in columns and texts:
        columns["text"] = max(texts, key=lambda name: _mean_length(first[name]))
    if "id" not in columns:
        keys = (n for n in schema.names if _is_id(kinds[n]) and not first[n].null_count)
        unique = (name for name in keys if len(pc.unique(first[name])) == len(first))
        columns["id"] = next((name for name in unique if name != columns.get("text")), "id")
    return columns


def _mean_length(column: pa.ChunkedArray) -> float:
    return float(pc.mean(pc.utf8_length(column)).as_py() or 0)


def _scores(schema: pa.Schema, taken: Iterable[str]) -> list[dict[str, str]]:
    """Return columns of numbers that are named like scores, as settings that every row passes.

    Most rows are not read, and any of them may have null or NaN, so `missing` is always `drop`.
    """
    scores: list[dict[str, str]] = []
    for column in schema.names:
        is_score = SCORE.search(column) and not NO_SCORE.search(column) and column not in taken
        if not is_score or not is_numeric(schema.field(column).type):
            continue
        name = re.sub(r"[^a-z0-9_]", "_", column.lower())
        if not name[0].isalpha() or name in RESERVED_SCORE_NAMES:
            name = f"score_{name}"
        while name in {score["name"] for score in scores}:
            name += "_"
        scores.append({"name": name, "kind": "column", "column": column, "missing": "drop"})
    return scores


def _without(paths: Sequence[str], columns: Sequence[str]) -> dict[str, int]:
    """Count the nulls that Parquet footers record, by column."""
    without = dict.fromkeys(columns, 0)
    for path in paths if columns else ():
        with open_parquet(path) as file:
            schema, groups = file.metadata.schema, range(file.metadata.num_row_groups)
            places = [place for place in range(len(schema)) if schema.column(place).path in without]
            for group, place in itertools.product(groups, places):
                column = file.metadata.row_group(group).column(place)
                known = column.statistics
                nulls = known.null_count if known and known.has_null_count else 0
                without[column.path_in_schema] += nulls or 0
    return without


def _shard_rows(dimension: int) -> int:
    """Return rows whose embeddings fit in a quarter of memory, to one digit; at most a million."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = max(1000, memory // 4 // (BYTES_PER_NUMBER * dimension))
    digit = 10 ** (len(str(most)) - 1)
    return int(min(MOST_SHARD_ROWS, most // digit * digit))


def _about_columns(schema: pa.Schema, columns: dict[str, str], first: pa.Table) -> str:
    lines = [f"columns: {', '.join(f'{field.name} ({field.type})' for field in schema)}"]
    if columns:
        lines.append(f"used: {', '.join(f'{key} = {name}' for key, name in columns.items())}")
        for key in NAMES:
            for name in _named(schema, key):
                if not FITS[key][0](plain_type(schema.field(name).type)):
                    why = f"has type {schema.field(name).type}, needed are {FITS[key][1]}"
                    lines.append(f"not taken as {key}: {name} {why}")
        if columns["id"] not in schema.names:
            lines.append("no ids: they are made from file and row")
        if absent := [key for key in NAMES if key not in columns]:
            lines.append(f"not found: {', '.join(absent)}")
    if "text" in columns:
        length = _mean_length(first[columns["text"]])
        lines.append(f"texts have {length:,.0f} characters on average (first {len(first):,d} rows)")
    return "\n".join(lines)


def _about_scores(scores: list[dict[str, str]], without: dict[str, int]) -> str:
    if not scores:
        return (
            "no column looks like a score: the built-in heuristic is used, which measures form "
            "only and prunes\na score that selects, from a few hundred texts of the kind that you "
            "want:\n"
            "  quality: {scores: [{name: wanted, kind: examples, path: examples.jsonl}]}"
        )
    lines = [f"scores: {', '.join(score['column'] for score in scores)}"]
    lines.append("a higher number must be a better text; delete what is no quality")
    if len(scores) > 1:
        lines.append("the scores are added with equal weights")
    lines.append("documents without a score are dropped; `missing: error` refuses them instead")
    known = [f"{number:,d} without {column}" for column, number in without.items() if number]
    lines += [f"known so far: {', '.join(known)}"] if known else []
    return "\n".join(lines)

"""Work out what a run must select, a second time from the documentation, sharing no code with it.

Input: the settings as a plain dictionary, and the source as a list of `File`s in the order of their
names. What follows from these alone is computed here; what is learnt (logits) and what a model
makes (embeddings) is taken from the run. `Refused` says why the command must stop.
"""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

SCORE = {"kind": "column", "column": "score", "id_column": "id", "normalisation": "z-score"}
SCORE |= {"weight": 1.0, "missing": "error"}
NO_GROUP = "(none)"


@dataclass(frozen=True)
class File:
    """Rows of a source file (object columns, None for null), and the sizes of its row groups."""

    rows: pd.DataFrame
    groups: tuple[int, ...]


class Refused(Exception):
    """The command must refuse; the arguments are every reason that is seen at the same time."""


def value(settings: dict, key: str, default=None):
    """A setting by its path, or its default."""
    for part in key.split("."):
        settings = (settings or {}).get(part)
    return default if settings is None else settings


def added(settings: dict) -> list[str]:
    """The columns that the subset has after the source's."""
    names = ["quality", "logit", "shard"]
    names += ["repeat"] if value(settings, "selection.max_repeat") else []
    return [value(settings, "subset.column_prefix", "") + name for name in names]


def is_number(given) -> bool:
    """Return True if a value is there and finite."""
    return given is not None and not pd.isna(given) and math.isfinite(given)


def shard_numbers(files: list[File], most: int) -> list[int]:
    """The shard of each row: row groups stay whole unless one alone is above *most*."""
    numbers, shard, filled = [], 0, 0
    for size in (size for file in files for size in file.groups if size):
        parts = -(-size // most)
        for part in range(parts):
            count = size * (part + 1) // parts - size * part // parts
            if filled and filled + count > most:
                shard, filled = shard + 1, 0
            numbers += [shard] * count
            filled += count
    return numbers


def group_name(given) -> str:
    """The group of a document by its dump, language or domain; blank is none."""
    text = "" if given is None else str(given)
    return text if text.strip() else NO_GROUP


def scores_of_files(score: dict, ids: set[str]) -> dict[str, float]:
    """Scores by id, from Parquet, CSV or JSON lines; ids are text, whatever they look like."""
    found: list[tuple[str, object]] = []
    for path in sorted(Path(score["path"]).rglob("*")):
        if path.suffix == ".parquet":
            rows = pd.read_parquet(path, dtype_backend="pyarrow").astype(object).to_dict("records")
        elif path.suffix == ".csv":
            rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
        else:
            rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        found += [(str(row[score["id_column"]]), row.get(score["column"])) for row in rows]
    found = [(key, number) for key, number in found if key in ids]
    if len(found) != len(dict(found)):
        raise Refused("score-twice")
    return {key: math.nan if pd.isna(n) or n == "" else float(n) for key, n in found}


def scores_in_force(settings: dict) -> list[dict]:
    """The scores with their defaults; layout `features` brings one."""
    brought = {"name": "quality_score", "column": "quality_score", "normalisation": "none"}
    return [SCORE | score for score in value(settings, "quality.scores") or [brought]]


def read_source(settings: dict, files: list[File]) -> pd.DataFrame:
    """Every document: shard, row in it, id, characters, tokens, groups and raw scores."""
    source = pd.concat([file.rows for file in files], ignore_index=True)
    is_text = value(settings, "source.layout") != "features"

    def column(key: str) -> list:
        name = value(settings, f"source.columns.{key}", key)
        return source[name].tolist() if name in source.columns else [None] * len(source)

    ids = [str(given) for given in column("id" if is_text else "chunk_id")]
    shards = shard_numbers(files, value(settings, "plan.rows_per_shard", 1_000_000))
    texts = column("text") if is_text else [None] * len(ids)
    hosts = [urlsplit(url or "").hostname or "" for url in column("url")]
    lengths = [len(text) if text and text.strip() else 0 for text in texts]
    counts = [round(n) if is_number(n) else None for n in column("token_count")]
    facts = {
        "shard": shards,
        "row": pd.Series(shards).groupby(shards).cumcount().tolist(),
        "id": ids,
        "text": texts,
        "characters": lengths if is_text else texts,
        "tokens": counts,
        **{name: [group_name(given) for given in column(name)] for name in ("dump", "language")},
        "domain": [group_name(name.removeprefix("www.")) for name in hosts],
        "topic": [NO_GROUP] * len(ids),
    }
    problems = ["id-twice"] if len(set(ids)) < len(ids) else []
    names = pd.Series([*added(settings), *source.columns]).str.lower()
    problems += ["column-taken"] if names.duplicated().any() else []
    for score in scores_in_force(settings):
        try:
            if score["kind"] == "file":
                raw = [*map(scores_of_files(score, set(ids)).get, ids)]
            else:
                raw = source[score["column"]].tolist()
            raw = [float(number) if is_number(number) else None for number in raw]
            if None in raw and score["missing"] == "error":
                raise Refused("score-missing")
            facts[f"score:{score['name']}"] = raw
        except Refused as refused:
            problems += refused.args
    at_most = len(ids) - math.floor(prune_fraction(settings) * len(ids))
    if budget(settings, len(ids)) > at_most and not value(settings, "selection.tokens"):
        problems.append("budget")
    if problems:
        raise Refused(*problems)
    documents = pd.DataFrame({key: pd.Series(given, dtype=object) for key, given in facts.items()})
    check_all(settings, documents)  # before texts are read
    if is_text and value(settings, "source.columns.token_count", "token_count") in source.columns:
        documents.loc[[not length for length in lengths], "tokens"] = 0
    return documents


def check_all(settings: dict, documents: pd.DataFrame) -> None:
    """Return True if all documents together could meet budget and limits, before any is dropped."""
    limits, total = early_limits(settings), budget(settings, len(documents))
    in_tokens = bool(value(settings, "selection.tokens"))
    units = [max(n or 0, 0) for n in documents["tokens"]] if in_tokens else [1] * len(documents)
    if total > sum(units):
        raise Refused("budget")
    if not limits:
        return
    there = {limit.get("value"): 0 for limit in limits}
    for name, number in zip(documents[limits[0]["column"]], units, strict=True):
        there[name] = there.get(name, 0) + number
    floors = {name: bounds(settings, total, name)[0] for name in there if name}
    if sum(floors.values()) > total or any(there[name] < n for name, n in floors.items()):
        raise Refused("floor")
    if sum(min(n, bounds(settings, total, name)[1]) for name, n in there.items()) < total:
        raise Refused("cap")


def early_limits(settings: dict) -> list[dict]:
    """The limits of groups that the source knows: topics are known after embedding."""
    limits = value(settings, "selection.limits") or []
    return [limit for limit in limits if limit["column"] != "topic"]


def prune_fraction(settings: dict) -> Fraction:
    """The fraction of candidates that is pruned."""
    default = 0 if value(settings, "source.layout") == "features" else 0.5
    return Fraction(str(value(settings, "quality.prune_fraction", default)))


def has_vectors(settings: dict) -> bool:
    """Return True if something needs vectors, or the source has them."""
    needs = [value(settings, "selection.metric"), value(settings, "topics")]
    learns = value(settings, "selection.method", "mask") not in ("random", "top_quality")
    return learns or any(needs) or value(settings, "source.layout") == "features"


def objective(settings: dict) -> tuple[str, float]:
    """The metric and lambda: quality weighs less where it has pruned."""
    if not has_vectors(settings):
        return "", 1.0
    is_corpus = value(settings, "selection.scope") == "corpus"
    metric = value(settings, "selection.metric", "disf" if is_corpus else "facility_location")
    default = 0.3 if prune_fraction(settings) else 0.5
    return metric, value(settings, "selection.quality_weight", default)


def budget(settings: dict, documents: int) -> int:
    """Documents, or tokens, to keep."""
    exact = value(settings, "selection.tokens") or value(settings, "selection.documents")
    share = Fraction(str(value(settings, "selection.ratio", 0.1))) * documents
    return exact or max(1, math.floor(share + Fraction(1, 2)))


def normalise(score: dict, raw: pd.Series) -> np.ndarray:
    """A score on its common scale; NaN where it is missing."""
    gap = math.nan if score["missing"] in ("error", "drop") else score["missing"]
    numbers = np.array([gap if number is None else number for number in raw])
    there = numbers[~np.isnan(numbers)]
    if score["normalisation"] == "none" or not len(there):
        return numbers
    if score["normalisation"] == "rank":
        smaller = pd.Series(numbers).rank(method="min") - 1
        equal = pd.Series(numbers).rank(method="max") - smaller
        return ((2 * smaller + equal - 1) / (2 * len(there))).to_numpy()
    if there.min() == there.max():
        return numbers - there.min()
    if score["normalisation"] == "min-max":
        return (numbers - there.min()) / (there.max() - there.min())
    mean = math.fsum(there) / len(there)
    return (numbers - mean) / math.sqrt(math.fsum((there - mean) ** 2) / len(there))


def combine(settings: dict, documents: pd.DataFrame) -> np.ndarray:
    """The weighted sum of the normalised scores; NaN where one is missing."""
    scores = [(score, documents[f"score:{score['name']}"]) for score in scores_in_force(settings)]
    return np.sum([score["weight"] * normalise(score, raw) for score, raw in scores], axis=0)


def drop(settings: dict, documents: pd.DataFrame) -> list[str | None]:
    """Why each document is not offered to the learner; needs the column `quality`."""
    reasons: list[str | None] = []
    seen: set[str | None] = set()
    for text, characters, quality in documents[["text", "characters", "quality"]].to_numpy():
        reason = "empty" if characters == 0 else "missing-score" if math.isnan(quality) else None
        if reason is None and text is not None and value(settings, "quality.duplicates") != "keep":
            reason = "duplicate" if text in seen else None
            seen.add(text)
        reasons.append(reason)
    left = documents[[reason is None for reason in reasons]].sort_values(["quality", "id"])
    for place in left.index[: math.floor(prune_fraction(settings) * len(left))]:
        reasons[place] = "pruned"
    return reasons


def bounds(settings: dict, total: int, name: str | None) -> tuple[int, float]:
    """Floor and cap of a group: of the limit that names it, else of the one for every group."""
    given = {limit.get("value"): limit for limit in value(settings, "selection.limits") or []}
    limit = given.get(name, given.get(None, {}))
    cap = round(limit["cap"] * total) if "cap" in limit else total if limit else math.inf
    return round(limit.get("floor", 0) * total), cap


def candidates(settings: dict, documents: pd.DataFrame, by: list[str]) -> list[tuple]:
    """Id, group and cost of what was not dropped: highest first, then smallest id."""
    left = documents[documents["dropped"].isna()]
    left = left.sort_values([*by, "id"], ascending=[False] * len(by) + [True])
    column = [limit["column"] for limit in value(settings, "selection.limits") or []]
    names = left[column[0]] if column else [None] * len(left)
    costs = left["tokens"] if value(settings, "selection.tokens") else [1] * len(left)
    return list(zip(left["id"], names, costs, strict=True))


def cut(settings: dict, ordered: list[tuple], total: int) -> set[str]:
    """The ids that are kept of ordered candidates: to the floors, then to the budget."""
    taken: dict = {}
    forced, crossing, allowed, longest = {}, set(), [], 0
    for key, name, units in ordered:
        floor, cap = bounds(settings, total, name)
        have = taken.get(name, 0)
        if have + units > cap:
            longest = max(longest, units if units <= cap else 0)
            continue
        taken[name] = have + units
        allowed.append((key, units))
        if have < floor:
            forced[key] = units
            crossing |= {key} if have + units > floor else set()
    if sum(forced.values()) > total:
        forced = {key: units for key, units in forced.items() if key not in crossing}
    kept, spent = set(forced), sum(forced.values())
    for key, units in allowed:
        if spent < total and key not in kept:
            kept.add(key)
            spent += units
    if spent < total and total - spent >= longest:
        raise Refused("cap")
    return kept


def check_left(settings: dict, documents: pd.DataFrame) -> None:
    """Return True if the survivors can meet budget and limits; needs `quality` and `dropped`."""
    ordered = candidates(settings, documents, ["quality"])
    units = [units for _, _, units in ordered]
    if not ordered:
        raise Refused("nothing-left")
    if any(number is None or number < 0 for number in units):
        raise Refused("tokens-missing")
    total = budget(settings, len(documents))
    if total > sum(units):
        raise Refused("budget")
    if early_limits(settings) or not value(settings, "selection.limits"):
        check_groups(settings, documents)
        cut(settings, ordered, total)


def check_groups(settings: dict, documents: pd.DataFrame) -> None:
    """Return True if the groups of the survivors have what the limits need."""
    ordered, total = candidates(settings, documents, ["quality"]), budget(settings, len(documents))
    given = value(settings, "selection.limits") or []
    there: dict = {limit.get("value"): 0 for limit in given}
    for _, name, number in ordered:
        fits = number <= bounds(settings, total, name)[1]
        there[name] = there.get(name, 0) + (number if fits else 0)
    floors = {name: bounds(settings, total, name)[0] for name in there if name}
    if sum(floors.values()) > total or any(there[name] < n for name, n in floors.items()):
        raise Refused("floor")
    if sum(min(n, bounds(settings, total, name)[1]) for name, n in there.items()) < total:
        raise Refused("cap")


def keep(settings: dict, documents: pd.DataFrame) -> set[str]:
    """The ids that are kept, given `logit` of every document that was not dropped."""
    total = budget(settings, len(documents))
    ordered = candidates(settings, documents, ["logit", "quality"])
    chosen = settings["selection"]
    if chosen.get("scope") == "corpus" or chosen.get("limits") or chosen.get("tokens"):
        return cut(settings, ordered, total)
    kept, before = set(), 0
    for _, shard in documents.groupby("shard"):
        own = [key for key, _, _ in candidates(settings, shard, ["logit", "quality"])]
        upto = before + len(own)
        share = total * upto // len(ordered) - total * before // len(ordered)
        kept, before = kept | set(own[:share]), upto
    return kept


def repeats(settings: dict, documents: pd.DataFrame) -> pd.Series:
    """Count exposures of each document: once if selected, then by the worth of exposures."""
    seen = documents["selected"].astype(int)
    further = [
        (-(1 + max(row.logit, 0)) * math.prod([0.939] * k), -row.logit, -row.quality, row.id, place)
        for place, row in documents[documents["selected"]].iterrows()
        for k in range(1, value(settings, "selection.max_repeat", 1))
    ]
    left = value(settings, "selection.training_documents", 0) - seen.sum()
    for *_, place in sorted(further)[: max(left, 0)]:
        seen[place] += 1
    return seen


def top_quality(settings: dict, documents: pd.DataFrame) -> set[str]:
    """As many as were `selected`, of each shard or of the corpus, by quality alone."""
    is_corpus, kept = value(settings, "selection.scope") == "corpus", set()
    for _, part in [(0, documents)] if is_corpus else documents.groupby("shard"):
        best = candidates(settings, part, ["quality"])[: part["selected"].sum()]
        kept |= {key for key, _, _ in best}
    return kept


def term_values(vectors: np.ndarray, quality: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Every built-in term of a selection; vectors are unit rows of all candidates."""
    chosen, count = vectors[mask], int(mask.sum())
    centred = chosen - chosen.mean(0)
    standard = centred / (centred.std(0, ddof=1) + 1e-8) if count > 1 else centred
    correlation = standard.T @ standard / max(count - 1, 1)
    pairs = (np.square(chosen.sum(0)).sum() - count) / max(count * (count - 1), 1)
    return {
        "quality": float(quality[mask].mean()),
        "pairwise": float(pairs) if count > 1 else 0.0,
        "disf": float((correlation**2).sum() - (np.diag(correlation) ** 2).sum()) / 10_000,
        "facility_location": float((vectors @ chosen.T).max(1).mean()),
    }

"""Odd corpora with their score files and settings, drawn by Hypothesis."""

import math
import os
from dataclasses import dataclass

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests import oracle

FUZZ = int(os.environ.get("DATAMASK_FUZZ", 0))
"""Examples of `make fuzz`, half of them in each test; 0 for the 16 that CI always draws."""

drawn = hypothesis.settings(
    max_examples=FUZZ // 2 or 8,
    derandomize=not FUZZ,
    deadline=None,
    # Shrinking takes minutes; the corpora are small as they are.
    phases=[*Phase] if FUZZ else [Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
DIMENSION = 8
WORDS = ("river", "Market", "fenêtre", "сад", "信", "music", "🌉", "winter", "paper", "engine")
BLANK = ("", " \n\t", "\u2003\u00a0")
SPECIAL_IDS = ("NA", "null", "nan", "true", "007", "7", "1e5", "-0", "2020-01-01T00:00:00Z")
DUMPS = ("CC-MAIN-2020-05", "b", "B", "", " ", None, "a'b")
LANGUAGES = ("en", "de", "", None)
URLS = (None, "", "https://www.a.org/x", "http://A.org:80/", "//c.net/p?q", "no address")
OURS = ("quality", "Logit", "shard", "SHARD", "Quality", "logit")
NUMBERS = st.integers(-16, 16).map(lambda n: n / 4) | st.sampled_from([0.1, 1 / 3, 1e6, -0.0])


@dataclass(frozen=True)
class Case:
    """A corpus with its score files (name, ids, values) and the settings, without any path."""

    settings: dict
    files: list[oracle.File]
    types: dict[str, pa.DataType]
    scores: dict[str, list[tuple[str, list, list]]]

    def __repr__(self) -> str:
        files = [(file.groups, file.rows.to_dict("list")) for file in self.files]
        return f"Case(settings={self.settings}\n files={files}\n scores={self.scores})"

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        # Hypothesis would print a frame as pandas does, with most of it left out.
        printer.text(repr(self))


def texts(draw, rows: int) -> list:
    """Texts of some words; some are equal, blank or null, and some have several windows."""
    codes = draw(st.lists(st.integers(0, 2 * rows), min_size=rows, max_size=rows))
    made = []
    for code in codes:
        number = 3 + code % 9 + 900 * max(0, code % 13 - 9)
        chosen = np.random.default_rng(code).choice(WORDS, number)
        made.append(" ".join(chosen))
    for place in draw(st.lists(st.integers(0, rows - 1), max_size=3)):
        made[place] = draw(st.sampled_from([*BLANK, None]))
    return made


def ids(draw, rows: int) -> tuple[list, pa.DataType]:
    """Unique ids: numbers, also beyond 2^63, dates, or any text."""
    kind = draw(st.sampled_from(["number", "large", "date", "text", "special"]))
    order = draw(st.permutations(range(rows)))
    if kind == "number":
        return [7 * place - 20 for place in order], pa.int64()
    if kind == "large":
        return [2**63 + place for place in order], pa.uint64()
    if kind == "date":
        return [f"2020-{1 + place // 28:02d}-{1 + place % 28:02d}" for place in order], pa.string()
    if kind == "special":
        extra = [f"d{place}" for place in order]
        return [*SPECIAL_IDS, *extra][:rows], pa.string()
    alphabet = st.characters(exclude_categories=["Cs", "Cc"])
    found = st.text(alphabet, min_size=1, max_size=5)
    return draw(st.lists(found, min_size=rows, max_size=rows, unique=True)), pa.large_string()


def with_gaps(draw, values: list, gaps: tuple) -> list:
    """The values, a few of them replaced."""
    values = list(values)
    for place in draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
        values[place] = draw(st.sampled_from(gaps))
    return values


def column_of(draw, choices, rows: int) -> list:
    """So many values of some."""
    few = draw(st.lists(choices, min_size=1, max_size=rows))
    return [few[place % len(few)] for place in range(rows)]


@st.composite
def score(draw, number: int, is_text_id: bool) -> dict:
    """Settings of one score."""
    return {
        "name": f"s{number}",
        "kind": draw(st.sampled_from(["column", "file"])),
        "column": draw(st.sampled_from(["score", "Ünïcode score"])),
        "normalisation": draw(st.sampled_from(["rank", "z-score", "min-max", "none"])),
        "weight": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])),
        "missing": draw(st.sampled_from(["error", "drop", 0.0, -3.5, 2.0])),
    }


@st.composite
def limits(draw, has_topics: bool) -> list[dict]:
    """Floors and caps of one column, of groups that are in the corpus or not."""
    column, names = draw(
        st.sampled_from(
            [("language", ["en", "de", "fr"]), ("dump", ["b", "B"]), ("domain", ["a.org"])]
            + [("topic", ["topic 1", "topic 2"])] * has_topics
        )
    )
    made = []
    for name in draw(st.lists(st.sampled_from([*names, None, "(none)"]), unique=True, max_size=3)):
        floor = draw(st.sampled_from([0.0, 0.05, 0.2])) if name else 0.0
        cap = draw(st.sampled_from([0.2, 0.34, 0.5, 0.9, 1.0]))
        made.append({"column": column, "value": name, "floor": floor, "cap": max(floor, cap)})
    return made


@st.composite
def selections(draw, rows: int, tokens: int, has_caps: bool) -> dict:
    """Settings of the selection; the learner takes few steps."""
    made = {
        "scope": draw(st.sampled_from(["shard", "shard", "corpus"])),
        "rounds": draw(st.sampled_from([1, 1, 2])),
        "method": draw(st.sampled_from(["mask", "mask", "top_quality", "random"])),
        "metric": draw(st.sampled_from([None, "disf", "pairwise"])),
        "quality_weight": draw(st.sampled_from([None, 0.0, 0.3, 1.0])),
        "steps": 2,
        "swap_refinement": draw(st.sampled_from([0, 3])),
    }
    budget = draw(st.sampled_from(["ratio", "documents", "tokens", "tokens"][has_caps:]))
    if budget == "ratio":
        made["ratio"] = draw(st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 1.0]))
    elif budget == "documents":
        made["documents"] = draw(st.integers(1, max(1, rows // 2)))
    else:
        made["tokens"] = draw(st.integers(1, max(1, tokens // 3)))
    if budget != "tokens" and draw(st.booleans()):
        epoch = oracle.budget({"selection": made}, rows)
        made["max_repeat"] = draw(st.integers(2, 4))
        made["training_documents"] = draw(st.integers(epoch, epoch * made["max_repeat"]))
    if made["scope"] == "shard" and made["method"] == "mask" and draw(st.booleans()):
        made["metric"] = "facility_location"
    if has_caps or draw(st.booleans()):
        made["limits"] = draw(limits(has_caps))
    return made


@st.composite
def cases(draw, layout: str = "documents") -> Case:
    """A corpus of 5 to 40 documents in up to four shards, and settings for it."""
    groups = draw(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    rows = sum(map(sum, groups))
    keys, id_type = ids(draw, rows)
    tokens = column_of(draw, st.integers(0, 30) | st.just(400), rows)
    columns = {
        "id" if layout == "documents" else "chunk_id": (keys, id_type),
        "dump": (column_of(draw, st.sampled_from(DUMPS), rows), pa.string()),
        "language": (column_of(draw, st.sampled_from(LANGUAGES), rows), pa.string()),
        "url": (column_of(draw, st.sampled_from(URLS), rows), pa.string()),
    }
    token_type = draw(st.sampled_from([pa.int64(), pa.float64()]))
    if draw(st.integers(0, 9)) == 7:
        tokens = with_gaps(draw, tokens, (None,))
    columns["token_count"] = (tokens, token_type)
    names = [f"s{n}" for n in range(draw(st.integers(1, 2)))]
    scores = [draw(score(n, id_type == pa.string())) for n in range(len(names))]
    if layout == "documents":
        columns["text"] = (texts(draw, rows), pa.string())
    else:
        vectors = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(rows, DIMENSION))
        columns["feature_arr"] = (vectors.astype(np.float32).tolist(), pa.list_(pa.float32()))
        columns["quality_score"] = (column_of(draw, NUMBERS, rows), pa.float64())
        scores = scores[: draw(st.integers(0, 1))]
    made: dict[str, list[tuple[str, list, list]]] = {}
    for one in scores:
        values = column_of(draw, NUMBERS, rows)
        if one["missing"] != "error" or draw(st.integers(0, 9)) == 7:
            values = with_gaps(draw, values, (None, math.nan, math.inf))
        if one["kind"] == "column":
            columns[one["column"]] = (values, pa.float64())
        else:
            suffix = draw(st.sampled_from(["parquet", "csv", "jsonl"]))
            made[one["name"]] = score_files(draw, suffix, keys, values)
    subset = {}
    if draw(st.integers(0, 9)) == 7:
        for name in draw(st.lists(st.sampled_from(OURS), min_size=1, max_size=2, unique=True)):
            columns[name] = (list(range(rows)), pa.int32())
        subset = draw(st.sampled_from([{}, {"column_prefix": "datamask_"}]))
    frame = pd.DataFrame({name: pd.Series(v, dtype=object) for name, (v, _) in columns.items()})
    bounds = np.cumsum([0, *map(sum, groups)])
    files = [
        oracle.File(frame.iloc[start:stop].reset_index(drop=True), tuple(sizes))
        for start, stop, sizes in zip(bounds, bounds[1:], groups, strict=False)
    ]
    quality = {"duplicates": draw(st.sampled_from(["drop", "drop", "keep"]))}
    prune_fraction = draw(st.sampled_from([None, 0.0, 0.1, 0.3]))
    quality |= {} if prune_fraction is None else {"prune_fraction": prune_fraction}
    quality |= {"scores": scores} if scores else {}
    chosen = {
        "seed": draw(st.integers(0, 3)),
        "source": {"layout": layout, "windows": draw(st.integers(1, 3))},
        "plan": {"rows_per_shard": draw(st.integers(max(3, rows // 3), rows + 5))},
        "quality": quality,
        "embedding": {"method": "lexical", "dimension": DIMENSION},
        "subset": subset,
        "selection": draw(selections(rows, sum(n or 0 for n in tokens), layout == "features")),
    }
    if any(limit["column"] == "topic" for limit in chosen["selection"].get("limits", ())):
        chosen["topics"] = {"number": 2}
    return Case(chosen, files, {name: kind for name, (_, kind) in columns.items()}, made)


def score_files(draw, suffix: str, keys: list, values: list) -> list[tuple[str, list, list]]:
    """The scores in one or two files, in another order, with ids of no document among them."""
    pairs = [pair for pair in zip(keys, values, strict=True) if pair[1] is not None]
    other = -1 if isinstance(keys[0], int) and keys[0] < 2**62 else "of no document"
    if isinstance(keys[0], int) and keys[0] > 2**62:
        other = 2**63 + 999
    pairs = [*reversed(pairs), (other, 1.0)]
    if draw(st.integers(0, 19)) == 17:
        pairs.append(pairs[0])
    half = draw(st.sampled_from([len(pairs), len(pairs) // 2]))
    parts = [pairs[:half], pairs[half:]]
    return [
        (f"{n}.{suffix}", [key for key, _ in part], [number for _, number in part])
        for n, part in enumerate(parts)
        if part
    ]

"""The files of a run, table by table, against what the oracle computes from the same case."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.runs.opening import open_run
from datamask.selection.documents import read_survivors, with_vectors
from tests import oracle, windows
from tests.oracle_cases import Case


def check_quality(settings: dict, documents: pd.DataFrame, root: Path) -> None:
    """Quality to 1e-12, and every reason for dropping; from then on quality is the published."""
    found = read(root, "quality")
    same("id", found["id"], documents["id"])
    same("row", found["row"], documents["row"])
    published = found["quality"].astype(float).to_numpy()
    close("quality", published, documents["quality"].astype(float).to_numpy(), 1e-12, 1e-12)
    # Sums of equal value may differ in their last bit; the order must be that of the files.
    documents["quality"] = published
    documents["dropped"] = pd.Series(oracle.drop(settings, documents), dtype=object)
    same("dropped", found["dropped"], documents["dropped"])


def check_selection(
    settings: dict, documents: pd.DataFrame, root: Path, is_done: bool = True
) -> None:
    """Apply the cut, given the logits; adds `logit` and `selected`.

    Raises:
        Refused: caps leave less than the budget; only the logits of an undone run are read.
    """
    # Where shards are compared the logits have a stage of their own, before anything is cut.
    logits = read(root, "learning" if (root / "learning").exists() else "selection")
    is_left = documents["dropped"].isna().to_numpy()
    same("number of logits", [len(logits)], [is_left.sum()])
    documents.loc[is_left, "logit"] = logits["logit"].to_numpy()
    if "topics" in settings:
        documents.loc[is_left, "topic"], names = topics(root)
        limited = {limit.get("value") for limit in settings["selection"]["limits"]}
        if limited - names - {None, oracle.NO_GROUP}:
            raise oracle.Refused("no-such-topic")
        oracle.check_groups(settings, documents)
    kept = oracle.keep(settings, documents)
    if not is_done:
        return
    masks = read(root, "selection")
    documents.loc[is_left, "logit"] = masks["logit"].to_numpy()
    assert masks["selected"].any(), "nothing is selected"
    is_selected = masks["selected"].to_numpy(bool)
    same("selected", sorted(documents["id"][is_left][is_selected]), sorted(kept))
    documents["selected"] = documents["id"].isin(kept)


def topics(root: Path) -> tuple[np.ndarray, set[str]]:
    """The topic of each embedded document, that of the nearest direction; and all topics."""
    model = plain(pq.read_table(root / "topic_model.parquet"))
    directions = np.array(model["direction"].tolist(), np.float64)
    nearest = (embedded(root)[1] @ directions.T).argmax(1)
    found = read(root, "topics")["topic"].to_numpy()
    same("topics", found, model["topic"].to_numpy()[nearest])
    return found, {*model["topic"]}


def embedded(root: Path) -> tuple[pd.Series, np.ndarray]:
    """Ids and vectors of a run's documents: what it wrote, or would have written."""
    if (root / "embeddings").exists():
        found = read(root, "embeddings")
        return found["chunk_id"], np.array(found["feature_arr"].tolist(), np.float64)
    run = open_run(root)
    shards = (read_survivors(run, shard) for shard in range(run.num_shards))
    parts = [with_vectors(run, documents) for documents in shards]
    ids = pd.Series([one for part in parts for one in part.ids.to_pylist()], dtype=object)
    return ids, np.concatenate([part.features for part in parts]).astype(np.float64)


def check_terms(settings: dict, documents: pd.DataFrame, tables: dict, root: Path) -> None:
    """Values of the terms and of the objective, from their formulas; float32 sums to 1e-4."""
    left = documents[documents["dropped"].isna()].reset_index(drop=True)
    vectors = np.ones((len(left), 1))
    if oracle.has_vectors(settings):
        ids, vectors = embedded(root)
        same("ids of embeddings", ids, left["id"])
        close("length of vectors", np.linalg.norm(vectors, axis=1), 1.0, 0, 2e-3)
    documents["top_quality"] = documents["id"].isin(oracle.top_quality(settings, documents))
    left = left.assign(top_quality=left["id"].isin(documents["id"][documents["top_quality"]]))
    quality = left["quality"].astype(float).to_numpy()
    is_corpus = oracle.value(settings, "selection.scope") == "corpus"
    parts = [left] if is_corpus else [part for _, part in left.groupby("shard")]
    parts = [part.index.to_numpy() for part in parts if part["selected"].any()]
    metric, weight = oracle.objective(settings)
    signs = {"quality": weight}
    signs |= {metric: 1 - weight if metric == "facility_location" else weight - 1} if metric else {}
    terms = tables["terms"].set_index("term")
    shards = tables["shards"].set_index("shard")
    same("terms", sorted(terms.index), sorted([*signs, "objective"]))
    rounding = 1e-6 * max(1.0, np.abs(quality).max())
    for kind, column in (("selected", "objective"), ("top_quality", "objective_top_quality")):
        masks = left[kind].to_numpy(bool)
        values = [oracle.term_values(vectors[p], quality[p], masks[p]) for p in parts]
        if metric == "disf" and not all(has_spread(vectors[p][masks[p]]) for p in parts):
            continue
        counts = [int(masks[p].sum()) for p in parts]
        for name in signs:
            expected = np.average([value[name] for value in values], weights=counts)
            close(f"{name} of {kind}", float(terms[kind][name]), expected, 1e-4, rounding)
        for value, place in zip(values, parts, strict=True):
            if is_corpus:
                scales, found = terms["scale"], terms[kind]["objective"]
            else:
                shard = int(left["shard"][place[0]])
                footer = pq.read_metadata(root / "selection" / f"{shard:05d}.parquet").metadata
                scales = json.loads(footer[b"datamask"])["metrics"]["scales"]
                found = shards[column][shard]
            expected = sum(sign * value[name] / scales[name] for name, sign in signs.items())
            allowed = 1e-4 + sum(rounding / scales[name] for name in signs)
            close(f"objective of {kind}", float(found), expected, 1e-3, allowed)


def check_composition(settings: dict, documents: pd.DataFrame, tables: dict) -> None:
    """Every document and every count of the DuckDB file."""
    found = tables["documents"].sort_values(["shard", "row"])
    scores = [one["name"] for one in oracle.scores_in_force(settings)]
    expected = documents.rename(columns={f"score:{name}": name for name in scores})
    facts = [
        "id",
        "shard",
        "row",
        "characters",
        "tokens",
        "dump",
        "language",
        "domain",
        "topic",
        "dropped",
    ]
    expected = expected.assign(text_read=text_read(settings, documents))
    for name in [*facts, *scores, "text_read", "selected", "top_quality"]:
        same(name, found[name], expected[name])
    sets = {
        "source": documents["id"].notna(),
        "candidates": documents["dropped"].isna(),
        "selected": documents["selected"],
        "top_quality": documents["top_quality"],
    }
    totals = tables["totals"].set_index("selection")
    summary = tables["score_summary"].set_index(["score", "selection"])
    for name, members in sets.items():
        some = expected[members.to_numpy(bool)]
        same(f"documents of {name}", [totals["documents"][name]], [len(some)])
        for unit in ("characters", "tokens"):
            there = [number for number in some[unit] if number is not None]
            same(f"{unit} of {name}", [totals[unit][name]], [sum(there) if there else None])
        for score in ("quality", *scores):
            there = some[score].astype(float).dropna()
            row = summary.loc[(score, name)]
            same(f"missing of {score}", [row["missing"]], [len(some) - len(there)])
            if len(there):
                same(score, [row["least"], row["largest"]], [there.min(), there.max()])
                close(f"mean of {score}", row["mean"], there.mean(), 1e-9, 1e-12)
    groups = tables["groups"]
    for kind in ("dump", "language", "domain", "topic"):
        members = documents
        if kind == "topic":
            members = documents[documents["topic"] != oracle.NO_GROUP]
        before = members[kind].value_counts()
        after = members[kind][members["selected"]].value_counts()
        rows = {
            name: (
                int(n),
                int(after.get(name, 0)),
                n / before.sum(),
                after.get(name, 0) / sum(after),
            )
            for name, n in before.items()
            if set(before.index) != {oracle.NO_GROUP}
        }
        some = groups[groups["kind"] == kind].drop(columns="kind").to_numpy().tolist()
        found_rows = [(name, *row) for name, *row in sorted(some)]
        same(f"groups of {kind}", found_rows, [(name, *rows[name]) for name in sorted(rows)])


def text_read(settings: dict, documents: pd.DataFrame) -> pd.Series:
    """The share of each text that the lexical embedder reads; if the run has vectors."""
    most, shares = oracle.value(settings, "source.windows", 3), []
    is_known = oracle.has_vectors(settings)
    for text, dropped in documents[["text", "dropped"]].to_numpy():
        share = None
        if is_known and text is not None and dropped is None:
            spans = windows.by_hand(text, 4000, most)
            share = float(np.float32(windows.read(spans, len(text))))
        shares.append(share)
    return pd.Series(shares, dtype=object)


def check_subset(case: Case, documents: pd.DataFrame, root: Path) -> None:
    """The source's columns of every selected document as they were, and ours after them."""
    found = read(root, "subset")
    source = pd.concat([file.rows for file in case.files], ignore_index=True)
    chosen = documents["selected"].to_numpy(bool)
    names = oracle.added(case.settings)
    same("columns", found.columns, [*source.columns, *names])
    key = "id" if "id" in source else "chunk_id"
    same("rows of the subset", [len(found)], [chosen.sum()])
    found = found.assign(order=found[key].map(dict(zip(source[key], source.index, strict=True))))
    found = found.sort_values("order").drop(columns="order").reset_index(drop=True)
    documents = documents.assign(repeat=oracle.repeats(case.settings, documents))
    prefix = len(oracle.value(case.settings, "subset.column_prefix", ""))
    ours = documents[[name[prefix:] for name in names]].set_axis(names, axis=1)
    expected = pd.concat([source, ours], axis=1)[chosen].reset_index(drop=True)
    for name in expected.columns:
        same(f"{name} of the subset", found[name], expected[name])


def composition(root: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run's DuckDB file."""
    import duckdb

    names = ("documents", "totals", "score_summary", "groups", "terms", "shards")
    with duckdb.connect(str(root / "composition.duckdb"), read_only=True) as connection:
        connection.execute(f"SET file_search_path = '{root}'")
        return {name: plain(connection.table(name).to_arrow_table()) for name in names}


def has_spread(vectors: np.ndarray) -> bool:
    """Return True if every dimension varies by more than rounding, for correlations."""
    return len(vectors) < 2 or bool((vectors.std(0) > 1e-2 * np.abs(vectors).max(0)).all())


def same(what: str, found: Iterable, expected: Iterable) -> None:
    """Return True if two columns are equal (NaN to itself); else their first difference."""
    pairs = [*itertools.zip_longest(found, expected, fillvalue="nothing")]
    for place, (one, other) in enumerate(pairs):
        both_nan = one != one and other != other
        assert both_nan or one == other, f"{what}, row {place}: {one!r}, the oracle says {other!r}"


def close(what: str, found, expected, relative: float, absolute: float) -> None:
    """Return True if numbers are equal but for rounding."""
    np.testing.assert_allclose(found, expected, relative, absolute, err_msg=what)


def read(root: Path, stage: str) -> pd.DataFrame:
    """The files of a stage below each other."""
    tables = []
    for path in sorted((root / stage).glob("*.parquet")):
        table = pq.read_table(path)
        tables.append(plain(table))
    assert tables, f"stage {stage} has made nothing"
    return pd.concat(tables, ignore_index=True)


def plain(table: pa.Table) -> pd.DataFrame:
    """A table in object columns, None for null."""
    columns = {n: pd.Series(table[n].to_pylist(), dtype=object) for n in table.column_names}
    return pd.DataFrame(columns)

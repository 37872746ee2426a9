"""`datamask learn`: which properties of a run's documents help a model, and a score from them.

Selections that differ in what they contain are drawn at random from the documents that pruning
left, and an n-gram model is fitted to each. Its loss on half of the held-out texts is regressed on
the selections' properties (`evaluation.effects`); the other half judges what was fitted. No output
of the run is changed. The losses of each selection are kept as a checkpoint until all is written,
so a call that was killed goes on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.evaluation import effects
from datamask.evaluation.effects import Effects, Floats, Integers
from datamask.evaluation.ngram import Trigrams, bits_by_text
from datamask.evaluation.pinning import NOTHING_HELD_OUT
from datamask.evaluation.texts import copy_groups, encode, held_out_texts, read_texts, tokenizer_of
from datamask.evaluation.units import sets_of
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.run import Run
from datamask.selection.documents import read_survivors, with_vectors
from datamask.selection.topics import typical_words
from datamask.storage.stopping import stoppable_threads

# See docs/log.md#learned.
LEAST_DRAWS = 32
DRAWS_PER_PROPERTY = 4
MOST_DOCUMENTS = 50_000
"""Candidates that selections are drawn from; of more, a sample."""
LEAST_TEXTS = 40
LARGEST_SHARE = 0.5
"""Selections of a larger share of the candidates hardly differ."""
LEAST_CORRELATION = 0.3
"""Below this lower limit of the rank correlation, the score is not recommended."""
GROUPS, LEAST_GROUP = ("topic", "domain", "language", "dump"), 0.02
"""Groups whose shares are properties, and the share of documents from which one is."""
END = 50
"""Documents at each end of a direction that name it."""
RANDOM_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned.

    Args:
        properties: their names.
        effects: of the properties, by their standard deviation, in bits per byte.
        correlation: Spearman's, of cross-validated predictions and losses on texts that were not
            fitted, and its 95 % interval.
        arms: bits per byte of these texts after a selection by the score (`learned`), the run's own
            (`ours`) and a random one.
        documents, texts, tokens: drawn from, of each half, and of each selection.
        set_name: of the held-out texts.
        scores: the file with the score of each candidate.
    """

    properties: list[str]
    effects: Effects
    correlation: tuple[float, float, float]
    arms: dict[str, float]
    documents: int
    texts: int
    tokens: int
    set_name: str
    scores: Path

    @property
    def rows(self) -> list[tuple[str, float, float, float, str]]:
        """Each property: effect, interval and what it says; the strongest effects first."""
        columns = (self.effects.slopes, self.effects.low, self.effects.high)
        rows = zip(self.properties, *(column.tolist() for column in columns), strict=True)
        return [
            (*row, "helps" if row[3] < 0 else "harms" if row[2] > 0 else "undecided")
            for row in sorted(rows, key=lambda row: -abs(row[1]))
        ]

    @property
    def lines(self) -> list[str]:
        """What the effects are worth, and how the score is used, for people."""
        correlation, low, high = self.correlation
        arms = ", ".join(f"{name} {value:.4f}" for name, value in self.arms.items())
        lines = [
            "effect: change of bits per byte if the mean of a property (weighted by tokens) rises "
            f"by a standard deviation, with its 95 % interval; {self.tokens:,d} tokens from "
            f"{self.documents:,d} documents, an n-gram model, set {self.set_name}",
            f"rank correlation of predictions with losses on {self.texts} texts that were not "
            f"fitted: {correlation:.2f} ({low:.2f} to {high:.2f})",
            f"bits per byte of these texts: {arms}",
        ]
        if self.warning:
            return [*lines, f"warning: {self.warning}"]
        score = (
            f"{{name: learned, kind: file, path: {self.scores}, column: learned, missing: drop}}"
        )
        return [*lines, f"next: a score of a new run, as an entry of quality.scores: {score}"]

    @property
    def warning(self) -> str:
        """Why the score should not be used; empty if nothing speaks against it."""
        if self.correlation[1] < LEAST_CORRELATION:
            return (
                "losses of unseen selections are not predicted well enough (the interval of the "
                f"rank correlation begins below {LEAST_CORRELATION:g}): do not select by the score"
            )
        if self.arms["learned"] >= self.arms["random"]:
            return "a selection by the score is no better than a random one: do not use it"
        return ""


TEXT, IS_COPY = "the text", "near-copy"
"""Columns that are added to `documents/`; no score has such a name."""


@dataclass(frozen=True, slots=True)
class _Properties:
    """What the properties of documents are: scores, length, copies, groups, directions (D x n)."""

    scores: list[str]
    groups: list[tuple[str, str]]
    directions: Floats

    def raw(self, table: pa.Table, vectors: np.ndarray) -> Floats:
        """The properties of the documents of a table, N x P; NaN where one is unknown."""
        columns = [pc.fill_null(table[name].cast("float64"), np.nan) for name in self.scores]
        columns += [np.log(np.maximum(table["characters"].to_numpy(), 1)), table[IS_COPY]]
        columns += [pc.equal(table[column], value) for column, value in self.groups]
        along = vectors.astype(np.float32) @ self.directions.astype(np.float32)
        return np.column_stack([*(np.asarray(c).astype(np.float64) for c in columns), along])

    def names(self, raw: Floats, texts: list[str]) -> list[str]:
        """Names for people; the words are of the texts at both ends of a direction."""
        names = [f"score {name}" for name in self.scores] + ["length", "near-copies"]
        names += [f"{column} {value}" for column, value in self.groups]
        along = raw[:, len(names) :]
        for number, order in enumerate(np.argsort(along, axis=0, kind="stable").T, start=1):
            ends = [(texts[row], 0) for row in order[-END:]]
            ends += [(texts[row], 1) for row in order[:END]]
            high, low = map(" ".join, typical_words(ends, 2))
            names.append(f"direction {number}: {high}, not {low}")
        return names


class _Judge:
    """Bits per byte of each half of the held-out texts, by trigrams of a selection's tokens.

    Args:
        tokens: of the documents, each with the separator at its end.
        separator: the last token of the vocabulary.
        share: of the documents' tokens, that a selection has.
        set_name: of the held-out texts.
        held_out: rows of `schemas.HELD_OUT`.
    """

    def __init__(
        self,
        tokens: list[Integers],
        separator: int,
        share: float,
        set_name: str,
        held_out: pa.Table,
    ) -> None:
        self.tokens, self.separator, self.set_name = tokens, separator, set_name
        self.costs = np.array([len(ids) for ids in tokens])
        self.budget = int(self.costs.sum() * share)
        self.texts = [np.asarray(ids, np.int64) for ids in held_out["tokens"].to_pylist()]
        self.prefixes = held_out["prefix"].to_pylist()
        self.bytes = held_out["bytes"].to_numpy()

    def losses(self, rows: Integers) -> Floats:
        """Of both halves, after the first tokens of documents, as many as the budget."""
        stream = np.concatenate([[self.separator], *(self.tokens[row] for row in rows)])
        model = Trigrams(stream[: self.budget + 1], self.separator + 1)
        bits = bits_by_text(model, self.texts, self.prefixes)
        return np.array([bits[half::2].sum() / self.bytes[half::2].sum() for half in (0, 1)])

    def of_order(self, order: Integers) -> float:
        """Of the second half, after the first documents in an order."""
        return float(self.losses(effects.filled(order, self.costs, self.budget))[1])


def learn(run: Run, draws: int, folder: Path, compute: Compute) -> Learned:
    """Draw selections, fit the regression, and write the score of every candidate.

    In *folder*, `scores.parquet` has the columns `id` and `learned` (bits per byte that a selection
    of such documents would save, of documents with vectors), `draws.parquet` has the losses of each
    selection on both halves of the held-out texts and the means of its properties. A killed call
    goes on with the selections that had no losses, if all that they depend on is as before.

    Raises:
        SettingsError: nothing is held out, there are too few draws or held-out texts, or the run
            selects too large a share of its candidates.
        InputError: a text or a set cannot be read.
    """
    starts, share = _checked(run, draws)
    rows, table, vectors, judge = _sample(run, starts, share, compute)
    properties = _properties(run, table, vectors, draws // DRAWS_PER_PROPERTY)
    raw = properties.raw(table, vectors)
    values = effects.standardised(raw, raw)

    # Raise the first number when the code draws or judges selections in another way.
    how = [1, judge.budget, hashlib.sha256(values.tobytes()).hexdigest()]
    how += map(run.fingerprint_all, ("documents", "tokenizer", "held_out"))
    kept = Checkpoints(run, "learn", 0, how)

    def draw(number: int) -> State:
        if drawn := kept.load(f"{number:05d}"):
            return drawn
        rows = effects.drawn(values, judge.costs, judge.budget, (run.settings.seed, number))
        moments = effects.moments_of(values, judge.costs, rows)
        drawn = {"moments": moments, "losses": judge.losses(rows)}
        kept.save(f"{number:05d}", drawn)
        return drawn

    with stoppable_threads(compute.workers) as pool:
        drawn = list(pool.map(draw, range(draws)))
    moments, losses = (np.array([state[name] for state in drawn]) for name in ("moments", "losses"))
    fitted = effects.fit(moments, losses[:, 0])

    def scored(shard: int) -> pa.Table:
        candidates = _candidates(run, shard)
        is_copy = np.full(len(candidates), np.nan)  # unknown outside the sample
        ours = slice(*np.searchsorted(rows, starts[shard : shard + 2]))
        is_copy[rows[ours] - starts[shard]] = table[IS_COPY].to_numpy()[ours]
        candidates = candidates.append_column(IS_COPY, pa.array(is_copy))
        documents = with_vectors(run, read_survivors(run, shard), compute)
        own = properties.raw(candidates, documents.features)
        scores = fitted.scores(effects.standardised(own, raw))
        return pa.table({"id": candidates["id"].cast("string"), "learned": scores})

    schema = pa.schema({"id": pa.string(), "learned": pa.float64()})
    write_parquet(folder / "scores.parquet", schema, map(scored, range(run.num_shards)))
    names = properties.names(raw, table[TEXT].to_pylist())
    means = dict(zip(names, moments.T, strict=True))
    drawn_table = pa.table({"fitted": losses[:, 0], "judged": losses[:, 1], **means})
    write_parquet(folder / "draws.parquet", drawn_table.schema, [drawn_table])
    generator = np.random.default_rng((run.settings.seed, draws))
    random = [judge.of_order(generator.permutation(len(table))) for _ in range(RANDOM_DRAWS)]
    arms = {
        "learned": judge.of_order(np.argsort(-fitted.scores(values), kind="stable")),
        "ours": judge.of_order(np.argsort(-table["logit"].to_numpy(), kind="stable")),
        "random": float(np.mean(random)),
    }
    correlation = effects.cross_validated(moments, *losses.T)
    kept.clear()
    shape = (len(table), len(judge.texts) // 2, judge.budget, judge.set_name)
    return Learned(names, fitted, correlation, arms, *shape, folder / "scores.parquet")


def _candidates(run: Run, shard: int) -> pa.Table:
    """The rows of `documents/` that pruning left of a shard, in the order of its vectors."""
    table = read_columns(run.path("documents", shard))
    return table.filter(pc.is_null(table["dropped"]))


def _checked(run: Run, draws: int) -> tuple[Integers, float]:
    """How many candidates precede each shard, and the share of their text that the run selects.

    The last number is that of all candidates. Raises as `learn`.
    """
    evaluation = run.settings.evaluation
    if run.settings.source.layout == "features":
        raise SettingsError("learn: layout `features` has no text to fit a model to")
    if not run.settings.has_vectors:
        raise SettingsError("selection.metric: learn needs vectors; name a metric and rebuild RUN")
    if not evaluation.has_texts:
        raise SettingsError(NOTHING_HELD_OUT)
    if draws < LEAST_DRAWS:
        raise SettingsError(f"learn: {draws} draws are too few; {LEAST_DRAWS} are needed")
    counts, characters, selected = [0], 0, 0
    for shard in range(run.num_shards):
        run.receipt("documents", shard)
        table = _candidates(run, shard)
        counts.append(len(table))
        characters += pc.sum(table["characters"]).as_py() or 0
        selected += pc.sum(table.filter(table["selected"])["characters"]).as_py() or 0
    share = selected / max(characters, 1)
    if not 0 < share <= LARGEST_SHARE:
        raise SettingsError(
            f"selection: the run selects {share:.0%} of the text of its candidates, and draws of "
            f"more than {LARGEST_SHARE:.0%} hardly differ; select less, or prune less"
        )
    return np.cumsum(counts), share


def _sample(
    run: Run, starts: Integers, share: float, compute: Compute
) -> tuple[Integers, pa.Table, np.ndarray, _Judge]:
    """The documents that selections are drawn from, without near-copies of held-out texts.

    Returns:
        Their rows among the candidates of all shards, ascending; their rows of `documents/`, with
        `TEXT` and `IS_COPY` (1 if a document is a near-copy of another one, else 0); their vectors,
        N x D; and what judges them. Raises as `learn`.
    """
    number, generator = int(starts[-1]), np.random.default_rng(run.settings.seed)
    rows = np.sort(generator.choice(number, min(number, MOST_DOCUMENTS), replace=False))
    tables, vectors = [], []
    for shard in range(run.num_shards):
        ours = rows[slice(*np.searchsorted(rows, starts[shard : shard + 2]))] - starts[shard]
        tables.append(_candidates(run, shard).take(pa.array(ours)))
        vectors.append(with_vectors(run, read_survivors(run, shard), compute, rows=ours).features)
    table = pa.concat_tables(tables)
    wanted = list(zip(*(table[name].to_pylist() for name in ("shard", "row")), strict=True))
    texts = [text for _, _, read in read_texts(run, wanted) for text in read]
    tokenizer = tokenizer_of(run, texts)
    held_out, _ = held_out_texts(run, tokenizer, compute)
    set_name, is_member = next(sets_of(held_out, run.settings.evaluation))
    if is_member.sum() < LEAST_TEXTS:
        raise SettingsError(
            f"evaluation: set {set_name} has {is_member.sum()} texts; {LEAST_TEXTS} are needed, "
            "half of them to fit and half to judge"
        )
    groups, of_held_out = copy_groups(texts, held_out)
    _, kind, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    is_copy = np.where(groups < 0, False, sizes[kind] > 1).astype(float)
    kept = np.flatnonzero(~np.isin(groups, [*of_held_out]))
    table = table.append_column(TEXT, pa.array(texts, pa.large_string()))
    table = table.append_column(IS_COPY, pa.array(is_copy)).take(pa.array(kept))
    separator = tokenizer.get_vocab_size()
    encoded = encode(tokenizer, table[TEXT].to_pylist())
    tokens = [np.array([*ids, separator]) for ids in encoded]
    judge = _Judge(tokens, separator, share, set_name, held_out.filter(pa.array(is_member)))
    return rows[kept], table, np.concatenate(vectors)[kept], judge


def _properties(run: Run, table: pa.Table, vectors: np.ndarray, most: int) -> _Properties:
    """At most so many properties. Groups have at most half of what scores leave to them.

    The most frequent group of a column is left out, as the shares of a column add up to 1.
    """
    scores = [score.name for score in run.settings.scores]
    groups: list[tuple[int, str, str]] = []
    for column in GROUPS:
        counts = Counter(table[column].to_pylist()).most_common()[1:]
        least = LEAST_GROUP * len(table)
        groups += [(number, column, name) for name, number in counts if number >= least]
    groups = sorted(groups, key=lambda group: (-group[0], group[1:]))
    left = max(most - len(scores) - 2, 0)
    members = [(column, name) for _, column, name in groups[: left // 2]]
    directions = effects.principal_directions(vectors, max(left - len(members), 1))
    return _Properties(scores, members, directions)

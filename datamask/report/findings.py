"""The graded findings of a report: whether a selection can be trusted, question by question.

They are computed from `composition.duckdb`, receipts and the report's sample. Findings of grade
`warning` say that a result should not be believed as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from datamask.analysis.summary import MOST_CHANGE, drift, gains, query
from datamask.config import recipe
from datamask.config.inputs import MOST_WINDOWS, Embedding
from datamask.evaluation.models import duration
from datamask.evaluation.sizes import proposed
from datamask.report.finding import Finding, Grade
from datamask.report.group_findings import copied_groups, explained, groups, prefers_quality
from datamask.report.quality_findings import leaks, lengths, role_of_score, scores
from datamask.report.redundancy import NEAR_DUPLICATE_COSINE, redundancy, sample_path
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run

MOST_MEAN_COSINE = 0.9
"""Mean cosine of two documents above which embeddings count as collapsed. Encoders of the e5
family, which use a small part of the sphere, have 0.7 to 0.85; random weights give 0.99.
"""

MOST_NEAR_DUPLICATES = 0.5
"""Fraction of near-duplicates among random documents above which a diversity term cannot
discriminate: most documents of any selection then have a copy in it."""

MOST_COPIES = 0.05
"""Fraction of near-duplicates in the selection above which they are worth removing, whatever random
selections have."""

LEAST_MEAN_READ = 0.9
"""Mean fraction read below which documents were judged by a part."""

LEAST_READ = 0.5
"""Fraction of a document's characters below which most of it was not judged."""

MOST_UNREAD = 0.01
"""Fraction of documents below LEAST_READ above which there is a warning."""

MOST_SHIFT = 0.5
"""Change of a term's mean gain, in deviations over documents, that asks for caution: the documents
differ in kind, even if equally many are kept."""

OF_MODEL = re.compile(r"--set '?(embedding|selection|quality\.scores|source\.windows)\b")
"""Commands that change what a mask model was learned with, so that it would be refused."""

LEVEL, CERTAIN = 0.02, 2.0
"""A gain over random counts if it is above LEVEL, as a fraction of the best selection's gain, and
above CERTAIN standard errors."""


def findings_of(run: Run) -> Iterator[Finding]:
    """Yield all findings of a finished selection, trained models first.

    Near-duplicates are known after the report's sample, and trained models after the evaluation.

    Raises:
        RunError: the composition is missing.
    """
    checks = (
        *(trained, _gains, _near_duplicates, _embeddings, scores, explained, lengths),
        *(_source, _special_tokens, groups, _long_texts, _text_read, copied_groups, leaks),
        *(_drift, _by_sample),
    )
    for check in checks:
        for finding in check(run):
            is_fixed = run.settings.selection.mask_model and OF_MODEL.search(finding.command)
            yield replace(finding, command="") if is_fixed else finding


def trained(run: Run) -> Iterator[Finding]:
    """Report the trained models' results on the run's own selection, wherever its arm is listed."""
    evaluation = run.settings.evaluation
    if not evaluation.arms:
        text = "No model was trained on this selection, so the selection is not tested. All other "
        text += "figures depend on scores and vectors that the selection may have optimised."
        command, takes = "", ""
        if run.settings.source.layout != "features":
            command, seconds = proposed(run)
            if command:
                takes = f"about {duration(seconds)} on one core, after selecting anew; tiny "
                takes += "models decide little: on a GPU, leave out evaluation.model and .tokens"
            else:
                text += " The selection has too little text to train models on."
        short = "no model was trained, so the selection is not tested"
        yield Finding("unknown", "trained models", short, text, command, takes)
        return
    from datamask.report.evaluation import findings  # This imports torch.

    evaluated = findings(run)
    pairs = evaluated.pairs if evaluated else []
    own = {arm.name for arm in evaluation.arms if arm.kind == "selection" and not arm.change}
    turned = {"better": "worse", "worse": "better"}
    judged = [pair["verdict"] for pair in pairs if pair["arm"] in own]
    judged += [turned.get(pair["verdict"], "") for pair in pairs if pair["other"] in own]
    verdicts = {*judged}
    grade: Grade = "caution" if verdicts else "unknown"
    is_contested = any(pair["against"] for pair in pairs if own & {pair["arm"], pair["other"]})
    is_contested |= evaluation.model == "tiny"  # Such a model only checks the machinery.
    if "worse" in verdicts or (verdicts == {"better"} and not is_contested):
        grade = "warning" if "worse" in verdicts else "good"
    better, worse = judged.count("better"), judged.count("worse")
    if better and worse:
        short = f"ours trains better models than {better} of the arms, worse than {worse}"
    elif better or worse:
        how, number = ("better", better) if better else ("worse", worse)
        short = f"ours trains {how} models than {number} of {len(judged)} other arms"
    else:
        short = "which arm trains better models is undecided"
    yield Finding(grade, "trained models", short, " ".join(pair["sentence"] for pair in pairs))


def _gains(run: Run) -> Iterator[Finding]:
    known, selection = gains(run), run.in_force.selection
    measured = {name: gain for name, gain in known.items() if "selected" in gain}
    texts = [
        f"{name} {gain['selected']:.0%}"
        + (f" (top quality {gain['top_quality']:.0%})" if "top_quality" in gain else "")
        for name, gain in measured.items()
    ]
    if not texts:
        return
    text = "Gain over random documents, as a share of what the best selection by each term gains: "
    text += f"{', '.join(texts)}."
    least = {name: max(LEVEL, CERTAIN * gain["error"]) for name, gain in known.items()}
    below = [name for name, gain in known.items() if gain.get("selected", 1) < -least[name]]
    level = [name for name, gain in known.items() if abs(gain.get("selected", 1)) <= least[name]]
    if not prefers_quality(run):
        for names, how in ((below, "worse than random"), (level, "as random")):
            if "quality" in names:
                names.remove("quality")
                text += f" Quality is {how}: {role_of_score(run)}."
    if below:
        text += f" Random selections are better in {' and '.join(below)}"
        is_learned = selection.method == "mask" and not selection.mask_model
        text += f", with λ = {selection.quality_weight:g}." if is_learned else "."
    if level:
        text += f" Random documents are as good in {' and '.join(level)}."
    command = "datamask sweep RUN --over selection.quality_weight=0,0.3,0.7" if below else ""
    both = ", ".join(f"{name} {known[name]['selected']:.0%}" for name in [*measured][:2])
    short = f"{both} of the best possible gain over random"
    if below or level:
        how = "better" if below else "as good"
        short = f"random documents are {how} in {' and '.join((below or level)[:2])}"
    yield Finding("caution" if below or level else "good", "trade-off", short, text, command)
    rows = query(run, "SELECT selected, random, top_quality FROM terms WHERE term = 'objective'")
    for row in rows:
        most = max(row["random"], row["top_quality"]) if selection.limits else row["random"]
        if row["selected"] is None or row["selected"] >= most:
            continue
        text = f"The objective of the selection ({row['selected']:.4g}) is below that of random "
        if selection.limits:
            text += f"selections or top quality ({most:.4g}), which need not obey the floors and "
            short = "the objective is below that of selections without limits"
            yield Finding("warning", "objective", short, text + "caps of selection.limits.")
        elif selection.method == "mask":
            remedy = "selection.scope shard"
            if selection.scope == "shard":
                remedy = "more selection.steps"
            text += f"selections ({most:.4g}): learning has failed. Use {remedy}, or a larger "
            short = "the objective is below that of random selections"
            yield Finding("warning", "objective", short, text + "selection.quality_weight.")


def _near_duplicates(run: Run) -> Iterator[Finding]:
    known = redundancy(run)
    if "selected" not in known or "random" not in known:
        return
    ours, random = known["selected"], known["random"]
    names = {"selected": "ours", "random": "random", "top_quality": "top quality"}
    parts = [
        f"{shown} {known[name]['near_duplicates']:.1%} ± {known[name]['error']:.1%}, "
        f"mean cosine to the nearest {known[name]['mean']:.3f}"
        for name, shown in names.items()
        if name in known
    ]
    text = "Documents with another of the same selection at a cosine of at least "
    text += f"{NEAR_DUPLICATE_COSINE:g}: "
    above = ours["near_duplicates"] > random["near_duplicates"]
    many = ours["near_duplicates"] > MOST_COPIES
    if above:
        text = f"The selection has more near-copies than random documents. {text}"
    grade: Grade = "caution" if above or many else "good"
    command = ""
    is_text = run.settings.source.layout != "features"
    if grade == "caution" and is_text and run.settings.quality.near_duplicates is None:
        command = "datamask rebuild RUN --set 'quality.near_duplicates={}'"
    short = "more near-copies than random documents" if above else "few near-copies"
    short = "many near-copies" if many and not above else short
    short += f": {ours['near_duplicates']:.1%}, random {random['near_duplicates']:.1%}"
    yield Finding(grade, "near-duplicates", short, f"{text}{'; '.join(parts)}.", command)


def _embeddings(run: Run) -> Iterator[Finding]:
    if not run.settings.has_vectors:
        text = f"Method {run.settings.selection.method} needs no vectors, so none were made. The "
        text += "report therefore has no diversity, no map and no nearest neighbours."
        is_whole = run.settings.selection.scope == "corpus"
        metric = recipe.CORPUS_METRIC if is_whole else recipe.METRIC
        command = f"datamask rebuild RUN --set selection.metric={metric}"
        short = "no vectors were made, so diversity is not known"
        yield Finding("unknown", "embeddings", short, text, command)
        return
    is_lexical = run.settings.embedding.method == "lexical"
    if near := redundancy(run).get("random"):
        cosine = read_receipt(run.fetch(sample_path(run))).metrics["mean_cosine"]
    if near and (cosine > MOST_MEAN_COSINE or near["near_duplicates"] > MOST_NEAR_DUPLICATES):
        yield Finding(
            "warning",
            "embeddings",
            f"embeddings hardly distinguish documents: mean cosine {cosine:.2f}",
            "The embeddings hardly distinguish documents: the mean cosine of two documents is "
            f"{cosine:.3f}, and {near['near_duplicates']:.0%} of random documents have a "
            f"near-duplicate (cosine of at least {NEAR_DUPLICATE_COSINE:g}). The diversity term "
            "cannot discriminate; check the encoder and its prefix, and the source for copies.",
        )
    elif is_lexical and run.settings.source.layout != "features":
        text = "Lexical vectors represent wording, not meaning: for demonstrations and "
        text += "near-duplicates, not to select training data."
        command = "datamask rebuild RUN --set embedding.method=sentence-transformer"
        usual, chosen = Embedding(), run.settings.embedding
        if chosen.model == usual.model and chosen.dimension != usual.dimension:
            command += f" --set embedding.dimension={usual.dimension}"
        short = "vectors compare wording, not meaning"
        yield Finding("caution", "embeddings", short, text, command)
    elif near:
        text = f"The mean cosine of two documents is {cosine:.3f}: the embeddings distinguish "
        short = f"embeddings distinguish documents: mean cosine {cosine:.2f}"
        yield Finding("good", "embeddings", short, f"{text}documents.")
    else:
        text = "The report's sample has too few documents to judge the embeddings."
        short = "too few documents to judge the embeddings"
        yield Finding("unknown", "embeddings", short, text)


def _source(run: Run) -> Iterator[Finding]:
    """Report the changes that conversion made to the source's rows."""
    if lines := run.pinned_revisions.get("scores:bad_lines"):
        text = f"{int(lines):,d} lines were left out: they are not JSON."
        yield Finding("caution", "source", text.rstrip("."), text)
    if count := run.pinned_revisions.get("scores:lone_surrogates"):
        text = f"{int(count):,d} lone surrogates in JSON, which are not characters, became U+FFFD."
        yield Finding("caution", "characters", text.rstrip("."), text)
    if "scores:made_ids" in run.pinned_revisions:
        text = "The source has no ids: file and row are the ids."
        yield Finding("caution", "ids", "file and row are the ids", text)


def _special_tokens(run: Run) -> Iterator[Finding]:
    if run.settings.tokens is None:
        return
    if count := run.receipt("order").metrics["with_special"]:
        text = f"{count:,d} selected documents have the name of a special token in their text, "
        text += "such as <|endoftext|>. It is encoded as ordinary text and ends no document."
        short = f"{count:,d} documents contain the name of a special token"
        yield Finding("caution", "special tokens", short, text)


def _long_texts(run: Run) -> Iterator[Finding]:
    # A report does not refuse scores that somebody has deleted.
    done = (shard for shard, state in enumerate(run.states("scores")) if state == "done")
    long = [run.receipt("scores", shard).metrics["long"] for shard in done]
    if count := sum(row["documents"] for row in long):
        verb = "cut" if long[0]["policy"] == "cut" else "dropped"
        text = f"{count:,d} texts longer than {long[0]['bound']:,d} characters were {verb}"
        short = f"{count:,d} texts were {verb}, because they are too long"
        yield Finding("warning", "long texts", short, f"{text} (source.longer).")


def _text_read(run: Run) -> Iterator[Finding]:
    [row] = query(
        run,
        "SELECT count(text_read) AS documents, avg(text_read) AS mean, min(text_read) AS least, "
        f"count(*) FILTER (text_read < {LEAST_READ}) AS below FROM documents",
    )
    if not row["documents"]:
        return
    windows, share = run.settings.source.windows, row["below"] / row["documents"]
    text = f"Scores and embedder read {row['mean']:.1%} of a document's text on average, and "
    text += f"{row['least']:.1%} of the one that is read least (source.windows: {windows})."
    if row["below"]:
        text += f" Of {row['below']:,d} documents ({share:.1%}) they read less than half."
    if share < MOST_UNREAD and row["mean"] >= LEAST_MEAN_READ:
        yield Finding("good", "text read", f"{row['mean']:.0%} of the texts was read", text)
        return
    text += " More windows or a larger max_tokens read more; or split such documents."
    more = min(3 * windows, MOST_WINDOWS)
    command = f"datamask rebuild RUN --set source.windows={more}" if more > windows else ""
    grade: Grade = "warning" if share >= MOST_UNREAD else "caution"
    short = f"{share:.1%} of the documents were read by less than half"
    yield Finding(grade, "text read", short, text, command)


def _drift(run: Run) -> Iterator[Finding]:
    rows = drift(run)
    if not rows:
        return
    share, *terms = rows
    furthest = max(terms, key=lambda row: abs(row["shift"]))
    text = f"The share kept is {share['now']:.2%}, and was {share['then']:.2%} where the mask "
    text += f"model was learnt. Of all terms, {furthest['term']} differs most (mean gain "
    text += f"{furthest['shift']:+.2f} deviations)."
    short = f"{share['now']:.2%} kept; {share['then']:.2%} where the mask was learned"
    if abs(share["shift"]) > MOST_CHANGE:
        text += " Learn a mask of its own if a share is needed."
        yield Finding("warning", "drift", short, text)
    elif abs(furthest["shift"]) > MOST_SHIFT:
        text += " Other documents than those that the model was learnt on are kept as often."
        yield Finding("caution", "drift", short, text)
    else:
        yield Finding("good", "drift", short, text)


def _by_sample(run: Run) -> Iterator[Finding]:
    if run.settings.selection.num_rounds == 1 and not _learned_all(run):
        text = f"All documents were judged once, by what was learned from {learned_from(run)}. "
        text += "More rounds (selection.rounds) correct this."
        short, command = "judged in one round", "datamask rebuild RUN --set selection.rounds=20"
        yield Finding("warning", "sample", short, text, command)


def _learned_all(run: Run) -> bool:
    learned = run.receipt("round_total").metrics["sample"]["documents"]
    return bool(learned == run.receipt("quality", 0).metrics["kept_total"])


def learned_from(run: Run) -> str:
    """Name the documents that shards learned from first, and the sample that confirmed it."""
    sample: dict[str, Any] = run.receipt("round_total").metrics["sample"]
    lost, number = sample["shortfall"], sample["documents"]
    if _learned_all(run):
        return f"all {number:,d} documents"
    confirmed = "too few others were left to confirm it"
    if lost is not None:
        confirmed = f"a second sample confirmed {1 - lost:.0%} of its gain over random selections"
    return f"a sample of {number:,d} documents; {confirmed}"

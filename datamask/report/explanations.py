"""What the numbers of the pages mean: one line each, shown by pointer and keyboard.

A key is the heading of a column or the name of a row or figure; `TABLE: HEADING` is for one table.
"""

from __future__ import annotations

from markupsafe import Markup

EXPLANATIONS = {
    # Selections and terms
    "ours": "The documents that this run selects.",
    "random": "The mean over random selections of as many candidates; ± is their standard "
    "deviation.",
    "top quality": "As many documents, those with the highest quality.",
    "source": "All documents of the source.",
    "left by pruning": "The candidates: documents left after pruning and deduplication.",
    "diversity only (sample)": "The most diverse subset of the report's sample: the same metric "
    "with λ = 0.",
    "better": "Whether a higher or a lower value is better.",
    "quality": "Mean combined quality, in standard deviations of the source's documents.",
    "disf": "DiSF: squared correlations between the embedding's dimensions; low if the documents "
    "fill all directions.",
    "pairwise": "Mean cosine of two different selected documents; low if they differ.",
    "facility_location": "Mean cosine of each document with its nearest selected one; high if the "
    "selection covers the corpus.",
    "vendi": "Entropy of the embeddings' spectrum, in nats; high if the documents differ.",
    "log_determinant": "Logarithm of the determinant of the embeddings' second moments; high if "
    "they fill the space.",
    "target": "Squared distance of the mean embedding from that of the target; low if they agree.",
    "length_balance": "KL divergence of the lengths' shares from their targets, in nats; 0 if "
    "equal.",
    **{
        f"{kind}_balance": f"KL divergence of the {kind}s' shares from their targets, in nats; "
        "0 if equal."
        for kind in ("dump", "language", "domain")
    },
    "objective": "What the selection maximises: the weighted terms, each divided by its standard "
    "deviation over random subsets.",
    "mean length, characters": "Mean characters per document.",
    "mean length, tokens": "Mean tokens per document, as counted by the source or its tokenizer.",
    # Figures of the report
    "quality kept": "The gain in quality over random, as a share of top quality's gain.",
    "near-duplicates": "Share of sampled documents with another document of the same selection and "
    "shard at a cosine of at least report.near_duplicate_cosine.",
    "length": "Mean length of the selected documents over that of the source's.",
    "groups lost": "Groups of which nothing is kept, out of those of which random would keep at "
    "least five documents.",
    "documents kept": "Selected documents of all shards.",
    "dropped": "Documents removed by quality or as copies, before any embedding is computed.",
    "stopped by": "Why learning ended: tolerance reached, or the largest number of steps.",
    "certified gap": "An upper bound of what any other mask of this size could add to the gain "
    "over random, as a share of it.",
    "number of shards": "Parts of the source that are processed one by one.",
    "embedded per second": "Mean over the time in which a worker embedded.",
    "classified per second": "Mean over the time in which a worker classified.",
    "cut": "Share of documents longer than the encoder reads; their rest has no effect on "
    "diversity.",
    # Columns of the report
    "learnt on": "Value on the corpus that the mask model was learnt on.",
    "these documents": "Value on the documents of this run.",
    "change": "Of a share: relative; of a term: in standard deviations over documents.",
    "number": "Documents.",
    "documents": "Number of documents.",
    "tokens": "Sum of tokens, as counted by the source or its tokenizer.",
    "mean characters": "Mean characters per document.",
    "mean tokens": "Mean tokens per document.",
    "before": "Documents of the group in the source.",
    "after": "Selected documents of the group.",
    "share before": "The group's share of the source's documents.",
    "share after": "The group's share of the selected documents.",
    "kept": "Share of the group's documents that is selected.",
    "sampled": "Documents whose nearest neighbour was computed, at most "
    "report.neighbour_documents.",
    "mean cosine": "Mean cosine to the nearest other document of the selection and shard.",
    "median cosine": "Median cosine to the nearest other document of the selection and shard.",
    "share seen": "Of what training sees, the part from documents that it sees this often.",
    "texts": "Texts of the benchmark.",
    "too short": "Benchmark texts with fewer words than the n-gram, which cannot be detected.",
    "documents that share words": "Documents of the source with an n-gram of words of the "
    "benchmark.",
    "Benchmarks: dropped": "Of these documents, those dropped before selection.",
    "selected": "Documents that are selected.",
    "Scores: documents": "The selection whose documents are summarised.",
    "mean": "Mean of the score over these documents.",
    "minimum": "Smallest score of these documents.",
    "maximum": "Largest score of these documents.",
    "missing": "Documents without this score.",
    "coverage": "Share of the source's documents that have this score.",
    "rank correlation": "Spearman's correlation, from −1 to 1: 1 if both order documents alike.",
    "labels": "Labelled documents that the probe was fitted to.",
    "whole corpus": "Share of the group in the best tenth, if scores are normalised over the whole "
    "corpus.",
    "within groups": "Share of the group in the best tenth, if scores are normalised within "
    "groups.",
    "Rounds: objective": "Objective of the inclusion probabilities after this round.",
    "accepted share": "How far the round moved towards its proposal: 1 is all the way.",
    "Rounds: documents": "Expected number of selected documents.",
    "candidates": "Documents left after pruning and deduplication.",
    "steps": "Steps of learning.",
    "Learning of shards: objective": "Joint objective of the shard's selection; each shard has its "
    "own scales.",
    "Learning of shards: random": "Joint objective of random documents of the shard.",
    "Learning of shards: top quality": "Joint objective of the shard's best documents by quality.",
    "embedding (s)": "Seconds of work to embed the shard.",
    "documents/s": "Documents embedded per second by one worker.",
    "padding": "Share of the computed tokens that only fill up batches.",
    "learning (s)": "Seconds of work to learn the shard's mask.",
    "retries": "Attempts that failed before the last one.",
    # Trained models
    "bits per byte": "Mean bits that a model trained on the documents needs for a byte of held-out "
    "text; lower is better.",
    "n-gram model": "The same for a 5-gram model that trains in seconds.",
    "seeds": "Models per arm, with different initial weights and order of documents.",
    "seed": "Number of the initial weights and of the order of documents.",
    "learning rate": "Largest learning rate of the training.",
    "verdict": "better or worse if the corrected test and all learning rates agree, else "
    "undecided.",
    "difference": "Bits per byte of the first arm less those of the second; below 0, the first is "
    "better.",
    "95 % interval": "Range of differences that agree with the measurements.",
    "p (Holm)": "Probability of such a difference by chance, corrected for the number of pairs.",
    "detectable": "A true difference of this size would be found in four of five evaluations.",
    "All pairs: n-gram model": "Difference of the n-gram models of both arms, in bits per byte.",
    # Sweep
    "λ": "Weight of quality in the objective: 1 is quality alone, 0 diversity alone.",
    "recommended": "The value of λ that the sweep recommends for this run.",
    "in this run": "The value of λ in the run's settings.",
    "Choices: quality": "Gain of mean quality over random subsets, in their standard deviations.",
    "diversity": "Gain of the diversity metric over random subsets, in their standard deviations; "
    "higher is more diverse.",
    "over seeds": "Smallest and largest value over the seeds.",
    "shards sampled": "Shards on which every λ was learned again.",
    "10 %": "A tenth of the selected documents have at most this many characters.",
    "median": "Half of the selected documents have at most this many characters.",
    "90 %": "Nine tenths of the selected documents have at most this many characters.",
    "against the best": "Whether the difference from the best λ is decided.",
    "change of share": "Share in the selection less share among the candidates, in percentage "
    "points.",
    # Comparison
    "Jaccard": "Documents that both select over documents that either selects: 1 if equal.",
    "in both": "Documents that both runs select.",
    "only first": "Documents that only the first run selects.",
    "only second": "Documents that only the second run selects.",
    "value of the run": "For the documents that this run selects.",
    "setting of the run": "The value in the settings of this run.",
    "tokens kept": "Tokens of the selected documents.",
}


def explained(text: object, table: str = "", key: str = "") -> Markup:
    """The text with its explanation for pointer and keyboard; alone if there is none.

    Args:
        text: what is shown, escaped.
        table: name of the table that it is in.
        key: of the explanation; the text if empty.
    """
    name = key or str(text)
    found = EXPLANATIONS.get(f"{table}: {name}", EXPLANATIONS.get(name))
    if found is None:
        return Markup("{}").format(text)
    return Markup('<abbr tabindex="0" title="{}">{}</abbr>').format(found, text)

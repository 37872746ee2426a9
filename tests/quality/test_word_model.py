"""The model of hashed words: its features, familiarity, and what its values mean."""

import math

import numpy as np
import pytest

from datamask.quality.word_model import (
    FEATURES,
    familiarity,
    features_of,
    fit_words,
    log_ratios_of,
)


def test_features_are_words_and_pairs_at_length_one():
    """Against a plain count: as many different places as words and pairs, by log(1 + count)."""
    texts = ["a b a c", "", "One"]
    matrix = features_of(texts, 1)[0].toarray()
    assert matrix.shape == (3, FEATURES)
    counts = sorted([2, 1, 1, 1, 1, 1])  # a, b, c, a b, b a, a c
    length = math.sqrt(sum(math.log1p(count) ** 2 for count in counts))
    found = sorted(value for value in matrix[0] if value)
    assert found == pytest.approx([math.log1p(count) / length for count in counts])
    assert not matrix[1].any()
    assert np.linalg.norm(matrix[2]) == pytest.approx(1)


def test_texts_with_words_of_their_own_are_below_texts_like_the_examples():
    """Of unseen texts: half of a noisy text's words are in no example, and in few other texts.

    A logistic regression alone orders 93 % of the pairs.
    """
    generator = np.random.default_rng(0)
    frequency = 1 / np.arange(1, 4001)
    frequency /= frequency.sum()

    def text(is_noise: bool) -> str:
        words = [f"w{word}" for word in generator.choice(4000, 40, p=frequency)]
        if is_noise:
            words[20:] = [f"n{word}" for word in generator.integers(0, 100_000, 60)[:20]]
        return " ".join(words)

    is_noise = [*[False] * 200, *(generator.random(3000) < 0.4)]
    features, _ = features_of([text(noise) for noise in is_noise], 1)
    model, *_ = fit_words(features, np.repeat([1.0, 0.0], [200, 3000]))
    unseen, _ = features_of([text(noise) for noise in [False] * 100 + [True] * 100], 1)
    scores = model.scores(unseen)
    assert (scores[:100, None] > scores[None, 100:]).mean() > 0.98
    margins = unseen @ model.weights
    assert margins[:100].mean() >= margins[100:].mean(), "the margin counts against its meaning"


def test_familiarity_is_the_mean_of_what_words_and_pairs_say():
    """By hand. A text of a word is also a pair of its own, which no other text has."""
    features, _ = features_of(["a b", "b c", "a", "b", "c", "d", ""], 1)
    ratios = log_ratios_of(features[:2], np.array([True, False]))
    of_examples, of_both, of_others = math.log(1.5), math.log(1), math.log(0.5)
    words = [of_examples, of_both, of_others, of_others]
    expected = [(word + of_others) / 2 for word in words]
    assert familiarity(features[2:], ratios) == pytest.approx([*expected, 0])
    first = (of_examples + of_both + of_examples) / 3  # a, b, a b
    assert familiarity(features[:1], ratios) == pytest.approx([first])


def test_scores_are_calibrated_log_odds():
    """Of texts that the model has not seen, as many are examples as their probabilities say."""
    generator = np.random.default_rng(0)
    words = np.array([f"w{place}" for place in range(200)])
    # Each word is more or less likely in an example.
    odds = np.exp(generator.normal(0, 0.35, 200))
    targets = np.tile([0.0, 1.0], 1500)
    texts = [
        " ".join(generator.choice(words, 12, p=(share := odds**target) / share.sum()))
        for target in targets
    ]
    features, _ = features_of(texts, 1)
    model, *_ = fit_words(features[:1000], targets[:1000])
    log_odds = model.scores(features[1000:])
    probability = 1 / (1 + np.exp(-log_odds))
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (probability >= low) & (probability < low + 0.25)
        share = targets[1000:][inside].mean()
        error = 3 * math.sqrt(0.25 / inside.sum())
        assert abs(share - probability[inside].mean()) < error + 0.03

"""Shards that exchange sums, against one shard that holds everything."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.learning import scales
from datamask.learning.data import highest_order, moments_of, raw_values
from datamask.learning.exchange import (
    Corpus,
    agree,
    check_scope,
    dual_price_of,
    learn_sample,
    propose,
    shortfall,
    taken,
)
from datamask.learning.expected import Ascent, StepSize, climb_sample, unsettled
from datamask.learning.learner import shard_data
from datamask.learning.moment_gradient import joint_value
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective, build_terms
from tests.conftest import nightly

pytestmark = pytest.mark.usefixtures("roughly")

SHARDS, ROWS, WIDTH = 6, 500, 12
TOTAL = 300


def on_cpu(features, quality):
    """A shard as the learner sees it."""
    return shard_data(features, quality, {}, Compute(device="cpu"))


def added(parts):
    """Moments of several shards together."""
    total = parts[0]
    for one in parts[1:]:
        total = Moments(
            total.count + one.count,
            total.quality + one.quality,
            {},
            total.first_D + one.first_D,
            total.second_DD + one.second_DD,
        )
    return total


@pytest.fixture
def corpus(make_shard):
    """Six shards that differ in quality, and everything in one piece."""
    shards = [make_shard(ROWS, WIDTH, seed) for seed in range(SHARDS)]
    shards = [(features, quality + 0.5 * seed) for seed, (features, quality) in enumerate(shards)]
    whole = tuple(np.concatenate(parts) for parts in zip(*shards, strict=True))
    return [on_cpu(*shard) for shard in shards], on_cpu(*whole)


def learn(shards, whole, terms, rounds):
    """Rounds between shards; the objective after each, the shares, and logits by shard.

    The sample is every fifth document.
    """
    totals = added([moments_of(s, torch.ones(ROWS), highest_order(terms)) for s in shards])
    moments = totals.scaled(TOTAL)
    part = TOTAL / (SHARDS * ROWS)
    logits = [torch.full((ROWS,), float(np.log(part / (1 - part)))) for _ in shards]
    step_sizes, values, shares = [StepSize()] * SHARDS, [float(joint_value(terms, moments))], []
    sampled = torch.arange(0, SHARDS * ROWS, 5)
    generator = torch.Generator().manual_seed(0)
    judge = learn_sample(terms, totals, whole.part(sampled), TOTAL, generator)
    told = Corpus(terms, totals, moments, judge)

    def proposal(shard, number):
        data, before = shards[shard], logits[shard]
        if not number:
            return *judge.judge(data, highest_order(terms)), StepSize()
        others = sampled[sampled // ROWS != shard]
        stand_ins = (whole.part(others), torch.cat(logits)[others])
        movable, generator = unsettled(torch.sigmoid(before), part), torch.Generator()
        found = propose(
            data.part(movable),
            told,
            before[movable],
            ROWS,
            step_sizes[shard],
            stand_ins,
            generator.manual_seed(number),
        )
        proposed = before.clone()
        proposed[movable] = found.logits_B
        return proposed, added([present[shard], found.change]), found.step_size

    for number in range(rounds):
        found = [proposal(shard, number) for shard in range(SHARDS)]
        proposals, sums, step_sizes = zip(*found, strict=True)
        share, moments = agree(terms, moments, added(sums), TOTAL)
        logits = [taken(a, b, share) for a, b in zip(logits, proposals, strict=True)]
        inclusion = [torch.sigmoid(one) for one in logits]
        order = highest_order(terms)
        present = [moments_of(s, p, order) for s, p in zip(shards, inclusion, strict=True)]
        told = replace(told, moments=moments)
        values.append(float(joint_value(terms, moments)))
        shares.append(share)
    return values, shares, logits


@pytest.mark.parametrize("metric", ["disf", "pairwise"])
def test_no_round_makes_the_corpus_worse(corpus, metric):
    """The objective at the corpus's moments never falls, and they are those of the logits."""
    shards, whole = corpus
    terms = scaled(whole, Selection(metric=metric))
    values, _, logits = learn(shards, whole, terms, 5)
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0]
    inclusion = torch.sigmoid(torch.cat(logits))
    fresh = moments_of(whole, inclusion, highest_order(terms)).scaled(TOTAL)
    assert float(joint_value(terms, fresh)) == pytest.approx(values[-1], rel=1e-3)


def scaled(whole, selection):
    """The terms, scaled over the whole corpus."""
    terms = build_terms(selection)
    totals = moments_of(whole, torch.ones(len(whole.quality_N)), highest_order(terms))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scales, "MOST_SUBSETS", 32)  # With few, results hang on the draw.
        return scales.scaled(terms, scales.references(terms, totals, whole, TOTAL, 0))


@pytest.mark.parametrize(("metric", "least"), [("disf", 0.85), *nightly(("pairwise", 0.65))])
def test_one_selection_is_better_than_one_a_shard(corpus, metric, least):
    """Against the same learner, shard by shard and on everything at once, where it learns on."""
    from datamask.learning.learner import learn_mask

    shards, whole = corpus
    terms = scaled(whole, Selection(metric=metric))
    objective = WeightedObjective(terms)
    # The weights that make the learner's own scaling unnecessary: the same objective everywhere.
    factors = [abs(term.factor) for term in terms]
    same = Selection(metric=metric, quality_weight=factors[0] / sum(factors), scale_terms=False)

    def value(mask):
        return objective.join(raw_values(terms, whole, torch.as_tensor(mask)))

    def selected(data, number):
        features, quality = data.features, data.quality_N.numpy()
        return learn_mask(features, quality, same, number, seed=0).selected

    local = value(np.concatenate([selected(shard, TOTAL // SHARDS) for shard in shards]))
    oracle = value(selected(whole, TOTAL))
    _, _, logits = learn(shards, whole, terms, 5)
    mask = torch.zeros(SHARDS * ROWS, dtype=torch.bool)
    mask[torch.cat(logits).topk(TOTAL).indices] = True
    assert (value(mask) - local) / (oracle - local) > least


def test_a_weight_is_a_number_of_copies(make_shard):
    """One step with weights, against a step in which documents are repeated."""
    features, quality = make_shard(60, 8, 1)
    copies = np.where(np.arange(60) < 40, 1, 3)
    terms = build_terms(Selection(metric="disf"))
    repeated = on_cpu(np.repeat(features, copies, 0), np.repeat(quality, copies))
    data, others = on_cpu(features[:40], quality[:40]), on_cpu(features[40:], quality[40:])
    totals = moments_of(repeated, torch.ones(100), 2)
    found = []
    for shard, weight in ((data.joined(others), torch.tensor(copies)), (repeated, 1.0)):
        ascent = Ascent(
            shard,
            WeightedObjective(terms),
            20.0,
            torch.full((shard.num_documents,), -1.4),
            totals=totals,
            weight=weight,
            moments=totals.scaled(20.0),
            step_size=StepSize(1.0, 1.0, 0.01),
        )
        ascent.climb(torch.arange(shard.num_documents))
        found.append(ascent)
    weighted, plain = found
    assert weighted.value > weighted.initial
    assert weighted.value == pytest.approx(plain.value, rel=1e-5)
    expected = plain.logits_N[torch.from_numpy(np.cumsum(copies) - 1)]
    torch.testing.assert_close(weighted.logits_N, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        weighted.moments.second_DD, plain.moments.second_DD, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("metric", ["disf", "pairwise"])
def test_the_sample_is_judged_as_it_was_learned(corpus, metric):
    """The function that gives other documents their logits, against the sample's own logits."""
    _, whole = corpus
    terms = scaled(whole, Selection(metric=metric, quality_weight=0.9))
    totals = moments_of(whole, torch.ones(SHARDS * ROWS), 2)
    judge = learn_sample(terms, totals, whole, TOTAL, torch.Generator().manual_seed(0))
    logits, moments = judge.judge(whole, highest_order(terms))
    expected = moments_of(whole, torch.sigmoid(logits), highest_order(terms))
    torch.testing.assert_close(moments.first_D, expected.first_D, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments.second_DD, expected.second_DD, rtol=1e-5, atol=1e-5)
    part = TOTAL / (SHARDS * ROWS)
    even = torch.full((SHARDS * ROWS,), float(np.log(part / (1 - part))))
    ascent = Ascent(whole, WeightedObjective(terms), TOTAL, even)
    climb_sample(ascent, torch.Generator().manual_seed(0))
    assert float(torch.sigmoid(logits).sum()) == pytest.approx(TOTAL, rel=1e-3)
    both = np.corrcoef(torch.stack([logits, ascent.logits_N]).numpy())
    assert both[0, 1] > 0.9


def test_a_share_that_is_rounded_to_more_than_all_is_all(corpus):
    """The sum of S = N inclusion probabilities can exceed N; every document then has its price."""
    _, whole = corpus
    terms = scaled(whole, Selection(metric="disf", quality_weight=1.0))
    moments = moments_of(whole, torch.ones_like(whole.quality_N), highest_order(terms))
    price = dual_price_of(terms, moments, whole, 1 + 2**-52)
    assert price == dual_price_of(terms, moments, whole, 1.0)


def test_a_term_without_moments_is_refused():
    """Facility location is not a function of sums over the selected documents."""
    with pytest.raises(SettingsError, match=r"selection\.scope.*facility_location"):
        check_scope(build_terms(Selection(metric="facility_location")))
    weightless = replace(build_terms(Selection(metric="facility_location"))[1], weight=0.0)
    check_scope((weightless,))


@pytest.mark.parametrize("size", [100, 1000])
def test_a_second_sample_shows_what_a_judge_has_learned_by_heart(corpus, size):
    """Against numpy and the definition; a judge of few documents loses more than one of many."""
    _, whole = corpus
    terms = build_terms(Selection(metric="pairwise", quality_weight=0.2))
    order = np.random.default_rng(0).permutation(whole.num_documents)
    own, second = (whole.part(torch.from_numpy(order[at : at + size])) for at in (0, size))
    totals = moments_of(whole, torch.ones(whole.num_documents), 1)
    judge = learn_sample(terms, totals, own, TOTAL, torch.Generator().manual_seed(0))
    gains = []
    for data in (own, second):
        features, quality = data.rows(slice(None)).double().numpy(), data.quality_N.numpy()

        def value(rows, features=features, quality=quality):
            total = features[rows].sum(0) * TOTAL / len(rows)
            pairwise = (total @ total - TOTAL) / (TOTAL * (TOTAL - 1))
            return 0.2 * quality[rows].mean() - 0.8 * pairwise

        logits = features @ judge.slope.first_D.numpy() + quality * float(judge.slope.quality)
        random = [value(np.arange(size)[part::10]) for part in range(4)]
        gains.append(value(np.argsort(-logits)[: size // 10]) - np.mean(random))
    lost = shortfall(judge, terms, TOTAL, 0.1, own, second)
    assert lost == pytest.approx(1 - gains[1] / gains[0], abs=1e-4)
    assert (lost > 0.05) == (size == 100)

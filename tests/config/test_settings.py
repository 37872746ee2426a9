"""Settings: ranges, unknown keys, overrides, and the text of their errors."""

import json

import hypothesis
import jsonschema
import pytest
from hypothesis import strategies as st

from datamask.config.loading import load_settings, parse_settings
from datamask.config.reference import describe, descriptions
from datamask.config.settings import Settings
from datamask.errors import SettingsError, lines
from datamask.runs.receipt import canonical_json

GROUP = {"column": "dump", "value": "a"}
LISTED = {"name": "mine", "kind": "ids"}
CHANGED = {"name": "r", "kind": "random", "change": {"ratio": 0.1}}
WRONG = [
    ({"selection": {"ratoi": 0.1}}, "selection.ratoi: unknown key"),
    ({"selection": {"ratio": 0}}, "selection.ratio: Input should be greater than 0, got 0"),
    (
        {"selection": {"final_lr": 11, "initial_lr": 10}},
        "selection: final_lr 11.0 is above initial_lr 10.0",
    ),
    ({"quality": {"scores": [{"kind": "file"}]}}, "quality.scores.0.path: required: file,"),
    ({"quality": {"scores": [{"column": "score"}]}}, "quality.scores.0: `column` belongs to kind"),
    (
        {"quality": {"scores": [{"kind": "column", "model": "m"}]}},
        "quality.scores.0: `model` belongs to kind",
    ),
    ({"quality": {"scores": [{"name": "id"}]}}, "quality.scores.0: name `id` is reserved"),
    *(
        ({"quality": {"scores": [{"name": name}]}}, f"quality.scores.0: name `{name}` is reserved")
        for name in ("copy", "hash", "kind", "fate", "known_topic", "octave", "length", "fold")
    ),
    *(({"selection": {key: True}}, f"selection.{key}: ") for key in ("quality_weight", "steps")),
    (
        {"quality": {"scores": [{"missing": True}]}},
        "quality.scores.0.missing: this setting does not accept",
    ),
    ({"quality": {"scores": [{"missing": "no"}]}}, "quality.scores.0.missing: Input should be"),
    ({"selection": {"a-b": 1}}, "selection.a-b: unknown key"),
    ({"selection": {"limits": {}}}, "selection.limits: Input should be a list"),
    ({"quality": {"scores": [{}, {}]}}, "quality: score names must differ"),
    ({"publication": {"repository": "a/b"}}, "publication: `license` is required"),
    ({"publication": {"license": "mit"}}, "publication: `repository` is required"),
    *(
        ({"quality": {"scores": [{"kind": "examples", **given}]}}, "quality.scores.0: kind `exam")
        for given in ({}, {"path": "a", "labels": "b"}, {"path": "a", "where": GROUP})
    ),
    (
        {"quality": {"scores": [{"normalise_within": "topic"}]}, "topics": {}},
        "settings: quality.scores.0.normalise_within: no group `topic`",
    ),
    *(
        ({"evaluation": data}, f"evaluation{message}")
        for data, message in (
            ({"arms": ["ours"]}, ": one arm"),
            ({"arms": ["ours", "magic"]}, ".arms.1: unknown arm magic"),
            ({"arms": ["ours", "ours"]}, ": names of arms must differ"),
            ({"arms": ["ours", LISTED]}, ".arms.1: kinds `run`, `ids` and `texts` need `path`"),
            ({"arms": ["ours", CHANGED]}, ".arms.1: `change` is for kind `selection`"),
            ({"learning_rates": [0.001, 1]}, ": learning_rates must be in (0, 1)"),
            ({"sets": [{"name": "a", "path": "x"}] * 2}, ": names of sets must differ"),
            ({"sets": [{"name": "all", "path": "x"}]}, ": set name `all` is taken"),
        )
    ),
    (
        {"quality": {"scores": [{"kind": "column", "column": 5}]}},
        "quality.scores.0.column: Input should be",
    ),
    ({"nonsense": 1}, "nonsense: unknown key; `datamask settings` lists"),
    (
        {"selection": {"limits": [{"column": "dump", "nonsense": 1}]}},
        "selection.limits.0.nonsense: unknown key; `datamask settings selection.limits` lists",
    ),
]


@pytest.mark.parametrize(("data", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_settings_are_refused_with_the_path_of_the_key(data, message):
    """Each mistake gives one line that begins with the key's path."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(data)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_number_in_a_key_is_a_position_in_a_list():
    """Of a run's own list; a position that the list lacks, or in a text, is refused."""
    own = parse_settings({"quality": {"scores": [{"name": "a", "kind": "column", "column": "a"}]}})
    changed, _ = load_settings(None, ("quality.scores.0.missing=drop",), own)
    assert [(score.name, score.missing) for score in changed.scores] == [("a", "drop")]
    for key in ("quality.scores.1.missing", "quality.scores.x.missing", "quality.scores.0.name.x"):
        with pytest.raises(SettingsError, match=f"--set {key}"):
            load_settings(None, (f"{key}=drop",), own)
    with pytest.raises(SettingsError, match="empty"):
        load_settings(None, ("selection.limits.0.cap=1",), own)


def test_overrides_win_over_the_file_and_compute_stays_apart(tmp_path):
    """`--set` changes one key of the file; `compute` is read from the same file."""
    config = tmp_path / "my.yaml"
    config.write_text("selection: {ratio: 0.2, metric: pairwise}\ncompute: {workers: 3}\n")
    settings, compute = load_settings(config, ("selection.ratio=0.05", "compute.device=cpu"))
    assert settings.selection.ratio == 0.05
    assert settings.selection.metric == "pairwise"
    assert (compute.workers, compute.device) == (3, "cpu")


PIECES = st.one_of(
    st.sampled_from(
        (
            *("!!int", "!!timestamp", "!!binary", "!!set", "!!float", "!!python/name:os", "&a"),
            *("*a", "2023-99-99", "2023-01-01", "0x" + "f" * 5000, "9" * 5000, ".nan", "-.inf"),
            *("~", "on", "[", "]", "{", "}", ":", ",", "<<", "? ", "- ", "|", "'", '"', "name"),
            *('"\\ud800"', '"\\x00"', "\udce9", "s3://a:b@c", "\n", "#", "%", "@", "1", "weight"),
        )
    ),
    st.text(max_size=3),
)
KEYS = [key for key in describe(Settings) if "[" not in key]


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(
    st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), st.lists(PIECES, max_size=6)
)
def test_whatever_is_set_is_settings_or_one_line(key, pieces):
    """No value is a traceback; one that is accepted is the same again after run.json."""
    try:
        settings, _ = load_settings(None, (f"{key}={' '.join(pieces)}",))
    except SettingsError as error:
        for line in lines(error):
            assert "\n" not in line and len(line) < 600
            line.encode()
        return
    text = json.dumps(settings.given())
    text.encode()
    assert canonical_json(parse_settings(json.loads(text))) == canonical_json(settings)


def test_a_date_is_text(tmp_path):
    """YAML's dates would come back from run.json as something else."""
    config = tmp_path / "my.yaml"
    config.write_text("source: {columns: {dump: 2023-01-02}}\n")
    settings, _ = load_settings(config, ("source.columns.url=2023-99-99",))
    assert (settings.source.columns.dump, settings.source.columns.url) == (
        "2023-01-02",
        "2023-99-99",
    )


SCORE = [{"name": "a", "kind": "column"}]
MODEL = {"license": "mit", "dry_run": True, "include": ["mask_model"]}


@pytest.mark.parametrize(
    ("data", "filled_in", "explained"),
    [
        ({}, ("facility_location", 0.0, 0.4), ["heuristic"]),
        ({"quality": {"scores": [{}]}}, ("facility_location", 0.0, 0.4), ["heuristic"]),
        ({"selection": {"quality_weight": 0.3}}, ("facility_location", 0.3, 0.4), []),
        ({"quality": {"scores": SCORE}}, ("facility_location", 0.3, 0.5), ["filter, then cover"]),
        ({"quality": {"scores": SCORE, "prune_fraction": 0}}, ("facility_location", 0.5, 0.0), []),
        ({"source": {"layout": "features"}}, ("facility_location", 0.5, 0.0), ["Vectors"]),
        ({"selection": {"scope": "corpus"}}, ("disf", 0.0, 0.4), ["heuristic", "sums"]),
        (
            {"selection": {"scope": "corpus", "metric": "pairwise", "quality_weight": 0.5}},
            ("pairwise", 0.5, 0.4),
            [],
        ),
        (
            {"selection": {"metric": None, "quality_weight": None}},
            ("facility_location", 0.0, 0.4),
            ["heuristic"],
        ),
        ({"selection": {"method": "greedy"}}, ("disf", 0.0, 0.4), []),
        ({"quality": {"scores": SCORE}, "publication": MODEL}, ("disf", 0.3, 0.5), ["sums"]),
    ],
)
def test_defaults_of_the_recipe_are_filled_in_and_explained(data, filled_in, explained):
    """Metric, lambda and pruning follow from scores, layout and scope; what is set is kept."""
    settings = parse_settings(data)
    chosen = settings.selection
    assert (chosen.metric, chosen.quality_weight, settings.prune_fraction) == filled_in
    lines = settings.explained()
    assert len(lines) == len(explained)
    assert all(word in line for word, line in zip(explained, lines, strict=True))


def test_a_lambda_that_follows_from_examples_is_not_one_that_is_set():
    """Not even the same number; and nothing follows from examples of what is not wanted."""
    score = {"name": "a", "kind": "examples", "path": "good.jsonl"}
    follows = parse_settings({"quality": {"scores": [score]}})
    sets = {"quality_weight": follows.selection.quality_weight}
    assert follows != parse_settings({"quality": {"scores": [score]}, "selection": sets})
    assert follows == parse_settings(follows.given()) and hash(follows) == hash(follows)
    unwanted = parse_settings({"quality": {"scores": [score | {"weight": -1}]}})
    assert follows.weight_follows and follows.pruning_follows
    assert not unwanted.weight_follows and not unwanted.pruning_follows


@pytest.mark.parametrize("own", [{}, {"column": "score", "least_correlation": 0.3}])
def test_a_score_without_defaults_is_the_same_score(own):
    """Also if it sets what is the default of scores of other kinds."""
    for path in ({"path": "good.jsonl"}, {"labels": "grades.csv"}):
        given = {"name": "a", "kind": "examples", **path, **own}
        [score] = parse_settings({"quality": {"scores": [given]}}).scores
        again = parse_settings({"quality": {"scores": [score.without_defaults()]}})
        assert again.scores == (score,)


def test_what_was_filled_in_follows_other_settings_later():
    """run.json keeps what was given alone; a new score changes lambda, also from a moved run."""
    moved = parse_settings({"source": {"path": "a"}, "selection": {"scope": "corpus"}}).relocated(
        str.upper, str
    )
    before = parse_settings(json.loads(json.dumps(moved.given())))
    assert before == moved and before.selection.quality_weight == 0
    scores = parse_settings({"quality": {"scores": SCORE, "prune_fraction": 0}}).quality
    after = before.model_copy(update={"quality": scores})
    assert (after.selection.scope, after.selection.quality_weight) == ("corpus", 0.5)
    kept = parse_settings({"selection": {"quality_weight": 0}}).model_copy(
        update={"quality": scores}
    )
    assert kept.selection.quality_weight == 0


def test_every_setting_says_what_it_means():
    """No key without a type and help text."""
    known = descriptions().values()
    assert len(known) > 100
    assert not [text for text in known if text.endswith("None") or "()" in text.split("\n")[0]]


def test_every_path_and_model_can_be_relocated():
    """Paths and names of models are changed in every group, and nothing else is."""
    score = {"name": "a", "kind": "file", "path": "a.csv"}
    classifier = {"name": "b", "kind": "classifier", "model": "me/b"}
    data = {
        "source": {"path": "corpus", "tokenizer": "tokens.json"},
        "quality": {
            "scores": [score, classifier],
            "near_duplicates": {"against": ["old", "older"]},
            "contamination": {"sets": [{"path": "mmlu.txt", "name": "mmlu"}]},
        },
        "embedding": {"model": "me/e"},
        "selection": {"more_terms": [{"name": "target", "weight": 1, "path": "t.npy"}]},
        "evaluation": {
            "arms": ["ours", {"name": "other", "kind": "run", "path": "runs/other"}],
            "sets": [{"name": "own", "path": "own.txt"}],
            "model": "decoder",
        },
    }
    places = ("corpus", "a.csv", "old", "older", "mmlu.txt", "t.npy", "runs/other", "own.txt")
    models = ("tokens.json", "me/b", "me/e", "decoder")
    text = parse_settings(data).model_dump_json()
    for names, mark in ((places, "P:"), (models, "M:")):
        for name in names:
            text = text.replace(f'"{name}"', f'"{mark}{name}"')
    found = parse_settings(data).relocated(
        lambda path: path and f"P:{path}", lambda model: model and f"M:{model}"
    )
    assert json.loads(found.model_dump_json()) == json.loads(text)
    applied = parse_settings({"selection": {"mask_model": "model"}})
    assert applied.relocated(str.upper, str).selection.mask_model == "MODEL"


@pytest.mark.parametrize(
    ("score", "is_valid"),
    [
        ({}, True),
        ({"kind": "heuristic"}, True),
        ({"kind": "column", "column": "edu", "missing": "drop"}, True),
        ({"kind": "file", "path": "s.parquet"}, True),
        ({"kind": "examples", "path": "e.jsonl", "group_column": "book"}, True),
        ({"kind": "classifier", "model": "m", "label": "good"}, True),
        ({"kind": "fasttext", "path": "m.bin", "label": "__label__hq"}, True),
        ({"kind": "mine:It", "options": {"a": 1}}, True),
        ({"kind": "file"}, False),
        ({"kind": "fil", "path": "s.parquet"}, False),
    ],
)
def test_forms_and_settings_accept_the_same_scores(score, is_valid):
    """A form checks by the JSON schema, which pydantic's own validation does not use."""
    data = {"quality": {"scores": [score]}}
    validator = jsonschema.Draft202012Validator(Settings.model_json_schema())
    assert validator.is_valid(data) == is_valid
    if is_valid:
        parse_settings({"source": {"path": "x"}, **data})
        return
    with pytest.raises(SettingsError):
        parse_settings({"source": {"path": "x"}, **data})

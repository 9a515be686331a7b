"""Panels: combinations worked out by hand, one bad reply costs one verdict, held-out judges are never paid."""

import math

import pytest
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.test_judged import answer_in, function, grown

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.judge import judge_reward
from gxpo.environments.rewards.panel import agreement, beats, combination, exploitation_rate, self_internalisation_gap
from gxpo.methods import METHODS

SOURCE = Source(lambda text, task: {"correct": 0.0}, trusted=True)


def by(score):
    """A judge that scores an answer by a function of its text; None: it says nothing that can be read."""
    message = {True: "no idea"}
    return function(lambda q: message.get((x := score(answer_in(q))) is None, f"Score: {x}"))


def paid(options, groups, weights="judge"):
    with RewardSet.make(weights, source=SOURCE, options={"judge": options}) as rewards:
        forest = rewards.score(*grown(groups))
        columns = {n: forest.components[:, i].tolist() for i, n in enumerate(forest.component_names)}
        return forest.outcome.tolist(), columns, rewards


PANEL = [{"name": name, "teacher": by(lambda t, x=x: x)} for name, x in (("a", 2), ("b", 9), ("c", 9.5))]


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("mean", 2.05 / 3), ("median", 0.9), ("uniform_phantom", 2 / 3), ("min", 0.2)],
)
def test_combinations_of_three_judges(combine, expected):
    outcome, columns, _ = paid({"panel": PANEL, "combine": combine}, {"g": ["x"]})
    assert outcome == pytest.approx([expected], abs=1e-12)
    assert (columns["judge_a"], columns["judge_b"], columns["judge_c"]) == ([0.2], [0.9], [0.95])


def test_uniform_phantom_can_move_away_from_a_louder_judge():
    louder = [{"name": "a", "teacher": by(lambda t: 10)}, *PANEL[1:]]
    assert paid({"panel": louder, "combine": "uniform_phantom"}, {"g": ["x"]})[0] == [0.9]


def test_lexicographic_by_hand_and_that_it_is_not_transitive():
    rows, margins = [[0.9, 0.2, 5], [0.85, 0.6, 1], [0.2, 0.9, 9]], [0.390512, 0.351188, 4]
    winners = [i if beats(rows[i], rows[j], margins) > 0 else j for i, j in ((0, 1), (0, 2), (1, 2))]
    assert winners == [1, 0, 1]
    # the same from scores, the margins being one standard deviation: 1 beats both, 0 beats 2
    assert combination("lexicographic", 1.0)(rows, [0, 0, 0]) == [0.5, 1.0, 0.0]
    # a beats b and b beats c by the second factor, c beats a by the first
    circle = [[0.0, 2.0], [0.6, 1.0], [1.2, 0.0]]
    assert [beats(circle[i], circle[j], [1.0, 0.5]) for i, j in ((0, 1), (1, 2), (2, 0))] == [1, 1, 1]
    assert combination("lexicographic", 0.0)([[0.2], [math.nan]], [0, 0])[1] != 0.0


def test_agreement_of_votes():
    assert agreement([1.0, 1.0, 0.0]) == [0.5, 0.5, 0.0]
    votes = [{"name": n, "teacher": by(lambda t, x=x: x)} for n, x in (("a", 10), ("b", 10), ("c", 0))]
    assert paid({"panel": votes, "combine": "agreement"}, {"g": ["x"]})[0] == [1.0]


def test_bad_reply_costs_a_verdict_and_only_all_cost_the_score():
    moody = [
        {"name": "a", "teacher": by(lambda t: None if t == "y" else 4)},
        {"name": "b", "teacher": by(lambda t: None if t in "yz" else 8)},
    ]
    outcome, columns, rewards = paid({"panel": moody}, {"g": ["x", "y", "z"]})
    assert outcome[0] == pytest.approx(0.6) and math.isnan(outcome[1]) and outcome[2] == 0.4
    assert math.isnan(columns["judge_b"][2])
    assert rewards.counts["nonsense"] == 1


def test_held_out_judges_are_recorded_and_not_paid():
    options = {
        "teacher": by(lambda t: 9),
        "held_out": [
            {"name": "a", "teacher": by(lambda t: 10 * (t == "x"))},
            {"name": "b", "teacher": by(lambda t: 2)},
        ],
    }
    outcome, columns, _ = paid(options, {"g": ["x", "y"]})
    assert outcome == [0.9, 0.9]
    assert columns["held_out"] == pytest.approx([0.6, 0.1]) and columns["held_out_b"] == [0.2, 0.2]
    assert columns["exploitation"] == [0.0, 1.0]  # y is credited, and all held-out judges reject it
    judge = judge_reward({**options, "held_out_every": 2})
    judge.at(3)
    assert judge(*grown({"g": ["x"]}))["held_out"].isnan().all()
    judge.at(4)
    assert judge(*grown({"g": ["x"]}))["held_out"].tolist() == pytest.approx([0.6])


def test_weights_of_single_judges_by_name():
    weights = {"judge": 0.0, "judge_a": 0.5, "judge_b": 1.0}
    assert paid({"panel": PANEL}, {"g": ["x"]}, weights)[0] == pytest.approx([0.5 * 0.2 + 0.9])


def test_figures_of_the_paper():
    assert exploitation_rate([2, 1, 3], [True] * 3, [True, True, False]) == 0.5
    assert exploitation_rate([2, 1, 3], [True] * 3, [True, True, False], [True, False, False]) == 0.25
    assert math.isnan(exploitation_rate([1], [False], [True]))
    assert self_internalisation_gap([-1.10], [-0.85]) == pytest.approx(-0.25)


def test_a_function_of_the_users_combines(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def top(x):\n    return max(x)\ndef bad(x):\n    raise KeyError('no')\n")
    assert paid({"panel": PANEL, "combine": f"{file}:top"}, {"g": ["x"]})[0] == [0.95]
    outcome, _, rewards = paid({"panel": PANEL, "combine": f"{file}:bad"}, {"g": ["x"]})
    assert math.isnan(outcome[0]) and rewards.counts["raised"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"panel": [{"rubric": "?"}]}, "needs a name"),
        ({"panel": [{"name": "a"}]}, "name the judge"),
        ({"panel": [PANEL[0], PANEL[0]]}, "two judges named 'a'"),
        ({"panel": [{**PANEL[0], "combine": "mean"}]}, "can't have combine"),
        ({"panel": PANEL, "combine": "maximum"}, "it is one of mean, median"),
        ({"teacher": "somebody"}, "no model of the section teacher"),
        ({"panel": PANEL, "refresh": {"every": 2}}, "a single judge"),
        ({"teacher": PANEL[0]["teacher"], "mode": "confidence"}, "log-probs of given tokens"),
        ({"teacher": PANEL[0]["teacher"], "refresh": {"often": 2}}, "has no 'often'"),
        ({"teacher": PANEL[0]["teacher"], "held_out_every": 0}, "at least 1"),
    ],
)
def test_what_can_not_work_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        judge_reward(options)


def test_a_debate_is_asked_in_both_orders():
    forest, texts, tasks = grown({"g": ["x", "y", "z"]})
    forest = forest.replace(info=[{"cases": ["pro", "con"]}, {"cases": ["con", "pro"]}, {}])
    pro_first = function(lambda q: "A" if q.index("\npro\n") < q.index("\ncon\n") else "B")
    debate = judge_reward({"teacher": pro_first, "mode": "debate"})
    actual = debate(forest, texts, tasks)["judge"].tolist()
    assert actual[:2] == [1.0, 0.0] and math.isnan(actual[2])
    assert [kind for kind, _ in debate.failures()] == ["nonsense"]
    for options, paid in (({}, 0.5), ({"tie": 0.0}, 0.0)):  # whoever is shown first
        tied = judge_reward({"teacher": function(lambda q: "A"), "mode": "debate", **options})
        assert tied(forest, texts, tasks)["judge"].tolist()[:2] == [paid] * 2
    assert METHODS["debate_reward"].keys["scoring.options"]["judge"]["tie"] == 0.0
    with pytest.raises(ConfigError, match="have none"):
        debate(*grown({"g": ["x"]}))

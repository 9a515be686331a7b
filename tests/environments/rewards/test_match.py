"""Rewards `match` and `consistency` on rollouts: what is worth what, what is unreadable, what is unscored."""

from __future__ import annotations

import re

import pytest
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.test_majority import column, grown

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.methods import METHODS
from gxpo.parts.protocols import Task


def scored(groups, tasks, options, reward="match", source=None, **fields):
    """tasks: {name: (answer, info)}."""
    forest, texts = grown(groups, **fields)
    task_list = [Task(name, "?", *tasks[name]) for name in forest.task]
    with RewardSet.make(reward, source=source or Source(None, None), options=options) as rewards:
        return rewards.score(forest, texts, task_list), rewards


def matched(texts, answer, info=None, **options):
    forest, rewards = scored({"g": texts}, {"g": (answer, info or {})}, {"match": {"pattern": None, **options}})
    return forest.outcome.tolist(), forest, rewards


def test_unreadable_answers_are_zero_and_counted():
    actual, forest, rewards = matched(["#2 4", "nothing", "#1 3"], [2, 4], metric="interval_iou", pattern=r"#(.*)")
    assert actual == [1.0, 0.0, pytest.approx(1 / 3)]
    assert column(forest, "malformed_match") == [0, 1, 0] and sum(rewards.counts.values()) == 0
    assert forest.success.isnan().all()  # how near an answer is is no verdict


def test_the_order_of_baseline_clip_gate_and_scale():
    texts = ["a b c d e", "a b c d x", "a b x y z", "1 2 3 4 5 6 7"]  # wer 1, .8, .4, -.4
    answer = "a b c d e"
    assert matched(texts, answer, metric="wer")[0] == pytest.approx([1.0, 0.8, 0.4, -0.4])
    assert matched(texts, answer, metric="wer", clip=[0, 1])[0] == pytest.approx([1.0, 0.8, 0.4, 0.0])
    assert matched(texts, answer, metric="wer", gate=0.5, scale=2)[0] == pytest.approx([2.0, 1.6, 0.0, 0.0])
    assert matched(texts, answer, metric="wer", gate=0.5, pay="pass")[0] == [1.0, 1.0, 0.0, 0.0]
    # (s - .6) / .4: 1, .5, -.5, -2.5
    assert matched(texts, answer, metric="wer", baseline=0.6, clip=[-1, 1])[0] == pytest.approx([1.0, 0.5, -0.5, -1.0])


def test_options_that_are_the_tasks_own():
    info = {"size": [640, 480], "target": [320, 240], "negative": "no"}
    options = {"metric": "point_distance", "reference": "info.target", "frame": "unit", "size": "info.size"}
    assert matched(["(.5, .5)", "(.5, .6)"], None, info, **options)[0] == pytest.approx([1.0, 1 - 48 / 50])


def test_places_and_counts_by_name():
    info = {"size": [200, 100]}
    options = {"metric": "point_in_box", "frame": "thousand", "size": "info.size"}
    # a tenth of 200 and of 100 is (20, 10)
    actual, forest, _ = matched(["click(100, 100)", "click(900, 100)", "click"], [10, 5, 30, 15], info, **options)
    assert actual == [1.0, 0.0, 0.0] and column(forest, "malformed_match") == [0, 0, 1]
    actual, forest, _ = matched(["3", "5", "3, no, 4"], 4, metric="count_distance")
    assert actual == [0.75, 0.75, 0.0] and column(forest, "malformed_match") == [0, 0, 1]
    options = {"metric": "point_distance", "max_distance": "diagonal", "size": "info.size"}
    assert matched(["30 40"], [0, 0], {"size": [60, 80]}, **options)[0] == [pytest.approx(0.5)]


def test_kinds_of_answers_have_their_own_metrics():
    groups = {"a": ["#B", "#C"], "b": ["#0 0 2 2"], "c": ["#1 2"]}
    tasks = {"a": ("b", {"kind": "choice"}), "b": ([1, 0, 3, 2], {"kind": "box"}), "c": ([1, 2], {"kind": "span"})}
    route = {"choice": {"metric": "exact"}, "box": {"metric": "box_iou"}, "span": {"metric": "interval_iou"}}
    options = {"match": {"pattern": "#(.*)", "route": route}}
    forest, _ = scored(groups, tasks, options)
    assert forest.outcome.tolist() == pytest.approx([1.0, 0.0, 1 / 3, 1.0])
    del route["span"]
    with pytest.raises(ConfigError, match=r"task 'c' has info.kind='span'; .* has choice, box"):
        scored(groups, tasks, options)


def test_what_there_is_nothing_to_compare_with_is_unscored():
    actual, _, rewards = matched(["1 2", "x"], "later", metric="interval_iou")
    assert actual[0] != actual[0] and actual[1] == 0.0
    assert rewards.counts["nonsense"] == 1 and "nothing to compare with" in rewards.messages["nonsense"]


def test_a_metric_of_ones_own_and_what_it_breaks(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def length(answer, reference, *, per=10):\n"
        "    if answer == 'bad': raise KeyError('bad')\n"
        "    return len(answer) / per\n"
    )
    actual, _, rewards = matched(
        ["abcde", "bad", "ab"], None, metric=f"{tmp_path}/mine.py:length", per=5, reference="info.x"
    )
    assert actual[0] == 1.0 and actual[1] != actual[1] and actual[2] == 0.4
    assert rewards.counts["raised"] == 1 and "KeyError" in rewards.messages["raised"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name a metric"),
        ({"metric": "weer"}, r"match.metric has no 'weer'; did you mean 'wer'"),
        ({"metric": "wer", "smooth": "exp"}, "match has no 'smooth'"),
        ({"metric": "wer", "clip": [1, 0]}, "two bounds"),
        ({"metric": "wer", "pay": "pass"}, "needs a gate"),
        ({"metric": "wer", "pattern": "("}, "no regular expression"),
        ({"metric": "wer", "reference": "solution"}, "'answer' or info.NAME"),
        ({"metric": "wer", "baseline": 1.0}, "below 1"),
        ({"metric": "wer", "route_by": "info.kind"}, "needs route"),
        ({"route": {"a": {}}}, "match.route.a: name a metric"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        RewardSet.make("match", source=Source(None, None), options={"match": options})


def test_tasks_need_an_answer_only_where_it_is_read(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(f'{{"prompt": "p{i}"}}' for i in range(12)))
    from gxpo.environments.tasks.file import TaskFile

    source = TaskFile.make(str(tmp_path / "rows.jsonl"), {"held_out_fraction": 0.5}, seed=0, per_step=2)
    with pytest.raises(ConfigError, match="compares with an answer"):
        RewardSet.make("match", source=source, options={"match": {"metric": "wer"}})
    for free in ({"metric": "lexical_diversity"}, {"metric": "wer", "reference": "info.text"},
                 {"metric": "json_schema", "schema": "info.schema"}):  # fmt: skip
        RewardSet.make("match", source=source, options={"match": free}).close()


# ---------------------------------------------------------------- wordings of one task
def test_the_cards_consistency(tmp_path):
    # sim of 0 and 1 with 2 and 3: .5 .2, .4 .1; so 2 has (.5 + .4) / 2 and 3 (.2 + .1) / 2
    (tmp_path / "sim.py").write_text(
        "TABLE = {'02': .5, '03': .2, '12': .4, '13': .1}\n"
        "def sim(answer, reference):\n"
        "    return TABLE[''.join(sorted(answer + reference))]\n"
    )
    groups = {"a": ["0", "1"], "b": ["2", "3"]}
    tasks = {name: (None, {"same_as": "q"}) for name in groups}
    options = {"consistency": {"metric": f"{tmp_path}/sim.py:sim", "pattern": None}}
    forest, _ = scored(groups, tasks, options, "consistency")
    assert forest.outcome.tolist() == pytest.approx([0.35, 0.25, 0.45, 0.15])
    credit = gxpo.method("grpo", {"credit.ddof": 0, "credit.eps": 0.0}).advantages(forest)
    assert credit[:4].tolist() == pytest.approx([1, -1, 1, -1])


def test_unreadable_answers_count_against_the_others():
    groups = {"a": ["#x", "?"], "b": ["#x", "#y"], "c": ["#x"]}
    tasks = {"a": (None, {"same_as": "q"}), "b": (None, {"same_as": "q"}), "c": (None, {})}
    options = {"consistency": {"metric": "exact", "pattern": "#(.*)"}}
    forest, rewards = scored(groups, tasks, options, "consistency")
    assert forest.outcome[:4].tolist() == [0.5, 0.0, 0.5, 0.0] and forest.outcome[4].isnan()
    assert column(forest, "malformed_consistency") == [0, 1, 0, 0, 0] and rewards.counts["nonsense"] == 1


def test_those_not_compared_are_no_witnesses():
    groups = {"a": ["x"], "b": ["x", "y"]}
    tasks = {name: (None, {"same_as": 7}) for name in groups}
    options = {"consistency": {"metric": "exact", "pattern": None}}
    forest, _ = scored(groups, tasks, options, "consistency", compared={"b/1": False})
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0]


def test_videochat_r1_scores_answers_and_form_as_its_code():
    keys = METHODS["videochat_r1"].keys
    message = {
        "interval": (["from 6 to 2", "2 to 6", "5 to 9"], [4, 8], [0.0, 1 / 3, 3 / 5]),
        "choice": (["B. a red ball", "The best answer is (B)", "A", "b"], "B", [1.0, 1.0, 0.0, 0.0]),
        "number": (["4", "5"], "4", [1.0, 0.0]),
    }
    groups = {kind: [f"<answer>{x}</answer>" for x in texts] for kind, (texts, _, _) in message.items()}
    tasks = {kind: (reference, {"kind": kind}) for kind, (_, reference, _) in message.items()}
    forest, _ = scored(groups, tasks, keys["scoring.options"])
    assert forest.outcome.tolist() == pytest.approx([x for _, _, paid in message.values() for x in paid])
    pattern = keys["reward.add.form.pattern"]
    forms = {
        "<think>a</think> <answer>b</answer>\n": True, "<think></think><answer></answer>": True,
        "<answer>b</answer>": False, "x <think>a</think><answer>b</answer>": False,
    }  # fmt: skip
    assert {text: bool(re.search(pattern, text, re.DOTALL)) for text in forms} == forms

"""Figures of a run before it starts, by hand."""

from types import SimpleNamespace

import pytest

from gxpo.explain.plan import arithmetic, budget_of, duration, judge_questions, turns_at_most
from gxpo.parts.definition import SettingValue
from gxpo.training import config


def resolved(**keys):
    return config.resolve({k.replace("__", "."): SettingValue(v, "test") for k, v in keys.items()})


def test_figures_of_a_step_and_of_the_run():
    run = resolved(
        method="grpo",
        rollout__group_size=8,
        task="arithmetic",
        tasks__per_step=4,
        sampling__max_new_tokens=10,
        learner__tokens_per_microbatch=100,
        trainer__steps=3,
    )
    figures = arithmetic(run)
    assert figures["rollouts_per_step"] == 4 * 8 and figures["rollouts"] == 4 * 8 * 3
    assert figures["generated_tokens_per_step_at_most"] == 320 and figures["generated_tokens_at_most"] == 960
    assert figures["microbatches_per_epoch_at_least"] == 4  # 320 / 100, rounded up
    assert figures["actions_per_rollout_at_most"] == 1 and "judge_questions_per_step_at_most" not in figures


def test_an_environment_without_max_turns_leaves_tokens_unknown():
    figures = arithmetic(resolved(method="grpo", task="frozenlake"))
    assert figures["generated_tokens_per_step_at_most"] is None and figures["generated_tokens_at_most"] is None
    assert turns_at_most(resolved(task="frozenlake", env__max_turns=5).settings) == 5
    assert turns_at_most(resolved(task="arithmetic").settings, calls=3) == 3


def judged(rewards, **options):
    return SimpleNamespace(
        rewards=rewards, scoring=SimpleNamespace(options={"judge": options}), tasks=SimpleNamespace(per_step=2)
    )


@pytest.mark.parametrize(
    ("options", "questions"),
    [
        ({}, 2 * 4),  # one of each rollout
        ({"mode": "debate"}, 2 * 4 * 2),
        ({"mode": "pairwise"}, 2 * 2 * 6),  # both orders of 4 * 3 / 2 matches
        ({"panel": [{}, {"mode": "debate"}]}, 2 * (4 + 8)),
        ({"held_out": [{}]}, 2 * (4 + 4)),  # beside the judge that pays
        ({"refresh": {"every": 10}}, 2 * 4 + 1),  # and one to rewrite the rubric
    ],
)
def test_questions_to_judges_in_a_step(options, questions):
    assert judge_questions(judged("judge", **options), 4) == questions
    assert judge_questions(judged({"correct": 1.0, "judge": 0.5}, **options), 4) == questions


def test_no_questions_without_judge_or_group_size():
    assert judge_questions(judged("correct"), 4) is None
    assert judge_questions(judged("judge"), None) is None


def test_budgets_are_those_that_are_set():
    assert budget_of(resolved().settings) == {}
    assert budget_of(resolved(trainer__max_tokens=500).settings) == {"tokens": 500}


def test_durations_change_their_unit_at_two_of_the_next():
    assert [duration(s) for s in (0.5, 119, 120, 7199, 7200)] == ["0.5 s", "119 s", "2 min", "120 min", "2 h"]

"""Partial credit by the first error, and the judge that finds it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.shapes import shape
from tests.environments.rewards.test_tiered import grown

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.first_error import FirstError
from gxpo.environments.rewards.judge import FunctionJudge, JudgeFailure
from gxpo.environments.rewards.outcomes import correct_prefix
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

CorrectPrefix = shape("correct_prefix")

ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([True, False, False, None]), st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=9,
)


def test_the_cards_numbers():
    share, none = torch.tensor([0.2, 0.8]), torch.zeros(2, dtype=torch.int64)
    found = correct_prefix(none > 0, lambda name: share, none, none == 0)
    assert found.tolist() == pytest.approx([0.182426, 0.817574], abs=1e-6)  # rising: the longer right prefix earns more


@given(ROWS, st.sampled_from(["all_wrong", "all"]))
def test_it_equals_a_loop(rows, groups):
    part = CorrectPrefix(component="progress", groups=groups, steepness=3.0, middle=0.4, most=0.8)
    found = part(grown(rows)).tolist()
    for (g, right, share, _), r in zip(rows, found, strict=True):
        if right is None:
            assert math.isnan(r)
            continue
        solved = any(h == g and w and c for h, w, _, c in rows)
        partial = 0.8 / (1 + math.exp(-3 * (share - 0.4)))
        expected = 1.0 if right else 0.0 if solved and groups == "all_wrong" else partial
        assert r == pytest.approx(expected) and (right or r < 1)


def test_an_unknown_share_matters_only_where_it_is_read():
    forest = grown([("a", True, None), ("a", False, None), ("b", False, None), ("b", False, 1.0)], "correct_prefix")
    found = CorrectPrefix()(forest)
    assert found[[0, 1]].tolist() == [1.0, 0.0] and math.isnan(found[2])
    assert float(found[3]) == pytest.approx(1 / (1 + math.exp(-2.5)))
    assert bool(CorrectPrefix(groups="all")(forest)[[1, 2]].isnan().all())


def test_a_group_without_a_right_answer_learns_and_the_others_are_grpos():
    m = gxpo.method("spectral_po")
    forest = grown([("a", False, 0.0), ("a", False, 0.5), ("b", False, 0.9), ("b", True, 1.0)], "correct_prefix")
    credit, grpo = m.advantages(m.shaped(forest)), gxpo.method("grpo").advantages(forest)
    assert float(credit[0]) < 0 < float(credit[1]) and grpo[:2].tolist() == [0.0, 0.0]
    assert torch.equal(credit[2:], grpo[2:])


def test_refusals():
    forest = grown([("a", False, 0.5)])
    with pytest.raises(ConfigError, match="correct_prefix reads component 'correct_prefix', which no reward computes"):
        CorrectPrefix()(forest)
    for wrong in ({"groups": "none"}, {"steepness": 0.0}, {"most": 1.5}, {"most": 0.0}):
        with pytest.raises(ConfigError, match="correct_prefix"):
            CorrectPrefix(**wrong)  # type: ignore[arg-type]  # that is what is tested


# ---------------------------------------------------------------- the judge
def judged(answer, texts, **options):
    """What comes of these texts, the questions that were asked, and the failures."""
    asked: list[str] = []

    def ask(messages):
        asked.append(messages[-1]["content"])
        return answer(asked[-1])

    forest = Forest.from_completions([[1]], [[[2]] * len(texts)])
    reward = FirstError(FunctionJudge(ask), workers=1, **options)
    found = reward(forest, texts, [Task("t", "2+2=", "4")] * len(texts))["correct_prefix"].tolist()
    return found, asked, reward.failures()


def test_the_share_of_steps_before_the_first_error():
    said = iter(["Step 3 is off.\nFirst error: 3", "First error: 1", "first error = 0"])
    found, asked, failures = judged(lambda q: next(said), ["a\nb\n\nc\nd", "e\nf\ng\nh", "i\nj\nk\nl"])
    assert found == [0.5, 0.0, 1.0] and failures == []
    assert "1. a\n2. b\n3. c\n4. d" in asked[0] and "# Right answer\n4" in asked[0] and "2+2=" in asked[0]


def test_other_steps_no_steps_and_answers_that_say_nothing():
    answer = lambda question: "First error: 2" if "1. x" in question else "who knows"  # noqa: E731
    found, asked, failures = judged(answer, ["x; y", "z", " ; "], steps=";")
    assert found[0] == 0.5 and math.isnan(found[1]) and found[2] == 0.0
    assert len(asked) == 2 and [kind for kind, _ in failures] == ["nonsense"]


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Step 1 is right.\n**First error:** 2.", 0.5),
        ('{"first_error": 1}', 0.0),
        ('{"first_error": 0}', 1.0),
        ("First error: 1 was my first thought, but it is right", None),
        ("First error: 3", None),
        ("First error: -1", None),
        ("First error: 1.5", None),
        ("First error: " + "9" * 5000, None),
        ('{"first_error": null}', None),
    ],
    ids=lambda x: str(x)[:40],
)
def test_the_first_error_is_the_last_line_or_unreadable(answer, share):
    found, _, failures = judged(lambda q: answer, ["x\ny"])
    assert found == [share] if share is not None else math.isnan(found[0]) and failures[0][0] == "nonsense"


def test_a_judge_that_gives_no_answer_costs_the_attempt_its_share():
    class Late:
        def ask(self, messages):
            raise JudgeFailure("timeout", "too late")

    reward, forest = FirstError(Late()), Forest.from_completions([[1]], [[[2], [3]]])
    found = reward(forest, ["x", "y\nz"], [Task("t", "2+2=")] * 2)["correct_prefix"]
    assert bool(found.isnan().all()) and [kind for kind, _ in reward.failures()] == ["timeout", "timeout"]


def test_beside_a_verdict_it_is_recorded_and_not_paid(tmp_path):
    """As a configuration says it: judge with weight 0, mode first_error."""
    path = tmp_path / "judge.py"
    path.write_text("def ask(messages):\n    return 'First error: 2'\n")
    source = Source(lambda text, task: {"correct": float(text == "4")}, trusted=True)
    options = {"judge": {"ask": f"{path}:ask", "mode": "first_error", "workers": 1}}
    forest = Forest.from_completions([[1]], [[[2], [3]]])
    with RewardSet.make({"correct": 1.0, "judge": 0.0}, source=source, options=options) as rewards:
        scored = rewards.score(forest, ["4", "x\ny"], [Task("t", "2+2=", "4")] * 2)
    assert scored.outcome.tolist() == [1.0, 0.0] and scored.success.tolist() == [1.0, 0.0]
    column = scored.components[:, scored.component_names.index("correct_prefix")]
    assert math.isnan(column[0]) and float(column[1]) == 0.5  # one step has no second; two have: half
    assert CorrectPrefix()(scored.replace(success=torch.zeros(2).double())).isnan().tolist() == [True, False]


@pytest.mark.filterwarnings("ignore:nothing is learned", "ignore:reward")
def test_the_component_that_it_reads_may_have_its_name(tmp_path):
    def judged(completion):
        return {"correct": 0.0, "correct_prefix": len(completion) / 10}

    keys = {"tasks.per_step": 2, "sampling.max_new_tokens": 6, "eval.tasks": 2, "scoring.workers": 1}
    run = gxpo.train("tiny:cold", "arithmetic", "spectral_po", 1, judged, out=tmp_path / "run", set=keys)
    assert run.trainer.last_step is not None
    forest = run.trainer.last_step[0]
    columns = dict(zip(forest.component_names, forest.components.unbind(1), strict=True))
    assert columns["correct_prefix"].tolist() != columns["correct_prefix_shaped"].tolist() == forest.outcome.tolist()

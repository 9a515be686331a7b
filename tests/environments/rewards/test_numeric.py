"""FGRPR: the nearer a number, the more it is worth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.scored_tasks import Source, forest_of

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.built_in import Numeric, graded, number_in
from gxpo.environments.tasks.source import Arithmetic, score
from gxpo.parts.protocols import Task


def worth(texts, answer, **options):
    tasks = [Task("t", "how many?", answer)] * len(texts)
    return Numeric(**options)(forest_of(texts), texts, tasks)["numeric"].tolist()


def test_the_cards_numbers():
    texts = [f"<answer>{n}</answer>" for n in (100, 90, 130, 149, 151)]
    assert worth(texts, 100) == pytest.approx([1.5, 1.4, 1.2, 1.01, 0])
    assert worth(texts, "100") == worth(texts, 100)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0), ("-3.5", -3.5), ("1,250", 1250.0), ("1,250.5 people", 1250.5), ("3/4", 0.75), ("3 to 5", 5.0),
        ("3-4", 4.0), (".5", 0.5), ("+7", 7.0), ("none", None), ("", None), ("1/0", None), (17, 17.0), (None, None),
        ("9" * 400, None),
    ],
)  # fmt: skip
def test_numbers_are_read(text, number):
    assert number_in(text) == number


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_it_equals_a_loop_and_is_symmetric(y, said):
    found = worth([f"#{said}"], y)[0]
    gap = 0.0 if y == said else math.inf if y == 0 else abs(y - said) / abs(y)
    assert found == pytest.approx(1.5 - gap if gap < 0.5 else 0.0) and 0 <= found <= 1.5
    assert worth([f"#{-said}"], -y)[0] == pytest.approx(found)


def test_zero_unreadable_answers_and_tasks_without_a_number():
    assert worth(["#0", "#1", "no idea", "7"], 0) == [1.5, 0.0, 0.0, 0.0]
    assert all(map(math.isnan, worth(["#0", "no idea"], "blue") + worth(["#0"], None)))
    assert worth(["it is 95"], 100, pattern=r"it is (\d+)", width=0.1, top=1.0) == pytest.approx([0.95])
    assert graded(torch.tensor([math.inf, math.nan])).tolist()[0] == 0.0


def test_a_number_that_no_float_holds_is_wrong():
    assert worth([f"#{'9' * 400}", f"#{'9' * 400}/{'9' * 400}"], 100) == [0, 0]


def test_the_last_answer_counts():
    assert worth(["#50 ... #100", r"\boxed{100} or \boxed{90}"], 100) == pytest.approx([1.5, 1.4])


def test_as_the_method_asks_for_it():
    """numeric 1.4 + format 1, and the verdict is recorded and not paid; an unknown number leaves a rollout unscored."""
    spec = gxpo.method("fgrpr").run_keys["scoring.weights"].value
    texts = ["#90", "#100", "90"]
    tasks = [Task(str(i), "?", a) for i, a in enumerate(("100", "100", "100"))]
    with RewardSet.make(spec, source=Source(score, trusted=True)) as rewards:
        scored = rewards.score(forest_of(texts), texts, tasks)
        assert scored.outcome.tolist() == pytest.approx([2.4, 2.5, 0.0])
        assert scored.success.tolist() == [0.0, 1.0, 0.0]
        lost = rewards.score(forest_of(["#1"]), ["#1"], [Task("x", "?", "blue")])
        assert not bool(lost.scored.any()) and rewards.counts["nonsense"] == 1
    RewardSet.make(spec, source=Arithmetic()).close()


def test_refusals():
    with pytest.raises(ConfigError, match=r"scoring\.options\.numeric\.pattern='\(' is no regular expression"):
        Numeric(pattern="(")
    for wrong in ({"width": 0.0}, {"width": 2.0}):
        with pytest.raises(ConfigError, match=r"scoring\.options\.numeric"):
            Numeric(**wrong)
    with pytest.raises(ConfigError, match="has no 'widht'"):
        RewardSet.make("numeric", source=Arithmetic(), options={"numeric": {"widht": 0.2}})

"""Reworded prompts: hints cut from a solution, and templates around the prompt of a text or a chat."""

from __future__ import annotations

import pytest
from tests.sampling.rollouts.growing_session import GrowingSession, tasks, with_info

from gxpo.base.errors import ConfigError, TaskError
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.wording import Wording, check_template, hints_of, prefix, reword


def no_reward(_: str, text: str) -> float | None:
    return None


def test_a_solution_is_cut_between_words() -> None:
    text = "Natalia sold 48/2 = 24 clips in May.\nShe sold 72 in all."  # 55 characters: 14, 28 and 41 of them
    assert [prefix(text, f) for f in (0.25, 0.5, 0.75, 1.0)] == [
        "Natalia sold", "Natalia sold 48/2 = 24 clips", "Natalia sold 48/2 = 24 clips in May.\nShe", text,
    ]  # fmt: skip
    assert prefix(text, 0.25, "characters") == "Natalia sold 4" and prefix(text, 0.05) == "Nat"
    assert prefix("a  bcd", 0.5) == "a" and prefix(text, 0.0) == ""


def test_prefix_counts_characters_and_rounds_halves_to_even() -> None:
    # 0.25 * 10 = 2.5 -> 2, 0.5 * 10 = 5, 0.75 * 10 = 7.5 -> 8
    assert [prefix("abcdefghij", f) for f in (0.25, 0.5, 0.75, 1.0)] == ["ab", "abcde", "abcdefgh", "abcdefghij"]


def test_hints_are_the_tasks_own_or_prefixes_of_its_solution() -> None:
    session = GrowingSession(lambda c, s: "", no_reward, solution={"a": "12345678"})
    (task,) = tasks("a")
    assert hints_of(task, session.solution, (0.25, 0.75)) == ["12", "123456"]
    assert hints_of(with_info(task, hints=["x", "y"]), session.solution, (0.5,)) == ["x", "y"]
    assert hints_of(with_info(task, hints=[]), session.solution, (0.5,)) == []
    # three tiers of chunks: each chunk is shown with those before it in its tier
    tiers = [["k1", "k2"], ["p1"], "s"]
    assert hints_of(with_info(task, hints=tiers), session.solution, ()) == ["k1", "k1 k2", "p1", "s"]
    with pytest.raises(TaskError, match=r"task 'b' has no hints: give info\['hints'\]"):
        hints_of(tasks("b")[0], session.solution, (0.5,))
    for wrong in ("text", [1], [["a", 2]]):
        with pytest.raises(TaskError, match="is a list of texts"):
            hints_of(with_info(task, hints=wrong), session.solution, (0.5,))


def test_hint_goes_into_the_text_or_the_last_user_message() -> None:
    chat = Task("c", ({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
                      {"role": "user", "content": "three"}, {"role": "tool", "content": "four"}))  # fmt: skip
    assert reword(Task("t", "{q}"), "{prompt} Hint: {hint}", hint="{h}").prompt == "{q} Hint: {h}"
    assert [m["content"] for m in reword(chat, "{prompt}|{hint}", hint="h").prompt] == [
        "one",
        "two",
        "three|h",
        "four",
    ]
    with pytest.raises(TaskError, match="neither a text nor a chat"):
        reword(Task("i", (1, 2)), "{prompt}{hint}", hint="h")


def test_a_cut_by_lines_keeps_whole_lines_and_at_least_one() -> None:
    # 4 lines: round(0.25 * 4) = 1, round(0.75 * 4) = 3, round(0.1 * 4) = 0, which is raised to 1
    text = "go north\ntake key\ngo south\nopen door"
    assert prefix(text, 0.25, "lines") == prefix(text, 0.1, "lines") == "go north"
    assert prefix(text, 0.75, "lines") == "go north\ntake key\ngo south"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{prompt}", r"rollout\.template='\{prompt\}' lacks \{hint\}"),
        ("{prompt}{hint}{answer}", r"has \{answer\}: its places are \{prompt\}, \{hint\}"),
        ("{prompt}{hint", r"is not a template"),
    ],
)
def test_a_template_names_the_field_that_is_wrong(template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_template("rollout.template", template, ("prompt", "hint"))


def test_an_episode_is_reworded_in_its_first_user_message() -> None:
    wording = Wording("{prompt}|{hint}", {"hint": "h"})
    system, first, second = ({"role": r, "content": c} for r, c in (("system", "s"), ("user", "a"), ("user", "b")))
    assert wording.of_messages([system, first, second]) == [system, {"role": "user", "content": "a|h"}, second]


def test_a_context_without_a_user_message_gets_one() -> None:
    wording = Wording("{prompt}\nHint: {hint}", {"hint": "h"})
    system = {"role": "system", "content": "s"}
    assert wording.of_messages([system]) == [system, {"role": "user", "content": "Hint: h"}]

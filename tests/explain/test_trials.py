"""Completions that test a reward: right, wrong and cheating texts."""

from __future__ import annotations

from gxpo.explain import trials
from gxpo.parts.protocols import Task


def test_texts_of_a_task() -> None:
    tasks = [Task(str(i), f"ask {i}", answer) for i, answer in enumerate(("7", "7", "8", "9"))]
    text_by_kind = {t.kind: t.text for t in trials.cheating_trials(tasks, trials.FORMS["tags"]) if t.task.id == "0"}
    assert (
        text_by_kind["wrong"] == "<answer>8</answer>"
        and text_by_kind["echo"] == "ask 0"
        and text_by_kind["empty form"] == "<answer></answer>"
    )
    assert text_by_kind["all answers"].split() == ["<answer>8</answer>", "<answer>7</answer>", "<answer>9</answer>"]
    assert text_by_kind["right, then wrong"].split() == ["<answer>7</answer>", "<answer>8</answer>"]
    assert len(text_by_kind["long"]) == 20_000 and not any(c.isdigit() for c in text_by_kind["long"])
    assert set(trials.EXPLOITS) | set(trials.HEDGES) | {"wrong", "repeated"} <= set(text_by_kind)
    assert text_by_kind["prefix before wrong"].endswith("<answer>8</answer>")
    assert text_by_kind["claim"].startswith("<answer>") and "<wrong>" not in "".join(text_by_kind.values())
    two = {t.kind for t in trials.cheating_trials(tasks[1:3], trials.FORMS["bare"], empty=False)}
    assert "all answers" not in two and "empty form" not in two and "claim" not in two


def test_every_probe_is_tried_by_few_tasks_and_by_many() -> None:
    for count in (2, 40):
        tasks = [Task(str(i), f"ask {i}", str(i)) for i in range(count)]
        symbol_trials = [t for t in trials.cheating_trials(tasks, trials.FORMS["bare"]) if t.kind == "symbols"]
        assert {t.text for t in symbol_trials} == set("{}[:,.$\\#-*") | {"\\boxed{", "<answer>"}
        assert len(symbol_trials) == max(count, 13)


def test_variants_stand_in_the_form_of_the_answer() -> None:
    variant_trials = trials.variant_trials([Task("0", "ask", "1234")], trials.FORMS["boxed"])
    text_by_variant = {t.kind: t.text for t in variant_trials}
    assert (
        text_by_variant["variant: thousands"] == "\\boxed{1,234}"
        and text_by_variant["variant: decimal"] == "\\boxed{1234.0}"
    )


def test_prompts_of_messages_and_of_ids() -> None:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1"}, {"role": "tool"})
    assert trials.prompt_text(Task("a", messages)) == "be brief\n1+1"
    assert trials.prompt_text(Task("a", (1, 2, 3))) == ""

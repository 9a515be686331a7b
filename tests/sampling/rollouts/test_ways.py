"""Hints for groups that are all wrong: which one, how many attempts, under which prompt they are trained."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts import retry_parts
from tests.sampling.rollouts.growing_session import GrowingSession, ids, tasks, with_info

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import StreamKey, Task
from gxpo.sampling.rollouts.rounds import Independent, all_wrong

nan = float("nan")
GLUED = "{prompt}{hint}"
LeastHint = partial(retry_parts.LeastHint, template=GLUED)
GrowingHint = partial(retry_parts.GrowingHint, template=GLUED)


def right(_: str, text: str) -> float | None:
    """An answer is right if it says "yes"; one that says "?" can't be scored."""
    return None if "?" in text else float("yes" in text)


def needs(**enough: str):
    """A policy that is right at task T only where the context ends with `enough[T]` or more of the same letters."""

    def say(context: str, stream: StreamKey) -> str:
        task = stream.task.split("#")[0]
        hint = context.partition("?")[2]
        return "yes" if hint.startswith(enough[task]) else "no"

    return say


def test_a_hint_stands_apart_from_the_question_under_a_heading() -> None:
    task = Task("t", "How many in April and May?", info={"solution": "Natalia sold 48/2 = 24 clips in May."})
    session = GrowingSession(lambda c, s: "no", right, solution={"t": "Natalia sold 48/2 = 24 clips in May."})
    for part, asked_text in (
        (retry_parts.LeastHint(group_size=1), "How many in April and May?\nHints: Natalia"),
        (
            retry_parts.GrowingHint(group_size=1),
            "How many in April and May?\nThe solution begins like this; you may go on from here:\nNatalia",
        ),
    ):
        session.calls.clear()
        part.grow([task], session)
        assert session.decode(session.calls[1][0][0].prompt) == asked_text


@pytest.mark.parametrize("template", ["{prompt}", "{prompt}{hint}{answer}", "{prompt}{hint", "{}{hint}"])
def test_a_template_that_can_not_be_filled_is_refused(template: str) -> None:
    for part in (LeastHint, GrowingHint):
        with pytest.raises(ConfigError, match=r"rollout\.template=.*"):
            part(template=template)


# ---------------------------------------------------------------- which groups
def test_a_group_is_all_wrong_by_what_is_known_of_it() -> None:
    success = torch.tensor([0, 0, 0, 1, 0, nan, nan, 1, nan], dtype=torch.float64)
    scored = torch.tensor([1, 1, 1, 1, 1, 0, 1, 0, 1], dtype=torch.bool)
    group = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4, 4])
    # 0: all wrong; 1: mixed; 2: wrong and unknown; 3: nothing known; 4: right, but not scored, and unknown
    assert all_wrong(success, scored, group).tolist() == [True, True, False, False, True, True, False, False, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, nan]), st.booleans()), min_size=1))
def test_it_is_the_rule_by_loops(rows: list[tuple[int, float, bool]]) -> None:
    known_values = defaultdict(list)
    for group, verdict, scored in rows:
        if scored and not math.isnan(verdict):
            known_values[group].append(verdict)
    expected = [bool(known_values[g]) and set(known_values[g]) == {0.0} for g, _, _ in rows]
    success = torch.tensor([v for _, v, _ in rows], dtype=torch.float64)
    actual = all_wrong(success, torch.tensor([s for _, _, s in rows]), torch.tensor([g for g, _, _ in rows]))
    assert actual.tolist() == expected


# ---------------------------------------------------------------- the least hint
SOLUTION = {"a": "abcdefgh", "b": "abcdefgh", "c": "abcdefgh"}


def test_the_least_hint_that_works_replaces_the_first_attempt() -> None:
    # a needs 4 characters: levels 1 (2 characters) fails, 2 (4), 3 and 4 work; b needs none; c more than there is
    session = GrowingSession(needs(a="abcd", b="", c="abcdefghi"), right, solution=SOLUTION)
    forest = LeastHint(group_size=3).grow(tasks("a", "b", "c"), session)
    assert forest.group == ["s60/a"] * 3 + ["s60/b"] * 3 + ["s60/c"] * 3
    assert forest.success.tolist() == [1, 0, 0, 1, 1, 1, 0, 0, 0]
    assert forest.origin == ["hint"] + ["policy"] * 8
    assert forest.id[:4] == ["s60/a/hint2/0", "s60/a/1", "s60/a/2", "s60/b/0"]
    assert forest.info[0] == {"hint": 2} and not any(forest.info[1:])
    assert forest.scored.all() and forest.task == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_all_hints_are_tried_once_in_one_batch_and_charged() -> None:
    session = GrowingSession(needs(a="abcd", b="", c="abcdefghi"), right, solution=SOLUTION)
    LeastHint(group_size=3).grow(tasks("a", "b", "c"), session)
    plain, hinted = (requests for requests, _ in session.calls)
    assert len(plain) == 3 and [len(r.streams) for r in hinted] == [1] * 8
    assert [session.decode(r.prompt) for r in hinted[:4]] == ["a?ab", "a?abcd", "a?abcdef", "a?abcdefgh"]
    assert [(r.streams[0].task, r.streams[0].attempt, r.streams[0].path) for r in hinted] == [
        (task, 0, (level,)) for task in "ac" for level in (1, 2, 3, 4)
    ]
    # 9 attempts and 8 under hints; of a's four one is kept and one attempt gives way, of c's four none is kept
    assert session.budget.rollouts == 17 and session.budget.discarded == 17 - 9
    lengths = {"yes": 4, "no": 3}  # with the token that ends an answer
    assert session.budget.generated_tokens == 3 * 3 * 3 + 3 * 1 + lengths["no"] * (1 + 4) + lengths["yes"] * 3


def test_hinted_record_holds_plain_prompt_and_sampled_context() -> None:
    session = GrowingSession(needs(a="abcd"), right, solution=SOLUTION)
    forest = LeastHint(group_size=2).grow(tasks("a"), session)
    first, second = forest.to_records()
    assert first["prompt"] == second["prompt"] == list(ids("a?"))
    assert first["turns"][0]["sampled_under"] == list(ids("a?abcd")) and "sampled_under" not in second["turns"][0]
    assert first["turns"][0]["logprob"] == [-1 / 8, -2 / 8, -3 / 8, -4 / 8]
    assert first["turns"][0]["policy_version"] == 60 and first["sampling"]["temperature"] == 1.0
    assert forest.step_state[0] == forest.step_state[1]  # the same task is the same state
    again = Forest.from_records(forest.to_records())
    assert again.to_records() == forest.to_records()


def test_in_the_warm_up_it_is_independent_sampling() -> None:
    session = GrowingSession(needs(a="abcd"), right, solution=SOLUTION, step=50)
    forest = LeastHint(group_size=2, warmup_steps=50).grow(tasks("a"), session)
    plain = Independent(2).grow(tasks("a"), GrowingSession(needs(a="abcd"), right, step=50))
    assert forest.to_records() == plain.to_records() and session.judged == [] and len(session.calls) == 1


def test_where_nobody_is_all_wrong_nothing_is_asked_again() -> None:
    session = GrowingSession(needs(a=""), right)  # there is no solution either: it is not asked for
    forest = LeastHint(group_size=2).grow(tasks("a"), session)
    assert len(session.calls) == 1 and session.budget.discarded == 0 and forest.origin == ["policy"] * 2


def test_task_drawn_twice_is_hinted_in_each_of_its_groups() -> None:
    session = GrowingSession(needs(a="abcd"), right, solution=SOLUTION)
    forest = LeastHint(group_size=2).grow(tasks("a", "a"), session)
    assert forest.group == ["s60/a"] * 2 + ["s60/a#1"] * 2 and forest.origin == ["hint", "policy"] * 2
    streams = [s for requests, _ in session.calls for r in requests for s in r.streams]
    assert len(set(streams)) == len(streams)


def test_scaf_grpo_group_of_eight_with_one_replaced() -> None:
    # G = 8, one right: mean 1/8, std (ddof 1) sqrt((49/64 + 7/64) / 7) = sqrt(1/8) = 0.353553
    # A = (7/8) / 0.353554 = 2.474867 and (-1/8) / 0.353554 = -0.353552 with eps 1e-6; they sum to 0
    session = GrowingSession(needs(a="abcd", c="abcdefghi"), right, solution=SOLUTION)
    forest = gxpo.method("scaf_grpo", {"rollout.template": GLUED}).rollout.grow(tasks("a", "c"), session)
    advantage = gxpo.method("scaf_grpo").advantages(forest)
    per_row = torch.stack([advantage[forest.path_of(r)][0] for r in range(16)])
    expected = torch.tensor([2.474867] + [-0.353552] * 7 + [0.0] * 8, dtype=torch.float64)
    assert torch.allclose(per_row, expected, atol=5e-7, rtol=0)
    assert abs(float(per_row.sum())) < 1e-12


# ---------------------------------------------------------------- the growing hint
def test_the_whole_group_is_made_anew_under_a_growing_hint() -> None:
    ten = {"a": "abcdefghij", "b": "abcdefghij", "c": "abcdefghij"}
    session = GrowingSession(needs(a="abcde", b="", c="never"), right, solution=ten)
    forest = GrowingHint(group_size=2).grow(tasks("a", "b", "c"), session)
    contexts = [[session.decode(r.prompt) for r in requests] for requests, _ in session.calls]
    # 2, 5 and 8 of ten characters; a is right under 5, c under none; b is never asked again
    assert contexts == [["a?", "b?", "c?"], ["a?ab", "c?ab"], ["a?abcde", "c?abcde"], ["c?abcdefgh"]]
    assert all(len(r.streams) == 2 for requests, _ in session.calls for r in requests)
    assert forest.group == ["s60/a"] * 2 + ["s60/b"] * 2 + ["s60/c"] * 2
    assert forest.success.tolist() == [1, 1, 1, 1, 0, 0]
    assert forest.origin == ["hint", "hint", "policy", "policy", "hint", "hint"]
    assert [i.get("hint") for i in forest.info] == [2, 2, None, None, 3, 3]
    under = [record["turns"][0].get("sampled_under") for record in forest.to_records()]
    assert under == [list(ids("a?abcde"))] * 2 + [None] * 2 + [list(ids("c?abcdefgh"))] * 2
    # a: 2 + 2 thrown away, c: 2 + 2 + 2
    assert session.budget.rollouts == 6 + 2 * 5 and session.budget.discarded == 10


def test_one_right_attempt_keeps_the_group() -> None:
    # verdicts [0, 0, 0, 0 | 0, 1, 0, 0] with G = 4: only group 0 is made anew
    def say(context: str, stream: StreamKey) -> str:
        return "yes" if stream.task == "b" and stream.attempt == 1 else "no"

    session = GrowingSession(say, right, solution=SOLUTION)
    forest = GrowingHint(group_size=4, fractions=[0.5]).grow(tasks("a", "b"), session)
    assert [session.decode(r.prompt) for r in session.calls[1][0]] == ["a?abcd"]
    assert forest.origin == ["hint"] * 4 + ["policy"] * 4


def test_hints_of_a_task_are_tried_in_order_and_none_without_any() -> None:
    a, b = with_info(tasks("a")[0], hints=["x", "y"]), with_info(tasks("b")[0], hints=[])
    session = GrowingSession(needs(a="never", b="never"), right)
    forest = GrowingHint(group_size=1).grow([a, b], session)
    assert [[session.decode(r.prompt) for r in requests] for requests, _ in session.calls[1:]] == [["a?x"], ["a?y"]]
    assert forest.origin == ["hint", "policy"]


def test_shaping_does_not_hide_a_group_that_is_all_wrong() -> None:
    class Shaped(GrowingSession):
        def score(self, forest, texts=None):  # a format reward: outcomes differ, verdicts do not
            forest = super().score(forest, texts)
            return forest.replace(outcome=forest.outcome + 0.5 * torch.arange(forest.n_trajectories))

    for part in (LeastHint(group_size=2), GrowingHint(group_size=2)):
        assert "hint" in part.grow(tasks("a"), Shaped(needs(a="ab"), right, solution=SOLUTION)).origin


# ---------------------------------------------------------------- refusals
def test_what_can_not_be_hinted_is_refused() -> None:
    for kind in (LeastHint, GrowingHint):
        part = kind(2)
        with pytest.raises(ConfigError, match="rollout retry needs verdicts"):
            part.grow(tasks("a"), GrowingSession(needs(a="x"), right, verdicts=False))
        with pytest.raises(TaskError, match="task 'a' has no hints"):
            part.grow(tasks("a"), GrowingSession(needs(a="x"), right))
        with pytest.raises(ConfigError, match="group_size is 0; it is 1 or more"):
            kind(group_size=0)
        with pytest.raises(ConfigError, match="from 0 to 1"):
            kind(fractions=[0.5, 1.5])


def test_an_attempt_that_can_not_be_scored_is_no_failure() -> None:
    session = GrowingSession(lambda c, s: "?", right, solution=SOLUTION)
    forest = GrowingHint(group_size=2).grow(tasks("a"), session)
    assert len(session.calls) == 1 and not forest.scored.any()


# ---------------------------------------------------------------- both readings, with a model
class Written:
    """A tiny model in float64 that scores what a scripted policy wrote: log-probs by whole forward passes."""

    def __init__(self) -> None:
        self.model = clean_llama(vocab_size=128)

    def __call__(self, context: tuple[int, ...], tokens: list[int]) -> list[float]:
        return self.logprob(context, tokens).tolist()

    def logprob(self, context: tuple[int, ...], tokens: list[int], grad: bool = False) -> torch.Tensor:
        with torch.set_grad_enabled(grad):
            logits = self.model(input_ids=torch.tensor([[*context, *tokens]])).logits[0]
            rows = logits[len(context) - 1 : -1].log_softmax(-1)
            return rows[torch.arange(len(tokens)), torch.tensor(tokens)]


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


@pytest.fixture(scope="module")
def hinted(written: Written) -> Forest:
    """Two groups of three; in the first the first attempt is a hinted one."""
    session = GrowingSession(needs(a="abcd", b=""), right, solution=SOLUTION, logprob=written)
    session.say = lambda c, s, say=session.say: say(c, s) + "xyz"[s.attempt]
    return LeastHint(group_size=3).grow(tasks("a", "b"), session)


def contexts(reading: str) -> list[tuple[int, ...]]:
    first = ids("a?abcd") if reading == "sampled" else ids("a?")
    return [first, ids("a?"), ids("a?"), ids("b?"), ids("b?"), ids("b?")]


@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_policy_equals_the_sampler_in_the_sampled_context(written, hinted, layout) -> None:
    learner = TorchLearner(written.model, lr=1e-3, layout=layout)
    actual = learner.outputs(hinted.in_context("sampled"))["logprob"]
    assert float((actual - hinted.path_behaviour_logprob).abs().max()) < 1e-10


def test_trained_context_changes_the_hinted_row_alone(written, hinted) -> None:
    learner = TorchLearner(written.model, lr=1e-3)
    actual = learner.outputs(hinted.in_context("trained"))["logprob"]
    assert torch.equal(actual, learner.outputs(hinted)["logprob"])
    first, others = hinted.path_of(0), hinted.path_trajectory > 0
    tokens = hinted.token[hinted.path_token[first]].tolist()
    assert float((actual[first] - written.logprob(ids("a?"), tokens)).abs().max()) < 1e-10
    assert float((actual[first] - hinted.path_behaviour_logprob[first]).abs().min()) > 1e-6
    assert float((actual - hinted.path_behaviour_logprob)[others].abs().max()) < 1e-10


def expected_loss(written: Written, forest: Forest, reading: str, moved: float, grad: bool = False) -> torch.Tensor:
    """GRPO by loops: mean over rows of the mean over tokens of -min(rho A, clip(rho, 0.8, 1.2) A), rho = pi / mu.

    mu is the log-prob under which the row was sampled, whatever the context is now; `moved` shifts all of mu.
    """
    rows = []
    for r, context in enumerate(contexts(reading)):
        entries = forest.path_of(r)
        # verdicts 1 0 0 | 1 1 1: mean 1/3, std (ddof 1) sqrt((4/9 + 1/9 + 1/9) / 2) = sqrt(1/3); the second has A = 0
        advantage = ((1.0 if r == 0 else 0.0) - 1 / 3) / (math.sqrt(1 / 3) + 1e-6) if r < 3 else 0.0
        logprob = written.logprob(context, forest.token[forest.path_token[entries]].tolist(), grad)
        rho = (logprob - (forest.path_behaviour_logprob[entries] + moved)).exp()
        rows.append(-torch.minimum(rho * advantage, rho.clamp(0.8, 1.2) * advantage).mean())
    return torch.stack(rows).mean()


@pytest.mark.parametrize("moved", [0.0, 0.15, -0.3])
@pytest.mark.parametrize("reading", ["sampled", "trained"])
def test_ratio_over_behaviour_is_right_in_both_contexts(written, hinted, reading, moved) -> None:
    """sampled: pi(o|q+h) / mu(o|q+h); trained: pi(o|q) / mu(o|q+h), the true importance ratio of the hinted row."""
    keys = {"objective.ratio_over": "behaviour", "objective.context": reading}
    keys = {k: v for k, v in keys.items() if (k, v) != ("objective.context", "sampled")}
    method = gxpo.method("scaf_grpo", keys)
    assert method.context == reading
    learner = TorchLearner(written.model, lr=1e-3, weight_decay=0.0)
    behaviour = hinted.path_behaviour_logprob + moved
    forest = hinted.in_context(method.context)
    credit = method.advantages(hinted)
    weight = method.token_weights(hinted, credit, {"proximal_logprob": behaviour})

    def loss(x):
        return method.objective(forest, gxpo.PolicyTokens(x["logprob"], behaviour), credit, weight)

    actual = loss(learner.outputs(forest))
    assert abs(float(actual - expected_loss(written, hinted, reading, moved))) < 1e-10
    gradient = learner.gradient(forest, loss, couples=method.couples)
    listed_parameters = dict(written.model.named_parameters())
    want = torch.autograd.grad(
        expected_loss(written, hinted, reading, moved, grad=True), list(listed_parameters.values())
    )
    for name, g in zip(listed_parameters, want, strict=True):
        assert float((gradient[name] - g).abs().max()) < 1e-10, name


def test_proximal_ratio_hides_the_hint_in_the_trained_context(written, hinted) -> None:
    """At the start of a step the policy is the proximal one: the ratio is 1, whoever sampled."""
    method = gxpo.method("scaf_grpo", {"objective.context": "trained"})
    learner = TorchLearner(written.model, lr=1e-3)
    now = learner.outputs(hinted)["logprob"]
    policy = gxpo.PolicyTokens(now, hinted.path_behaviour_logprob, proximal_logprob=now)
    assert method.loss(hinted, policy).metrics["on_policy"] == 1.0
    over = gxpo.method("scaf_grpo", {"objective.context": "trained", "objective.ratio_over": "behaviour"})
    assert over.loss(hinted, policy).metrics["on_policy"] == 0.0


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 4), st.integers(1, 4), st.lists(st.booleans(), min_size=1, max_size=4))
def test_group_sizes_never_change_and_the_books_balance(enough: int, size: int, solved: list[bool]) -> None:
    names = [f"t{i}" for i in range(len(solved))]
    script = needs(**{n: "" if s else "abcdefgh"[: 2 * enough] for n, s in zip(names, solved, strict=True)})
    for part in (LeastHint(group_size=size), GrowingHint(group_size=size)):
        session = GrowingSession(script, right, solution=dict.fromkeys(names, "abcdefgh"))
        forest = part.grow(tasks(*names), session)
        assert forest.group == [f"s60/{n}" for n in names for _ in range(size)]
        assert session.budget.rollouts == forest.n_trajectories + session.budget.discarded
        assert len(set(forest.id)) == forest.n_trajectories

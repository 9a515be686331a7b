"""Plans and executions: two turns of a trajectory, one of which is trained."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.tree_session import (
    COMMA,
    END,
    VOCABULARY,
    EngineSession,
    TreeSession,
    logprobs_of,
    tokens_of,
)

from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import PolicyTokens, Sampling, Task
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.plan_execute import PlanExecute

PlanExecute = partial(PlanExecute, delimiter=",")  # which ends the steps here

A, B = Task("a", "a?"), Task("b", "bb")
MACRO, MICRO = 3, 4  # steps


def turns(forest: Forest, r: int) -> list[tuple[str, list[int], list[int], bool]]:
    """(agent, context, action, trained) of each turn."""
    out = []
    for s in (forest.step_trajectory == r).nonzero().squeeze(1).tolist():
        entries = (forest.path_step == s).nonzero().squeeze(1)
        trained = forest.path_trainable[entries].tolist()
        assert len(set(trained)) < 2
        first = forest.step_nodes(s)[0]
        context = forest.context(int(forest.parent[first]))
        out.append(
            (forest.agent_names[int(forest.step_agent[s])], context, forest.action(s), bool(trained and trained[0]))
        )
    return out


def greedy(session: TreeSession, context: list[int], room: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < room and END not in tokens:
        tokens.append(int(session.table([*context, *tokens]).argmax()))
    return tokens


def digits(tokens: list[int]) -> int:
    return sum(t for t in tokens if t > COMMA)


# ---------------------------------------------------------------- phases
def test_phases_alternate():
    assert [PlanExecute().phase(s) for s in range(1, 5)] == ["macro", "micro", "macro", "micro"]
    assert [PlanExecute(phase_steps=2).phase(s) for s in range(1, 7)] == ["macro"] * 2 + ["micro"] * 2 + ["macro"] * 2


@settings(max_examples=8)
@given(st.integers(0, 40), st.integers(1, 6))
def test_macro_trains_plans_on_what_their_greedy_executions_earn(half, plan_tokens):
    session = TreeSession(step=2 * half + 1)
    forest = PlanExecute(blueprints=4, plan_tokens=plan_tokens).grow([A, B], session)
    assert forest.group == [f"s{session.step}/{t}" for t in "aaaabbbb"]
    for r in range(8):
        task = A if r < 4 else B
        prompt = list(session.encode(task))
        (planner, plan_context, plan, plan_trained), (executor, context, execution, trained) = turns(forest, r)
        assert (planner, executor, plan_trained, trained) == ("planner", "executor", True, False)
        assert plan_context == prompt and context == prompt + plan
        assert 1 <= len(plan) <= plan_tokens and COMMA not in plan[:-1]
        ended = plan[-1] == END
        assert execution == ([] if ended else greedy(session, prompt + plan, 12 - len(plan)))
        expected = [float(session.table([*prompt, *plan[:i]])[t]) for i, t in enumerate(plan)]
        assert logprobs_of(forest, r) == expected + [0.0] * len(execution)
        assert forest.outcome[r] == float(digits(plan + execution) % 2 == 0)
        assert forest.truncated[r] == (len(plan + execution) == 12 and END not in execution)
    assert session.budget.discarded == 0
    assert session.budget.generated_tokens == sum(len(tokens_of(forest, r)) for r in range(8))


@settings(max_examples=8)
@given(st.integers(0, 40), st.integers(1, 6))
def test_micro_samples_executions_of_the_best_plan(half, plan_tokens):
    part = PlanExecute(blueprints=4, group_size=3, plan_tokens=plan_tokens)
    session = TreeSession(step=2 * half + 2)
    forest = part.grow([A, B], session)
    assert forest.n_trajectories == 6 and session.budget.discarded == 8
    trials = [session.decode(t) for t in _tried(session)]
    for g, task in enumerate((A, B)):
        prompt = list(session.encode(task))
        earned = [float(sum(int(c) for c in t if c.isdigit()) % 2 == 0) for t in trials[4 * g : 4 * g + 4]]
        best = earned.index(max(earned))
        rows = range(3 * g, 3 * g + 3)
        assert {forest.group[r] for r in rows} == {f"s{session.step}/{task.id}/z{best}"}
        plans = [turns(forest, r)[0] for r in rows]
        assert all(plan == plans[0] and not plan[3] for plan in plans)
        assert session.decode(plans[0][2]) == trials[4 * g + best][: len(session.decode(plans[0][2]))]
        entries = [forest.path_token[forest.path_of(r)][: len(plans[0][2])].tolist() for r in rows]
        assert entries[0] == entries[1] == entries[2]  # z* is stored once
        for r in rows:
            agent, context, execution, trained = turns(forest, r)[1]
            assert agent == "executor" and context == prompt + plans[0][2] and trained == bool(execution)
            seen_logprobs = logprobs_of(forest, r)[len(plans[0][2]) :]
            assert seen_logprobs == [
                float(session.table([*context, *execution[:i]])[t]) for i, t in enumerate(execution)
            ]
            assert len(tokens_of(forest, r)) <= 12
            assert forest.outcome[r] == float(digits(plans[0][2] + execution) % 2 == 0)
    streams = session.streams
    assert len(set(streams)) == len(streams)


def _tried(session: TreeSession) -> list[list[int]]:
    """Plan and greedy execution of every trial, drawn again."""
    _, requests = session.calls[0]
    assert session.calls[0][0].stop == (",",)
    out = []
    for request in requests:
        for key in request.streams:
            plan = session.complete(request.prompt, key, session.calls[0][0]).tokens
            room = 0 if plan[-1] == END else 12 - len(plan)
            out.append(plan + greedy(session, [*request.prompt, *plan], room))
    return out


def test_executions_of_one_plan_are_drawn_apart():
    session = TreeSession(step=MICRO, end=-9.0)
    forest = PlanExecute(group_size=6).grow([A], session)
    assert len({tuple(tokens_of(forest, r)) for r in range(6)}) > 1


# ---------------------------------------------------------------- the card
def credit_and_gradient(forest: Forest) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's credit, and the gradient that the loss sends to each path token's log-prob."""
    credit = GroupRelative()(forest, {}, 0)
    x = forest.path_behaviour_logprob.clone().requires_grad_()
    policy = PolicyTokens(x, forest.path_behaviour_logprob)
    loss, _ = PolicyGradient()(forest, policy, credit, torch.ones_like(credit), {}, 0)
    return credit, torch.autograd.grad(loss, x)[0]


def test_the_card_of_the_macro_phase():
    # R = [1, 0, 0, 1]: mean .5, std .57735: .5 / .577351 = .866024, on plan tokens; no gradient on execution tokens
    forest = PlanExecute(blueprints=4).grow([A], TreeSession(step=MACRO, end=-9.0))
    forest = forest.with_rewards(torch.tensor([1.0, 0, 0, 1]))
    credit, gradient = credit_and_gradient(forest)
    planner = forest.step_agent[forest.path_step] == forest.agent_names.index("planner")
    for r, sign in enumerate((1, -1, -1, 1)):
        plan, execution = planner & (forest.path_trajectory == r), ~planner & (forest.path_trajectory == r)
        assert credit[plan].tolist() == pytest.approx([sign * 0.866024] * int(plan.sum()), abs=1e-6)
        # the mean over four plans of the mean over each plan's tokens
        assert gradient[plan].tolist() == pytest.approx(
            [-sign * 0.866024 / 4 / int(plan.sum())] * int(plan.sum()), abs=1e-6
        )
        assert int(execution.sum()) and bool((gradient[execution] == 0).all())


def test_micro_phase_rows_share_a_plan_that_gets_no_gradient():
    forest = PlanExecute(blueprints=4, group_size=4).grow([A], TreeSession(step=MICRO, end=-9.0))
    forest = forest.with_rewards(torch.tensor([1.0, 0, 0, 1]))
    assert len({tuple(turns(forest, r)[1][1]) for r in range(4)}) == 1 and len(set(forest.group)) == 1
    _, gradient = credit_and_gradient(forest)
    planner = forest.step_agent[forest.path_step] == forest.agent_names.index("planner")
    assert bool((gradient[planner] == 0).all()) and bool((gradient[~planner] != 0).all())


def test_one_blueprint_teaches_the_planner_nothing():
    forest = PlanExecute(blueprints=1).grow([A, B], TreeSession(step=MACRO))
    assert bool((GroupRelative()(forest, {}, 0) == 0).all())


def test_without_a_plan_it_is_grpo():
    for step in (MACRO, MICRO):
        one, other = TreeSession(step=step), TreeSession(step=step)
        ours = PlanExecute(plan_tokens=0, group_size=5).grow([A, B], one)
        grpo = Independent(5).grow([A, B], other)
        assert one.streams == other.streams and ours.to_records() == grpo.to_records()


def test_micro_phase_is_grpo_on_the_context_with_the_plan():
    session = TreeSession(step=MICRO, end=-9.0)
    forest = PlanExecute(group_size=4).grow([A], session)
    rows = [turns(forest, r)[1] for r in range(4)]
    same = Forest.from_completions([rows[0][1]], [[row[2] for row in rows]], forest.outcome, logprobs=[
        [logprobs_of(forest, r)[-len(rows[r][2]) :] for r in range(4)]
    ])  # fmt: skip
    ours, plain = credit_and_gradient(forest), credit_and_gradient(same)
    trained = forest.path_trainable
    assert torch.equal(ours[0][trained], plain[0]) and torch.equal(ours[1][trained], plain[1])


# ---------------------------------------------------------------- templates
def test_templates_word_the_prompts_and_only_execution_is_judged():
    part = PlanExecute(blueprints=3, plan_prompt="P{prompt}", execute_prompt="{prompt}|{plan}", plan_tokens=3)
    session = TreeSession(step=MACRO)
    forest = part.grow([A], session)
    texts = []
    for r in range(3):
        (_, plan_context, plan, _), (_, context, execution, _) = turns(forest, r)
        assert plan_context == list(session.encode(Task("", "Pa?")))
        assert context == list(session.encode(Task("", f"a?|{session.decode(plan)}")))
        assert len(execution) <= 12
        texts.append(session.decode(execution))
    assert session.judged == [texts] and forest.prompt_text == ["a?"] * 3
    with pytest.raises(ConfigError, match="need a text"):
        part.grow([Task("c", (3, 4))], TreeSession())


# ---------------------------------------------------------------- evaluation
def test_held_out_tasks_are_attempted_by_plan_and_execution():
    session = TreeSession(step=-1, sampling=Sampling(temperature=0.0, max_new_tokens=12))
    forest = PlanExecute(plan_tokens=5).evaluation(2).grow([A, B], session)
    assert forest.task == ["a", "a", "b", "b"]
    for r in range(4):
        prompt = list(session.encode(A if r < 2 else B))
        assert tokens_of(forest, r) == greedy(session, prompt, 12)  # a greedy plan and its execution: the greedy answer
    plain = PlanExecute(plan_tokens=0).evaluation(2)
    assert plain == Independent(2)


# ---------------------------------------------------------------- learning
@pytest.mark.parametrize("step", [MACRO, MICRO])
def test_learner_reads_the_sampled_log_probs_and_packs_the_rows(step):
    model = clean_llama(vocab_size=VOCABULARY, eos_token_id=END)
    session = EngineSession(model, step=step, sampling=Sampling(max_new_tokens=16))
    forest = PlanExecute(blueprints=4, group_size=4, plan_tokens=6).grow([A, B], session)
    learner, trained = TorchLearner(model, lr=0.0), forest.path_trainable
    x = learner.outputs(forest)["logprob"]
    assert torch.allclose(x[trained], forest.path_behaviour_logprob[trained], rtol=0, atol=1e-9)
    assert bool((forest.path_behaviour_logprob[~trained & (forest.path_behaviour_logprob == 0)] == 0).all())
    info = learner.step(forest, lambda x: x["logprob"][trained].sum(), active=trained)
    assert info.tokens_forward < info.tokens_flat


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "fields",
    [{"blueprints": 0}, {"group_size": 0}, {"phase_steps": 0}, {"trial_temperature": -1.0}, {"plan_tokens": -1},
     {"delimiter": ""}, {"done": ""}, {"plan_prompt": "plan"}, {"execute_prompt": "{plan}"}],
)  # fmt: skip
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(fields))}"):
        PlanExecute(**fields)

"""Teams: who speaks when, under which context, as which policy; cells of candidates and the way along the best."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.team_session import END, TeamSession, decoded, encoded

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.source import Arithmetic
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import first_best
from gxpo.sampling.rollouts.graph import GRAPHS, Graph, Role, graph, second_opinion
from gxpo.sampling.rollouts.team import Team
from gxpo.sampling.rollouts.team_cells import TeamCells, mix_scores
from gxpo.training.models import character_tokenizer
from gxpo.training.session import Session

ADD, SUB = Task("add", "1+1=", "2"), Task("sub", "5-1=", "4")
PAIR = Graph(
    (
        Role("solver", "{prompt}", again="{prompt}!{verifier}!", answer="{solver}"),
        Role("verifier", "{prompt}{solver}?", back="solver", accepts="yes"),
    ),
    rounds=3,
)


def scripted(*texts):
    """Each policy or context says the first text whose pattern is found in what it reads."""

    def say(policy: str, context: str, attempt: int) -> str:
        return next(t.format(k=attempt) for pattern, t in texts if re.search(pattern, context))

    return say


def texts(forest: Forest, r: int) -> list[tuple[str, str, str]]:
    """(agent, context, action) of each turn, as texts."""
    out = []
    for s in (forest.step_trajectory == r).nonzero().squeeze(1).tolist():
        first = forest.step_nodes(s)[0]
        context = forest.context(int(forest.parent[first]))
        out.append((forest.agent_names[int(forest.step_agent[s])], decoded(context), decoded(forest.action(s))))
    return out


# ---------------------------------------------------------------- attempts
def test_the_work_goes_back_until_it_is_accepted() -> None:
    # Attempt 0 is right at once; attempt 1 is sent back once; attempt 2 never convinces anybody within three rounds.
    def say(policy: str, context: str, attempt: int) -> str:
        if not context.endswith("?"):
            return ("2", "2" if "!" in context else "3", "9")[attempt]
        return "yes" if context.endswith("2?") else f"no{attempt}"

    session = TeamSession(say)
    forest = Team(3, PAIR).grow(session.asked(ADD), session)
    assert texts(forest, 0) == [("solver", "1+1=", "2"), ("verifier", "1+1=2?", "yes")]
    assert texts(forest, 1) == [
        ("solver", "1+1=", "3"),
        ("verifier", "1+1=3?", "no1"),
        ("solver", "1+1=!no1!", "2"),
        ("verifier", "1+1=2?", "yes"),
    ]
    assert [agent for agent, _, _ in texts(forest, 2)] == ["solver", "verifier"] * 3
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0] and forest.group == ["s3/add"] * 3
    assert session.judged == [["2", "2", "9"]]
    assert [i["rounds"] for i in forest.info] == [1, 2, 3] and forest.info[1]["answer"] == "2"
    assert forest.prompt_text == ["1+1="] * 3
    assert Team(3, PAIR).max_turns == 6  # of which attempt 2 needs all


def test_steps_run_through_all_agents_each_in_its_own_context() -> None:
    session = TeamSession(scripted((r"\?$", "no"), ("", "7")))
    forest = Team(1, PAIR).grow(session.asked(ADD), session)
    assert forest.step_previous.tolist() == [-1, 0, 1, 2, 3, 4]
    action = forest.step_action
    assert forest.previous[action].tolist() == [-1, *action[:-1].tolist()]
    roots = [int(forest.path(int(a))[0]) for a in action]
    assert len(set(roots)) == 3  # the task; what the verifier reads; the task with its remark; each stored once
    assert roots[1] == roots[3] == roots[5] and roots[2] == roots[4]
    assert forest.step_state.tolist() == [0, 1, 2, 1, 2, 1]  # the state acted in is the context
    assert torch.equal(forest.returns(1.0), torch.zeros(6, dtype=torch.float64))
    assert forest.policy_names == ("main",) and forest.policy_version[action].tolist() == [2] * 6


def test_running_context_holds_what_the_agent_read_and_wrote() -> None:
    team = Graph(
        (
            Role("solver", "{prompt}", again="|{verifier}|", running=True, answer="{solver}"),
            Role("verifier", "({solver})", back="solver", accepts="yes"),
        ),
        rounds=2,
    )
    session = TeamSession(scripted((r"\)$", "no"), (r"\|$", "2"), ("", "3")))
    forest = Team(2, team).grow(session.asked(ADD), session)
    end = chr(END)
    contexts = [decoded(r.prompt) if END not in r.prompt else "".join(map(chr, r.prompt)) for r in session.requests[2]]
    assert contexts == [f"1+1=3{end}|no|"] * 2
    third = (forest.step_trajectory == 0).nonzero().squeeze(1).tolist()[2]
    first = forest.step_nodes(third)[0]
    path = forest.path(int(forest.parent[first])).tolist()
    assert int(forest.step_action[0]) in path and len(path) == 3  # the task, the own action, the observation
    assert [r.keep for r in session.requests[0]] == [("add/0/solver",), ("add/1/solver",)]
    assert not any(r.keep for r in session.requests[1])
    assert set(session.released) == {"add/0/solver", "add/1/solver"}


def test_every_turn_has_its_own_stream_in_any_batch() -> None:
    say = scripted((r"\?$", "no"), ("", "7"))

    def streams(*tasks: Task) -> list[StreamKey]:
        session = TeamSession(say)
        Team(2, PAIR).grow(session.asked(*tasks), session)
        return [s for requests in session.requests for r in requests for s in r.streams]

    both, single_streams = streams(ADD, SUB, ADD), streams(SUB)
    assert len(set(both)) == len(both) == 6 * 6
    assert [s for s in both if s.task == "sub"] == single_streams
    assert StreamKey(5, 3, "add#1", 1, turn=5) in both


def test_what_the_policies_are() -> None:
    assert Team(1, PAIR).policies == {"main": "trained"}
    assert Team(1, PAIR, "per_role").policies == {"solver": "trained", "verifier": "trained"}
    assert Team(1, PAIR, "per_role", ["solver"]).policies == {"verifier": "trained", "solver": "frozen"}
    assert Team(1, PAIR, "shared", ["verifier"]).policies == {"main": "trained", "verifier": "frozen"}
    assert [*Team(1, PAIR, "per_role", ["solver"]).policies] == ["verifier", "solver"]  # the trained ones stand first


@pytest.mark.parametrize("policy", ["shared", "per_role"])
def test_a_frozen_role_speaks_and_is_not_trained(policy: str) -> None:
    session = TeamSession(scripted((r"\?$", "yes"), ("", "{k}")))
    forest = Team(2, PAIR, policy, ["verifier"]).grow(session.asked(ADD), session)  # type: ignore[arg-type]
    trained = "main" if policy == "shared" else "solver"
    assert [r.policy for r in session.requests[0]] == [trained] * 2
    assert [r.policy for r in session.requests[1]] == ["verifier"] * 2
    assert forest.policy_names == (trained, "verifier")
    agent = forest.agent[forest.token_node][forest.path_token]
    assert torch.equal(forest.path_trainable, agent == 0)
    assert bool(forest.path_behaviour_logprob.isfinite().all())


def test_a_context_without_room_ends_the_attempt() -> None:
    session = TeamSession(scripted((r"\?$", "no"), ("", "7" * 20)), max_context=40)  # 32 of them for an action
    forest = Team(1, PAIR).grow(session.asked(ADD), session)
    assert texts(forest, 0) == [("solver", "1+1=", "7" * 20)] and forest.truncated.tolist() == [True]
    assert forest.info[0]["answer"] == "7" * 20
    none = TeamSession(scripted(("", "7")), max_context=33)
    empty = Team(2, PAIR).grow(none.asked(ADD), none)
    assert empty.n_entries == 0 and empty.truncated.tolist() == [True] * 2 and not none.requests
    with pytest.raises(ConfigError, match="room"):
        TeamCells(2, PAIR).grow(none.asked(ADD), none)


def test_messages_are_read_as_texts_and_ids_are_refused() -> None:
    session = TeamSession(scripted(("", "yes")))
    asked_task = Task("m", ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}))
    forest = Team(1, PAIR).grow(session.asked(asked_task), session)
    assert texts(forest, 0)[0][1] == "Add.\n1+1="
    with pytest.raises(ConfigError, match="token ids"):
        Team(1, PAIR).grow(session.asked(Task("i", (1, 2))), session)


def test_records_keep_teams() -> None:
    session = TeamSession(scripted((r"\?$", "no"), ("", "{k}")))
    forest = Team(2, PAIR, "per_role", ["verifier"]).grow(session.asked(ADD, SUB), session)
    again = Forest.from_records(forest.to_records())
    assert again.to_records() == forest.to_records()
    assert torch.equal(again.policy, forest.policy) and torch.equal(again.step_agent, forest.step_agent)


def test_held_out_tasks_are_attempted_by_the_team() -> None:
    assert TeamCells(8, PAIR, "per_role", ["solver"], 2.0).evaluation(3) == Team(3, PAIR, "per_role", ["solver"])
    assert Team(8, PAIR).evaluation(2) == Team(2, PAIR)


# ---------------------------------------------------------------- cells
def numbers(said: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?[0-9.]+", said)]


def first_number(task: Task, text: str) -> float:
    return (numbers(text) or [0.0])[0]


def second_number(said: Mapping[str, str], scores: Mapping[str, float]) -> float:
    return numbers(said["a"])[1]


def test_the_worked_cell() -> None:
    # r = team + local = [1, 0, 0, 1] + [.5, .25, 0, 1] = [1.5, .25, 0, 2]; mean .9375, std (ddof 1) .965552;
    # A = (r - mean) / (std + 1e-6) = [.582567, -.712027, -.970946, 1.100405]; the team goes on with candidate 3.
    team = Graph((Role("a", answer="{a}", local=second_number), Role("b", "{a}", answer="{b}")))
    text = ("1 .5", "0 .25", "0 0", "1 1")
    session = TeamSession(lambda policy, context, k: text[k] if context == "1+1=" else f"{k}", first_number)
    forest = TeamCells(4, team).grow(session.asked(ADD), session)
    assert forest.group[:4] == ["s3/add/0:a"] * 4 and forest.outcome[:4].tolist() == [1.5, 0.25, 0.0, 2.0]
    credit = gxpo.method("at_grpo").advantages(forest)
    row = [float(credit[forest.path_of(r)[0]]) for r in range(4)]
    assert row == pytest.approx([0.582567, -0.712027, -0.970946, 1.100405], abs=1e-6)
    assert {context for r in range(4, 8) for _, context, _ in texts(forest, r)} == {"1 1"}
    listed_component_names = dict(zip(forest.component_names, forest.components[:4].T.tolist(), strict=True))
    assert listed_component_names["team"] == [1.0, 0.0, 0.0, 1.0] and listed_component_names["local"] == [
        0.5,
        0.25,
        0.0,
        1.0,
    ]
    half = TeamCells(4, team, alpha=0.5).grow(session.asked(ADD), session)
    assert half.outcome[:4].tolist() == [1.0, 0.25, 0.0, 1.5]


def test_only_members_of_a_cell_are_compared() -> None:
    # Rewards 1, 0 | .2, .8 | 2, 4 | 3, 3 of the cells (a0, t0), (a1, t0), (a0, t1), (a1, t1): centred within each they
    # are .5, -.5, -.3, .3, -1, 1, 0, 0. In one pool with mean 1.75 they would be -.75, -1.75, -1.55, -.95, .25, 2.25...
    rewards = iter([("1", "0"), (".2", ".8"), ("2", "4"), ("3", "3")])
    cell: dict[str, tuple[str, str]] = {}

    def say(policy: str, context: str, attempt: int) -> str:
        if attempt == 0:
            cell["now"] = next(rewards)
        return cell["now"][attempt]

    back = Graph((Role("a0", answer="{a0}"), Role("a1", "{a0}", answer="{a1}", back="a0", accepts="never")), rounds=2)
    session = TeamSession(say, first_number)
    forest = TeamCells(2, back).grow(session.asked(ADD), session)
    assert [forest.group[r] for r in range(0, 8, 2)] == [f"s3/add/{c}" for c in ("0:a0", "1:a1", "2:a0", "3:a1")]
    m = gxpo.method("at_grpo", {"credit.scale": "none"})
    credit = m.advantages(forest)
    actual = [float(credit[forest.path_of(r)[0]]) for r in range(8)]
    assert actual == pytest.approx([0.5, -0.5, -0.3, 0.3, -1.0, 1.0, 0.0, 0.0])


def test_eight_candidates_two_agents_two_rounds() -> None:
    def judge(task: Task, text: str) -> float:
        return float(int(text[-1]) % 5 == 4)  # candidates 4 and... 9 would be: the best is 4, alone

    back = dataclasses.replace(PAIR, roles=(PAIR.roles[0], dataclasses.replace(PAIR.roles[1], answer="{verifier}")))
    session = TeamSession(lambda policy, context, k: f"{k}", judge)
    forest = TeamCells(8, dataclasses.replace(back, rounds=2), "per_role").grow(session.asked(ADD, SUB), session)
    cells = list(dict.fromkeys(forest.group))
    assert len(cells) == 2 * 2 * 2 and forest.n_trajectories == 8 * len(cells)  # K n T for each of two instances
    for name in cells:
        rows = [r for r, g in enumerate(forest.group) if g == name]
        read = {texts(forest, r)[0][1] for r in rows}
        assert len(rows) == 8 and len(read) == 1  # one observation in a cell
        role = name.split(":")[1]
        assert {forest.policy_names[int(p)] for p in forest.policy[forest.last_action[rows]]} == {role}
    assert {t[1] for r, g in enumerate(forest.group) if g.endswith("1:verifier") for t in texts(forest, r)} == {
        "1+1=4?",
        "5-1=4?",
    }
    # nothing is trained twice: as many path tokens as were sampled, each a stored token of its own
    assert forest.n_entries == session.budget.generated_tokens == forest.path_token.unique().numel()
    assert forest.step_turn.max() == 0 and bool((forest.kind[forest.last_action] == ACTION).all())
    assert session.budget.rollouts == 2 * 8 and len(session.requests) == 4
    part = TeamCells(8, dataclasses.replace(back, rounds=2))
    assert part.calls == Team(8, part.graph).calls == 4 and (part.max_turns, Team(8, part.graph).max_turns) == (1, 4)


def test_cell_judges_all_candidates_before_taking_one() -> None:
    order: list[str] = []

    def judge(task: Task, text: str) -> float:
        order.append(f"judge {text}")
        return 0.0

    def say(policy: str, context: str, attempt: int) -> str:
        order.append(f"say {context}")
        return f"{attempt}"

    session = TeamSession(say, judge)
    TeamCells(2, Graph((Role("a", answer="{a}"), Role("b", "b{a}", answer="{b}")))).grow(session.asked(ADD), session)
    assert order == ["say 1+1="] * 2 + ["judge 0", "judge 1"] + ["say b0"] * 2 + ["judge 0", "judge 1"]


def test_the_teams_reward_is_of_the_answer_as_it_would_stand() -> None:
    """A planner's candidates are judged by an answer that nobody has given; a judge's by the one that there is."""
    team = Graph((Role("plan"), Role("solve", "{plan}", answer="{solve}"), Role("check", "{solve}")))
    session = TeamSession(lambda policy, context, k: f"{k}", lambda task, text: float(text == "1"))
    forest = TeamCells(2, team).grow(session.asked(ADD), session)
    assert session.judged == [["", ""], ["0", "1"], ["1", "1"]]
    assert forest.outcome.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert gxpo.method("at_grpo").advantages(forest)[: 2 * 2].abs().sum() == 0


def test_a_frozen_role_has_no_cell() -> None:
    session = TeamSession(scripted((r"\?$", "yes{k}"), ("", "{k}")), lambda task, text: float(text == "2"))
    forest = TeamCells(4, PAIR, "shared", ["verifier"]).grow(session.asked(ADD), session)
    assert set(forest.group) == {"s3/add/0:solver"} and forest.n_trajectories == 4
    assert [(r.policy, len(r.streams), decoded(r.prompt)) for r in session.requests[1]] == [("verifier", 1, "1+1=2?")]


def test_running_contexts_follow_the_candidate_that_was_taken() -> None:
    team = Graph(
        (
            Role("a", again="|{b}|", running=True, answer="{a}"),
            Role("b", "{a}", back="a", accepts="never"),
        ),
        rounds=2,
    )
    session = TeamSession(lambda policy, context, k: f"{k}", lambda task, text: float(text == "1"))
    forest = TeamCells(3, team).grow(session.asked(ADD), session)
    rows = [r for r, g in enumerate(forest.group) if g.endswith("2:a")]
    contexts = {tuple(forest.context(int(forest.parent[forest.last_action[r]]))) for r in rows}
    assert contexts == {(*encoded("1+1=1"), END, *encoded("|0|"))}


def test_candidates_without_a_reward() -> None:
    unknown = float("nan")
    session = TeamSession(scripted((r"\?$", "yes"), ("", "{k}")), lambda task, text: unknown if text < "2" else 0.0)
    forest = TeamCells(3, PAIR, "shared", ["verifier"]).grow(session.asked(ADD), session)
    assert forest.scored.tolist() == [False, False, True]
    assert decoded(session.requests[1][0].prompt) == "1+1=2?"
    assert first_best([float("nan")] * 3) == 0


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.floats(0, 2))
def test_the_reward_and_the_way_on(team: list[float], alpha: float) -> None:
    local = [0.5 * (i % 2) for i in range(len(team))]
    reward = mix_scores(torch.tensor(team, dtype=torch.float64), torch.tensor(local), alpha).tolist()
    assert reward == pytest.approx([alpha * t + x for t, x in zip(team, local, strict=True)])
    best = first_best(reward)
    assert reward[best] == max(reward) and reward[best] not in reward[:best]


def test_one_agent_and_one_turn_are_the_base() -> None:
    single_graph = Graph((Role("solver", answer="{solver}"),))
    session = TeamSession(lambda policy, context, k: f"{k}", lambda task, text: float(int(text) % 3))
    cells = TeamCells(6, single_graph).grow(session.asked(ADD, SUB), session)
    attempts = Team(6, single_graph).grow(session.asked(ADD, SUB), session)
    base, team = gxpo.method("grpo"), gxpo.method("at_grpo")
    assert torch.equal(team.advantages(cells), base.advantages(cells))
    assert torch.equal(base.advantages(cells), gxpo.method("dr_mas").advantages(attempts))


# ---------------------------------------------------------------- with a model
@pytest.mark.parametrize("part", [Team, TeamCells])
def test_learner_reads_the_context_each_agent_was_sampled_under(part: type[Team] | type[TeamCells]) -> None:
    """A role with a running context, kept in the engine between its turns, and one that reads it anew; two policies."""
    team = Graph(
        (
            Role("a", again="|{b}|", running=True, answer="{a}"),
            Role("b", "{prompt}{a}", back="a", accepts="never"),
        ),
        rounds=3,
    )
    tokenizer, tasks = character_tokenizer(), Arithmetic()
    learner = TorchLearner(
        clean_llama(vocab_size=len(tokenizer)),
        lr=0.1,
        lora=LoraSettings(rank=2, alpha=4.0),
        policies={"a": "trained", "b": "trained"},
    )
    generator = torch.Generator().manual_seed(0)
    start = learner.snapshot()
    noise = {n: 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in start.items()}
    learner.restore({n: x + noise[n] for n, x in start.items()})
    engine = TorchEngine(learner.model, tokenizer, acting=learner.acting)
    session = Session(
        source=tasks,
        engine=engine,
        rewards=RewardSet.make(None, source=tasks),
        tokenizer=tokenizer,
        sampling=Sampling(max_new_tokens=4, top_k=20),
        seed=0,
        step=1,
    )
    forest = part(3, team, "per_role").grow(session.draw(2), session)
    assert bool(forest.scored.all()) and forest.policy_names == ("a", "b")
    assert len({len(texts(forest, r)) for r in range(forest.n_trajectories)}) == 1
    assert forest.n_steps == 2 * 3 * 6  # tasks, attempts or candidates, turns
    assert part is TeamCells or engine.reused_tokens > 0
    actual = learner.outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-10)


# ---------------------------------------------------------------- graphs
def test_the_second_opinion() -> None:
    text = {"prompt": "37+48=", "solver": "7+8=15,3+4+1=8#85", "verifier": "8+7=15,4+3+1=8#85"}
    solver, verifier = second_opinion.roles
    assert callable(verifier.prompt) and verifier.prompt(text) == "48+37="
    assert verifier.satisfied(text) and not verifier.satisfied({**text, "verifier": "8+7=14#84"})
    assert not verifier.satisfied({**text, "solver": "", "verifier": ""})
    assert verifier.prompt({**text, "prompt": "52-48="}) == "52-48="
    assert verifier.local is not None and solver.local is None
    wrong, right = {"success": 0.0}, {"success": 1.0}
    assert verifier.local(text, right) == 1.0
    assert verifier.local({**text, "solver": "7+8=14#84"}, wrong) == 1.0  # it disagrees, for a reason
    # 84 against 85 is a wrong verdict; 86 against 84 a right one by two mistakes
    assert verifier.local({**text, "verifier": "8+7=14#84"}, right) == 0.0
    assert verifier.local({**text, "solver": "7+8=14#84", "verifier": "8+7=16#86"}, wrong) == 0.0
    assert verifier.local({**text, "prompt": "52-48=", "verifier": "2+10-8=4#4"}, wrong) == 1.0
    assert verifier.local({**text, "prompt": "6*7=", "verifier": "#42"}, wrong) == 1.0
    assert verifier.local({**text, "prompt": "Is it 85?"}, right) == 1.0  # no sum: they agree, and the solver is right
    assert verifier.local({**text, "prompt": "Is it 85?"}, wrong) == 0.0


def test_the_built_in_pair() -> None:
    say = scripted((r"VERDICT: wrong\.$", "VERDICT: wrong"), (r"Solve it again", "4 {{2}}"), ("", "3"))
    session = TeamSession(say, lambda task, text: float(text == "4 {2}"))
    forest = Team(1).grow(session.asked(ADD), session)
    assert [a for a, _, _ in texts(forest, 0)] == ["solver", "verifier"] * 2 and forest.outcome.tolist() == [1.0]
    assert "A reviewer wrote:\nVERDICT: wrong" in texts(forest, 0)[2][1]
    assert GRAPHS["solver_verifier"].roles[1].satisfied({"verifier": "fine. VERDICT:  right"})


def test_a_graph_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "my_team.py"
    path.write_text(
        "from gxpo.sampling.rollouts.graph import Graph, Role\n"
        "pair = Graph((Role('a', answer='{a}'), Role('b', '{a}', back='a', accepts=r'no')), rounds=2)\n"
    )
    m = gxpo.method("dr_mas", {"rollout.graph": f"{path}:pair", "rollout.frozen_roles": ["b"]})
    assert m.rollout.policies == {"main": "trained", "b": "frozen"} and m.rollout.max_turns == 4
    for name, message in (
        (f"{path}:pear", "has no 'pear'; did you mean 'pair'?"),
        (f"{path}:Role", "'Role' in"),
        (f"{tmp_path}/none.py:pair", "no such file"),
        ("solver_verifyer", "did you mean 'solver_verifier'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            gxpo.method("at_grpo", {"rollout.graph": name})
    path.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        graph(f"{path}:pair")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph((Role("a", "{c}", answer="{a}"),)), r"has \{c\}"),
        (lambda: Graph((Role("a", "x {} y", answer="{a}"),)), r"has \{\}"),
        (lambda: Graph((Role("a"),)), "no role has an `answer`"),
        (lambda: Graph((Role("a", answer="{a}"), Role("a"))), "is called 'a'"),
        (lambda: Graph((Role("main", answer="x"),)), "is called 'main'"),
        (lambda: Graph((Role("a.b", answer="x"),)), "is called 'a.b'"),
        (lambda: Graph((Role("a", answer="x", back="a"),)), "both `back` and `accepts`"),
        (
            lambda: Graph((Role("a", answer="x", back="b", accepts="y"), Role("b"))),
            "must name itself or an earlier role",
        ),
        (lambda: Graph((Role("a", answer="x"),), rounds=0), "rounds is 0"),
        (lambda: Team(0, PAIR), "group_size"),
        (lambda: TeamCells(0, PAIR), "group_size"),
        (lambda: Team(1, PAIR, "each"), "rollout.policy is 'each'; it is one of shared, per_role"),  # type: ignore[arg-type]
        (lambda: Team(1, PAIR, "shared", ["verifyer"]), "did you mean 'verifier'"),
        (lambda: Team(1, PAIR, "shared", ["verifier", "solver"]), "every role"),
    ],
)
def test_what_is_wrong_with_a_team_is_said(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()

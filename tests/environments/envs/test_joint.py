"""Worlds of several agents as one environment: turns, scripted players, conflicts, and what contradicts itself."""

from __future__ import annotations

import json

import pytest

from gxpo.base.errors import GxpoError
from gxpo.environments.envs import EnvPool, source
from gxpo.environments.envs.checked import Nonsense
from gxpo.environments.envs.joint import Joint, losers
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep
from gxpo_worlds.hallway import Hallway, hallway_reward
from gxpo_worlds.nim import Nim
from gxpo_worlds.paths import Paths, path_figures, resolve_conflicts
from gxpo_worlds.tictactoe import TicTacToe, value


class Ring:
    """Agents a and b, who act as `turns` says."""

    def __init__(self, *turns, over=()):
        self.turns, self.over, self.n = turns, over, 0

    def reset(self, seed):
        return {"a": TimeStep("go"), "b": TimeStep("go")}

    def acting(self):
        return self.turns[min(self.n, len(self.turns) - 1)]

    def step(self, actions):
        self.n += 1
        return {name: TimeStep("", reward=1.0, done=name in self.over, success=True) for name in actions}


def order(**actions):
    return json.dumps({"actions": actions})


# ---------------------------------------------------------------- turns
def test_agents_that_act_at_once_are_told_apart():
    world = Joint(Ring(["a", "b"]))
    assert world.reset(0).info["acting"] == ["a", "b"]
    answer = world.step(order(a="x", b="y"))
    assert answer.reward == 2.0 and answer.info["actions"] == {"a": "x", "b": "y"} and not answer.done


def test_the_one_that_acts_may_say_it_plainly():
    world = Joint(Ring(["a"], ["b"]))
    world.reset(0)
    assert world.step("x").info["acting"] == ["b"]


@pytest.mark.parametrize(
    ("turns", "over", "message"),
    [
        ((["a"], ["c"]), (), r"names 'c', which is no agent"),
        ((["a"], ["b", "b"]), (), "or names it twice"),
        ((["a"], ["a"]), ("a",), "names 'a', whose episode is over"),
        ((["a"], []), (), "names nobody, and the episode of 'a' is not over"),
    ],
)
def test_a_world_that_disagrees_on_the_turn_is_refused(turns, over, message):
    world = Joint(Ring(*turns, over=over))
    world.reset(0)
    with pytest.raises(Nonsense, match=message):
        world.step("x")


def test_somebody_elses_turn_is_refused():
    world = Joint(Ring(["a"]))
    world.reset(0)
    with pytest.raises(Nonsense, match="'b' acts, and it is the turn of a"):
        world.step(order(b="x"))


BROKEN = """
from gxpo import TimeStep
class Disagreeing:
    def content(self, seed): return str(seed)
    def reset(self, seed):
        self.seed, self.over = seed, False
        return {"a": TimeStep("go"), "b": TimeStep("go")}
    def acting(self): return ["c"] if self.over and self.seed == 1 else [] if self.over else ["a", "b"]
    def step(self, actions):
        self.over = True
        return {n: TimeStep("end", reward=1.0, done=True, success=True) for n in actions}
"""


def test_a_contradiction_costs_its_own_episode_alone(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    with EnvPool(source(f"{tmp_path}/broken.py:Disagreeing"), workers=0) as pool:
        pool.reset({"one": 0, "two": 1})
        answers = pool.step({name: Reply(order(a="", b="")) for name in ("one", "two")})
    assert answers["one"].done and isinstance(answers["two"], EnvFailure) and answers["two"].kind == "nonsense"
    assert "agents" in pool.provides and "'c'" in answers["two"].message


# ---------------------------------------------------------------- players and conflicts
def test_random_and_expert_players_finish_a_game():
    world = Joint(TicTacToe())
    for player in ("random", "expert"):
        step = world.reset(3)
        while not step.done:
            step = world.step(json.dumps({"players": {"*": player}}))
        assert {x["info"]["result"] for x in step.info["agents"].values()} <= {"win", "loss", "draw"}


@pytest.mark.parametrize(("board", "result"), [("XX.OO....", 1), ("XXOOOXX..", 0)])
def test_the_value_of_a_position_is_its_best_result(board, result):
    assert value(board, "X" if board.count("X") == board.count("O") else "O") == result


def test_two_outcomes_of_a_game_sum_to_zero():
    world = TicTacToe(opening=0)
    world.reset(0)
    for player, cell in (("X", "1"), ("O", "4"), ("X", "2"), ("O", "5")):
        world.step({player: cell})
    end = world.step({"X": "3"})
    assert {agent: step.reward for agent, step in end.items()} == {"X": 1.0, "O": -1.0}
    assert [step.info["result"] for step in end.values()] == ["win", "loss"]


@pytest.mark.parametrize(("option", "paid", "result"), [("ends", 0.0, "void"), ("loses", 1.0, "win")])
def test_an_invalid_move_is_no_draw(option, paid, result):
    world = TicTacToe(opening=0, invalid=option)
    world.reset(0)
    end = world.step({"X": "10"})
    assert end["X"].reward == -1.0 and end["X"].info["result"] == "invalid" and end["X"].action_error == "illegal"
    assert end["O"].reward == paid and end["O"].info["result"] == result


def heap(left, most):
    world = Nim(style="bare", counters=(left, left), most=(most,))
    world.reset(0)
    return world


def test_an_expert_of_nim_leaves_a_multiple_of_one_more():
    # at most 3 at once: of 10 counters the expert takes 2, which leaves 8; of 4 and 8 nothing wins
    assert heap(10, 3).expert("first") == "2" and heap(7, 3).expert("first") == "3"
    assert [heap(8, 3).worth(move, "first") for move in "123"] == [-1, -1, -1]


def test_who_takes_the_last_counter_wins():
    world = heap(3, 2)
    assert world.legal("first") == ["1", "2"]
    assert world.step({"first": "2"})["second"].observation == "1/2>" and world.legal("second") == ["1"]
    end = world.step({"second": "1"})
    assert {agent: step.reward for agent, step in end.items()} == {"second": 1.0, "first": -1.0}


def test_more_counters_than_there_are_is_invalid():
    end = heap(2, 4).step({"first": "3"})
    assert end["first"].info["result"] == "invalid" and end["first"].action_error == "illegal"
    assert end["second"].info["result"] == "void" and end["second"].reward == 0.0


@pytest.mark.parametrize("options", [{"counters": (9, 3)}, {"counters": (3, 100)}, {"most": (0,)}, {"style": "prose"}])
def test_options_of_nim_that_make_no_game_are_refused(options):
    with pytest.raises(GxpoError, match=r"^nim: "):
        Nim(**options)


def test_a_claim_goes_to_the_agent_of_highest_priority():
    # targets [3, 3, 1] with priorities [.2, .9, .5]: the first loses
    assert losers({"a": 3, "b": 3, "c": 1}, {"a": 0.2, "b": 0.9, "c": 0.5}) == ["a"]
    # one node for three, probabilities .5, .7 and .4: the second keeps it
    assert losers(dict.fromkeys("abc", 7), {"a": 0.5, "b": 0.7, "c": 0.4}) == ["a", "c"]


def crossing():
    """Two agents that both want cell (0, 1)."""
    world = Paths(agents=2, size=3, walls=0.0)
    joint = Joint(world)
    joint.reset(0)
    world._places, world._goals = {"agent_0": (0, 0), "agent_1": (0, 2)}, {"agent_0": (0, 1), "agent_1": (2, 2)}
    return world, joint


@pytest.mark.parametrize(("how", "held"), [("first", "agent_1"), ("priority", "agent_1"), ("closest", "agent_1")])
def test_an_overridden_action_becomes_the_fallback(how, held):
    world, joint = crossing()
    told = {"actions": {"agent_0": "right", "agent_1": "left"}, "confidence": {"agent_0": 0.9, "agent_1": 0.2}}
    answer = joint.step(json.dumps({**told, "conflict": how}))
    assert answer.info["overridden"] == [held] and answer.info["actions"][held] == "stay"
    assert world._places == {"agent_0": (0, 1), "agent_1": (0, 2)}


# ---------------------------------------------------------------- worlds
def test_two_groups_at_the_door_at_once_are_punished():
    assert hallway_reward([2, 2], [2, 2]) == 10 * 2 - 1.5 * 10 * 2 == -10
    assert hallway_reward([2, 1], [2, 2]) == 10 and hallway_reward([1, 1], [2, 2]) == 0


def test_walkers_wait_for_one_another():
    world = Hallway(sizes=[2, 1], length=3)
    joint = Joint(world)
    for seed in range(20):
        step = joint.reset(seed)
        while not step.done:
            step = joint.step(json.dumps({"players": {"*": "expert"}}))
        assert step.success


def test_figures_of_paths_are_pogemas():
    assert path_figures([3, 5, None], 10) == {"csr": 0.0, "isr": 2 / 3, "soc": 18.0, "makespan": 10.0}


@pytest.mark.parametrize(
    ("targets", "places"),
    [
        ({"a": (0, 1), "b": (0, 0)}, {"a": (0, 0), "b": (0, 1)}),  # a swap
        ({"a": (0, 1), "b": (0, 2)}, {"a": (0, 1), "b": (0, 2)}),  # one follows the other
        ({"a": (0, 1), "b": (0, 1)}, {"a": (0, 0), "b": (0, 1)}),  # onto one that stays
    ],
)
def test_moves_on_the_grid_exclude_one_another(targets, places):
    assert resolve_conflicts({"a": (0, 0), "b": (0, 1)}, targets) == places


def test_the_number_of_agents_is_the_seeds():
    counts = {len(Paths(agents=[1, 4]).reset(seed)) for seed in range(30)}
    assert counts == {1, 2, 3, 4}


def test_too_many_agents_for_a_grid_are_refused():
    with pytest.raises(GxpoError, match="don't fit on a grid of 3 x 3"):
        Paths(agents=5, size=3)

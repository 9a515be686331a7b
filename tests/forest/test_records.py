from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.naive import expand, view
from tests.strategies import RICH, forests, random_forest, random_records, record_lists

from gxpo.base.errors import GxpoError, RecordError
from gxpo.forest.forest import ACTION, OBSERVATION, PROMPT, Forest
from gxpo.forest.records import Record, dump, load, parse

fewer = settings(max_examples=12, deadline=None)
few = settings(max_examples=30, deadline=None)
Json = dict[str, Any]


def record(id: str = "t0", turns: list | None = None, **more: Any) -> Json:
    turns = [{"action": [1, 2, 3]}] if turns is None else turns
    return {"schema": "gxpo.rollouts/1", "group": "g", "id": id, "turns": turns, **more}


def fork(of: str, turn: int, token: int | None, turns: list, id: str = "f", **more: Any) -> Json:
    return record(id, turns, fork={"of": of, "turn": turn, "token": token}, **more)


def plain(x: Any) -> Any:
    """Records with tensors as lists, so that == compares them."""
    if isinstance(x, torch.Tensor):
        return ["nan" if v != v else v for v in x.flatten().tolist()]
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, list) else x


def actions(forest: Forest) -> list[list[list[int]]]:
    return [[[t["token"] for t in s["tokens"]] for s in t["steps"]] for t in view(forest)]


# ---------------------------------------------------------------- the whole format against the oracle
@few
@given(record_lists())
def test_a_forest_says_what_its_records_say(records: list[Json]) -> None:
    assert view(Forest.from_records(records)) == expand(records)


@fewer
@given(record_lists(**RICH))
def test_with_tensors_media_latents_and_texts(records: list[Json]) -> None:
    assert view(Forest.from_records(records)) == expand(records)
    assert view(Forest.from_records(records, share=False)) == expand(records)


@few
@given(forests(**RICH))
def test_to_records_of_from_records_is_the_identity_on_what_gxpo_wrote(forest: Forest) -> None:
    written = forest.to_records()
    again = Forest.from_records(written)
    assert plain(again.to_records()) == plain(written)
    assert view(again) == view(forest)
    assert again.n_tokens <= forest.n_tokens  # and all sharing is still there


@fewer
@given(st.integers(0, 2**32 - 1))
def test_a_forked_file_and_the_same_written_out_in_full(seed: int) -> None:
    forest = random_forest(seed, mixed_turns=False)
    full = forest.to_records(share=False)
    assert not any("fork" in r for r in full)
    assert view(Forest.from_records(full)) == view(Forest.from_records(full, share=False)) == view(forest)
    assert plain(Forest.from_records(full).to_records()) == plain(full)


@fewer
@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_a_fork_without_its_base_is_written_in_full(seed: int, rng: random.Random) -> None:
    forest = random_forest(seed, mixed_turns=False, extras=True, media=True)
    chosen = forest.select([r for r in range(forest.n_trajectories) if rng.random() < 0.5])
    assert view(Forest.from_records(chosen.to_records())) == view(chosen)


@fewer
@given(forests(**RICH))
def test_dump_and_load(tmp_path_factory: pytest.TempPathFactory, forest: Forest) -> None:
    folder = tmp_path_factory.mktemp("rollouts")
    dump(forest, folder / "a.jsonl")
    again = load(folder / "a.jsonl")
    assert view(again) == view(forest)
    dump(again, folder / "b.jsonl")
    text = (folder / "a.jsonl").read_text()
    assert (folder / "b.jsonl").read_text() == text.replace("a.safetensors#", "b.safetensors#")
    names = {p.name for p in folder.iterdir()}
    assert names == {f"{n}.{k}" for n in "ab" for k in ("jsonl", *["safetensors"] * bool(again.extras))}


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    dump(Forest.from_records([record()]), path)
    old = path.read_bytes()
    extras = {"x": torch.ones(3)}
    for info in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(RecordError, match="'bad' can't be written as JSON"):
            dump(Forest.from_records([record("bad", [{"action": [1, 2, 3], "extras": extras}], info=info)]), path)
    assert path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


# ---------------------------------------------------------------- the rules
def test_e1_what_a_template_adds_opens_the_next_observation() -> None:
    f = Forest.from_records([record(prompt=[7], turns=[{"action": [1]}, {"observation": [90, 91, 8], "action": [2]}])])
    assert f.kind.tolist() == [PROMPT, ACTION, OBSERVATION, ACTION]
    assert f.token[f.path_token].tolist() == [1, 2] and f.trainable.tolist() == [False, True, False, False, False, True]


def test_e2_context_is_shared_when_equal_actions_only_by_fork() -> None:
    turns = [{"observation": [8], "action": [1, 2]}, {"observation": [9], "action": [3]}]
    f = Forest.from_records([record("a", turns, prompt=[7]), record("b", turns, prompt=[7])])
    assert f.n_tokens == 2 + 2 * 2 + 2 * 1 + 2 * 1  # prompt and first observation once; all after an action twice
    assert not set(f.path_token[f.path_of(0)].tolist()) & set(f.path_token[f.path_of(1)].tolist())
    forked = Forest.from_records([record("a", turns, prompt=[7]), fork("a", 0, None, turns[1:])])
    assert forked.n_tokens == 2 + 2 + 1 + 2  # the action by fork, then the equal observation after it
    assert view(forked)[1]["steps"] == view(f)[1]["steps"]


@pytest.mark.parametrize("token", [0, 1, 2, 3])
def test_e3_a_fork_splits_its_node_and_what_follows_stays_with_the_last_half(token: int) -> None:
    turns = [
        {"observation": [8], "action": [1, 2, 3], "reward": 0.5, "finish": "stop", "info": {"k": 1}, "state": "s"},
        {"observation": [9], "action": [4], "caller": 0},
    ]
    own = {"action": [5, 6], "reward": -1.0}
    f = Forest.from_records([record("a", turns, prompt=[7], reward=1.0), fork("a", 0, token, [own], reward=2.0)])
    assert actions(f) == [[[1, 2, 3], [4]], [[*[1, 2, 3][:token], 5, 6]]]
    assert f.step_turn.tolist() == [0, 1, 0]
    assert f.step_reward.nan_to_num(9).tolist() == [0.5, 9, -1.0]
    assert f.step_finish == ["stop", None, None] and f.step_info == [{"k": 1}, {}, {}]
    nodes = f.step_nodes(0)
    assert len(nodes) == (2 if token in (1, 2) else 1) and f.turn[nodes].tolist() == [0] * len(nodes)
    assert f.step_action[0] == nodes[-1]
    assert f.caller[f.step_action[1]] == f.previous[f.step_action[1]] == nodes[-1]
    assert f.state_names[int(f.step_state[2])] == "s"
    assert f.n_tokens == 2 + 3 + 2 + 2  # the observation is shared at token 0 too
    assert f.outcome.tolist() == [1.0, 2.0]


def test_e3_forks_of_forks_and_into_another_group() -> None:
    f = Forest.from_records(
        [
            record("a", [{"action": [1, 2, 3, 4]}], prompt=[7]),
            fork("a", 0, 3, [{"action": [5, 6], "agent": "b", "policy_version": 4}], "b"),
            fork("b", 0, 4, [{"action": [8]}, {"action": [9]}], "c", group="other"),  # 1 2 3 | 5 | 8
            fork("c", 0, 2, [{"action": []}], "d"),  # ends inside an action
            fork("c", 1, None, [], "e"),  # the same actions, another outcome
        ]
    )
    assert actions(f) == [[[1, 2, 3, 4]], [[1, 2, 3, 5, 6]], [[1, 2, 3, 5, 8], [9]], [[1, 2]], [[1, 2, 3, 5, 8], [9]]]
    assert f.n_tokens == 1 + 4 + 2 + 1 + 1
    assert [f.agent_names[i] for i in f.step_agent] == ["agent", "b", "b", "agent", "b", "b", "agent"]
    assert f.policy_version[f.token_node[f.path_token[f.path_of(2)]]].tolist() == [0, 0, 0, 4, 4, 0]
    assert f.group == ["g", "g", "other", "g", "g"]


def test_e3_token_null_keeps_the_turn_with_its_reward_and_nothing_of_the_outcome() -> None:
    turns = [{"action": [1], "reward": 0.5, "finish": "stop"}, {"action": [2]}]
    base = record("a", turns, reward=1.0, rewards={"x": 1.0}, success=True, final_state="s", final_observation=[3])
    f = Forest.from_records([base, fork("a", 0, None, [{"observation": [9], "action": [4]}])])
    assert actions(f)[1] == [[1], [4]]
    assert f.step_reward[2] == 0.5 and f.step_finish[2] == "stop"
    assert not f.scored[1] and f.success[1].isnan() and f.components[1].isnan().all()
    assert f.final_state[1] is None and f.final_observation[1] == []


def test_e4_trainable_needs_an_author_not_a_sampler() -> None:
    turns = [{"action": [1, 2], "trainable": [True, False]}, {"action": [3], "logprob": [-0.5]}]
    f = Forest.from_records([record(turns=turns, origin="demonstration")])
    assert f.path_trainable.tolist() == [True, False, True]
    assert f.path_behaviour_logprob.isnan().tolist() == [True, True, False]
    assert f.origin == ["demonstration"] and f.lengths().tolist() == [2]


def test_e5_parent_is_the_context_that_is_trained() -> None:
    f = Forest.from_records([record(prompt=[7, 8], turns=[{"action": [1], "sampled_under": [7, 5, 8]}])])
    action = int(f.step_action[0])
    assert f.context(int(f.parent[action])) == [7, 8]
    assert f.context(int(f.sampled_under[action])) == [7, 5, 8]
    assert f.select([0]).to_records() == f.to_records()


def test_e6_step_rewards_are_a_second_stream() -> None:
    f = Forest.from_records([record(turns=[{"action": [1], "reward": 3.0}], reward=5.0)])
    assert f.outcome.tolist() == [5.0] and f.step_reward.tolist() == [3.0]


def test_e7_members_of_a_group_may_differ() -> None:
    one = record("a", [{"action": [1], "policy": "x"}], prompt=[1, 2, 3])
    two = record("b", [{"action": [1]}, {"action": []}, {"action": [2] * 9}], prompt=[])
    f = Forest.from_records([one, two])
    assert f.ids("group").tolist() == [0, 0] and f.policy_names == ("x", "main")


def test_e8_a_rebuilt_context_has_a_root_path_of_its_own_and_one_previous_chain() -> None:
    turns = [{"context": [5], "action": [1, 2]}, {"context": [5, 6], "action": [3]}, {"context": [], "action": [4]}]
    f = Forest.from_records([record(prompt=[9], turns=turns)])
    assert [s["context"] for s in view(f)[0]["steps"]] == [[5], [5, 6], []]
    assert f.previous[f.step_action].tolist() == [-1, *f.step_action[:2].tolist()]
    assert len(f.path_token.unique()) == f.n_entries == 4  # nothing is trained twice
    assert f.parent[f.step_action[2]] == -1


def test_e9_null_is_unscored_and_never_zero() -> None:
    f = Forest.from_records([record("a", reward=None), record("b", reward=0), record("c", rewards={"x": None})])
    assert f.scored.tolist() == [False, True, False] and f.outcome[0].isnan() and f.outcome[1] == 0
    assert f.component_names == ("x",) and f.components.isnan().all()
    assert [r["reward"] for r in f.to_records()] == [None, 0.0, None]
    g = f.with_rewards(torch.tensor([float("inf"), 1.0, float("nan")]))
    assert g.scored.tolist() == [False, True, False] and [r["reward"] for r in g.to_records()] == [None, 1.0, None]


def test_every_agent_has_a_context_of_its_own_that_the_prompt_opens() -> None:
    turns = [
        {"agent": "a", "action": [1]},
        {"agent": "b", "observation": [8], "action": [2]},
        {"agent": "a", "observation": [9], "action": [3], "after": 0},
        {"agent": "b", "action": [4], "caller": 2},
    ]
    f = Forest.from_records([record(prompt=[7], turns=turns)])
    assert [s["context"] for s in view(f)[0]["steps"]] == [[7], [7, 8], [7, 1, 9], [7, 8, 2]]
    assert f.step_previous.tolist() == [-1, 0, 0, 2]
    assert f.caller[f.step_action[3]] == f.step_action[2]


def test_segments_and_where_a_fork_goes_on_in_one() -> None:
    base = record("a", [{"action": [1, 2, 3, 4], "segments": [0, 2]}])
    f = Forest.from_records(
        [
            base,
            fork("a", 0, 3, [{"action": [5, 6]}], "same"),
            fork("a", 0, 3, [{"action": [5, 6], "segments": [1]}], "next"),
            record("none"),
        ]
    )
    assert f.segment[f.path_token].tolist() == [0, 0, 1, 1] + [0, 0, 1, 1, 1] + [0, 0, 1, 1, 2] + [-1] * 3
    assert f.ids("trajectory", "segment").tolist()[-3:] == [-1, -1, -1]


def test_defaults() -> None:
    f = Forest.from_records([record()])
    assert (f.agent_names, f.policy_names, f.policy_version.tolist()) == (("agent",), ("main",), [0])
    assert (f.task, f.origin, f.sampling, f.info) == (["g"], ["policy"], [{}], [{}])
    assert f.compared.tolist() == [True] and f.weight.tolist() == [1.0] and f.truncated.tolist() == [False]
    assert f.state.tolist() == f.caller.tolist() == f.sampled_under.tolist() == f.segment[:1].tolist() == [-1]
    assert f.path_trainable.all() and f.prompt_node.tolist() == [-1] and not f.scored[0]


def test_the_example_of_the_format() -> None:
    turn = {
        "agent": "solver", "policy": "main", "policy_version": 12, "state": "k:4,2", "observation": [7, 8],
        "action": [9, 10, 11], "logprob": [-0.1, -2.3, -0.4], "trainable": True, "sampled_under": None, "reward": None,
        "finish": "stop", "after": None, "caller": None, "segments": [0, 2], "info": {},
    }  # fmt: skip
    line = {
        "schema": "gxpo.rollouts/1", "task": "gsm8k/17", "group": "s12/17", "id": "t3", "fork": None,
        "prompt": [1, 2, 3], "turns": [turn], "reward": 1.0,
        "rewards": {"correct": 1.0, "format": 0.0}, "success": True, "compared": True,
        "weight": 1.0, "origin": "policy", "truncated": False, "sampling": {"temperature": 1.0}, "final_state": None,
        "final_observation": [], "info": {},
    }  # fmt: skip
    f = Forest.from_records([line, line | {"id": "t4", "prompt": [], "fork": {"of": "t3", "turn": 0, "token": 3},
                             "turns": [{"action": [12], "segments": None}]}])  # fmt: skip
    assert f.token[f.path_token].tolist() == [9, 10, 11, 9, 10, 11, 12]
    assert f.segment[f.path_token].tolist() == [0, 0, 1, 0, 0, 1, 1]
    assert f.component_names == ("correct", "format") and f.success.tolist() == [1.0, 1.0]


# ---------------------------------------------------------------- text
def test_text_only_records_are_accepted_and_what_is_missing_is_said() -> None:
    f = Forest.from_records([record(turns=[{"action_text": "17", "reward": 1.0}], prompt_text="how many?", reward=1.0)])
    assert f.text_only and f.action_text == ["17"] and f.prompt_text == ["how many?"]
    assert f.returns(1.0).tolist() == [1.0] and f.n_entries == 1
    assert f.to_records()[0]["turns"][0].keys() == {"action_text", "reward", "agent", "policy", "policy_version"}
    with pytest.raises(GxpoError, match="needs token ids, but 1 actions, 1 prompts are text only"):
        f.lengths()


def test_text_beside_ids_misses_nothing_not_even_with_latents() -> None:
    turns = [{"action": [-1, 5], "action_text": "yes"}, {"action": [-1], "logprob": [-1.0], "action_text": "no"}]
    f = Forest.from_records([record(turns=turns, prompt=[1], prompt_text="one"), record("b", [{"action": [-1]}])])
    assert not f.text_only and f.missing_ids == "" and f.lengths().tolist() == [3, 1]
    assert Forest.from_records(f.to_records()).to_records() == f.to_records()


# ---------------------------------------------------------------- what can't be written
def test_what_only_a_fork_can_say_is_not_written_in_full() -> None:
    f = Forest.from_records([record("a"), fork("a", 0, 1, [{"action": [4], "policy": "other"}])])
    assert Forest.from_records(f.to_records()).to_records() == f.to_records()
    with pytest.raises(RecordError, match="'f', turn 0: `policy` changes inside its action"):
        f.to_records(share=False)
    assert view(f.flatten()) == view(f)  # a forest can hold it


def test_changed_step_rewards_are_written_where_a_fork_would_inherit_the_old_ones() -> None:
    turns = [{"action": [1], "reward": 1.0}, {"action": [2]}]
    f = Forest.from_records([record("a", turns), fork("a", 0, None, [{"action": [3]}])])
    g = f.replace(step_reward=torch.tensor([1.0, 0.0, 7.0, 0.0], dtype=torch.float64))
    assert view(Forest.from_records(g.to_records())) == view(g)


@pytest.mark.parametrize("name", ["step_finish", "step_info", "action_text", "observation_text", "prompt_text"])
@fewer
@given(forest=forests(mixed_turns=False), data=st.data())
def test_what_a_fork_would_inherit_is_written_where_it_has_been_changed(
    name: str, forest: Forest, data: st.DataObject
) -> None:
    values = st.sampled_from([{}, {"k": 1}] if name == "step_info" else [None, "stop", "length"])
    rows = len(getattr(forest, name))
    changed = forest.replace(**{name: data.draw(st.lists(values, min_size=rows, max_size=rows))})
    assert view(Forest.from_records(changed.to_records())) == view(changed)


def test_equal_observations_with_other_media_are_not_shared() -> None:
    turns = [[{"observation": [8], "action": [1], "media": media}] for media in (["a.png"], ["b.png"], [], ["a.png"])]
    f = Forest.from_records([record(f"t{i}", t, prompt=[7]) for i, t in enumerate(turns)])
    assert [t["steps"][0]["media"] for t in view(f)] == [["a.png"], ["b.png"], [], ["a.png"]]
    assert (f.kind == OBSERVATION).sum() == 3


# ---------------------------------------------------------------- malformed
TURN = {"action": [1, 2, 3]}
BAD: list[tuple[Json | list[Json], str]] = [
    (record(turn=[]), "turn is not a known key; did you mean 'turns'"),
    (record(turns=[{**TURN, "log_prob": []}]), r"turns\[0\].log_prob is not a known key; did you mean 'logprob'"),
    (record(fork={"of": "a", "turn": 0, "tok": 1}), "fork.tok is not a known key"),
    (record(schema="gxpo.rollouts/2"), "schema input should be 'gxpo.rollouts/1'"),
    ({k: v for k, v in record().items() if k != "schema"}, "schema is missing"),
    ({k: v for k, v in record().items() if k != "group"}, "group is missing"),
    ({k: v for k, v in record().items() if k != "turns"}, "turns is missing"),
    (record(group=3), "group input should be a valid string"),
    (record(id=None), "id input should be a valid string"),
    (record(turns=[]), "turns is empty"),
    (record(turns={}), "turns input should be a valid list"),
    (record(turns=[3]), r"turns\[0\] input should be"),
    (record(turns=[{}]), r"turns\[0\].action is missing"),
    (record(turns=[{"action": [1, "2"]}]), r"turns\[0\].action\[1\] input should be a valid integer"),
    (record(turns=[{"action": [1.0]}]), r"turns\[0\].action\[0\] input should be a valid integer"),
    (record(turns=[{"action": [True]}]), r"turns\[0\].action\[0\] input should be a valid integer"),
    (record(turns=[{"action": [-2]}]), r"turns\[0\].action\[0\] input should be greater"),
    (record(turns=[{"action": [2**63]}]), r"turns\[0\].action\[0\] input should be less"),
    (record(turns=[{"action": "123"}]), r"turns\[0\].action input should be a valid list"),
    (record(turns=[{**TURN, "observation": [-1]}]), r"turns\[0\].observation\[0\] input should be greater"),
    (record(turns=[{**TURN, "logprob": [-1.0]}]), r"turns\[0\].logprob has 1 values for 3 action tokens"),
    (record(turns=[{**TURN, "logprob": [-1, "x", None]}]), r"turns\[0\].logprob\[1\] input should be a valid number"),
    (
        record(turns=[{**TURN, "logprob": [float("-inf")] * 3}]),
        r"turns\[0\].logprob\[0\] input should be a finite number",
    ),
    (record(turns=[{**TURN, "trainable": [True]}]), r"turns\[0\].trainable has 1 values for 3"),
    (record(turns=[{**TURN, "trainable": 1}]), r"turns\[0\].trainable input should be a valid boolean or a list"),
    (record(turns=[{**TURN, "reward": float("nan")}]), r"turns\[0\].reward input should be a finite number"),
    (record(turns=[{**TURN, "reward": True}]), r"turns\[0\].reward input should be a valid number"),
    (record(turns=[{**TURN, "policy_version": "3"}]), r"turns\[0\].policy_version input should be a valid integer"),
    (
        record(turns=[{**TURN, "observation": [1], "context": [2]}]),
        r"turns\[0\].context is given together with `observation`",
    ),
    (record(turns=[{**TURN, "after": 0}]), r"turns\[0\].after is 0, but this is turn 0"),
    (record(turns=[TURN, {**TURN, "caller": 1}]), r"turns\[1\].caller is 1, but this is turn 1"),
    (record(turns=[TURN, {**TURN, "after": -1}]), r"turns\[1\].after input should be greater"),
    (
        record(turns=[{**TURN, "segments": [0, 3]}]),
        r"turns\[0\].segments \[0, 3\] are not increasing positions within 3",
    ),
    (record(turns=[{**TURN, "segments": [0, 2, 1]}]), r"turns\[0\].segments"),
    (record(turns=[{**TURN, "segments": [0, 0]}]), r"turns\[0\].segments"),
    (record(turns=[{**TURN, "segments": [1]}]), r"turns\[0\].segments \[1\]: the first segment begins at 0"),
    (record(turns=[{**TURN, "segments": []}]), r"turns\[0\].segments \[\]: the first segment begins at 0"),
    (record(turns=[{"action_text": "x", "logprob": [-1.0]}]), r"turns\[0\].logprob has 1 values for no action tokens"),
    (
        record(turns=[{"action_text": "x", "segments": [0]}]),
        r"turns\[0\].segments is given for an action that is text only",
    ),
    (record(turns=[{**TURN, "extras": {"x": [1, 2, 3]}}]), r"turns\[0\].extras.x is not a tensor"),
    (record(turns=[{**TURN, "extras": {"x": torch.ones(2)}}]), r"turns\[0\].extras.x is not a tensor with leading"),
    (record(turns=[{**TURN, "extras": {"x": "a.safetensors#k"}}]), r"turns\[0\].extras.x 'a.safetensors#k'"),
    (record(reward=float("inf")), "reward input should be a finite number"),
    (record(reward="1"), "reward input should be a valid number"),
    (record(rewards={"x": float("nan")}), "rewards.x input should be a finite number"),
    (record(rewards=[1.0]), "rewards input should be a valid dictionary"),
    (record(weight=-1.0), "weight input should be greater"),
    (record(weight=float("nan")), "weight input should be a finite number"),
    (record(success=1), "success input should be a valid boolean"),
    (record(compared=None), "compared input should be a valid boolean"),
    (record(prompt=[1, None]), r"prompt\[1\] input should be a valid integer"),
    ([1, 2], "a record is a mapping"),  # type: ignore[list-item]
]
AFTER_A: list[tuple[Json, str]] = [
    (record("a"), "id 'a' is the id of an earlier record too"),
    (fork("z", 0, 0, [TURN]), "fork.of is 'z', which is no earlier record"),
    (fork("f", 0, 0, [TURN]), "fork.of is 'f', which is no earlier record"),
    (fork("a", 2, 0, [TURN]), "fork.turn is 2; 'a' has 2 turns"),
    (fork("a", -1, 0, [TURN]), "fork.turn input should be greater"),
    (fork("a", 0, 4, [TURN]), "fork.token is 4; turn 0 of 'a' has 3 action tokens"),
    (fork("a", 0, -1, [TURN]), "fork.token input should be greater"),
    (fork("a", 1, 1, [TURN]), "fork.token is 1; turn 1 of 'a' is known as text only"),
    (fork("a", 0, 1, []), "turns is empty"),
    (fork("a", 0, 1, [TURN], prompt=[7]), "prompt is the one of 'a'"),
    (fork("a", 0, None, [TURN], prompt=[8]), "prompt is the one of 'a'"),
    (fork("a", 0, 1, [{**TURN, "observation": [1]}]), r"turns\[0\].observation is taken from the base"),
    (fork("a", 0, 0, [{**TURN, "context": [1]}]), r"turns\[0\].context is taken from the base"),
    (fork("a", 0, 3, [{**TURN, "media": ["x"]}]), r"turns\[0\].media is taken from the base"),
    (fork("a", 1, 0, [{**TURN, "after": 0}]), r"turns\[0\].after is taken from the base"),
    (fork("a", 1, 0, [{**TURN, "caller": 0}]), r"turns\[0\].caller is taken from the base"),
    (fork("a", 0, 1, [{**TURN, "segments": [0]}]), r"turns\[0\].segments the base's turn has no segments"),
    (fork("a", 0, None, [{**TURN, "after": 1}]), r"turns\[0\].after is 1, but this is turn 1"),
    (record("b", [{**TURN, "extras": {"x": torch.ones(3, 1)}}]), r"extras.x is torch.float32 with 2 dimensions"),
]
FIRST = record("a", [{**TURN, "extras": {"x": torch.ones(3)}}, {"action_text": "yes"}], prompt=[7])


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[m for _, m in BAD])
def test_a_malformed_record_is_named_with_its_field(bad: Json, message: str) -> None:
    with pytest.raises(RecordError, match=f"^record 2: {message}") as caught:
        Forest.from_records([record("first"), bad])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("bad", "message"), AFTER_A, ids=[m for _, m in AFTER_A])
def test_a_record_that_contradicts_an_earlier_one(bad: Json, message: str) -> None:
    with pytest.raises(RecordError, match=f"^record 2: .*{message}") as caught:
        Forest.from_records([FIRST, bad])
    assert "\n" not in str(caught.value)


GOOD_LINE = json.dumps(record("first"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object, but"),
        ("3", "not a JSON object, but 3"),
        (GOOD_LINE[:-1], "not a JSON object"),
        (GOOD_LINE + GOOD_LINE, "not a JSON object: Extra data"),
        (json.dumps(record("b", info={"x": float("nan")})), "NaN is not a finite number"),
        (json.dumps(record("b", reward=float("-inf"))), "-Infinity is not a finite number"),
        (json.dumps(record("b")).replace('"b"', '"b", "reward": 1e999'), "1e999 is not a finite number"),
        (json.dumps(record("b")).replace('"b"', '"b", "id": "c"'), "key 'id' is given twice"),
        ("[" * 100_000, "not a JSON object"),
        (json.dumps(record("b", groups="x")), "groups is not a known key; did you mean 'group'"),
        (json.dumps(record("first")), "id 'first' is the id of an earlier record"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD_LINE}\n\n{line}\n{GOOD_LINE}\n")
    with pytest.raises(RecordError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:3: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD_LINE.encode() + b"\n\xff\xfe\n")
    with pytest.raises(RecordError, match=r"a.jsonl:2: not a JSON object: .*decode"):
        load(tmp_path / "a.jsonl")


def test_empty_and_missing_files(tmp_path: Path) -> None:
    for text in ("", "\n\n"):
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(RecordError, match=r"a\.jsonl: holds no records"):
            load(tmp_path / "a.jsonl")
    for path in (tmp_path / "b.jsonl", tmp_path):
        with pytest.raises(RecordError, match="no such file"):
            load(path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("x.safetensors#nope", "nope"),
        ("y.safetensors#1", "y.safetensors"),
        ("x.safetensors", "is not a 'file.safetensors#key'"),
        ("../x.safetensors#1.0.x", "of a file beside the records"),
        ("broken.safetensors#k", "broken"),
    ],
)
def test_tensors_that_can_not_be_read(tmp_path: Path, reference: str, message: str) -> None:
    dump(Forest.from_records([FIRST]), tmp_path / "x.jsonl")
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors")
    bad = record("b", [{**TURN, "extras": {"x": reference}}])
    (tmp_path / "a.jsonl").write_text(json.dumps(bad) + "\n")
    with pytest.raises(RecordError, match=r"a.jsonl:1: turns\[0\].extras.x") as caught:
        load(tmp_path / "a.jsonl")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_last_line_alone_refuses_the_whole_file(tmp_path: Path) -> None:
    lines = [json.dumps(r) for r in random_records(5)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    assert view(load(path)) == expand(random_records(5))
    path.write_text("\n".join([*lines, "{"]))
    with pytest.raises(RecordError, match=f":{len(lines) + 1}:"):
        load(path)


# ---------------------------------------------------------------- the printed schema
def test_the_schema_names_every_key_with_its_default() -> None:
    schema = json.loads(json.dumps(Record.model_json_schema(by_alias=True)))
    assert set(schema["required"]) == {"schema", "group", "id", "turns"}
    assert schema["additionalProperties"] is False
    turn, fork_ = schema["$defs"]["Turn"], schema["$defs"]["Fork"]
    assert set(fork_["required"]) == {"of", "turn"}
    for model in (schema, turn, fork_):
        for name, key in model["properties"].items():
            assert "default" in key or name in model.get("required", []), name
    defaults = {k: v.get("default") for k, v in turn["properties"].items()}
    assert (defaults["agent"], defaults["policy"], defaults["policy_version"]) == ("agent", "main", 0)
    assert defaults["trainable"] is True and defaults["extras"] == defaults["info"] == {}
    assert schema["properties"]["weight"]["default"] == 1.0 and schema["properties"]["compared"]["default"] is True
    assert schema["properties"]["reward"]["default"] is None and schema["properties"]["origin"]["default"] == "policy"


def test_files_that_records_name_are_regular_files_and_short_in_errors(tmp_path):
    turn = {"action": [1]}
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "0", "reward": 1.0, "turns": [turn]}
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "header.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    names = {"pipe": "is a pipe", "device": "is a device", "folder": "is a directory", "header": "header too large",
             "x" * 5000: "file name too long", "a\0b": "no such file", "absent": "no such file"}  # fmt: skip
    for name, why in names.items():
        turn["extras"] = {"a": f"{name}.safetensors#1.0.a"}
        (tmp_path / "r.jsonl").write_text(json.dumps(record) + "\n")
        with pytest.raises(RecordError, match=why) as caught:
            load(tmp_path / "r.jsonl")
        assert len(str(caught.value)) < 400 + len(str(tmp_path))
    del turn["extras"]
    for place in (["a", 1, "x"], [0, 1.5, "x"], [0, 10**30, "x"], [0, 1, "x" * 5000], [0, 1, None], [True, 1, "x"]):
        with pytest.raises(RecordError, match="media_at") as caught:
            parse([{**record, "turns": [{"observation": [7], "media_at": [place], **turn}]}])
        assert len(str(caught.value)) < 400

"""Reading records: what turns, contexts and agents become, and errors that name the record and the field."""

from __future__ import annotations

import pytest
import torch
from tests.forest.record_rows import FIRST, TURN, Json, fork, record
from tests.naive import view

from gxpo.base.errors import GxpoError, RecordError
from gxpo.forest.forest import ACTION, OBSERVATION, PROMPT, Forest


# ---------------------------------------------------------------- the rules
def test_e1_what_a_template_adds_opens_the_next_observation() -> None:
    f = Forest.from_records([record(prompt=[7], turns=[{"action": [1]}, {"observation": [90, 91, 8], "action": [2]}])])
    assert f.kind.tolist() == [PROMPT, ACTION, OBSERVATION, ACTION]
    assert f.token[f.path_token].tolist() == [1, 2] and f.trainable.tolist() == [False, True, False, False, False, True]


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


def test_e8_a_rebuilt_context_has_a_root_path_of_its_own() -> None:
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


def test_every_agent_has_a_context_of_its_own() -> None:
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


# ---------------------------------------------------------------- text
def test_text_only_records_report_the_missing_ids() -> None:
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


def test_contexts_that_begin_alike_store_that_once() -> None:
    # 20 tokens in common with the prompt, then 18 with another context: 20 + 2, + 4 (of 24), + 3, and the actions' 4
    begin = list(range(100, 120))

    def turn(*rest: int) -> dict[str, object]:
        return {"context": [*begin, *rest], "action": [1]}

    line = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [*begin, 7, 8], "reward": 1.0,
            "turns": [{"action": [1]}, turn(9, 9, 9, 5), turn(9, 9, 6), turn(9, 9, 9, 5)]}  # fmt: skip
    forest = Forest.from_records([line])
    assert forest.n_tokens == 22 + 4 + 1 + 4
    contexts = [forest.context(int(forest.parent[a])) for a in forest.step_action]
    assert contexts == [[*begin, 7, 8], [*begin, 9, 9, 9, 5], [*begin, 9, 9, 6], [*begin, 9, 9, 9, 5]]
    again = Forest.from_records(forest.to_records())
    assert again.n_tokens == forest.n_tokens and again.parent.tolist() == forest.parent.tolist()
    assert Forest.from_records([line], share=False).n_tokens == 22 + 24 + 23 + 24 + 4


def test_a_short_beginning_is_stored_for_each_context() -> None:
    turns = [{"action": [1]}, {"context": [*range(15), 3], "action": [1]}]
    line = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [*range(15), 2], "reward": 1.0}
    assert Forest.from_records([line | {"turns": turns}]).n_tokens == 16 + 16 + 2

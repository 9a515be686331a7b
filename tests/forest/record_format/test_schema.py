"""The record schema: its keys, their defaults, and the example of the documentation."""

from __future__ import annotations

import json

from tests.forest.record_rows import record

from gxpo.forest.forest import Forest
from gxpo.forest.records import Record


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

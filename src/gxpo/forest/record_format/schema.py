"""Schema of the rollout record format `gxpo.rollouts/1`: pydantic models of one JSON line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "gxpo.rollouts/1"
_LAST = 2**63 - 1

Finite = Annotated[float, Field(allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, le=_LAST)]
Ids = list[Index]
MediaAt = list[Annotated[list[Any], Field(min_length=3, max_length=3)]]
Action = list[Annotated[int, Field(ge=-1, le=_LAST)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class Fork(_Strict):
    """Fork of another trajectory: keeps the turns of `of` before `turn`, and the first `token` action tokens of that
    turn (null: all of it)."""

    of: str = Field(description="id of a trajectory that stands earlier in the file")
    turn: Index = Field(description="counted from 0 in the whole trajectory, inherited turns included")
    token: Index | None = Field(
        None,
        description="0 <= token <= length: the record's first turn goes on after that many action tokens of the turn, "
        "and has no observation, context or prompt; null: the whole turn is kept with its reward, and the record's "
        "first turn is the next one",
    )


class Turn(_Strict):
    """One turn: an observation (appended to the running context) or a whole `context`, and the action that follows."""

    agent: str | None = Field(
        None, json_schema_extra={"default": "agent"}, description="who acts; where a fork goes on in a turn: the base's"
    )
    policy: str | None = Field(
        None, json_schema_extra={"default": "main"}, description="whose parameters acted; in such a fork: the base's"
    )
    policy_version: Index | None = Field(
        None, json_schema_extra={"default": 0}, description="version of those parameters; in such a fork: the base's"
    )
    versions: list[Annotated[list[Index], Field(min_length=2, max_length=2)]] = Field(
        [], description="[token, version] where the version changes within the action; `policy_version`: the first's"
    )
    state: str | None = Field(
        None, description="environment state acted in; null unknown, or in a fork that goes on in a turn: the base's"
    )
    observation: Ids | None = Field(None, description="token ids appended to the agent's running context; null: none")
    context: Ids | None = Field(None, description="the whole prompt of this turn, rebuilt; instead of `observation`")
    action: Action | None = Field(
        None,
        description="required: token ids, -1 where a step is not a vocabulary id; left out only beside `action_text`",
    )
    logprob: list[Finite | None] | None = Field(
        None, description="natural log-probs of the policy that sampled, one per action token; null unknown"
    )
    trainable: bool | list[bool] = Field(True, description="for the whole action, or one per action token")
    sampled_under: Ids | None = Field(
        None, description="ids of the context it was sampled under where that is not the one it is trained under"
    )
    reward: Finite | None = Field(None, description="step reward; null: none. Never added to the outcome")
    finish: str | None = Field(None, description="why the action ended: stop, length, misread...")
    after: Index | None = Field(None, description="index of the turn that it follows in time; null: the turn before")
    caller: Index | None = Field(None, description="index of the turn that invoked it; null: none")
    segments: Ids | None = Field(
        None,
        description="where each segment begins in the action, the first at 0; null: none. Where a fork goes on in a "
        "turn: where further segments begin; tokens before the first of them belong to the base's last segment",
    )
    media: list[str] = Field([], description="references of images and the like in the observation or context")
    media_at: MediaAt = Field([], description="as of the record, in the observation or context")
    extras: dict[str, Any] = Field(
        {}, description="name: 'file.safetensors#key' beside this file; leading dimension: the action's tokens"
    )
    biases: dict[str, Any] = Field(
        {},
        description="what was added to logits before temperature, by the hash that extras.bias holds for a token: "
        "{ids, values (null: forbidden), allowed (bits of the ids that a grammar allows, zlib, base64)}",
    )
    observation_text: str | None = Field(None, description="the observation as text")
    action_text: str | None = Field(None, description="the action as text")
    info: dict[str, Any] = Field({}, description="anything; the only place for other keys")


class Record(_Strict):
    """One trajectory, one JSON line."""

    schema_: Literal["gxpo.rollouts/1"] = Field(alias="schema")
    task: str | None = Field(None, description="what was asked, the same string in every step; null: the group")
    group: str = Field(description="trajectories of one group are compared; opaque")
    id: str = Field(description="unique in the file")
    fork: Fork | None = Field(None, description="what this trajectory inherits of another")
    prompt: Ids = Field([], description="opens the context of every agent that has not given a `context`")
    media_at: MediaAt = Field(
        [],
        description="[first, n, reference]: tokens first ... first + n - 1 of the prompt, all the model's placeholder, "
        "stand for a picture: 'sha256:DIGEST.png' (or .npy), the file DIGEST.png in media/ beside this one",
    )
    prompt_text: str | None = Field(None, description="the prompt as text; of a fork: the base's")
    turns: list[Turn]
    reward: Finite | None = Field(None, description="the outcome, complete in itself; null = unscored, never 0")
    rewards: dict[str, Finite | None] = Field(
        {}, description="named components of the outcome; null = could not be scored"
    )
    success: bool | None = Field(None, description="the verifier's verdict; null unknown")
    compared: bool = Field(True, description="takes part in its group's statistics")
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(1.0, description="multiplies its loss")
    origin: str = Field("policy", description="policy, replay, demonstration, baseline, hint, correction...")
    truncated: bool = Field(False, description="cut off before it ended by itself")
    sampling: dict[str, Any] = Field({}, description="temperature, top_k, top_p...")
    final_state: str | None = Field(None, description="environment state after the last turn")
    final_observation: Ids = Field([], description="token ids that followed the last action")
    info: dict[str, Any] = Field({}, description="anything; the only place for other keys")

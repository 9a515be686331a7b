"""gymnasium environments played in text: observations described, actions named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gxpo.base.errors import ConfigError, need
from gxpo.environments.envs.actions import action_text, find_action
from gxpo.parts.protocols import TimeStep

DEFAULT_TURNS = 50  # where gymnasium's registry has no limit
ID_LENGTH = 80  # characters of a state id that is written out; longer ones are hashed


class GymEnv:
    """A gymnasium environment with discrete actions (or text actions), played in text.

    Subclass it and set what differs; every attribute can also be an option of `tasks.options`:

    id            of gymnasium's registry
    kwargs        for `gymnasium.make`
    actions       names of the actions, in gymnasium's order; numbers where there are none
    instructions  text before the first observation; by default how to act
    max_turns     by default what the registry says

    The reward of a turn is gymnasium's. An action that can't be read takes a turn and pays 0; gymnasium does not see
    it. The state id is made of the observation: right where the observation is the state, else override `state`. What
    gymnasium gives as `info` is not passed on, but its `action_mask` says which actions are legal.

    Needs gxpo[envs]. Raises `ConfigError` for an unknown id, other action spaces, or a wrong number of names.
    """

    id: str = ""
    kwargs: Mapping[str, Any] = {}
    actions: Sequence[str] = ()
    instructions: str = ""
    max_turns: int = 0
    provides: ClassVar[tuple[str, ...]] = ("step_rewards",)

    def __init__(
        self,
        id: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        instructions: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        self.id = id or self.id
        if not self.id:
            raise ConfigError("gymnasium: no id; name one, as in gymnasium:FrozenLake-v1")
        gymnasium = need("gymnasium", "envs")
        try:
            self.env = gymnasium.make(self.id, disable_env_checker=True, **{**self.kwargs, **(kwargs or {})})
        except gymnasium.error.Error as error:
            raise ConfigError(f"gymnasium can't make {self.id!r}: {error}") from error
        space = self.env.action_space
        self._discrete = isinstance(space, gymnasium.spaces.Discrete)
        if not self._discrete and not isinstance(space, gymnasium.spaces.Text):
            raise ConfigError(f"gymnasium's {self.id} acts in {space}; a policy in text needs Discrete or Text actions")
        # options win over attributes of the subclass, these over gymnasium's registry
        self.actions = self._names(actions or self.actions)
        self.max_turns = max_turns or self.max_turns or self.env.spec.max_episode_steps or DEFAULT_TURNS
        action_list = f" The actions are: {', '.join(self.actions)}." if self._discrete else ""
        self._action_format = f"Answer with <action>...</action>.{action_list}"
        self.instructions = instructions or self.instructions or self._action_format

    # ------------------------------------------------------------ a subclass may override
    def describe(self, observation: Any) -> str:
        """Text of an observation for the policy."""
        return _readable(observation)

    def state(self, observation: Any) -> str | None:
        """State id of an observation; None if the observation does not determine the state."""
        return state_id(observation)

    def success(self, total: float, terminated: bool) -> bool | None:
        """Verdict on a finished episode: it terminated with a positive return."""
        return terminated and total > 0

    # ------------------------------------------------------------ the protocol
    def reset(self, seed: int) -> TimeStep:
        self._observation, self._info = self.env.reset(seed=seed)
        self._total = 0.0
        return TimeStep(self.describe(self._observation), self.state(self._observation))

    def step(self, action: str) -> TimeStep:
        # gymnasium never sees an action that can't be read; the turn counts all the same
        action_value = self._parse_action(action)
        if action_value is None:
            text = f"No action could be read. {self._action_format}\n{self.describe(self._observation)}"
            return TimeStep(text, self.state(self._observation), 0.0, action_error="malformed")
        self._observation, reward, terminated, truncated, self._info = self.env.step(action_value)
        self._total += float(reward)
        is_over = bool(terminated or truncated)
        return TimeStep(
            self.describe(self._observation),
            self.state(self._observation),
            float(reward),
            done=is_over,
            success=self.success(self._total, bool(terminated)) if is_over else None,
            truncated=bool(truncated and not terminated),
        )

    def legal(self) -> list[str]:
        """Names of the actions that gymnasium does not mask; empty if actions are texts."""
        mask = self._info.get("action_mask")
        return [name for k, name in enumerate(self.actions) if mask is None or mask[k]]

    def close(self) -> None:
        self.env.close()

    def _names(self, names: Sequence[str]) -> tuple[str, ...]:
        if not self._discrete:
            return ()
        n = int(self.env.action_space.n)
        if names and len(names) != n:
            raise ConfigError(f"gymnasium's {self.id} has {n} actions, not {len(names)}: {', '.join(names)}")
        return tuple(names) or tuple(str(k) for k in range(n))

    def _parse_action(self, action: str) -> Any:
        if self._discrete:
            name = find_action(action, self.actions)
            return None if name is None else int(self.env.action_space.start) + self.actions.index(name)
        text = action_text(action)
        return text if self.env.action_space.contains(text) else None


def state_id(observation: Any) -> str:
    """State id of an observation of any type: equal observations have equal ids.

    >>> state_id(7), state_id((3, [1.5, 2]))
    ('7', '[3, [1.5, 2]]')
    """
    text = json.dumps(observation, sort_keys=True, default=_canonical)
    return text if len(text) <= ID_LENGTH else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(value: Any) -> Any:
    """Convert a value for `state_id` that JSON does not have."""
    # a picture's pixels as text would take megabytes
    shape = getattr(value, "shape", None)
    if shape is not None and value.size * 4 > ID_LENGTH:
        return [str(value.dtype), list(shape), hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()]
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _readable(observation: Any) -> str:
    """Write an observation as text, numbers to three digits, parts one after the other."""
    plain = observation.tolist() if hasattr(observation, "tolist") else observation
    if isinstance(plain, Mapping):
        return "; ".join(f"{name}: {_readable(part)}" for name, part in plain.items())
    if isinstance(plain, (list, tuple)):
        return f"[{', '.join(map(_readable, plain))}]"
    return f"{plain:.3g}" if isinstance(plain, float) else str(plain)

"""Episodes in a learned model of a world (WMPO), or acted after a rehearsal in it (StarWM)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import EnvFailure, Reply, Sampling, Session, TimeStep, instance_of
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.between import (
    CountedModel,
    Learned,
    Modelled,
    Predict,
    Rehearsed,
    Rules,
    text_of_step,
    with_component,
)
from gxpo.sampling.rollouts.build import Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.wording import check_template

COUNTED = "counted"


@part("imagined", stage="rollout")
@dataclass(frozen=True)
class Imagined(Rollout):
    """`group_size` episodes of each task in a model of its world; or in the world, each action rehearsed in the model.

    model      "counted": a table of the answers that the world gave to (observation, action), the most frequent one
               counts; or FILE.py:NAME, a function of (observation, action) that gives a `Prediction` (`gxpo.sampling.
               rollouts.between`), or None where it knows no answer
    place      "world": the model answers in the world's place, from the world's first observation on; "turn": every
               action is proposed first, and the policy reads what the model predicts before it acts in the world
    exploration_steps  steps of the run whose episodes are the world's own, which fill the table ("world")
    checks     episodes of a step whose actions are played again in the world: component "agreement" is the share of
               their answers that were the model's, 1 of a model that is the world
    judge      FILE.py:NAME, a function of (first observation, observation) that gives the chance of a success from 0 to
               1: at `threshold` the episode ends and is one. "": success is the model's
    on_unknown  an episode in which the model can't answer is "unscored", so that nothing is learned from it, or it has
               "failed", so that leaving what the model knows is held back
    max_state  most characters of a predicted observation
    max_pairs  pairs of observation and action that the table holds
    template   of "turn": {observation}, and {predicted}, which is "unknown" where the model can't tell

    Episodes in which the model can't answer are counted as of a broken environment. Held-out tasks are episodes of the
    world itself.

    Source: WMPO, arXiv 2511.09515, and its code (threshold .82); StarWM, arXiv 2602.14857 ("turn").
    """

    group_size: Count = 8
    model: Any = COUNTED
    place: Literal["world", "turn"] = "world"
    exploration_steps: Limit = 5
    checks: Limit = 1
    judge: Any = ""
    threshold: float = 0.82
    on_unknown: Literal["unscored", "failed"] = "unscored"
    max_state: Count = 10_000
    max_pairs: Count = 10_000
    template: str = "{observation}\nThat would lead to:\n{predicted}\nYour action:"
    table: CountedModel = field(init=False, repr=False, compare=False)

    requires = ("restarts",)
    components = ("agreement",)
    is_held_out = False

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("predicted",), ("observation",))
        object.__setattr__(self, "table", CountedModel(self.max_pairs))

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for a model or judge that can't be used."""
        if self.model == COUNTED and self.place == "world" and not self.exploration_steps:
            raise ConfigError(
                "rollout.exploration_steps=0 leaves the table empty: explore some steps, or name a rollout.model"
            )
        for key in ("model", "judge"):
            if getattr(self, key) not in (COUNTED, ""):
                user_function(getattr(self, key), f"rollout.{key}")

    @property
    def remembers(self) -> bool:
        """True if the table is part of the checkpoint."""
        return self.model == COUNTED

    @property
    def evaluation(self) -> Callable[[int], Any]:
        """The rollout for held-out tasks: rehearsed ones, too; else AttributeError: episodes of the world itself."""
        if self.place == "world":
            raise AttributeError("held-out tasks are attempted independently")
        return self._held_out

    def _held_out(self, samples: int) -> Imagined:
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        options.update(group_size=samples, checks=0)
        twin = _HeldOut(**options)
        object.__setattr__(twin, "table", self.table)
        return twin

    def _play(self, session: Session) -> Play:
        play = super()._play(session)
        predict: Predict = self.table if self.model == COUNTED else user_function(self.model, "rollout.model")
        judge = user_function(self.judge, "rollout.judge") if self.judge else None
        rules = Rules(judge, self.threshold, self.max_state, self.on_unknown)
        learn = self.table if self.model == COUNTED and not self.is_held_out else None
        if self.place == "turn":
            Rehearsed(play.envs, predict, rules, self.template, learn).stand(play)
            play.rules = dataclasses.replace(play.rules, max_turns=2 * play.rules.max_turns)
        elif self._explores(session):
            Learned(play.envs, self.table).stand(play)
        else:
            Modelled(play.envs, predict, rules).stand(play)
        return play

    def _explores(self, session: Session) -> bool:
        return self.model == COUNTED and session.step <= self.exploration_steps

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        agreement = [math.nan] * len(rounds[0].episodes)
        if isinstance(play.envs, Modelled):
            playable = [i for i, e in enumerate(rounds[0].episodes) if e.failure is None]
            for i in playable[: self.checks]:
                agreement[i] = self._agreement(rounds[0].episodes[i], play.envs)
        return with_component(rounds[0].forest, "agreement", agreement)

    @staticmethod
    def _agreement(episode: Episode, envs: Modelled) -> float:
        """Play an episode's actions in the world itself; return the share of answers that were the model's."""
        world, name, n_same, replies = envs.inner, episode.name, 0, [r for r in episode.replies if r is not None]
        predicted_texts = [*[t["observation_text"] for t in episode.turns[1:]], text_of_step(episode.time_step)]
        answer = world.reset({name: instance_of(world, episode.task)})[name]
        for reply, expected_text in zip(replies, predicted_texts, strict=True):
            if isinstance(answer, EnvFailure) or answer.done:
                break
            answer = world.step({name: Reply(reply.content, None, reply.calls)})[name]
            n_same += isinstance(answer, TimeStep) and text_of_step(answer) == expected_text
        world.finish([name])
        return n_same / max(1, len(replies))

    # ------------------------------------------------------------ memory
    def state_dict(self) -> dict[str, Any]:
        return {"table": {key: dict(answers) for key, answers in self.table.table.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"table"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not 'table'")
        self.table.table.clear()
        self.table.table.update({key: Counter(answers) for key, answers in state["table"].items()})


class _HeldOut(Imagined):
    """Rehearsed episodes of held-out tasks, from which the table learns nothing."""

    is_held_out = True

"""Episodes that begin in the middle (Snapshot RL): in a state on the way of a stored trajectory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gxpo.base.errors import GxpoError, RecordError
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Attempts, Draw, Episode, Limit, Text, keyed
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.logged import files_of
from gxpo.sampling.rollouts.reference import EXPERTS, reference_actions
from gxpo.sampling.rollouts.replay import Json, Remembers, ReplayBuffer, plain

EXPERT, OWN = "expert", "own"  # whose trajectories; else a file of records
WAY = "way"  # name of an attempt that goes a stored way, which no record holds


@part("snapshot_start", stage="rollout")
@dataclass(frozen=True)
class SnapshotStart(Remembers, Rollout):
    """`group_size` episodes of each task that all begin in one state on the way of a stored, successful trajectory.

    teacher     whose: "expert", the environment's; "own", the newest successes of this run's earlier steps; else a
                .jsonl file of `gxpo.rollouts/1`, or a folder of such (RUN/rollouts), of another policy
    first_steps steps of the run in which they begin so; from then on, and where no way is known, at the task's own
                start. 0: throughout
    max_stored  successes of a task that are stored, the newest, of which one is drawn; `max_tasks`: see `ReplayBuffer`

    A way is gone once more, unsampled and uncharged, as far as `env.max_turns`: its actions are given to the
    environment, and all its turns are equally likely to be the place. Environments are put there from a snapshot, or by
    the same actions. What was said before is the prompt, of which nothing is trained or paid; `env.max_turns` counts
    from there. All of a group begin in the same state, so that they can be compared; info["begins"] is its turn, and
    info["way"] the way's id. Held-out tasks are attempted from their start.

    Source: Snapshot RL, arXiv 2403.00673, and its code, in MuJoCo.
    """

    group_size: Count = 8
    teacher: Text = EXPERT
    first_steps: Limit = 0
    max_stored: Count = 8
    max_tasks: Count = 10_000
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)
    read: dict[str, list[Json]] = field(init=False, repr=False, compare=False, default_factory=dict)

    forks = True
    allows = EXPERTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks))
        expert = self.teacher == EXPERT
        object.__setattr__(self, "requires", ("expert", "restarts") if expert else ("restarts",))

    @property
    def remembers(self) -> bool:
        """Whether a checkpoint holds stored successes."""
        return self.teacher == OWN

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        if self.first_steps and play.session.step > self.first_steps:
            return [draw.attempts(self.group_size) for draw in draws]
        ways = self._ways(draws, play)
        out: list[Attempts | Fork] = []
        for draw in draws:
            way = ways.get(draw.group)
            at = keyed(play.session, draw.name, "begins").randrange(len(way.stood)) if way is not None else 0
            if way is None or not at:
                out.append(draw.attempts(self.group_size, info={"begins": 0}))
                continue
            noted = {"begins": at, "way": way.info.get("way", EXPERT)}
            for own in draw.attempts(self.group_size).numbers:
                key = dataclasses.replace(way.key, task=draw.name, attempt=own, path=())
                out.append(Fork(way, at, key, f"{draw.name}/{own}", info=noted, anew=True))
        return out

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        place = {draw.group: i for i, draw in enumerate(play.drawn)}
        forest = rounds[0].scored
        forest = forest.select(sorted(range(forest.n_trajectories), key=lambda r: place[forest.group[r]]))
        if self.teacher == OWN:
            whole = [info.get("begins", 0) == 0 for info in forest.info]
            self.buffer.hold(forest.select((forest.success >= 1) & torch.tensor(whole, dtype=torch.bool)))
        return forest

    # ------------------------------------------------------------ ways
    def _ways(self, draws: Sequence[Draw], play: Play) -> dict[str, Episode]:
        """An attempt that has gone a stored way to its end, by the group that begins on it."""
        asked: list[Attempts] = []
        for draw in draws:
            if self.teacher == EXPERT:
                asked.append(draw.attempts(1, label=WAY, actor=reference_actions))
            elif stored := self._stored(draw.task.id):
                way = stored[keyed(play.session, draw.name, "way").randrange(len(stored))]
                asked.append(draw.attempts(1, actor=_Again(way), label=WAY, info={"way": way["id"]}))
        episodes = play.begin(asked)
        play.finish(episodes)
        return {e.group: e for e in episodes if e.failure is None and e.stood}

    def _stored(self, task: str) -> list[Json]:
        if self.teacher == OWN:
            return self.buffer.of(task)
        if not self.read:
            self.read.update(successes(self.teacher, self.max_stored))
        return self.read.get(task, [])


@dataclass(frozen=True, eq=False)
class _Again:
    """Does what was done in a stored trajectory; GxpoError where that leads elsewhere."""

    way: Json

    def __call__(self, episodes: Sequence[Episode], play: Play) -> list[Completion | None]:
        out: list[Completion | None] = []
        for episode in episodes:
            turn = self.way["turns"][len(episode.turns)] if len(episode.turns) < len(self.way["turns"]) else None
            if turn is None or turn.get("state") != episode.said.state:
                raise GxpoError(
                    f"environment {play.envs.name}: the actions of the stored trajectory {self.way['id']!r} lead "
                    f"elsewhere at turn {len(episode.turns)}: it is another environment's, or not deterministic"
                )
            tokens = list(turn["action"])
            out.append(Completion(tokens, [math.nan] * len(tokens), "stop"))
        return out


def successes(path: str, most: int) -> dict[str, list[Json]]:
    """Stored successful trajectories by task, the last `most` of each; RecordError where there is none."""
    found: dict[str, list[Json]] = {}
    for file in files_of(path):
        forest = records.load(file)
        forest.need_ids(f"rollout snapshot_start ({file})")
        for record in forest.select(forest.success >= 1).to_records(share=False):
            found.setdefault(record["task"], []).append(plain(record))
    if not found:
        raise RecordError(f"{path}: no trajectory in it is a success, so there is no way to begin on")
    return {task: own[-most:] for task, own in found.items()}

"""Episodes from intermediate states (Snapshot RL): groups begin in a state of a stored, successful trajectory."""

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
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Limit, Text, random_for
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.logged import files_of
from gxpo.sampling.rollouts.reference import EXPERTS, reference_actions
from gxpo.sampling.rollouts.replay_buffer import Json, Remembers, ReplayBuffer, plain

EXPERT, OWN = "expert", "own"  # values of `teacher`; any other is a file of records
WAY = "way"  # label of an attempt that retraces a stored trajectory; it is in no forest


@part("snapshot_start", stage="rollout")
@dataclass(frozen=True)
class SnapshotStart(Remembers, Rollout):
    """`group_size` episodes of each task that all begin in one state of a stored, successful trajectory.

    teacher     whose trajectories: "expert", the environment's; "own", the newest successes of this run's earlier
                steps; else a .jsonl file of `gxpo.rollouts/1`, or a folder of such (RUN/rollouts), of another policy
    first_steps steps of the run in which episodes begin so; afterwards, and for tasks without a stored trajectory, they
                begin at the task's own start. 0: throughout
    max_stored  most successes stored of a task, the newest ones; one is drawn; `max_tasks`: see `ReplayBuffer`

    The trajectory is retraced, unsampled and uncharged, up to `env.max_turns`: its actions are given to the
    environment, and each of its turns is equally likely to be the start. Environments are put there from a snapshot, or
    by the same actions. All that came before is the prompt, of which nothing is trained or paid; `env.max_turns` counts
    from there. All of a group begin in the same state, so that they can be compared; info["begins"] is its turn, and
    info["way"] the trajectory's id. Held-out tasks are attempted from their start.

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
        """True if stored successes are part of the checkpoint."""
        return self.teacher == OWN

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        if self.first_steps and play.session.step > self.first_steps:
            return [draw.attempts(self.group_size) for draw in draws]
        # one attempt retraces a trajectory for each draw; its group are forks of it, with prompts of their own
        ways = self._play_ways(draws, play)
        requests: list[Attempts | Fork] = []
        for draw in draws:
            way = ways.get(draw.group)
            start_turn = (
                random_for(play.session, draw.name, "begins").randrange(len(way.snapshots)) if way is not None else 0
            )
            if way is None or not start_turn:
                requests.append(draw.attempts(self.group_size, info={"begins": 0}))
                continue
            info = {"begins": start_turn, "way": way.info.get("way", EXPERT)}
            for number in draw.attempts(self.group_size).numbers:
                key = dataclasses.replace(way.key, task=draw.name, attempt=number, path=())
                requests.append(Fork(way, start_turn, key, f"{draw.name}/{number}", info=info, anew=True))
        return requests

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        group_order = {draw.group: i for i, draw in enumerate(play.step_draws)}
        forest = rounds[0].scored
        forest = forest.select(sorted(range(forest.n_trajectories), key=lambda r: group_order[forest.group[r]]))
        if self.teacher == OWN:
            # a success that began in the middle has no whole way: it is not stored
            from_start = [info.get("begins", 0) == 0 for info in forest.info]
            self.buffer.hold(forest.select((forest.success >= 1) & torch.tensor(from_start, dtype=torch.bool)))
        return forest

    # ------------------------------------------------------------ ways
    def _play_ways(self, draws: Sequence[Draw], play: Play) -> dict[str, Episode]:
        """Retrace one stored trajectory for each draw; return the attempts by group, without those that broke."""
        requests: list[Attempts] = []
        for draw in draws:
            if self.teacher == EXPERT:
                requests.append(draw.attempts(1, label=WAY, actor=reference_actions))
            elif records := self._stored_records(draw.task.id):
                way = records[random_for(play.session, draw.name, "way").randrange(len(records))]
                requests.append(draw.attempts(1, actor=_Retrace(way), label=WAY, info={"way": way["id"]}))
        episodes = play.begin(requests)
        play.finish(episodes)
        return {e.group: e for e in episodes if e.failure is None and e.snapshots}

    def _stored_records(self, task: str) -> list[Json]:
        if self.teacher == OWN:
            return self.buffer.of(task)
        if not self.read:
            self.read.update(successes(self.teacher, self.max_stored))
        return self.read.get(task, [])


@dataclass(frozen=True, eq=False)
class _Retrace:
    """Actor that repeats the actions of a stored trajectory; GxpoError if they lead to another state."""

    way: Json

    def __call__(self, episodes: Sequence[Episode], play: Play) -> list[Completion | None]:
        out: list[Completion | None] = []
        for episode in episodes:
            turn = self.way["turns"][len(episode.turns)] if len(episode.turns) < len(self.way["turns"]) else None
            if turn is None or turn.get("state") != episode.time_step.state:
                raise GxpoError(
                    f"environment {play.envs.name}: the actions of the stored trajectory {self.way['id']!r} lead "
                    f"elsewhere at turn {len(episode.turns)}: it is another environment's, or this one is not "
                    "deterministic"
                )
            tokens = list(turn["action"])
            out.append(Completion(tokens, [math.nan] * len(tokens), "stop"))
        return out


def successes(path: str, max_records: int) -> dict[str, list[Json]]:
    """Read successful trajectories by task, the last `max_records` of each; RecordError if there is none."""
    records_by_task: dict[str, list[Json]] = {}
    for file in files_of(path):
        forest = records.load(file)
        forest.need_ids(f"rollout snapshot_start ({file})")
        for record in forest.select(forest.success >= 1).to_records(share=False):
            records_by_task.setdefault(record["task"], []).append(plain(record))
    if not records_by_task:
        raise RecordError(f"{path}: no trajectory in it is a success, so there is none to begin from")
    return {task: task_records[-max_records:] for task, task_records in records_by_task.items()}

"""Fidelity of advantage estimators to the true advantage of a turn, in environments where it can be measured.

The advantage of turn t is E[R | history with it] - E[R | history before it], R the outcome of the episode. Worlds can
be taken back to any turn, so each expectation is estimated by episodes of the same policy that go on from there; the
last is the outcome itself. A method's advantage of the turn is the mean credit of the turn's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import SignalPart
from gxpo.base.errors import GxpoError
from gxpo.bench.plan import Entry, Plan, Row
from gxpo.forest import grouped
from gxpo.parts.protocols import Budget, Completion, StreamKey
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.episodes import Play
from gxpo.training.statistics import left_out

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task
    from gxpo.training.loop import Trainer
    from gxpo.training.session import Session

# A method that changes none of these stages has the advantages of grpo.
STAGES = {"credit", "rollout", "reward", "segment"}


@dataclass(frozen=True)
class World:
    """Environment of the fidelity suite: settings of a run with the warm-started tiny model, and sample sizes.

    samples   episodes continued from each history
    practice  steps in which critics and estimators learn first, while the policy stays frozen
    """

    keys: Mapping[str, Any]
    tasks: int = 12
    samples: int = 16
    practice: int = 10


SHARED = {
    "model": "tiny",
    "env.context": "window",
    "sampling.max_new_tokens": 4,
    "objective.aggregate": "token_mean",
}
WORLDS: Mapping[str, World] = {
    "frozenlake": World({**SHARED, "task": "frozenlake", "tasks.options": {"style": "bare"}}),
    "sokoban": World(
        {**SHARED, "task": "sokoban", "tasks.options": {"style": "bare", "size": 5, "max_pushes": 2},
         "env.max_turns": 12}
    ),
    "shop": World({**SHARED, "task": "shop", "tasks.options": {"style": "bare", "partial": False}}),
}  # fmt: skip

# Settings by method, for those whose defaults are made for answers to prompts, not for episodes.
ON_EPISODES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"rollout.unit": "turn"} for name in ("vineppo", "pav", "spo_segment")},
    "vsrm": {"rollout.unit": "turn", "rollout.answer_cue": "", "rollout.answer_tokens": 0},
    **{name: {"rollout.branch_at": "step"} for name in ("rose", "tree_rl")},
    **{name: {"learner.lora_rank": 4} for name in ("aapo", "pvpo")},
}


# ---------------------------------------------------------------- the truth
@dataclass(frozen=True)
class Truth:
    """True advantage [S] of each turn, and `error` [S], the standard error of the estimate from `continuations`."""

    advantage: Tensor
    error: Tensor
    continuations: int

    @property
    def reliability(self) -> float:
        """Reliability: share of the estimates' variance that is not their error."""
        spread = float(self.advantage.var(correction=0))
        return max(0.0, 1 - float(self.error.square().mean()) / spread) if spread > 0 else 0.0


def replay(forest: Forest, tasks: Mapping[str, Task], session: Session) -> tuple[Play, list[Episode]]:
    """Replay the forest's trajectories in the environment, one episode each, so that it can be taken back to any turn.

    GxpoError if an episode takes another course, or was sampled under another context than the environment's own.
    """
    play = Play(session, restorable=True)
    names = [f"{r}:{task}" for r, task in enumerate(forest.task)]
    episodes = play.start([tasks[t] for t in forest.task], names, 1)
    steps = _steps_of(forest)
    token, node = forest.token.tolist(), forest.token_node
    for turn in range(max(map(len, steps), default=0)):
        acting = [r for r, trajectory_steps in enumerate(steps) if turn < len(trajectory_steps)]
        actions = []
        for r in acting:
            action_tokens = forest.path_token[forest.path_step == steps[r][turn]].tolist()
            # A trajectory that was cut or merged can't be replayed.
            if not action_tokens or episodes[r].end is not None:
                raise GxpoError(f"trajectory {forest.id[r]} has a turn {turn} that is no turn of the world")
            # The same context, or the value would be that of another state.
            context_ids = forest.context(int(forest.parent[int(node[action_tokens[0]])]))
            if list(episodes[r].context.ids) != list(context_ids):
                raise GxpoError(
                    f"turn {turn} of trajectory {forest.id[r]} was not sampled under the world's own context"
                )
            actions.append(Completion([token[p] for p in action_tokens], [0.0] * len(action_tokens), "stop"))
        play.take([episodes[r] for r in acting], actions)
    return play, episodes


def _steps_of(forest: Forest) -> list[list[int]]:
    """Step indices of each trajectory, in order of time."""
    out: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
    for s, r in enumerate(forest.step_trajectory.tolist()):
        out[r].append(s)
    return out


def true_advantages(forest: Forest, tasks: Mapping[str, Task], session: Session, samples: int) -> Truth:
    """Monte Carlo advantage of every step, by `samples` episodes after every history; equal histories share theirs."""
    play, episodes = replay(forest, tasks, session)
    with play:
        histories: dict[Any, tuple[Episode, int]] = {}
        keys: list[list[Any]] = []
        # The key holds all that the future depends on, the reward so far included: it is part of the outcome.
        for episode in episodes:
            reward_sum = 0.0
            episode_keys = []
            for turn, snapshot in enumerate(episode.snapshots):
                key = (
                    episode.task.id,
                    snapshot.context.ids,
                    snapshot.time_step.state,
                    snapshot.moves,
                    round(reward_sum, 9),
                )
                histories.setdefault(key, (episode, turn))
                episode_keys.append(key)
                reward_sum += float(episode.turns[turn].get("reward") or 0.0)
            keys.append(episode_keys)
        value, error = _values_of_histories(histories, play, session, samples)
    # V(after the turn) - V(before it); after the last turn the value is the outcome, without error.
    outcome = [_outcome(episode) for episode in episodes]
    advantage = torch.full((forest.n_steps,), torch.nan, dtype=torch.float64)
    spread = torch.zeros(forest.n_steps, dtype=torch.float64)
    for r, episode_keys in enumerate(_steps_of(forest)):
        values = [value[k] for k in keys[r]] + [outcome[r]]
        errors = [error[k] for k in keys[r]] + [0.0]
        for t, s in enumerate(episode_keys):
            advantage[s] = values[t + 1] - values[t]
            spread[s] = (errors[t + 1] ** 2 + errors[t] ** 2) ** 0.5
    return Truth(advantage, spread, samples * len(histories))


def _values_of_histories(
    histories: Mapping[Any, tuple[Episode, int]], play: Play, session: Session, samples: int
) -> tuple[dict[Any, float], dict[Any, float]]:
    """Mean outcome of the episodes continued from each history, and its standard error."""
    forks = []
    for number, (episode, turn) in enumerate(histories.values()):
        for k in range(samples):
            # Streams of their own: continuations must not repeat what the policy has sampled.
            key = StreamKey(session.seed, session.step, f"truth/{episode.task.id}", number, (k,))
            forks.append((episode, turn, key, f"truth/{number}/{k}"))
    play.finish(play.fork(forks))
    continuations = play.episodes[-len(forks) :] if forks else []
    outcome_HK = torch.tensor([_outcome(e) for e in continuations], dtype=torch.float64).reshape(
        len(histories), samples
    )
    mean, error = outcome_HK.mean(1), outcome_HK.std(1) / samples**0.5
    return dict(zip(histories, mean.tolist(), strict=True)), dict(zip(histories, error.tolist(), strict=True))


def _outcome(episode: Episode) -> float:
    reward = episode.env_reward
    if reward is None:
        raise GxpoError(f"an episode of {episode.task.id} broke: {episode.failure}")
    return reward


# ---------------------------------------------------------------- the comparison
def on_turns(forest: Forest, credit: Tensor) -> Tensor:
    """[S]: mean advantage over each turn's tokens."""
    total = torch.zeros(forest.n_steps, dtype=torch.float64).index_add_(0, forest.path_step, credit.to(torch.float64))
    return total / torch.bincount(forest.path_step, minlength=forest.n_steps).clamp_min(1)


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman rank correlation, ties at their mean rank; nan if one of the two is constant.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 30.0, 20.0]))
    0.5
    """
    single_group = torch.zeros(len(x), dtype=torch.int64)
    a, b = (grouped.rank(v, single_group) - (len(v) - 1) / 2 for v in (x, y))
    size = float(a.square().sum() * b.square().sum()) ** 0.5
    return float((a * b).sum()) / size if size > 0 else float("nan")


def _tasks_of(forest: Forest) -> Tensor:
    """Integer id of each trajectory's task [R], the same in every group."""
    place = {name: i for i, name in enumerate(dict.fromkeys(forest.task))}
    return torch.tensor([place[name] for name in forest.task])


def compare_with_truth(credit: Tensor, truth: Truth, task: Tensor) -> dict[str, float]:
    """Compare a method's advantages [S] with the truth; `task` [S] ids.

    rank      Spearman's rank correlation over all turns
    rank_error  its standard error, by leaving out one task at a time
    sign      share of the turns whose truth is more than two standard errors from 0 in which the credit has its sign; a
              credit of 0 counts one half
    bias, variance   mean and variance of credit - truth, each in units of its own root mean square
    """
    y = truth.advantage
    # Signs only where the truth itself is certain.
    decided_S = (y.abs() > 2 * truth.error) & (y != 0)
    # An advantage of 0 takes no side: half a point, as a coin would get.
    right_S = (credit.sign() == y.sign()).double() + 0.5 * (credit == 0).double()
    credit_size, truth_size = credit.square().mean().sqrt(), y.square().mean().sqrt()
    # Each in units of its own root mean square, so that the scale of a method's advantages is no error.
    error_S = (credit / credit_size if float(credit_size) else credit) - y / truth_size
    return {
        "rank": rank_correlation(credit, y),
        "rank_error": left_out([rank_correlation(credit[task != t], y[task != t]) for t in task.unique()]),
        "sign": float(right_S[decided_S].mean()) if bool(decided_S.any()) else float("nan"),
        "bias": float(error_S.mean()),
        "variance": float(error_S.var(correction=0)),
    }


def overlap(forest: Forest) -> float:
    """Share of the steps after a trajectory's first whose state occurs in another trajectory of the group; nan if there
    is no such step. Steps in unknown states are not counted."""
    state, owner = forest.step_state, forest.step_trajectory
    later_S = torch.zeros_like(state, dtype=torch.bool)
    later_S[1:] = owner[1:] == owner[:-1]
    group = forest.ids("group", axis="R")[owner]
    known_S = state >= 0
    _, place = torch.unique(torch.stack([group, state], 1), dim=0, return_inverse=True)
    met = torch.unique(torch.stack([place, owner], 1)[known_S], dim=0)[:, 0]
    shared_S = torch.bincount(met, minlength=len(state))[place] > 1
    return float(shared_S[later_S & known_S].double().mean())


def early(forest: Forest, truth: Truth) -> float:
    """Share of the squared advantage, less its error, in the first half of each trajectory's turns."""
    first_half_S = torch.zeros(forest.n_steps, dtype=torch.bool)
    for trajectory_steps in _steps_of(forest):
        first_half_S[trajectory_steps[: (len(trajectory_steps) + 1) // 2]] = True
    signal_S = truth.advantage.square() - truth.error.square()
    total = float(signal_S.sum())
    return float(signal_S[first_half_S].sum()) / total if total > 0 else float("nan")


# ---------------------------------------------------------------- a method in a world
@dataclass
class WorldMeasurement:
    """True advantages in one environment, by rollout: methods with one rollout and seed share their forest."""

    world: World
    name: str
    folder: Path
    truths: dict[str, Truth] = field(default_factory=dict)
    figures_by_method: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self, method: str) -> Row:
        """A method's figures, `ratio` its rank correlation over that of grpo; a row with the reason if it can't be
        measured here."""
        try:
            own_figures = self.figures(method)
            base = self.figures("grpo")["rank"]
        except GxpoError as error:
            return {"name": f"{self.name}/{method}", "ratio": None, "note": f"left out: {error}"}
        return {"name": f"{self.name}/{method}", "ratio": own_figures["rank"] / base if base else None, **own_figures}

    def figures(self, method: str) -> dict[str, Any]:
        """A method's figures, cached."""
        if method not in self.figures_by_method:
            self.figures_by_method[method] = self._figures(method)
        return self.figures_by_method[method]

    def _figures(self, method: str) -> dict[str, Any]:
        world = self.world
        # Critics and estimators have to learn before their advantages mean anything; the frozen policy does not move.
        trainer = trainer_of(method, world, self.folder / method)
        try:
            # Methods without anything to learn would only lose time with practice.
            learns = bool(trainer.method.value_heads) or any(
                type(p).learn is not SignalPart.learn for p in trainer.method.signals.values()
            )
            for _ in range(world.practice if learns else 0):
                trainer.step()
            forest, credit, tokens, session = rolled_out(trainer, world.tasks)
            # Methods that sample alike have the same rollouts to the bit, so they share the expensive truth.
            key = repr([r["turns"] for r in forest.to_records()])
            if key not in self.truths:
                self.truths[key] = true_advantages(forest, session.tasks_by_id, session, world.samples)
            truth = self.truths[key]
        finally:
            trainer.close()
        figures = compare_with_truth(on_turns(forest, credit), truth, _tasks_of(forest)[forest.step_trajectory])
        per_task = tokens / world.tasks
        return {
            **figures,
            "ceiling": truth.reliability**0.5,
            "turns": forest.n_steps,
            "turns_each": forest.n_steps / forest.n_trajectories,
            "overlap": overlap(forest),
            "early": early(forest, truth),
            "tokens_per_task": per_task,
            "rank_per_kilotoken": figures["rank"] / per_task * 1000,
            "continuations": truth.continuations,
            "practised": world.practice if learns else 0,
        }


def trainer_of(method: str, world: World, out: Path) -> Trainer:
    """Trainer of a method with a frozen policy: its learning rate is 1e-12, that of its heads the usual one."""
    from gxpo.parts.definition import SettingValue
    from gxpo.training.config import resolve
    from gxpo.training.loop import Trainer

    frozen_policy = {
        "optim.lr": 1e-12,
        # Relative to the policy's rate: heads learn at a usual rate beside a policy that stands still.
        "learner.value_lr": 1e9,
        "method": method,
        "seed": 0,
        "tasks.per_step": world.tasks,
    }
    values = {**world.keys, **frozen_policy, **ON_EPISODES.get(method, {})}
    return Trainer(resolve({k: SettingValue(v, "fidelity") for k, v in values.items()}), out=out)


def rolled_out(trainer: Trainer, tasks: int) -> tuple[Forest, Tensor, int, Session]:
    """One step's rollouts and their advantages [P], the generated tokens, and the session."""
    number = trainer.step_number + 1
    budget = Budget()
    session = trainer.session(number, seed=trainer.settings.seed, sampling=trainer.sampling, budget=budget)
    forest = session.segment(trainer.method.rollout.grow(session.draw(tasks), session))
    forest = trainer.shape(session.score(forest))
    _, _, credit, _ = trainer.assign_credit(forest, trainer.tools(number, session))
    return forest, credit, budget.generated_tokens, session


def entries(plan: Plan) -> list[Entry]:
    """Entries of the suite: a row for every method in every environment."""
    out = []
    for name, world in WORLDS.items():
        sized_world = replace(world, tasks=3, samples=4, practice=1) if plan.quick else world
        measurement = WorldMeasurement(sized_world, name, plan.folder / name)

        def measure(plan: Plan, measurement_of_world: WorldMeasurement, method: str) -> list[Row]:
            row = plan.with_marks(measurement_of_world.row(method))
            plan.notify(f"{row['name']}: " + (f"rank {row['rank']:.3f}" if "rank" in row else row["note"]))
            return [row]

        # A function of a loop: bound by `partial`, or all rows would measure the last method.
        for method in candidates():
            run = partial(measure, measurement_of_world=measurement, method=method)
            out.append(Entry(f"{name}/{method}", run, timed=False))
    return out


def candidates() -> list[str]:
    """Registered methods whose advantages may differ from those of grpo, grpo first."""
    from gxpo.methods import METHODS

    return ["grpo", *(n for n, d in METHODS.items() if n != "grpo" and d.alias_of is None and STAGES & set(d.stages))]


def prediction(fidelity: Sequence[float], gain: Sequence[float]) -> float:
    """Rank correlation of fidelity with gains in training, over methods."""
    return rank_correlation(torch.tensor(fidelity, dtype=torch.float64), torch.tensor(gain, dtype=torch.float64))

"""Episodes that branch between their turns: who goes on from where, within a budget of attempts, tokens and calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import EpisodeRules, Session, Task
from gxpo.rollouts.build import name_draws
from gxpo.rollouts.episodes import Episode, Play
from gxpo.rollouts.grow import dotted, keyed


def check_counts(part: object, least: dict[str, int]) -> None:
    """Refuse fields of a rollout that are below what they can be."""
    for name, low in least.items():
        if getattr(part, name) < low:
            raise ConfigError(f"rollout.{name} must be at least {low}, not {getattr(part, name)!r}")


def need_episodes(session: Session, rollout: str) -> None:
    if session.envs is None:
        raise ConfigError(
            f"rollout={rollout} branches between the turns of episodes, and tasks of prompts have none: choose a task "
            "with an environment, or rollout=tree"
        )


def info_of(episode: Episode) -> dict[str, object]:
    """What `info` of a branched attempt says beside what every episode's does."""
    own = episode.turns[episode.inherited :]
    generated = sum(len(turn["action"]) for turn in own)
    return {"tree": episode.key.attempt, "path": list(episode.key.path), "generated": generated, "calls": len(own)}


def noted(forest: Forest, episodes: Iterable[Episode]) -> Forest:
    """The forest of these episodes with `info_of` each."""
    both = zip(forest.info, episodes, strict=True)
    return forest.replace(info=[{**info, **info_of(episode)} for info, episode in both])


@dataclass(frozen=True)
class Purse:
    """What the attempts at one prompt may cost: tokens and calls (actions) of the policy; 0: no limit.

    A branch is begun where what is left holds it, and all that is under way, even if each goes on as long as it may.
    """

    token_budget: int
    call_budget: int
    rules: EpisodeRules
    max_new_tokens: int

    def check(self, initial: int) -> None:
        """Refuse a budget that does not hold the `initial` episodes, and contexts whose calls can't be counted."""
        if not (self.token_budget or self.call_budget):
            return
        if self.rules.context == "summary":
            raise ConfigError(
                "rollout.token_budget and rollout.call_budget count turns, and summaries are further calls: set "
                "env.context=full or window, or both budgets to 0"
            )
        calls = initial * self.rules.max_turns
        for name, budget, needed in (
            ("call_budget", self.call_budget, calls),
            ("token_budget", self.token_budget, calls * self.max_new_tokens),
        ):
            if 0 < budget < needed:
                raise ConfigError(
                    f"rollout.{name}={budget} does not hold the first {initial} episodes of up to "
                    f"{self.rules.max_turns} turns of {self.max_new_tokens} tokens, which is {needed}: raise it, or "
                    "lower the number of first episodes, env.max_turns or sampling.max_new_tokens"
                )

    def left(self, episode: Episode) -> int:
        """Turns that an episode may still take."""
        return self.rules.max_turns - episode.moves

    def holds(self, grove: Grove, turns: int) -> bool:
        """Whether branches of up to `turns` more turns fit."""
        calls, tokens = grove.spent()
        ahead = turns + sum(map(self.left, grove.open))
        return not (
            0 < self.call_budget < calls + ahead or 0 < self.token_budget < tokens + ahead * self.max_new_tokens
        )


@dataclass(eq=False)
class Grove:
    """All attempts at one prompt."""

    draw: str
    episodes: list[Episode]
    branches: Counter[Episode] = field(default_factory=Counter)  # that left each
    roots: int = 0
    dropped: set[Episode] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.roots = len(self.episodes)

    @property
    def open(self) -> list[Episode]:
        """Those that go on."""
        return [e for e in self.episodes if e.end is None and e not in self.dropped]

    def spent(self) -> tuple[int, int]:
        """Calls and tokens so far."""
        own = [turn for e in self.episodes for turn in e.turns[e.inherited :]]
        return len(own), sum(len(turn["action"]) for turn in own)

    def fork(self, play: Play, points: Sequence[tuple[Episode, int]]) -> list[Episode]:
        """A branch for each (episode, turn): the k-th that leaves an episode has k added to the path of its stream."""
        forks = []
        for base, turn in points:
            key = replace(base.key, path=(*base.key.path, self.branches[base]))
            self.branches[base] += 1
            forks.append((base, turn, key, f"{self.draw}/{dotted(key)}"))
        self.episodes += (new := play.fork(forks))
        return new

    def begin(self, play: Play) -> list[Episode]:
        """One more attempt from the prompt, under the next attempt's stream; none where no environment began."""
        first = next((e for e in self.episodes if e.stood), None)
        if first is None:
            return []
        key = replace(first.key, attempt=self.roots, path=())
        self.roots += 1
        self.episodes += (new := play.fork([(first, 0, key, f"{self.draw}/{key.attempt}")]))
        return new


def groves_of(play: Play, tasks: Sequence[Task], initial: int) -> list[Grove]:
    """The `initial` episodes of each task, not yet played."""
    draws = name_draws(tasks, Counter())
    begun = play.start(tasks, draws, initial)
    return [Grove(draw, begun[i * initial : (i + 1) * initial]) for i, draw in enumerate(draws)]


def kept_of(play: Play, dropped: Collection[Episode], session: Session) -> Forest:
    """The forest of all episodes but the dropped ones, which are counted; their tokens have been charged."""
    forest = noted(play.forest(), play.episodes)
    if not dropped:
        return forest
    session.budget.discarded += len(dropped)
    return forest.select(torch.tensor([episode not in dropped for episode in play.episodes]))


class _Growing:
    """Episodes that are played turn by turn together; after each turn `chosen` says who branches."""

    provides = ("states", "forks")
    requires = ("restarts",)

    def chosen(self, grove: Grove, running: Sequence[Episode], purse: Purse, session: Session) -> list[Episode]:
        """Who is left by a branch before its next turn, as often as it stands there; may drop episodes."""
        raise NotImplementedError

    def again(self, grove: Grove, purse: Purse) -> bool:
        """Whether an attempt is begun at the prompt where all others are over."""
        return False

    def _grow(self, tasks: Sequence[Task], initial: int, purse: Purse, session: Session) -> Forest:
        purse.check(initial)
        with Play(session, restorable=True) as play:
            groves = groves_of(play, tasks, initial)
            while running := play.running([e for grove in groves for e in grove.open]):
                play.turn(running)
                for grove in groves:
                    on = play.running(grove.open)
                    grove.fork(play, [(e, len(e.turns)) for e in self.chosen(grove, on, purse, session)])
                    if not on and self.again(grove, purse):
                        grove.begin(play)
            return kept_of(play, {e for grove in groves for e in grove.dropped}, session)


def surprise(turn: dict[str, object], tokens: int) -> float:
    """Mean -log p of the first `tokens` tokens of an action, nats; 0 of an action without tokens.

    >>> surprise({"logprob": [-1.0, -2.0, -9.0]}, 2)
    1.5
    """
    own: list[float] = turn["logprob"][:tokens]  # type: ignore[index]  # records are mappings of anything
    return -sum(own) / len(own) if own else 0.0


def branch_probability(now: float, before: float, probability: float, weight: float) -> float:
    """clip(probability + weight (now - before), 0, 1).

    >>> round(branch_probability(0.9, 0.5, 0.5, 0.5), 9)
    0.7
    """
    return min(1.0, max(0.0, probability + weight * (now - before)))


@dataclass(frozen=True)
class BranchAtSurprise(_Growing):
    """`group_size` episodes of each task, of which `initial` begin at the prompt; the others leave running ones.

    After each turn every running episode is left, before its next turn, by up to `beam` - 1 branches, each with
    probability clip(`probability` + `weight` (H - H_first), 0, 1): H is the mean -log p (nats) of the first `tokens`
    tokens of the turn just taken, H_first that of the episode's first turn (a branch's is its base's). Where all
    episodes of a prompt are over and there are fewer than `group_size`, one more begins at the prompt, in turn.

    group_size    n
    initial       N_0; 0: half of `group_size`
    beam          copies of an episode after a turn, itself included; 1: none branches
    probability   of a branch where the surprise has not changed
    weight        of the change, per nat
    tokens        of an action that its surprise is taken of
    token_budget, call_budget  bounds on the tokens and the actions generated for a prompt, 0: none; a branch, or
                  another attempt, is begun where it fits in what is left even at its longest

    All episodes of a prompt are one group. The branch is a declared fork after the turns it shares, which are
    generated, stored and trained once; its stream is its base's with a number added to `path`. `initial` =
    `group_size`, or `beam` 1, gives independent episodes: one after the other where `initial` is smaller.

    Source: ARPO, arXiv 2507.19849, and its code. Three choices. -log p of the sampled tokens, whose expectation is the
    entropy, stands for the entropy of the ten likeliest: that is all that every engine returns. It is a mean, where the
    code sums over the 20 tokens and divides by the logarithm of the vocabulary: for 20 tokens and 151 643 entries 1.68
    times ours, for shorter actions less. The first turn's is the episode's own; the code keeps the first one that it
    ever saw in a row of the batch.
    """

    group_size: int = 16
    initial: int = 0
    beam: int = 2
    probability: float = 0.5
    weight: float = 0.2
    tokens: int = 20
    token_budget: int = 0
    call_budget: int = 0

    def __post_init__(self) -> None:
        least = {"group_size": 1, "initial": 0, "beam": 1, "tokens": 1, "token_budget": 0, "call_budget": 0}
        check_counts(self, least)
        if self.initial > self.group_size:
            raise ConfigError(
                f"rollout.initial={self.initial} is more than rollout.group_size={self.group_size}, the number of all"
            )
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"rollout.probability is {self.probability}; it lies between 0 and 1")

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_episodes(session, "branch_at_surprise")
        purse = Purse(self.token_budget, self.call_budget, session.episode, session.sampling.max_new_tokens)
        return self._grow(tasks, self.initial or (self.group_size + 1) // 2, purse, session)

    def chosen(self, grove: Grove, running: Sequence[Episode], purse: Purse, session: Session) -> list[Episode]:
        chosen: list[Episode] = []
        for episode in running:
            now, first = (surprise(episode.turns[i], self.tokens) for i in (-1, 0))
            likely = branch_probability(now, first, self.probability, self.weight)
            draws = keyed(session, episode.name, len(episode.turns), "branch")
            for _ in range(self.beam - 1):
                wanted, full = draws.random() < likely, len(grove.episodes) + len(chosen) >= self.group_size
                if wanted and not full and purse.holds(grove, sum(map(purse.left, [*chosen, episode]))):
                    chosen.append(episode)
        return chosen

    def again(self, grove: Grove, purse: Purse) -> bool:
        return len(grove.episodes) < self.group_size and purse.holds(grove, purse.rules.max_turns)


@dataclass(frozen=True)
class ForkOpen(_Growing):
    """`group_size` attempts at each task at a time: after each turn all open ones are forked, and as many are chosen.

    `group_size` episodes begin at the prompt. After each turn every open one has `forks` possible next steps; of all
    of these, `group_size` less the episodes that are over are chosen, uniformly, and taken. An open episode of which
    none is chosen is dropped; its tokens are charged.

    Since the choice does not look at what it chooses among, only the chosen are generated: the same distribution, and
    nothing is thrown away but the turns of dropped episodes. No prompt takes more than `group_size` times the turns of
    an episode. All episodes of a prompt are one group; a fork is declared after the turns that it shares. With one
    fork, or where none is open, this is `independent`.

    Source: PORTool, arXiv 2510.26020, after summaries, which do not say how many forks there are or how they are
    chosen.
    """

    group_size: int = 8
    forks: int = 2

    def __post_init__(self) -> None:
        check_counts(self, {"group_size": 1, "forks": 1})

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_episodes(session, "fork_open")
        return self._grow(tasks, self.group_size, Purse(0, 0, session.episode, 0), session)

    def chosen(self, grove: Grove, running: Sequence[Episode], purse: Purse, session: Session) -> list[Episode]:
        if not running:
            return []
        over = sum(episode.end is not None for episode in grove.episodes)
        steps = [episode for episode in running for _ in range(self.forks)]
        draws = keyed(session, grove.draw, len(running[0].turns), "choose")
        taken = Counter(draws.sample(steps, min(len(steps), self.group_size - over)))
        grove.dropped |= {episode for episode in running if not taken[episode]}
        return [episode for episode in running for _ in range(taken[episode] - 1)]

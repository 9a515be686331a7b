"""Turns per second of many slow environments at once: `python scripts/bench_environments.py [--episodes 1000]`.

Each step of each environment sleeps for 20 to 200 ms (uniform, seeded); the policy is a constant, so that what is
measured is the machinery around it. Prints the time taken, turns per second, and the sum of all sleeps over it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Sequence

from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, Task, TimeStep

TURNS = 5


class Sleepy:
    """Answers after a while that depends on seed and turn; over after TURNS actions."""

    max_turns = TURNS
    instructions = "Say anything."

    def __init__(self, least: float = 0.02, most: float = 0.2) -> None:
        self.least, self.most = least, most

    def nap(self, turn: int) -> float:
        return random.Random(f"{self.seed}/{turn}").uniform(self.least, self.most)

    def reset(self, seed: int) -> TimeStep:
        self.seed, self.turn = seed, 0
        return TimeStep("0", state="0")

    def step(self, action: str) -> TimeStep:
        time.sleep(self.nap(self.turn))
        self.turn += 1
        over = self.turn == TURNS
        return TimeStep(str(self.turn), str(self.turn), reward=float(over), done=over, success=over or None)


class Blocking(Sleepy):
    """The same, declared to wait for something outside its process."""

    blocking = True


class Constant:
    """An engine that says one character at once."""

    policy_version = prefilled_tokens = reused_tokens = 0

    def __init__(self, token: int, end: int) -> None:
        self.token, self.end, self.calls = token, end, 0

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        self.calls += 1
        return [[Completion([self.token, self.end], [-1.0, -0.5], "stop") for _ in r.streams] for r in requests]

    def release(self, names: Sequence[str] | None = None) -> None:
        """Do nothing: nothing is kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]  # it has one
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--declared", action="store_true", help="the class declares blocking = True")
    arguments = parser.parse_args()
    from gxpo.environments.envs import EnvPool, EnvSource
    from gxpo.environments.tasks.seeds import SeedTasks
    from gxpo.models.chat import PlainChat
    from gxpo.sampling.rollouts.episodes import Play
    from gxpo.training.models import character_tokenizer
    from gxpo.training.session import Session

    kind = Blocking if arguments.declared else Sleepy
    tokenizer = character_tokenizer()
    source = EnvSource.of_file(f"{__file__}:{kind.__name__}")
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    engine = Constant(tokenizer("a").input_ids[0], end)
    with EnvPool(source, workers=arguments.workers, timeout=60.0) as pool:
        session = Session(
            source=SeedTasks("sleepy", pool.contents, 0),
            engine=engine,
            rewards=None,
            tokenizer=tokenizer,
            sampling=Sampling(max_new_tokens=4),
            seed=0,
            step=1,
            chat=PlainChat(tokenizer),
            envs=pool,
            episode=EpisodeRules(max_turns=TURNS),
        )
        tasks = [Task(f"sleepy/{seed}", str(seed), info={"seed": seed}) for seed in range(arguments.episodes)]
        start = time.perf_counter()
        with Play(session) as play:
            episodes = play.start(tasks, [task.id for task in tasks], 1)
            start_seconds = time.perf_counter() - start
            play.finish(episodes)
            seconds = time.perf_counter() - start
            forest = play.forest()
    envs = [kind() for _ in tasks]
    for seed, env in enumerate(envs):
        env.reset(seed)
    sleep_seconds = sum(env.nap(turn) for env in envs for turn in range(TURNS))
    longest_seconds = max(sum(env.nap(turn) for turn in range(TURNS)) for env in envs)
    digest = hashlib.sha256(repr([(r["id"], r["turns"]) for r in forest.to_records()]).encode()).hexdigest()
    turns = forest.n_steps
    n_episodes = arguments.episodes
    print(f"{n_episodes} episodes of {TURNS} turns, {arguments.workers} workers, {kind.__name__}: {seconds:.2f} s "
          f"({start_seconds:.2f} of them to begin), {turns / seconds:.0f} turns/s, {engine.calls} batches; "
          f"sleeps sum to {sleep_seconds:.1f} s ({sleep_seconds / seconds:.1f} at once), "
          f"the longest episode to {longest_seconds:.2f} s; "
          f"records {digest[:12]}")  # fmt: skip


if __name__ == "__main__":
    main()

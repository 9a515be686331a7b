"""A model, a configuration's or a run's, behind the endpoint, without training: `gxpo serve`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gxpo import config, runtime
from gxpo.chat.plain import decoder
from gxpo.config import Resolved
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Budget, StreamKey, Task
from gxpo.records import dump
from gxpo.rollouts.agent import AgentEpisodes
from gxpo.rollouts.build import action, record
from gxpo.serve.history import History
from gxpo.serve.http import Server
from gxpo.serve.outcome import Nonsense, outcome_of
from gxpo.serve.queue import Attempt, CallQueue
from gxpo.serve.respond import respond
from gxpo.trainer import checkpoint
from gxpo.trainer.directory import CONFIG
from gxpo.trainer.session import Session
from gxpo.trainer.start import load_learner, verified
from gxpo.trainer.step import Stages
from gxpo.trainer.texts import with_texts

Notify = Callable[[str], None]


@contextmanager
def stages_of(what: str, sets: list[str], notify: Notify) -> Iterator[Stages]:
    """The stages of a configuration file, of a run directory's newest checkpoint, or of a model by its name."""
    path, given = Path(what), config.parse_set(sets)
    run = path.is_dir() and (path / CONFIG).is_file()
    if run:
        keys, _ = verified(path)
        resolved = config.resolve(config.over(keys, given))
    elif path.suffix in (".yaml", ".yml"):
        resolved = config.resolve(config.over(config.read(path), given))
    else:
        resolved = config.resolve(config.over({"model": config.Stated(what, "argument")}, given))
    stages = _Loaded(resolved, path if run else None, notify)
    try:
        yield stages
    finally:
        stages.close()


class _Loaded(Stages):
    """Stages that take no step."""

    def __init__(self, resolved: Resolved, run: Path | None, notify: Notify) -> None:
        runtime.start(alone=resolved.settings.cluster.by_processes)
        super().__init__(resolved, reward=None, notify=notify)
        if run is None:
            self.set_up(resolved.settings.init_from, measure=True)
        else:
            self.set_up_as(run)
            _, state = load_learner(self.learner, checkpoint.latest(run))
            self.step_number = state["step"]
        self.engine.policy_version = self.step_number


def _session(stages: Stages, temperature: float | None) -> Session:
    sampling = stages.sampling if temperature is None else replace(stages.sampling, temperature=temperature)
    return stages.session(0, seed=stages.settings.seed, sampling=sampling, budget=Budget())


def serve(
    stages: Stages,
    *,
    port: int,
    temperature: float | None,
    out: Path | None,
    ready: Callable[[str], None],
    seconds: float | None = None,
) -> int:
    """Answers calls until it is interrupted, or for so many seconds; gives how many episodes there were.

    out    records of the episodes, written at the end: any key is an episode, or goes on with one
    ready  told the base URL
    """
    session = _session(stages, temperature)
    attempts: list[Attempt] = []

    def newcomer(key: str) -> Attempt:
        stream = StreamKey(session.seed, 0, key, 0)
        made = Attempt(key, len(attempts), key, stream, History(session.chat, stages.tokenizer, session.system))
        attempts.append(made)
        return made

    queue = CallQueue(patience=0.0, most_calls=1 << 30, newcomer=newcomer)
    server = Server(queue, session.decode, port)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        ready(server.base_url)
        while until is None or time.monotonic() < until:
            respond(queue, queue.take(min(until or float("inf"), time.monotonic() + 0.5)), session, action)
    except KeyboardInterrupt:
        pass
    finally:
        queue.close()
        server.close()
        if out is not None and (forest := _written(attempts, session)) is not None:
            dump(with_texts(forest, decoder(stages.tokenizer, stages.chat)), out)
    return len(attempts)


def _written(attempts: list[Attempt], session: Session) -> Forest | None:
    """The episodes as records, with the rewards that were posted."""
    lines = []
    for attempt in attempts:
        turns = attempt.history.turns()
        if not turns:
            continue
        try:
            reward = outcome_of(attempt.posted).reward
        except Nonsense:
            reward = None
        first, *rest = turns
        turns = [{k: v for k, v in first.items() if k != "context"}, *rest]
        lines.append(
            record(
                Task(attempt.name, ""),
                attempt.name,
                attempt.name,
                session.sampling,
                prompt=first["context"],
                turns=turns,
            )
            | {"reward": reward}
        )
    return Forest.from_records(lines) if lines else None


def play(stages: Stages, n: int, out: Path | None) -> tuple[Forest, Callable[[Sequence[int]], str]]:
    """The configuration's agent at the first `n` tasks, as it would be played in a step, and what makes text of ids;
    nothing is trained."""
    rollout = stages.method.rollout
    if not isinstance(rollout, AgentEpisodes):
        raise ConfigError("--play needs an agent: set rollout=agent and rollout.run=my_agent.py:run")
    session = _session(stages, None)
    forest = session.score(rollout.grow(session.draw(n), session))
    shown = with_texts(forest, session.decode)
    if out is not None:
        dump(shown, out)
    return shown, session.decode


def transcript(forest: Forest, row: int, decode: Callable[[Sequence[int]], str]) -> str:
    """What the model read, token ids as text, and wrote in one trajectory, turn by turn."""
    record = forest.to_records()[row]
    lines, read = [], list(record.get("prompt") or [])
    for turn in record["turns"]:
        read = turn.get("context") or [*read, *(turn.get("observation") or [])]
        lines += [f"[read]  {decode(read)}", f"[{turn.get('agent') or 'agent'}] {decode(turn['action'])}"]
        read = []
    about: dict[str, Any] = forest.info[row]
    score = "unscored" if not bool(forest.scored[row]) else f"reward {float(forest.outcome[row]):g}"
    failure = f" ({about['failure']})" if "failure" in about else ""
    return "\n".join([f"{forest.id[row]}: {score}{failure}", *lines, json.dumps(about.get("agent", {}))])

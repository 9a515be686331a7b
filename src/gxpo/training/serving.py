"""`gxpo serve`: the model of a configuration or a run behind an OpenAI-compatible endpoint, without training."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, GxpoError, RecordError, need
from gxpo.base.usercode import described, one_line
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump
from gxpo.models.chat.plain import decoder
from gxpo.parts.protocols import Budget, StreamKey, Task
from gxpo.sampling.rollouts.agent import AgentEpisodes
from gxpo.sampling.rollouts.build import action, record
from gxpo.sampling.serve.connections import host_names
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import Server
from gxpo.sampling.serve.outcome import outcome_of
from gxpo.sampling.serve.queue import Attempt, Call, CallQueue, respond
from gxpo.sampling.serve.request import Refused
from gxpo.training import checkpoint, config
from gxpo.training.config import RunConfig
from gxpo.training.directory import CONFIG
from gxpo.training.interrupts import ServerInterrupts
from gxpo.training.session import Session
from gxpo.training.start import load_learner, read_verified_config
from gxpo.training.step import Stages
from gxpo.training.texts import with_texts

# ---------------------------------------------------------------- episode file
SYNC = 1.0  # seconds after which the next line is also forced to the disk, as it is at the end


class EpisodeFile:
    """A JSON Lines file that grows by an episode a line; one that is there already goes on.

    A line is handed to the system in one piece once its episode has ended: a kill at any time leaves whole lines. A
    power cut may lose what came in the last second. Named tensors of an episode stand in a .safetensors file of its own
    beside the file.

    names  ids of the episodes in it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self._lines_left: list[bytes] = []  # lines that could not be written
        self._last_sync = 0.0
        # Opened before anything is answered, so that a wrong path is told at once.
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            size = os.fstat(self._file).st_size
        except OSError as error:
            raise ConfigError(
                f"--out {path}: {error.strerror}; give a file in a directory that exists and can be written"
            ) from error
        if size:
            self._go_on(size)

    def _go_on(self, size: int) -> None:
        """Read the records that are in the file already: their ids are taken."""
        try:
            self.names |= set(records.load(self.path).id)
        except RecordError as error:
            os.close(self._file)
            raise RecordError(f"{error}; --out goes on with a file that is there: mend it, or name another") from None
        if os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def name(self, base: str) -> str:
        """An id that is not in the file: `wanted`, else wanted#1, wanted#2, ..."""
        name, n = base, 0
        while name in self.names:
            n += 1
            name = f"{base}#{n}"
        self.names.add(name)
        return name

    def append(self, episode: Forest) -> None:
        """Write the records of an episode. `RecordError` where the disk takes none; they are written with the next."""
        for row in records.render(episode):
            self._save_tensors(row)
            self._lines_left.append((json.dumps(row, allow_nan=False) + "\n").encode())
        self._write(sync=time.monotonic() >= self._last_sync + SYNC)

    def close(self) -> None:
        """Write the remaining lines, flush them to the disk, and close the file."""
        try:
            self._write(sync=True)
        finally:
            os.close(self._file)

    def _write(self, sync: bool) -> None:
        try:
            while self._lines_left:
                size = os.fstat(self._file).st_size
                line = self._lines_left[0]
                if os.write(self._file, line) < len(line):
                    os.ftruncate(self._file, size)  # half a line would spoil the file
                    raise OSError(28, "no space left on the device")
                del self._lines_left[0]
            if sync:
                os.fsync(self._file)
                self._last_sync = time.monotonic()
        except OSError as error:
            n = len(self._lines_left)
            raise RecordError(f"{self.path}: {error.strerror}: {n} episodes are not written yet") from error

    def _save_tensors(self, record: dict[str, Any]) -> None:
        tensors = {}
        side = self.path.with_name(f"{self.path.stem}.{len(self.names)}.safetensors")
        # Never over an older file, which earlier records name.
        while side.exists():
            side = side.with_name(f"{side.stem}+.safetensors")
        for i, turn in enumerate(record["turns"]):
            for name, value in turn.get("extras", {}).items():
                tensors[f"{i}.{name}"] = value.contiguous()
                turn["extras"][name] = f"{side.name}#{i}.{name}"
        if tensors:
            need("safetensors", "train")
            from safetensors.torch import save_file

            save_file(tensors, side)


# ---------------------------------------------------------------- serving
Notify = Callable[[str], None]


@contextmanager
def stages_of(source: str, sets: list[str], notify: Notify) -> Iterator[Stages]:
    """Load the stages of a configuration file, a run directory's newest checkpoint, or a model by its name."""
    path, settings = Path(source), config.parse_set(sets)
    run = path.is_dir() and (path / CONFIG).is_file()
    if run:
        keys, _ = read_verified_config(path)
        resolved = config.resolve(config.over(keys, settings))
    elif path.suffix in (".yaml", ".yml"):
        resolved = config.resolve(config.over(config.read(path), settings))
    else:
        resolved = config.resolve(config.over({"model": config.SettingValue(source, "argument")}, settings))
    stages = _RestoredStages(resolved, path if run else None, notify)
    try:
        yield stages
    finally:
        stages.close()


class _RestoredStages(Stages):
    """Stages that are loaded and take no step."""

    def __init__(self, resolved: RunConfig, run: Path | None, notify: Notify) -> None:
        runtime.start(group_of_one=resolved.settings.cluster.by_processes)
        super().__init__(resolved, reward=None, notify=notify)
        if run is None:
            self.set_up(resolved.settings.init_from, measure=True)
        else:
            self.set_up_as(run)
            _, state = load_learner(self.learner, checkpoint.latest(run))
            self.step_number = state["step"]
        self.engine.policy_version = self.step_number


def parameters(stages: Stages) -> str:
    """List the parameters that calls may set beside messages and tools, in one line."""
    if not getattr(stages.engine, "takes_options", False):
        return "stop, n, max_tokens, logprobs, tools (the engine records no others; sampling.engine=torch does)"
    has_formats = find_spec("llguidance") is not None
    formats = "response_format, tool_choice" if has_formats else "with gxpo[structured]: response_format, tool_choice"
    return (
        f"logprobs, top_logprobs, logit_bias, penalties, min_p, min_tokens, ignore_eos, chat_template_kwargs; {formats}"
        "\nthe run's  temperature, top_p, top_k, seed"
    )


def _session(stages: Stages, temperature: float | None) -> Session:
    sampling = stages.sampling if temperature is None else replace(stages.sampling, temperature=temperature)
    return stages.session(0, seed=stages.settings.seed, sampling=sampling, budget=Budget())


def serve(
    stages: Stages,
    *,
    port: int,
    temperature: float | None,
    out: Path | None,
    on_ready: Callable[[str], None],
    notify: Notify = lambda line: None,
    hosts: Sequence[str] = (),
    seconds: float | None = None,
) -> int:
    """Answer calls until SIGINT or SIGTERM, or for so many seconds; return the number of episodes.

    Any key is an episode, or goes on with one. It ends with its posted reward, after `queue.IDLE` seconds without a
    call, or with the server.

    out     records of the episodes, appended as they end
    ready   told the base URL
    hosts   names under which the endpoint answers beside those of loopback
    """
    rollout = stages.method.rollout
    hosts = (*hosts, *(rollout.allowed_hosts if isinstance(rollout, AgentEpisodes) else ()))
    allowed_hosts = host_names(hosts, "--allow-host")
    session = _session(stages, temperature)
    recorder = _EpisodeRecorder(session, stages, None if out is None else EpisodeFile(out), notify)
    queue = CallQueue(patience=0.0, most_calls=1 << 30, newcomer=recorder.new_attempt)
    # Signals abort only the sampling of a batch; records of ended episodes are written whatever comes.
    until = math.inf if seconds is None else time.monotonic() + seconds
    with ServerInterrupts(notify) as interrupts:
        try:
            server = Server(queue, session.decode, port, hosts=allowed_hosts)
            try:
                on_ready(server.base_url)
                while not interrupts.is_due and time.monotonic() < until:
                    calls = queue.take(min(until, time.monotonic() + 0.5))
                    with interrupts.abortable():
                        _answer(queue, calls, session, notify)
                    recorder.write(queue.collect())
            except KeyboardInterrupt:
                pass
            finally:
                queue.close()
                server.close()
        finally:
            # Episodes that are still open end with the server, and are written.
            recorder.close(queue.collect())
    return recorder.count


def _answer(queue: CallQueue, calls: Sequence[Call], session: Session, notify: Notify) -> None:
    """Answer a batch of calls; an error fails these calls alone."""
    try:
        respond(queue, calls, session, action)
    except Exception as error:
        message = _message(error)
        notify(f"{len(calls)} calls are not answered: {message}")
        for call in calls:
            if not call.answer.done():
                queue.count_answer(call)
                call.resolve(Refused(message, status=503))


def _message(error: Exception) -> str:
    return one_line(str(error)) if isinstance(error, GxpoError) else described(error)


class _EpisodeRecorder:
    """Recorder of a server's episodes, which are written as they end.

    count  those that have got replies and are over
    """

    def __init__(self, session: Session, stages: Stages, file: EpisodeFile | None, notify: Notify) -> None:
        self.session, self.stages, self.file, self.notify = session, stages, file, notify
        self.count = self._total = 0
        self._starts: Counter[str] = Counter()  # episodes under each key
        self._decode = decoder(stages.tokenizer, stages.chat)

    def new_attempt(self, key: str) -> Attempt:
        """Begin an episode under a key."""
        session, number, total = self.session, self._starts[key], self._total
        self._starts[key] += 1
        self._total += 1
        history = History(session.chat, self.stages.tokenizer, session.system, session.episode.max_context)
        return Attempt(key, total, f"{key}/{number}", StreamKey(session.seed, 0, key, number), history)

    def write(self, attempts: Sequence[Attempt]) -> None:
        """Append the episodes to the file, if there is one, and forget them."""
        for attempt in attempts:
            turns = attempt.history.turns()
            # The cache of an episode is of no use once it has ended.
            self.session.release([f"{attempt.name}/{thread.number}" for thread in attempt.history.threads])
            self.count += bool(turns)
            if turns and self.file is not None:
                try:
                    line = _record(attempt, turns, self.file.name(attempt.key), self.session)
                    self.file.append(with_texts(Forest.from_records([line]), self._decode))
                except Exception as error:  # the disk may be full for a while
                    message = f"an episode is not written: {_message(error)}"
                    self.notify(message)
                    with suppress(InvalidStateError):  # the client has gone
                        attempt.record_future.set_exception(Refused(message, status=503))
            with suppress(InvalidStateError):
                attempt.record_future.set_result(None)

    def close(self, attempts: Sequence[Attempt]) -> None:
        """Write the episodes that end with the server; RecordError if that fails."""
        self.write(attempts)
        if self.file is not None:
            self.file.close()


def _record(attempt: Attempt, turns: Sequence[dict[str, Any]], name: str, session: Session) -> dict[str, Any]:
    """Build the record of an episode, with the posted reward as its outcome."""
    outcome = outcome_of(attempt.outcome_body)
    first, *rest = turns
    columns = {"reward": outcome.reward, "success": outcome.success, "rewards": dict(outcome.rewards)}
    info = {**outcome.info, **({} if outcome.answer is None else {"answer": outcome.answer})}
    return (
        record(
            Task(attempt.key, ""),
            name,
            name,
            session.sampling,
            prompt=first["context"],
            turns=[{k: v for k, v in first.items() if k != "context"}, *rest],
            info=info,
        )
        | columns
    )


def play(stages: Stages, n: int, out: Path | None) -> tuple[Forest, Callable[[Sequence[int]], str]]:
    """The configuration's agent at the first `n` tasks, as it would be played in a step, and what makes text of ids;
    nothing is trained."""
    rollout = stages.method.rollout
    if not isinstance(rollout, AgentEpisodes):
        raise ConfigError("--play needs an agent: set rollout=agent and rollout.run=my_agent.py:run")
    session = _session(stages, None)
    forest = session.score(rollout.grow(session.draw(n), session))
    forest_with_texts = with_texts(forest, session.decode)
    if out is not None:
        dump(forest_with_texts, out)
    return forest_with_texts, session.decode


def transcript(forest: Forest, row: int, decode: Callable[[Sequence[int]], str]) -> str:
    """Transcript of one trajectory, turn by turn: context and action as text."""
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

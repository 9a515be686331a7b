"""Pool of environments of one class: batched episodes, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing import connection
from types import TracebackType
from typing import Any

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.envs.checked import from_fields
from gxpo.environments.envs.corrupted import Corruption
from gxpo.environments.envs.episodes import Answer, InProcess, InWorker, Item
from gxpo.environments.envs.sources import EnvSource
from gxpo.environments.envs.together import AT_ONCE, Together
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep

FAILURES = ("raised", "nonsense", "timeout", "died")
PROVIDES = ("states", "snapshots", "expert", "legal", "content", "answer", "level", "step_rewards", "agents")


class EnvPool:
    """Batched environments of one class. Each episode has a name and its own instance.

    source   the class and its options; errors in them raise `ConfigError` here, before anything runs
    workers  processes that share the episodes. 0: this process, without a time limit, for environments that can't
             hang. None: 0 for gxpo's own worlds, 1 for all others
    timeout  seconds for one reset or step in a worker
    corruption  of the observations that it gives; None: none
    concurrency  episodes of one worker that act at the same time. None: 1; for a class that says `blocking = True` (it
             waits for something outside its process) or whose methods are coroutines, 1024

    What an episode gives depends on its seed and actions, not on `workers` or on what other episodes do. An environment
    that raises, returns nonsense, takes longer than `timeout` or ends its process costs the episode in which it does:
    an `EnvFailure`, and the episode is over. Its process is replaced and the other episodes of that process are gone
    through again up to where they were (`counts["restored"]`); meanwhile the call waits, so each hang costs its process
    one `timeout`. An episode that comes out differently is lost: "died".

    `counts` says how often each happened, `messages` holds the first message of each. A failure to close an instance
    is counted too, though it costs nothing.

    name, instructions, max_turns, tools  as the class says
    provides  what it has of: "states" (its first step has a state id), "snapshots", "expert", "legal", "content",
              "answer", "level", "step_rewards" (a first action is paid for), "agents" (several: see `Joint`); the class
              can state more in `provides`
    """

    def __init__(
        self,
        source: EnvSource,
        *,
        workers: int | None = None,
        timeout: float = 5.0,
        concurrency: int | None = None,
        corruption: Corruption | None = None,
    ) -> None:
        workers = (0 if source.trusted else 1) if workers is None else workers
        if isinstance(workers, bool) or workers < 0 or not timeout > 0:
            raise ConfigError(f"envs: workers must be 0 or more and timeout above 0, not {workers!r} and {timeout!r}")
        if concurrency is not None and (concurrency < 1 or (workers == 0 and concurrency > 1)):
            raise ConfigError(f"envs: concurrency {concurrency} needs a worker process, and is 1 or more")
        self.source, self.corruption = source, corruption
        # "restored" counts replayed episodes, the other keys are failures by kind
        self.counts: dict[str, int] = dict.fromkeys((*FAILURES, "restored"), 0)
        self.messages: dict[str, str] = {}
        # one place loads the class first: only that tells whether its episodes may act at the same time
        first = InWorker(source, timeout) if workers else InProcess(source)
        about = first.about()
        if concurrency is None:
            concurrency = AT_ONCE if about["blocking"] else 1
        self.concurrent = isinstance(first, InWorker) and concurrency > 1
        # the process that has loaded the class is kept, whichever kind of place needs it
        self._places: list[InProcess | InWorker | Together]
        if isinstance(first, InWorker) and self.concurrent:
            workers_by_place = [first.lend(), *[None] * (workers - 1)]
            self._places = [Together(source, timeout, concurrency, worker) for worker in workers_by_place]
        else:
            self._places = [first, *(InWorker(source, timeout) for _ in range(workers - 1))]
        self._place_by_name: dict[str, int] = {}  # of each episode under way
        self._under_way: dict[str, None] = {}  # steps that were submitted and not collected
        self._load = [0] * len(self._places)
        self._threads: ThreadPoolExecutor | None = None
        self.name = source.name
        self.instructions: str = about["instructions"]
        self.max_turns: int = about["max_turns"]
        self.tools: tuple[Mapping[str, Any], ...] = tuple(about["tools"])
        self.provides = tuple(p for p in PROVIDES if p in about["provides"])
        if corruption is not None and "agents" in self.provides:
            self.close()
            raise ConfigError(f"env.corrupt: {source.name} has several agents, whose observations are not corrupted")

    # ------------------------------------------------------------ episodes
    def reset(self, seeds: Mapping[str, int]) -> dict[str, TimeStep | EnvFailure]:
        """Start an episode under each name; an unfinished one of the same name is dropped."""
        self._begin(seeds)
        return self._steps("reset", seeds)

    def step(self, actions: Mapping[str, Reply]) -> dict[str, TimeStep | EnvFailure]:
        """Step each episode with the content and, if the environment has tools, the calls; never the reasoning.

        ValueError for a name without an episode under way: never begun, finished, over or broken.
        """
        return self._steps("step", {name: Reply(reply.content, None, reply.calls) for name, reply in actions.items()})

    def submit(self, actions: Mapping[str, Reply]) -> None:
        """Begin these steps in a pool whose episodes act at the same time (`concurrent`); `collect` gives the results.

        ValueError for a name without an episode under way.
        """
        for name in actions:
            if name not in self._place_by_name:
                raise ValueError(f"environment {self.name}: no episode {name!r} is under way")
        self._under_way |= dict.fromkeys(actions)
        for number, place in enumerate(self._concurrent_places):
            place_actions = {n: reply for n, reply in actions.items() if self._place_by_name[n] == number}
            place.submit([("step", n, Reply(reply.content, None, reply.calls)) for n, reply in place_actions.items()])

    def collect(self) -> dict[str, TimeStep | EnvFailure]:
        """Results of `submit` that have arrived since the last call, at least one if any step is under way."""
        answers: dict[str, Answer] = {}
        while self._under_way and not answers:
            for place in self._concurrent_places:
                answers |= place.take()
            if not answers:
                # sleep until a process writes, or the earliest deadline, whose place then ends what hangs
                busy = [place for place in self._concurrent_places if place.busy]
                readable = connection.wait([place.fileno() for place in busy], min(place.patience() for place in busy))
                for place in busy:
                    if place.fileno() in readable or place.patience() <= 0:
                        place.attend(0.0)
        values = {name: self._value(name, *answers[name]) for name in list(self._under_way) if name in answers}
        self._under_way = {name: None for name in self._under_way if name not in values}
        self._collect_counts()
        return self._as_steps(values)

    @property
    def _concurrent_places(self) -> list[Together]:
        return [place for place in self._places if isinstance(place, Together)]

    def finish(self, names: Sequence[str]) -> None:
        """Abandon these episodes and close their instances; finished names are ignored."""
        places = {self._place_by_name[name] for name in names if name in self._place_by_name}
        for name in names:
            self._forget(name)
        for place in places:
            self._places[place].flush()
        self._collect_counts()

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        """State of each episode, as a text that `restore` reads under any name and in any process."""
        return self._ask("snapshot", "snapshots", names)

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        """Start an episode under each name from a snapshot; None for those that worked."""
        self._need("snapshots")
        self._begin(snapshots)
        return self._run("restore", snapshots)

    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]:
        """Expert action in each episode; None where none leads to success any more."""
        return self._ask("expert", "expert", names)

    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]:
        """Legal actions in each episode."""
        return self._ask("legal", "legal", names)

    def contents(self, seeds: Sequence[int]) -> list[str]:
        """Content of each seed's instance, equal for equal instances; the seed itself if the class has no `content`."""
        return self._of_seeds("content", seeds) if "content" in self.provides else [str(seed) for seed in seeds]

    def answers(self, seeds: Sequence[int]) -> list[str | None]:
        """Right answer in each seed's instance; None if the class has no `answer`."""
        return self._of_seeds("answer", seeds) if "answer" in self.provides else [None] * len(seeds)

    def levels(self, seeds: Sequence[int]) -> list[int | None]:
        """Difficulty of each seed's instance, a whole number; None if the class has no `level`."""
        return self._of_seeds("level", seeds) if "level" in self.provides else [None] * len(seeds)

    def _of_seeds(self, operation: str, seeds: Sequence[int]) -> list[Any]:
        """Run an operation of no episode for each seed, the seeds dealt out to the places in turn."""
        shares = [[(operation, "", seed) for seed in seeds[k :: len(self._places)]] for k in range(len(self._places))]
        answers = self._run_shares(shares)
        texts = [answers[i % len(self._places)][i // len(self._places)] for i in range(len(seeds))]
        for seed, (status, value) in zip(seeds, texts, strict=True):
            if status != "ok":
                raise GxpoError(f"environment {self.name}: seed {seed}: {value}")
        return [value for _, value in texts]

    def close(self) -> None:
        """End the workers and drop all episodes; the pool restarts on the next use."""
        if self._threads is not None:
            self._threads.shutdown()  # what still runs would start its process again
        self._threads = None
        for place in self._places:
            place.close()
        self._place_by_name.clear()
        self._under_way.clear()
        self._load = [0] * len(self._places)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ running
    def _begin(self, names: Iterable[str]) -> None:
        """Assign each name to the place with the fewest episodes, the first of several."""
        for name in names:
            if not isinstance(name, str) or not name:
                raise ValueError(f"an episode's name is a text, not {name!r}")
            self._forget(name)
            self._place_by_name[name] = place = self._load.index(min(self._load))
            self._load[place] += 1

    def _steps(self, operation: str, payloads: Mapping[str, Any]) -> dict[str, TimeStep | EnvFailure]:
        return self._as_steps(self._run(operation, payloads))

    def _as_steps(self, values: Mapping[str, Any]) -> dict[str, TimeStep | EnvFailure]:
        steps: dict[str, TimeStep | EnvFailure] = {}
        for name, value in values.items():
            steps[name] = value if isinstance(value, EnvFailure) else self._corrupt(from_fields(value))
            # an instance is closed as soon as its episode is over
            if isinstance(value, dict) and value["done"]:
                self._forget(name)
        return steps

    def _corrupt(self, step: TimeStep) -> TimeStep:
        return step if self.corruption is None else self.corruption(step)

    def _ask(self, operation: str, needs: str, names: Sequence[str]) -> dict[str, Any]:
        self._need(needs)
        return self._run(operation, dict.fromkeys(names))

    def _need(self, ability: str) -> None:
        if ability not in self.provides:
            raise ConfigError(
                f"environment {self.name} provides no {ability}; it has {', '.join(self.provides) or 'none'}"
            )

    def _run(self, operation: str, payloads: Mapping[str, Any]) -> dict[str, Any]:
        """Run an operation in each episode: its value, or an `EnvFailure`, which ends the episode."""
        # before anything runs: an unknown name must not leave the others stepped
        for name in payloads:
            if name not in self._place_by_name:
                raise ValueError(f"environment {self.name}: no episode {name!r} is under way")
        shares: list[list[Item]] = [[] for _ in self._places]
        for name, payload in payloads.items():
            shares[self._place_by_name[name]].append((operation, name, payload))
        answers = {}
        for share, share_answers in zip(shares, self._run_shares(shares), strict=True):
            answers |= {name: answer for (_, name, _), answer in zip(share, share_answers, strict=True)}
        # in the order of the caller's names, whatever the places did first: counts and messages depend on it
        values = {name: self._value(name, *answers[name]) for name in payloads}
        self._collect_counts()
        return values

    def _value(self, name: str, status: str, value: Any) -> Any:
        if status == "ok":
            return value
        self._count(status, f"{value} (episode {name})")
        self._forget(name)
        return EnvFailure(status, value)

    def _run_shares(self, shares: Sequence[Sequence[Item]]) -> list[list[Answer]]:
        """Run each place's share, all at the same time."""
        # one busy place needs no threads: a pool in this process never starts any
        if sum(map(bool, shares)) <= 1:
            return [place.run(share) if share else [] for place, share in zip(self._places, shares, strict=True)]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._places))
        jobs = [self._threads.submit(place.run, share) for place, share in zip(self._places, shares, strict=True)]
        # all have to end before one error is raised: the others would run on beside the next call
        wait(jobs)
        return [job.result() for job in jobs]

    def _forget(self, name: str) -> None:
        self._under_way.pop(name, None)
        place = self._place_by_name.pop(name, None)
        if place is not None:
            self._load[place] -= 1
            self._places[place].dismiss(name)

    def _count(self, kind: str, message: str) -> None:
        self.counts[kind] += 1
        self.messages.setdefault(kind, f"environment {self.name}: {message}")

    def _collect_counts(self) -> None:
        """Add the failures and restored episodes of all places to `counts`."""
        for place in self._places:
            for kind, message in place.complaints:
                self._count(kind, message)
            self.counts["restored"] += place.n_restored
            place.complaints, place.n_restored = [], 0

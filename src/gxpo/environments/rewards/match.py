"""Reward `match`: similarity of an answer to its reference, by a metric of structured answers or of texts."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled
from gxpo.base.cells import cell
from gxpo.base.errors import ConfigError, GxpoError, did_you_mean, one_of
from gxpo.base.usercode import described
from gxpo.environments.rewards.functions import importable, load, names_file, source_of
from gxpo.environments.rewards.group_level import Failure
from gxpo.environments.rewards.metrics import METRICS, REFERENCE_FREE, SUPERLINEAR, metric_of, options_of
from gxpo.environments.rewards.metrics.measure import Measure
from gxpo.environments.rewards.metrics.schemas import is_schema
from gxpo.environments.rewards.pool import Bounded
from gxpo.environments.rewards.worker import Reply
from gxpo.parts.protocols import SAME_AS, Task, TaskSource

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


# ---------------------------------------------------------------- schema check
# Check of the JSON Schemas that tasks bring, before anything is sampled.
ALL = 1 << 30  # more held-out tasks than a list has


def tasks_of(source: TaskSource) -> list[Task]:
    """All tasks of a source that has a list of them; one of a source that makes them."""
    training = getattr(source, "training", None)
    return source.held_out(1) if training is None else [*training, *source.held_out(ALL)]


def check_schemas(schemas: Iterable[tuple[str, Any]], limits: Mapping[str, Any]) -> None:
    """ConfigError for the first of (where it stands, schema) that is no JSON Schema, refers to something that it does
    not hold, or takes longer than the limit to be checked. `limits`: of `Bounded`."""
    distinct: dict[str, tuple[str, Any]] = {}
    for where, schema in schemas:
        try:
            text = json.dumps(schema, sort_keys=True, default=repr)
        except (RecursionError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: no JSON Schema: {type(error).__name__}") from error
        distinct.setdefault(text, (where, schema))
    checks = Bounded(is_schema, "JSON Schema", rehearsal=({},), **limits)
    try:
        replies = checks.run([(schema,) for _, schema in distinct.values()])
    finally:
        checks.close()
    for (where, _), (status, message) in zip(distinct.values(), replies, strict=True):
        if status != "ok":
            what = message if status == "raised" else f"its check {message}"
            raise ConfigError(f"{where}: {what.removeprefix('ConfigError: ').rpartition(' (schemas.py ')[0] or what}")


# ---------------------------------------------------------------- match
MALFORMED = "malformed_"  # components that begin so: the answer could not be read
NOTE = "info."  # a text that begins so names what a task has in its info


def of_task(named: Any, task: Task) -> Any:
    """`info.NAME` as the task has it, None where it does not; any other value as it is."""
    return cell(task.info, named.removeprefix(NOTE)) if isinstance(named, str) and named.startswith(NOTE) else named


@dataclass(frozen=True)
class Comparison:
    """How one kind of answer is compared with its reference: scale * clip(score), in this order:

    metric     (answer, reference, **options) -> score, 1 the best there is: in a configuration a name in
               `gxpo.environments.rewards.metrics.METRICS`, or `my_metrics.py:FUNCTION`
    options    of the metric; one that is `info.NAME` is the task's own (`schema: info.schema`)
    pattern    its groups catch the answer in a text, the last catch counts; None: the whole text
    reference  "answer": the task's;   `info.NAME`
    baseline   score that unrelated answers have: becomes (score - baseline) / (1 - baseline)
    clip       (low, high): bounds of the score; None: as it is
    gate       a score below it earns 0
    pay        "score", or "pass": 1 from the gate on
    scale      what a score of 1 is worth
    """

    metric: Callable[..., float]
    options: Mapping[str, Any] = field(default_factory=dict)
    pattern: str | None = ANSWER
    reference: str = "answer"
    baseline: float = 0.0
    clip: tuple[float, float] | None = None
    gate: float | None = None
    pay: Literal["score", "pass"] = "score"
    scale: float = 1.0
    loads: str | Mapping[str, Any] | Callable[..., float] | None = None  # from which a worker has the metric

    @classmethod
    def make(cls, given: Mapping[str, Any], key: str) -> Comparison:
        """Of the options of a configuration, the metric's among them; `key` is what errors call them."""
        metric = given.get("metric")
        if metric is None:
            raise ConfigError(f"{key}: say by which metric, as in {{metric: wer}}")
        function = loads = metric
        if isinstance(metric, str) and names_file(metric):
            function, loads = load(metric), source_of(metric, "", "my_metrics.py:similarity")
        elif isinstance(metric, str):
            function = metric_of(metric, f"{key}.metric")
        field_names = {f.name for f in dataclasses.fields(cls)} - {"options", "loads"}
        theirs = options_of(function)
        for name in set(given) - field_names - set(theirs):
            there = did_you_mean(name, [*field_names, *theirs]) or f"; {metric} has {', '.join(theirs) or 'no options'}"
            raise ConfigError(f"{key} has no {name!r}{there}")
        options = {name: value for name, value in given.items() if name in theirs}
        made = {name: value for name, value in given.items() if name in field_names and name not in theirs}
        made |= {"metric": function, "loads": loads}
        if made.get("clip") is not None:
            made["clip"] = tuple(made["clip"])
        comparison = cls(**made, options=options)
        comparison.check(key)
        return comparison

    def check(self, key: str) -> None:
        """ConfigError for values that make no sense."""
        if self.pattern is not None:
            compiled(self.pattern, f"{key}.pattern")
        one_of(f"{key}.pay", self.pay, ("score", "pass"))
        if self.reference != "answer" and not str(self.reference).startswith(NOTE):
            raise ConfigError(f"{key}.reference is 'answer' or info.NAME, not {self.reference!r}")
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"{key}.clip is two bounds, the lower first, not {list(self.clip)}")
        if not self.baseline < 1:
            raise ConfigError(f"{key}.baseline must be below 1, not {self.baseline!r}")
        if self.pay == "pass" and self.gate is None:
            raise ConfigError(f"{key}.pay=pass needs a gate")

    @property
    def answered(self) -> bool:
        """Whether tasks must have an answer."""
        free = (*REFERENCE_FREE, *(("json_schema",) if "schema" in self.options else ()))
        return self.reference == "answer" and self.metric.__name__ not in free

    @property
    def is_bounded(self) -> bool:
        """Workers compute it, each answer with a limit of processor time: all but built-in metrics of linear cost,
        `embedding`, which needs its model, and functions that no other process can import."""
        if isinstance(self.loads, str) and self.loads in METRICS:
            linear = self.loads not in SUPERLINEAR and self.pattern in (None, ANSWER)
            return not linear and self.loads != "embedding"
        return isinstance(self.loads, Mapping) or importable(self.metric) is not None

    @functools.cached_property
    def measure(self) -> Measure:
        """The measure that a worker computes, or this process."""
        return Measure(self.loads if self.is_bounded and self.loads is not None else self.metric, self.pattern)

    def options_for(self, task: Task) -> dict[str, Any]:
        """The metric's options, with those that are the task's own."""
        return {name: of_task(value, task) for name, value in self.options.items()}

    def worth(self, score: float) -> float:
        """What a score is worth: see the class."""
        value = (float(score) - self.baseline) / (1 - self.baseline)
        if self.clip is not None and not math.isnan(value):
            value = min(max(value, self.clip[0]), self.clip[1])
        if self.gate is not None and not math.isnan(value):
            value = 0.0 if value < self.gate else 1.0 if self.pay == "pass" else value
        return self.scale * value


class Compared:
    """A group-level reward that compares texts: unreadable answers are 0 and counted, failures cost one rollout, and so
    does a comparison that takes longer than its limit: it counts as wrong."""

    name = ""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._bounded: dict[int, Bounded] = {}  # by id of the comparison, which lives as long as this
        self._limits: dict[str, Any] = {}
        self.reports = (f"{MALFORMED}{self.name}",)
        self.gives = (self.name, *self.reports)

    def limit(self, seconds: float, processes: int) -> None:
        """Set the processor time of one comparison, and the number of processes that share them."""
        self._limits = {"seconds": seconds, "processes": processes}

    def close(self) -> None:
        """End the worker processes; the next comparison starts new ones."""
        for bounded in self._bounded.values():
            bounded.close()
        self._bounded.clear()

    def failures(self) -> list[Failure]:
        """What went wrong since it was last asked."""
        found, self._failures = self._failures, []
        return found

    def _measured(self, jobs: Sequence[tuple[Comparison, tuple[Any, ...]]]) -> list[Reply]:
        """Replies to jobs, each a comparison and the arguments of its `measure`; GxpoError of one in this process."""
        replies: list[Reply] = [("died", "never run")] * len(jobs)
        remote: dict[int, list[int]] = {}
        for place, (comparison, arguments) in enumerate(jobs):
            if comparison.is_bounded:
                remote.setdefault(id(comparison), []).append(place)
                continue
            try:
                replies[place] = "ok", comparison.measure(*arguments)
            except GxpoError:
                raise
            except Exception as error:
                replies[place] = "raised", described(error)
        for key, places in remote.items():
            if key not in self._bounded:
                measure = jobs[places[0]][0].measure
                self._bounded[key] = Bounded(measure, self.name, rehearsal=("0", "0", {}), **self._limits)
            bounded_replies = self._bounded[key].run([jobs[place][1] for place in places])
            for place, reply in zip(places, bounded_replies, strict=True):
                replies[place] = reply
        return replies

    def _value(self, comparison: Comparison, reply: Reply, task: Task) -> tuple[float, bool]:
        """(what an answer is worth, nan where it can't be scored; True where it could not be read) of a reply."""
        status, value = reply
        if status == "ok" and "malformed" in value:
            return 0.0, True
        if status == "ok" and "score" in value:
            return comparison.worth(value["score"]), False
        if status == "ok":
            status, value = "nonsense", "nothing to compare with"
        self._failures.append((status, f"{value} (task {task.id})"))
        return (0.0 if status == "limit" else math.nan), False

    def _columns(self, values: Sequence[tuple[float, bool]]) -> dict[str, Tensor]:
        """{NAME: [R], "malformed_NAME": [R]} of values and whether the answer could not be read."""
        scores, unread = [score for score, _ in values], [float(flag) for _, flag in values]
        columns = dict(zip(self.gives, (scores, unread), strict=True))
        return {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}


class Match(Compared):
    """{"match": [R]}: what each answer is worth beside its task's reference, by `Comparison`.

    comparisons  by kind of answer, as `by` (`info.NAME`) says of a task; without it the one that there is

    malformed_match  1 where the answer could not be read, and match is 0: recorded, not counted
    A reference that is missing or can't be read leaves the rollout unscored. `success` stays the verifier's.
    """

    name = "match"

    def __init__(self, comparisons: Mapping[Any, Comparison], by: str | None = None) -> None:
        super().__init__()
        self.comparisons, self.by = dict(comparisons), by

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Match:
        """Of `scoring.options.match`: a comparison; or `by: info.KIND` and `route: {KIND: a comparison}`, of which each
        has what is said beside them where it says nothing else."""
        key = "scoring.options.match"
        common = {name: value for name, value in options.items() if name not in ("route", "by")}
        route, by = options.get("route"), options.get("by", "info.kind")
        if route is None:
            if "by" in options:
                raise ConfigError(f"{key}.by needs route: {{KIND: {{metric: ...}}}}")
            return cls({None: Comparison.make(common, key)})
        if not isinstance(route, Mapping) or not route or not str(by).startswith(NOTE):
            raise ConfigError(f"{key}: route is {{KIND: {{metric: ...}}}} and by is info.NAME, not {by!r}")
        return cls({kind: Comparison.make({**common, **own}, f"{key}.route.{kind}") for kind, own in route.items()}, by)

    @property
    def answered(self) -> bool:
        """Whether every task must have an answer."""
        return all(comparison.answered for comparison in self.comparisons.values())

    def check_tasks(self, source: TaskSource) -> None:
        """ConfigError for a JSON Schema, of the configuration or of a task, that is none."""
        schemas: list[tuple[str, Any]] = []
        for kind, comparison in self.comparisons.items():
            schema = comparison.options.get("schema") if comparison.loads == "json_schema" else None
            if schema is None:
                continue
            if not (isinstance(schema, str) and schema.startswith(NOTE)):
                schemas.append(("scoring.options.match: schema", schema))
                continue
            kind_tasks = [task for task in tasks_of(source) if self.by is None or of_task(self.by, task) == kind]
            schemas += [
                (f"task {task.id!r}: {schema}", x) for task in kind_tasks if (x := of_task(schema, task)) is not None
            ]
        if schemas:
            check_schemas(schemas, self._limits)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        jobs = []
        for text, task in zip(texts, tasks, strict=True):
            comparison = self._comparison(task)
            reference = task.answer if comparison.reference == "answer" else of_task(comparison.reference, task)
            jobs.append((comparison, (text, reference, comparison.options_for(task))))
        replies = self._measured(jobs)
        cases = zip(jobs, replies, tasks, strict=True)
        return self._columns([self._value(comparison, reply, task) for (comparison, _), reply, task in cases])

    def _comparison(self, task: Task) -> Comparison:
        kind = None if self.by is None else of_task(self.by, task)
        if kind not in self.comparisons:
            known = f"scoring.options.match.route has {', '.join(map(str, self.comparisons))}"
            raise ConfigError(f"match: task {task.id!r} has {self.by}={kind!r}; {known}")
        return self.comparisons[kind]


class Consistency(Compared):
    """{"consistency": [R]}: mean score of an answer against the answers to other wordings of its task (PS-GRPO).

    r_ij = 1 / ((n - 1) g) sum over wordings u other than i, answers m of score(answer ij, answer um)

    Wordings of one task have one `info.same_as`. The answer is the metric's hypothesis, the other its reference, as not
    all metrics are symmetric. Nothing is known of the truth: being consistently wrong is worth as much as being right,
    so add a reward that knows it. An answer that can't be read has 0, is counted in `malformed_consistency`, and is 0
    for the others. Of the others those count that the policy made and that are compared. A task with no other wording
    in the step is unscored.

    Source: Con-RAG (arXiv 2510.04392), PS-GRPO.
    """

    name = "consistency"

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Consistency:
        """Of `scoring.options.consistency`: a comparison, whose reference is not read; by `bleu` where nothing says."""
        return cls(Comparison.make({"metric": "bleu", **options}, "scoring.options.consistency"))

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        comparison = self.comparison
        witnesses: dict[Any, list[int]] = {}
        for r, (task, fair, origin) in enumerate(zip(tasks, forest.compared.tolist(), forest.origin, strict=True)):
            if fair and origin == "policy" and SAME_AS in task.info:
                witnesses.setdefault(str(task.info[SAME_AS]), []).append(r)
        jobs, pairs = [], list[list[int]]()  # of each rollout the numbers of its jobs
        for text, task in zip(texts, tasks, strict=True):
            met = [u for u in witnesses.get(str(task.info.get(SAME_AS)), ()) if tasks[u].id != task.id]
            pairs.append(list(range(len(jobs), len(jobs) + len(met))))
            jobs += [(comparison, (text, texts[u], comparison.options_for(task), True)) for u in met]
        replies = self._measured(jobs)
        return self._columns([self._mean([replies[n] for n in own], texts[r], tasks[r]) for r, own in enumerate(pairs)])

    def _mean(self, replies: Sequence[Reply], text: str, task: Task) -> tuple[float, bool]:
        """(mean worth, whether the answer could not be read) of one answer's comparisons with the others'."""
        if not replies:  # nobody to agree with, which a missing answer is told apart from
            reply = next(iter(self._measured([(self.comparison, (text, None, {}))])))
            unread = reply[0] == "ok" and "malformed" in reply[1]
            return self._value(self.comparison, ("ok", {"malformed": 1.0} if unread else {"incomparable": 1.0}), task)
        scores = []
        for reply in replies:
            if reply[0] == "ok" and "incomparable" in reply[1]:
                scores.append(0.0)  # the other's answer is nothing that can be compared with
                continue
            score, unread = self._value(self.comparison, reply, task)
            if unread or math.isnan(score):
                return score, unread
            scores.append(score)
        return sum(scores) / len(scores), False

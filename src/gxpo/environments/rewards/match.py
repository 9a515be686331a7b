"""Rewards `match` and `consistency`: similarity of answers to references or to each other, by a metric."""

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
from gxpo.environments.rewards.base import Failure
from gxpo.environments.rewards.functions import importable, load, names_file, source_of
from gxpo.environments.rewards.metrics import METRICS, REFERENCE_FREE, SUPERLINEAR, metric_of, options_of
from gxpo.environments.rewards.metrics.measure import Measure
from gxpo.environments.rewards.metrics.schemas import is_schema
from gxpo.environments.rewards.pool import Bounded
from gxpo.environments.rewards.worker import Reply
from gxpo.parts.protocols import SAME_AS, Task, TaskSource

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


# ---------------------------------------------------------------- schema check
# JSON Schemas of tasks are checked before anything is sampled: a bad one would cost a run its reward.
ALL_TASKS = 1 << 30  # more held-out tasks than a list has


def tasks_of(source: TaskSource) -> list[Task]:
    """All tasks of a source with a list of them; one task of a generator."""
    training = getattr(source, "training", None)
    return source.held_out(1) if training is None else [*training, *source.held_out(ALL_TASKS)]


def check_schemas(schemas: Iterable[tuple[str, Any]], limits: Mapping[str, Any]) -> None:
    """Check JSON Schemas, given as (origin, schema): ConfigError for the first bad one, named by its origin.

    Bad is no JSON Schema, one with a reference that it does not hold, and one that takes longer to check than `limits`
    (of `Bounded`) allow.
    """
    # Equal schemas are checked once: a data set repeats its schema in every row.
    schema_by_text: dict[str, tuple[str, Any]] = {}
    for origin, schema in schemas:
        try:
            text = json.dumps(schema, sort_keys=True, default=repr)
        except (RecursionError, TypeError, ValueError) as error:
            raise ConfigError(f"{origin}: no JSON Schema: {type(error).__name__}") from error
        schema_by_text.setdefault(text, (origin, schema))
    # Checked in a worker, since a schema of a stranger may take for ever.
    checks = Bounded(is_schema, "JSON Schema", rehearsal=({},), **limits)
    try:
        replies = checks.run([(schema,) for _, schema in schema_by_text.values()])
    finally:
        checks.close()
    for (origin, _), (status, message) in zip(schema_by_text.values(), replies, strict=True):
        if status != "ok":
            problem = message if status == "raised" else f"its check {message}"
            raise ConfigError(
                f"{origin}: {problem.removeprefix('ConfigError: ').rpartition(' (schemas.py ')[0] or problem}"
            )


# ---------------------------------------------------------------- match
MALFORMED = "malformed_"  # prefix of the components that count unreadable answers
INFO_PREFIX = "info."  # prefix of an option that names a key of the task's info


def task_value(value: Any, task: Task) -> Any:
    """Value of `info.NAME` in the task, None where it has none; any other value unchanged."""
    return (
        cell(task.info, value.removeprefix(INFO_PREFIX))
        if isinstance(value, str) and value.startswith(INFO_PREFIX)
        else value
    )


@dataclass(frozen=True)
class Comparison:
    """Comparison of one kind of answer with its reference: scale * clip(score), in this order:

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
    loads: str | Mapping[str, Any] | Callable[..., float] | None = None  # how a worker loads the metric

    @classmethod
    def make(cls, configuration: Mapping[str, Any], key: str) -> Comparison:
        """Build a comparison from options, the metric's among them; `key` names them in errors."""
        metric = configuration.get("metric")
        if metric is None:
            raise ConfigError(f"{key}: name a metric, as in {{metric: wer}}")
        function = loads = metric
        if isinstance(metric, str) and names_file(metric):
            function, loads = load(metric), source_of(metric, "", "my_metrics.py:similarity")
        elif isinstance(metric, str):
            function = metric_of(metric, f"{key}.metric")
        field_names = {f.name for f in dataclasses.fields(cls)} - {"options", "loads"}
        # One mapping holds options of the comparison and of the metric: the metric's go first where both have a name.
        metric_options = options_of(function)
        for name in set(configuration) - field_names - set(metric_options):
            hint = (
                did_you_mean(name, [*field_names, *metric_options])
                or f"; {metric} has {', '.join(metric_options) or 'no options'}"
            )
            raise ConfigError(f"{key} has no {name!r}{hint}")
        options = {name: value for name, value in configuration.items() if name in metric_options}
        comparison_fields = {
            name: value for name, value in configuration.items() if name in field_names and name not in metric_options
        }
        comparison_fields |= {"metric": function, "loads": loads}
        # YAML has lists, and bounds are compared as a tuple.
        if comparison_fields.get("clip") is not None:
            comparison_fields["clip"] = tuple(comparison_fields["clip"])
        comparison = cls(**comparison_fields, options=options)
        comparison.check(key)
        return comparison

    def check(self, key: str) -> None:
        """ConfigError for options that are out of range or do not fit together."""
        if self.pattern is not None:
            compiled(self.pattern, f"{key}.pattern")
        one_of(f"{key}.pay", self.pay, ("score", "pass"))
        if self.reference != "answer" and not str(self.reference).startswith(INFO_PREFIX):
            raise ConfigError(f"{key}.reference is 'answer' or info.NAME, not {self.reference!r}")
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"{key}.clip is two bounds, the lower first, not {list(self.clip)}")
        if not self.baseline < 1:
            raise ConfigError(f"{key}.baseline must be below 1, not {self.baseline!r}")
        if self.pay == "pass" and self.gate is None:
            raise ConfigError(f"{key}.pay=pass needs a gate")

    @property
    def needs_answer(self) -> bool:
        """True if tasks must have an answer."""
        free = (*REFERENCE_FREE, *(("json_schema",) if "schema" in self.options else ()))
        return self.reference == "answer" and self.metric.__name__ not in free

    @property
    def is_bounded(self) -> bool:
        """True if workers compute the metric, with a limit of processor time for each answer.

        Not so for built-in metrics of linear cost, `embedding`, which needs its model, and functions that no other
        process can import.
        """
        if isinstance(self.loads, str) and self.loads in METRICS:
            linear = self.loads not in SUPERLINEAR and self.pattern in (None, ANSWER)
            return not linear and self.loads != "embedding"
        return isinstance(self.loads, Mapping) or importable(self.metric) is not None

    @functools.cached_property
    def measure(self) -> Measure:
        """Measure of one text, computed in a worker or in this process."""
        return Measure(self.loads if self.is_bounded and self.loads is not None else self.metric, self.pattern)

    def options_for(self, task: Task) -> dict[str, Any]:
        """Options of the metric for a task, `info.NAME` replaced by the task's values."""
        return {name: task_value(value, task) for name, value in self.options.items()}

    def worth(self, score: float) -> float:
        """Reward of a score, after baseline, clip, gate and scale."""
        value = (float(score) - self.baseline) / (1 - self.baseline)
        if self.clip is not None and not math.isnan(value):
            value = min(max(value, self.clip[0]), self.clip[1])
        if self.gate is not None and not math.isnan(value):
            value = 0.0 if value < self.gate else 1.0 if self.pay == "pass" else value
        return self.scale * value


class ComparisonReward:
    """Base of group-level rewards that compare texts.

    Unreadable answers are 0 and counted, a failure costs one rollout its score, and a comparison that takes longer than
    its limit counts as wrong.
    """

    name = ""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._bounded: dict[int, Bounded] = {}  # by id of the comparison, which lives as long as this
        self._limits: dict[str, Any] = {}
        self.reports = (f"{MALFORMED}{self.name}",)
        self.gives = (self.name, *self.reports)

    def limit(self, seconds: float, processes: int) -> None:
        """Set the processor time of one comparison, and the number of worker processes."""
        self._limits = {"seconds": seconds, "processes": processes}

    def close(self) -> None:
        """End the worker processes; the next comparison starts new ones."""
        for bounded in self._bounded.values():
            bounded.close()
        self._bounded.clear()

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call."""
        collected, self._failures = self._failures, []
        return collected

    def _run_jobs(self, jobs: Sequence[tuple[Comparison, tuple[Any, ...]]]) -> list[Reply]:
        """Replies to jobs, each a comparison and the arguments of its `measure`; a GxpoError here propagates."""
        replies: list[Reply] = [("died", "never run")] * len(jobs)
        jobs_by_comparison: dict[int, list[int]] = {}
        for job, (comparison, arguments) in enumerate(jobs):
            if comparison.is_bounded:
                jobs_by_comparison.setdefault(id(comparison), []).append(job)
                continue
            # Plain metrics are fast and trusted: a process for each would take longer.
            try:
                replies[job] = "ok", comparison.measure(*arguments)
            except GxpoError:
                raise
            except Exception as error:
                replies[job] = "raised", described(error)
        # One pool for each comparison, since workers load a fixed function; its jobs go there together.
        for key, job_indices in jobs_by_comparison.items():
            if key not in self._bounded:
                measure = jobs[job_indices[0]][0].measure
                self._bounded[key] = Bounded(measure, self.name, rehearsal=("0", "0", {}), **self._limits)
            bounded_replies = self._bounded[key].run([jobs[job][1] for job in job_indices])
            for job, reply in zip(job_indices, bounded_replies, strict=True):
                replies[job] = reply
        return replies

    def _value(self, comparison: Comparison, reply: Reply, task: Task) -> tuple[float, bool]:
        """Pair (reward, is_malformed) of a reply; the reward is nan where the answer can't be scored."""
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
        """Columns {NAME: [R], "malformed_NAME": [R]} of pairs (reward, is_malformed)."""
        scores, unread = [score for score, _ in values], [float(flag) for _, flag in values]
        columns = dict(zip(self.gives, (scores, unread), strict=True))
        return {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}


class Match(ComparisonReward):
    """{"match": [R]}: reward of each answer compared with its task's reference, by `Comparison`.

    comparisons  by kind of answer, as `route_by` (`info.NAME`) says of a task; without it the one that there is

    malformed_match  1 where the answer could not be read, and match is 0: recorded, not counted
    A reference that is missing or can't be read leaves the rollout unscored. `success` stays the verifier's.
    """

    name = "match"

    def __init__(self, comparisons: Mapping[Any, Comparison], route_by: str | None = None) -> None:
        super().__init__()
        self.comparisons, self.route_by = dict(comparisons), route_by

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Match:
        """Build from `scoring.options.match`: a comparison, or `route_by: info.KIND` and `route: {KIND: a comparison}`.

        Options beside `route` are defaults of all its comparisons.
        """
        key = "scoring.options.match"
        common = {name: value for name, value in options.items() if name not in ("route", "route_by")}
        route, route_by = options.get("route"), options.get("route_by", "info.kind")
        if route is None:
            if "route_by" in options:
                raise ConfigError(f"{key}.route_by needs route: {{KIND: {{metric: ...}}}}")
            return cls({None: Comparison.make(common, key)})
        if not isinstance(route, Mapping) or not route or not str(route_by).startswith(INFO_PREFIX):
            raise ConfigError(f"{key}: route is {{KIND: {{metric: ...}}}} and route_by is info.NAME, not {route_by!r}")
        return cls(
            {
                kind: Comparison.make({**common, **kind_options}, f"{key}.route.{kind}")
                for kind, kind_options in route.items()
            },
            route_by,
        )

    @property
    def needs_answer(self) -> bool:
        """True if every task must have an answer."""
        return all(comparison.needs_answer for comparison in self.comparisons.values())

    def check_tasks(self, source: TaskSource) -> None:
        """ConfigError for an invalid JSON Schema of the configuration or of a task."""
        schemas: list[tuple[str, Any]] = []
        # Only json_schema has schemas of its own that can be wrong.
        for kind, comparison in self.comparisons.items():
            schema = comparison.options.get("schema") if comparison.loads == "json_schema" else None
            if schema is None:
                continue
            if not (isinstance(schema, str) and schema.startswith(INFO_PREFIX)):
                schemas.append(("scoring.options.match: schema", schema))
                continue
            kind_tasks = [
                task for task in tasks_of(source) if self.route_by is None or task_value(self.route_by, task) == kind
            ]
            schemas += [
                (f"task {task.id!r}: {schema}", x) for task in kind_tasks if (x := task_value(schema, task)) is not None
            ]
        if schemas:
            check_schemas(schemas, self._limits)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        jobs = []
        for text, task in zip(texts, tasks, strict=True):
            comparison = self._comparison_for(task)
            reference = task.answer if comparison.reference == "answer" else task_value(comparison.reference, task)
            jobs.append((comparison, (text, reference, comparison.options_for(task))))
        replies = self._run_jobs(jobs)
        cases = zip(jobs, replies, tasks, strict=True)
        return self._columns([self._value(comparison, reply, task) for (comparison, _), reply, task in cases])

    def _comparison_for(self, task: Task) -> Comparison:
        """Comparison for the task's kind; ConfigError for a kind without a route."""
        kind = None if self.route_by is None else task_value(self.route_by, task)
        if kind not in self.comparisons:
            routes = f"scoring.options.match.route has {', '.join(map(str, self.comparisons))}"
            raise ConfigError(f"match: task {task.id!r} has {self.route_by}={kind!r}; {routes}")
        return self.comparisons[kind]


class Consistency(ComparisonReward):
    """{"consistency": [R]}: mean score of an answer against the answers to other wordings of its task (PS-GRPO).

    r_ij = 1 / ((n - 1) g) sum over wordings u other than i, answers m of score(answer ij, answer um)

    Wordings of one task share `info.same_as`. The answer is the metric's hypothesis, the other its reference, as not
    all metrics are symmetric. It reads no label: being consistently wrong earns as much as being right, so add a reward
    that checks the answer. An answer that can't be read has 0, is counted in `malformed_consistency`, and is 0
    for the others. Only compared answers of the policy count as others. A task with no other wording
    in the step is unscored.

    Source: Con-RAG (arXiv 2510.04392), PS-GRPO.
    """

    name = "consistency"

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Consistency:
        """Build from `scoring.options.consistency`: a comparison, by default `bleu`; its reference is not read."""
        return cls(Comparison.make({"metric": "bleu", **options}, "scoring.options.consistency"))

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        comparison = self.comparison
        # Only attempts of the policy that are compared are references for other wordings.
        rows_by_wording_group: dict[Any, list[int]] = {}
        for r, (task, is_compared, origin) in enumerate(
            zip(tasks, forest.compared.tolist(), forest.origin, strict=True)
        ):
            if is_compared and origin == "policy" and SAME_AS in task.info:
                rows_by_wording_group.setdefault(str(task.info[SAME_AS]), []).append(r)
        jobs, jobs_of_row = [], list[list[int]]()  # of each rollout the numbers of its jobs
        for text, task in zip(texts, tasks, strict=True):
            # Answers to the same wording are no other wording.
            others = [u for u in rows_by_wording_group.get(str(task.info.get(SAME_AS)), ()) if tasks[u].id != task.id]
            jobs_of_row.append(list(range(len(jobs), len(jobs) + len(others))))
            jobs += [(comparison, (text, texts[u], comparison.options_for(task), True)) for u in others]
        replies = self._run_jobs(jobs)
        return self._columns(
            [
                self._mean_score([replies[n] for n in job_indices], texts[r], tasks[r])
                for r, job_indices in enumerate(jobs_of_row)
            ]
        )

    def _mean_score(self, replies: Sequence[Reply], text: str, task: Task) -> tuple[float, bool]:
        """Pair (mean reward, is_malformed) of one answer's comparisons with the answers to other wordings."""
        if not replies:  # no other wording: a missing answer still counts as malformed
            reply = next(iter(self._run_jobs([(self.comparison, (text, None, {}))])))
            unread = reply[0] == "ok" and "malformed" in reply[1]
            return self._value(self.comparison, ("ok", {"malformed": 1.0} if unread else {"incomparable": 1.0}), task)
        scores = []
        for reply in replies:
            if reply[0] == "ok" and "incomparable" in reply[1]:
                scores.append(0.0)  # the other's answer can't be read
                continue
            score, unread = self._value(self.comparison, reply, task)
            # An answer that can't be read is so against every other one: the first comparison tells.
            if unread or math.isnan(score):
                return score, unread
            scores.append(score)
        return sum(scores) / len(scores), False

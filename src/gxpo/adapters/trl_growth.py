"""Rollouts of gxpo's methods in TRL's trainer: groups drawn again, replayed, hinted, branched, by TRL's own sampling.

A rollout part sees a session (`TrlSession`) that samples, scores and draws through the trainer. What it returns goes
through TRL's own `_generate_and_score_completions` as rows that are sampled and scored already, so that TRL pads, logs
and counts them as its own.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.sessions import TrainerSession, action_tokens, rows_of
from gxpo.adapters.trl_rollouts import Rewards, task_name
from gxpo.base.errors import ConfigError, TaskError, need
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method
from gxpo.models.chat import make
from gxpo.models.chat.plain import Tokens
from gxpo.parts.definition import show
from gxpo.parts.protocols import Completion, Sampling, StreamKey, Task
from gxpo.sampling.rollouts.rounds import Independent

# rollout parts that this module grows -> what their rows are beside fresh samples of the batch's own prompts
GROWS: Mapping[str, str] = {
    "dynamic_sampling": "samples of further prompts, in the place of groups without both verdicts",
    "retry": "further attempts, hinted, with a draft or a reference, and stored successes",
    "replay": "rollouts of earlier steps",
    "group_replay": "groups of earlier steps",
    "reference_in_group": "reference answers",
    "baseline_rollouts": "baselines that are measured and not trained",
    "adaptive_group_size": "groups of unequal size",
    "task_temperature": "samples at a task's own temperature",
    "hot_cold_replay": "samples at another temperature",
    "regenerate": "attempts that go on from a prefix of another",
    "thinking_budgets": "answers after cut thoughts",
    "tree": "branches that leave one another within an answer",
    "prefixes": "answers that begin with a prefix of a search",
    "monte_carlo_values": "samples, valued by further ones that are not trained",
    "team_cells": "candidates of each turn of a team",
}
UNTESTED = "was not tested with rollouts that the method grows itself"


def is_grown(method: Method) -> bool:
    """Return True if the method's rollouts are more than TRL's own groups, and are grown here."""
    return type(method.rollout) is not Independent


def reads_solutions(rollout: Any) -> bool:
    """Return True if a rollout shows worked solutions to the policy."""
    check = getattr(rollout, "check_task", None)
    try:
        if check is not None:
            check(Task("a task", "a prompt"), lambda task: None)
    except TaskError:
        return True
    return False


def with_group_size(method: Method, size: int) -> Method:
    """Return the method with TRL's `num_generations` as its group size, unless it states one."""
    setting = method.keys.get("rollout.group_size")
    has_size = "group_size" in {f.name for f in dataclasses.fields(method.rollout) if f.init}
    if not has_size or (setting is not None and setting.origin != "default"):
        return method
    return dataclasses.replace(method, rollout=dataclasses.replace(method.rollout, group_size=size))


def setting_problems(trainer: Any, method: Method, solutions: str) -> list[str]:
    """Return problems with settings of a trainer whose rollouts are grown here."""
    args, dataset = trainer.args, getattr(trainer, "train_dataset", None)
    columns = list(getattr(dataset, "column_names", None) or ())
    rollout = f"rollout={show(method.rollout)}"
    is_set_by = {
        f"{trainer.accelerator.num_processes} processes": trainer.accelerator.num_processes > 1,
        "use_vllm=True": getattr(args, "use_vllm", False),
        "use_transformers_continuous_batching=True": getattr(args, "use_transformers_continuous_batching", False),
        "tools=": bool(getattr(trainer, "tools", None)),
        "environment_factory=": getattr(trainer, "environment_factories", None) is not None,
        "rollout_func=": getattr(trainer, "rollout_func", None) is not None,
        "a column of images": any(name in ("image", "images") for name in columns),
    }
    problems = [f"{setting} {UNTESTED} ({rollout}): leave it out" for setting, is_set in is_set_by.items() if is_set]
    if trainer.max_completion_length is None:
        problems.append(f"max_completion_length=None: {rollout} divides the length of an answer; set a number")
    else:
        try:
            method.rollout.check_sampling(Sampling(args.temperature, max_new_tokens=trainer.max_completion_length))  # type: ignore[attr-defined]
        except ConfigError as error:
            problems.append(f"{rollout}: {error} (max_completion_length is sampling.max_new_tokens here)")
    if dataset is not None and not hasattr(dataset, "__len__"):
        problems.append(
            f"train_dataset is a stream: {rollout} draws further rows from it by number; load it as a whole"
        )
    if len(set(trainer.reward_func_names)) < len(trainer.reward_func_names):
        problems.append("reward_funcs: two have the same name; give each its own")
    if reads_solutions(method.rollout) and columns and not {solutions, "hints"} & set(columns):
        problems.append(
            f"{rollout} shows worked solutions: the dataset has no column {solutions!r}; say solutions='COLUMN'"
        )
    return problems


# ---------------------------------------------------------------- session
class TrlSession(TrainerSession):
    """Session of one generation batch: TRL's model samples, its reward functions judge, its dataset has more tasks.

    inputs    rows of the batch, one for each group, then rows of the dataset by chance, a function of seed and step
    solutions  column of worked solutions
    """

    def __init__(self, trainer: Any, inputs: Sequence[Mapping[str, Any]], step: int, solutions: str) -> None:
        self._trainer, self._solutions = trainer, solutions
        ends: list[int] = trainer.eos_token_ids
        end: Any = getattr(trainer._tokenizer, "eos_token_id", None)
        # the end that a policy's answer has comes first: a reference answer is closed by it
        stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*([end] if end in ends else []), *ends]))
        super().__init__(
            step=step,
            seed=trainer.args.seed,
            sampling=Sampling(
                temperature=trainer.args.temperature, max_new_tokens=trainer.max_completion_length, stop_ids=stop_ids
            ),
            chat=_Chat(trainer, stop_ids),  # type: ignore[arg-type]
            segmenter=trainer.gxpo_method.segmenter,
            learner=trainer._services.learner,
        )
        self._rows: dict[str, Mapping[str, Any]] = {}  # rows of the dataset by name of the task
        self.extra: dict[str, dict[str, Any]] = defaultdict(dict)  # what reward functions logged of each rollout
        self.sampled_tokens = 0  # prompts and completions, as TRL counts them
        self._inputs = list(inputs)

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self._trainer._tokenizer)

    # ------------------------------------------------------------ tasks
    def tasks_of(self, begin: int, n: int) -> list[Task]:
        dataset = self._trainer.train_dataset
        if begin + n > len(self._inputs):
            # rows that the step has not met come first; then all of them again
            order = random.Random(f"{self.seed}/{self.step}/{begin}").sample(range(len(dataset)), len(dataset))
            columns, names = list(self._inputs[0]), {row_name(row) for row in self._inputs}
            rows = [{name: dataset[i][name] for name in columns} for i in order[: n + len(names)]]
            self._inputs += sorted(rows, key=lambda row: row_name(row) in names)
            while len(self._inputs) < begin + n:
                self._inputs += rows
            del self._inputs[begin + n :]
        return [self._task(row) for row in self._inputs[begin : begin + n]]

    def _task(self, row: Mapping[str, Any]) -> Task:
        prompt, name = row["prompt"], row_name(row)
        self._rows[name] = row
        info = {"solution": row[self._solutions]} if row.get(self._solutions) is not None else {}
        info |= {"hints": row["hints"]} if row.get("hints") is not None else {}
        return Task(name, prompt if isinstance(prompt, str) else tuple(prompt), info=info)

    def row_of(self, task: str) -> Mapping[str, Any]:
        """Return the row of a task by its name, also of one that an earlier step has met."""
        if task not in self._rows:
            columns, dataset = list(self._inputs[0]), self._trainer.train_dataset
            for i in range(len(dataset)):
                row = {name: dataset[i][name] for name in columns}
                self._rows.setdefault(row_name(row), row)
        if task not in self._rows:
            raise ConfigError(f"a stored rollout is of task {task}, which the dataset does not have: it has changed")
        return self._rows[task]

    # ------------------------------------------------------------ texts
    def encode(self, task: Task) -> tuple[int, ...]:
        prompt: Any = task.prompt
        return tuple(self._trainer._tokenize_prompts([prompt if isinstance(prompt, str) else list(prompt)])[0][0])

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        return tuple(self._tokens.encode(text if markup else self._tokens.typed(text)))

    def decode(self, tokens: Sequence[int]) -> str:
        return self._trainer._services.decode(tokens)

    # ------------------------------------------------------------ sampling
    def complete(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[StreamKey], sampling: Sampling
    ) -> list[Completion]:
        """Sample by TRL's own generation, under its settings but for temperature and length."""
        trainer, tokens = self._trainer, []
        # as many at once as TRL itself samples
        size = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        with self._generation(sampling):
            for begin in range(0, len(prompts), size):
                batch = [list(p) for p in prompts[begin : begin + size]]
                tokens += trainer._generate_single_turn(batch, None, {}, trainer.num_generations)[0]
        self.sampled_tokens += sum(map(len, prompts)) + sum(map(len, tokens))
        cut = [self._cut(list(map(int, ids)), sampling) for ids in tokens]
        logprobs = self._logprobs(prompts, [ids for ids, _ in cut], sampling)
        return [
            Completion(ids, row, finish, policy_version=max(self.step - 1, 0))
            for (ids, finish), row in zip(cut, logprobs, strict=True)
        ]

    @contextmanager
    def _generation(self, sampling: Sampling) -> Iterator[None]:
        """Generate under other settings than TRL's."""
        trainer = self._trainer
        before = trainer.generation_config
        trainer.generation_config = config = copy.deepcopy(before)
        config.max_new_tokens = sampling.max_new_tokens
        if sampling.temperature > 0:
            config.temperature = sampling.temperature
        else:
            config.do_sample = False
        try:
            yield
        finally:
            trainer.generation_config = before

    def _cut(self, ids: list[int], sampling: Sampling) -> tuple[list[int], str]:
        """Cut a completion after the first stop text; say how it ended."""
        for n in range(1, len(ids) + 1) if sampling.stop else ():
            if any(text in self.decode(ids[:n]) for text in sampling.stop):
                return ids[:n], "stop"
        ends = {*self._trainer.eos_token_ids, self._trainer._tokenizer.pad_token_id}
        return ids, "stop" if ids[-1] in ends else "length"

    def _logprobs(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[list[int]], sampling: Sampling
    ) -> list[list[float]]:
        """Return the log-probs of completions under the policy that sampled them, at their temperature."""
        # a greedy completion is no sample: the run's temperature reads it
        read = sampling if sampling.temperature > 0 else self.sampling
        forest = Forest.from_completions(prompts, [[ids] for ids in tokens], sampling={"temperature": read.temperature})
        logprob = self._learner.outputs(forest, ("logprob",))["logprob"]
        return [logprob[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]

    # ------------------------------------------------------------ scoring
    def judge(self, forest: Forest, texts: Sequence[str] | None, tasks: Sequence[Task]) -> Forest:
        """Score by TRL's reward functions, which get the columns of the task's row, and its own prompt."""
        trainer = self._trainer
        rows, ids = [self.row_of(task.id) for task in tasks], [list(x) for x in action_tokens(forest)]
        completions = [self._completion(rows[r]["prompt"], forest, r, ids[r], texts) for r in range(len(ids))]
        table = trainer._calculate_rewards(rows, [row["prompt"] for row in rows], completions, ids)
        # columns that reward functions log are kept by rollout: only some rollouts come into TRL's table
        for column, values in getattr(trainer, "_pending_extra_logs", {}).items():
            for name, x in zip(forest.id, values, strict=False):
                self.extra[column][name] = x
        getattr(trainer, "_pending_extra_logs", {}).clear()
        weights, names = trainer.reward_weights.cpu(), trainer.reward_func_names
        return Rewards(table.double().cpu(), weights, names, trainer.success_at).over(forest)

    def _completion(self, prompt: Any, forest: Forest, r: int, ids: list[int], texts: Sequence[str] | None) -> Any:
        """Return a completion as TRL hands it to reward functions: a text, or a message of the assistant."""
        tokenizer = self._trainer._tokenizer
        if isinstance(prompt, str) or texts is not None:
            text = self.decode(ids) if texts is None else texts[r]
            return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        # a template of answers tells thoughts and calls apart
        if any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema")):
            parse = need("trl.trainer.grpo_trainer", "trl").parse_response
            return [parse(tokenizer, ids, prefix=forest.context(int(forest.prompt_node[r])), tools=None)]
        return [{"role": "assistant", "content": self.decode(ids)}]


class _Chat:
    """Conversations of a trainer's tokenizer, made where a rollout holds one."""

    def __init__(self, trainer: Any, stop_ids: tuple[int, ...]) -> None:
        self._trainer, self.stop_ids = trainer, stop_ids

    def start(self, *args: Any, **kwargs: Any) -> Any:
        return make(self._trainer._tokenizer).start(*args, **kwargs)


def row_name(row: Mapping[str, Any]) -> str:
    """Name a row of a dataset: its prompt and its other columns, the same in every epoch."""
    columns = {name: x for name, x in sorted(row.items()) if name != "prompt" and x is not None}
    return task_name(row["prompt"]) + (f"-{task_name(repr(columns))}" if columns else "")


# ---------------------------------------------------------------- rows for TRL
@dataclass(frozen=True)
class Grown:
    """Grown rollouts of a generation batch, a row of TRL's batch each.

    forest   of all rows, scored, without the method's own rewards
    prompts, completions   token ids of each row;   masks: tokens of the completion that are actions
    """

    forest: Forest
    session: TrlSession
    prompts: list[list[int]]
    completions: list[list[int]]
    masks: list[list[int]]

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Row of the dataset of each rollout."""
        return [dict(self.session.row_of(name)) for name in self.forest.task]


def grow(trainer: Any, inputs: Sequence[Mapping[str, Any]], step: int, solutions: str) -> Grown:
    """Grow the rollouts of a generation batch whose rows are `inputs`, each group's in a run."""
    method, size = trainer.gxpo_method, trainer.num_generations
    session = TrlSession(trainer, inputs[::size], step, solutions)
    forest = session.score(session.segment(method.rollout.grow(session.draw(len(inputs) // size), session)))
    # an attempt without a token has no row: it broke off before its first
    has_tokens_R = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories) > 0
    forest = forest.select(has_tokens_R).in_context(method.context)
    # TRL masks a completion that was cut; here it keeps its place and is not trained
    if getattr(trainer, "mask_truncated_completions", False):
        trainable_T = forest.trainable.clone()
        trainable_T[forest.path_token[forest.to_path(forest.truncated, "R")]] = False
        forest = forest.replace(trainable=trainable_T)
    return Grown(forest, session, *rows_of(forest))


@contextmanager
def as_generated(trainer: Any, grown: Grown) -> Iterator[None]:
    """Make TRL take grown rollouts for what it has sampled and scored; its counters then hold all that was sampled."""
    forest, session, metrics = grown.forest, grown.session, trainer._metrics["train"]
    n, tokens_before = forest.n_trajectories, trainer.state.num_input_tokens_seen
    names = ("rollout_func", "num_generations", "mask_truncated_completions", "_grown")
    attributes_before = {name: getattr(trainer, name, None) for name in names}
    rows: dict[str, Any] = {"prompt_ids": grown.prompts, "completion_ids": grown.completions, "logprobs": None}
    if any(0 in mask for mask in grown.masks):
        rows["env_mask"] = grown.masks
    # TRL folds rewards by groups of one size and drops the result: one group of all rows folds whatever there is
    trainer.rollout_func, trainer.num_generations = (lambda prompts, _: dict(rows)), n
    trainer.mask_truncated_completions = False
    trainer._grown = table_of(forest, trainer.reward_func_names)
    trainer._logs = emptied(trainer._logs, max(n, trainer._logs["prompt"].maxlen or 0))
    for column, values in session.extra.items():
        trainer._pending_extra_logs[column] = [values.get(name) for name in forest.id]
    try:
        yield
    finally:
        vars(trainer).update(attributes_before)
    # counters: tokens of all that was sampled; shares of groups, which TRL has folded
    trainer.state.num_input_tokens_seen = tokens_before + session.sampled_tokens
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    metrics["frac_reward_zero_std"][-1:] = [share_of_equal_rows(forest)]
    metrics["gxpo/sampled"].append(float(session.budget.rollouts))
    metrics["gxpo/discarded"].append(float(session.budget.discarded))
    if session.judged:
        metrics["gxpo/sampled_reward"].append(sum(session.judged) / len(session.judged))


def table_of(forest: Forest, names: Sequence[str]) -> Tensor:
    """Return the reward of each function for each row, [R, K]; nan where it has none."""
    columns = dict(zip(forest.component_names, forest.components.unbind(1), strict=True))
    absent = torch.full((forest.n_trajectories,), torch.nan, dtype=torch.float64)
    # a rollout that is left unscored has no reward, whatever its parts are
    return torch.stack([columns.get(n, absent).where(forest.scored, absent) for n in names], 1)


def emptied(logs: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return TRL's table of completions without rows, with room for `size` of them."""

    def column() -> deque[Any]:
        return deque(maxlen=size)

    return {k: defaultdict(column) if isinstance(x, defaultdict) else column() for k, x in logs.items()}


def share_of_equal_rows(forest: Forest) -> float:
    """Return the share of rows in groups whose scored, compared members have equal outcomes."""
    is_compared_R = forest.scored & forest.compared
    return float(
        grouped.degenerate(torch.nan_to_num(forest.outcome), forest.ids("group", axis="R"), is_compared_R)
        .double()
        .mean()
    )


def padded(output: Mapping[str, Any], parts: int, row: str) -> dict[str, Any]:
    """Add rows without tokens to TRL's batch until it can be cut into `parts` equal ones; they have index -1."""
    n = len(output["completion_ids"])
    missing = -n % parts
    out = dict(output)
    for name, x in output.items():
        if missing and isinstance(x, Tensor) and x.ndim and len(x) == n:
            out[name] = torch.cat([x, x[:1].expand(missing, *x.shape[1:])])
    if missing:
        out["completion_mask"] = out["completion_mask"].clone()
        out["completion_mask"][n:] = 0
        out[row] = out[row].clone()
        out[row][n:] = -1
    return out


def has_other_temperatures(forest: Forest, temperature: float) -> bool:
    """Return True if some rollouts are read at another temperature than the trainer's."""
    return any(x.get("temperature", 1.0) != temperature for x in forest.sampling)

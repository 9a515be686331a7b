"""`gxpo tasks`: prompts, answers and rewards of a task source, and its defects, before any training."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ModelError, PictureError, TaskError
from gxpo.environments import worlds
from gxpo.environments.tasks.file import check_size, parse_task
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.explain.overlap import Overlap, overlap
from gxpo.explain.task_reward import reward_figures
from gxpo.models import chat
from gxpo.models.chat.messages import normal_messages, padded_arguments, prompt_messages, with_tags
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.rendered import prompt_warnings
from gxpo.parts.protocols import Message, Task
from gxpo.parts.settings import RunSettings
from gxpo.training.models.load import rows_of_model
from gxpo.training.models.without_weights import positions, tokenizer_of

FEW_HELD_OUT = 30  # with fewer held-out tasks the 95% interval of an accuracy may be wider than +-0.18
FALLBACK_FRACTIONS = (0.2, 0.3, 0.5)  # held-out fractions tried where the configured one leaves a side empty
MAX_NAMED = 5  # tasks that a warning names


@dataclass
class _ReadableTasks(ListedTasks):
    """The readable tasks of a file that a run would refuse."""

    name: str
    seed: int
    per_step: int


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as the model sees it. `unknown` counts characters or words without a token in the tokenizer."""

    text: str
    tokens: int
    n_unknown: int


class Reader:
    """The tokenizer and chat format of a model; without a model, texts as they are, measured in characters."""

    def __init__(self, settings: RunSettings, model: str | None) -> None:
        self.system, self.limit = settings.chat.system, settings.env.max_context
        self.unit, self.chat = "characters", None
        if model is not None:
            self.tokenizer = tokenizer_of(model)
            self.chat = chat.make(
                self.tokenizer,
                template=settings.chat.template,
                kwargs=settings.chat.kwargs,
                tools_format=settings.chat.tools,
                rewrites=settings.chat.rewrites,
                rows_of=rows_of_model(model, settings.task),
            )
            self.tokens, self.unit = Tokens(self.tokenizer), "tokens"
            self.limit = min((x for x in (self.limit, positions(model, settings.task)) if x is not None), default=None)

    def prompt(self, task: Task) -> RenderedPrompt:
        """Render a task's prompt, template and system message included."""
        if not isinstance(task.prompt, str) and task.prompt and isinstance(task.prompt[0], int):
            ids: Sequence[int] = task.prompt  # type: ignore[assignment]  # the other kinds are texts and messages
        elif self.chat is None:
            lines = [] if self.system is None else [f"[system] {self.system}"]
            prompt = task.prompt
            messages_shown = [prompt] if isinstance(prompt, str) else with_tags(_messages_of(task))
            lines += [m if isinstance(m, str) else f"[{m['role']}] {m['content']}" for m in messages_shown]
            text = "\n".join(lines)
            return RenderedPrompt(text, len(text), 0)
        else:
            try:
                messages = prompt_messages(self.chat, self.system, task.prompt)  # type: ignore[arg-type]
                ids = self.chat.start(messages).context
            except (ModelError, PictureError) as error:
                raise TaskError(f"task {task.id!r}: {error}") from error
        if self.chat is None:
            return RenderedPrompt(" ".join(map(str, ids)), len(ids), 0)
        unknown_id = getattr(self.tokenizer, "unk_token_id", None)
        text = media.readable(
            ids, lambda token_ids: self.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        )
        return RenderedPrompt(text, len(ids), 0 if unknown_id is None else list(ids).count(unknown_id))

    def length(self, text: str) -> int:
        """Return the length of an answer."""
        return len(text) if self.chat is None else len(self.tokens.encode(self.tokens.typed(text)))


def report(settings: RunSettings, *, model: str | None = None, n: int = 512, scored: int = 64) -> dict[str, Any]:
    """Report on the tasks of a run's settings.

    settings  the task with its options, the reward, chat and sampling; `settings.model` is not read
    model     prompts are rendered with its tokenizer and chat template; None: as texts, measured in characters
    n         number of training and of held-out tasks, where the source generates them; of a file all are read
    scored    number of tasks whose reference answer and empty completion are scored

    Returns a JSON object; `warnings` are lines that say what to change. Raises `TaskError` where there is no task.
    """
    source, faults, refusals = _task_source(settings)
    is_listed = isinstance(source, ListedTasks)
    # a generator repeats tasks, a list does not
    training = source.training if is_listed else list({t.id: t for t in source.draw(n, 1)}.values())
    held_out = source.held_out(1 << 30 if is_listed else n)
    tasks = [*training, *held_out]
    reader = Reader(settings, model)
    prompts = [reader.prompt(t) for t in tasks]
    answers = [reader.length(str(t.answer)) for t in tasks if t.answer is not None]
    overlaps = overlap(training, held_out)
    rewards = reward_figures(settings, source, tasks[:scored]) if tasks else None
    # tasks that pay by themselves, as an environment's do, are compared with no answer
    answered_tasks = [] if getattr(source, "components", ()) else tasks
    # two kinds of long prompts: those that fill the context, and those that leave less than a whole action
    limit = reader.limit
    over_limit = [] if limit is None else [t.id for t, p in zip(tasks, prompts, strict=True) if p.tokens >= limit]
    prompt_room = math.inf if limit is None else limit - settings.sampling.max_new_tokens
    without_room = [
        t.id for t, p in zip(tasks, prompts, strict=True) if prompt_room < p.tokens and t.id not in over_limit
    ]
    out: dict[str, Any] = {
        "task": settings.task,
        "model": model,
        "complete": is_listed,
        "training": len(training),
        "held_out": len(held_out),
        "columns": columns(tasks),
        "unit": reader.unit,
        "prompt_lengths": spread([p.tokens for p in prompts]),
        "answer_lengths": spread(answers),
        "context_limit": limit,
        "max_new_tokens": settings.sampling.max_new_tokens,
        "over_limit": over_limit,
        "no_room": without_room,
        "unknown_tokens": [t.id for t, p in zip(tasks, prompts, strict=True) if p.n_unknown],
        "no_answer": [t.id for t in answered_tasks if t.answer is None or not str(t.answer).strip()],
        "duplicates": overlaps.duplicates,
        "conflicting_answers": overlaps.conflicts,
        "near_duplicates": overlaps.near,
        "leaks": overlaps.leaks,
        "all_pairs_compared": overlaps.compared,
        "faults": faults,
        "refused": refusals,
        "reward": rewards,
        "prompts": [
            {"id": t.id, "text": p.text, "answer": None if t.answer is None else str(t.answer)}
            for t, p in zip(tasks[:8], prompts, strict=False)
        ],
    }
    # from what stops a run to what only makes it worse
    template_warnings = prompt_warnings(tasks, reader.chat, settings.chat.template)
    warning_lines = [
        *_file_warnings(out),
        *template_warnings,
        *_tool_call_warnings(tasks),
        *_length_warnings(out, settings.tasks.too_long),
        *_overlap_warnings(overlaps),
        *_split_warnings(out, settings),
        *_reward_warnings(out),
    ]
    return out | {"warnings": warning_lines}


# ---------------------------------------------------------------- reading
def _task_source(settings: RunSettings) -> tuple[Any, list[str], str | None]:
    """Return (source, faults, refusal): of a file that a run would refuse, its readable tasks and every faulty line."""
    task_settings = {"seed": settings.seed, "options": settings.tasks.options, "per_step": settings.tasks.per_step}
    try:
        world = worlds.make(settings.task, workers=settings.env.workers, timeout=settings.env.timeout, **task_settings)
    except TaskError as error:
        # a run stops at the first faulty line; a report is of use only with all of them, and the readable tasks
        if not (settings.task.endswith(".jsonl") and Path(settings.task).is_file()):
            raise
        source, faults = _readable_source(settings)
        if source is None:
            raise
        return source, faults, str(error)
    if world.envs is not None:
        world.close()
        raise TaskError(
            f"{settings.task} is an environment, whose tasks are episodes: gxpo check-env {settings.task} plays some"
        )
    return world.source, [], None


def _readable_source(settings: RunSettings) -> tuple[_ReadableTasks | None, list[str]]:
    """Return (source, faults) of a faulty file; None where it has no readable task."""
    path, held_out_file = Path(settings.task), settings.tasks.options.get("held_out")
    tasks, faults = readable(path)
    held_out = None
    if isinstance(held_out_file, str) and Path(held_out_file).is_file():
        held_out, held_out_faults = readable(Path(held_out_file))
        faults += held_out_faults
    fraction_set = settings.tasks.options.get("held_out_fraction", 0.1)
    # a file that is too small for the configured split is reported all the same: by another split, or unsplit
    for fraction in (fraction_set, *FALLBACK_FRACTIONS):
        source = _ReadableTasks(settings.task, settings.seed, settings.tasks.per_step)
        try:
            source.split(tasks, held_out, fraction)
        except TaskError:
            continue
        return source, faults
    source = _ReadableTasks(settings.task, settings.seed, settings.tasks.per_step)
    source._training, source._held_out = tasks, held_out or []
    return (source if tasks else None), faults


def readable(path: Path) -> tuple[list[Task], list[str]]:
    """Read a JSON Lines file; returns its tasks, and a message for each line that can't be read."""
    check_size(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return [], []
    tasks: dict[str, Task] = {}
    faults = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            task = parse_task(line, location, f"{path.stem}/{number}")
        except TaskError as error:
            faults.append(str(error))
            continue
        if task.id in tasks:
            faults.append(f"{location}: id {task.id!r} is already that of another line")
        tasks.setdefault(task.id, task)
    return list(tasks.values()), faults


def columns(tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
    """Describe the fields of tasks: number of tasks with it, kinds of values, an example."""
    column_by_name: dict[str, dict[str, Any]] = {}

    def note(name: str, value: Any) -> None:
        entry = column_by_name.setdefault(name, {"tasks": 0, "kinds": Counter(), "example": _shorten(value)})
        entry["tasks"] += 1
        entry["kinds"][_kind(value)] += 1

    for task in tasks:
        note("prompt", task.prompt)
        if task.answer is not None:
            note("answer", task.answer)
        for name, value in task.info.items():
            note(name, value)
    return {name: {**entry, "kinds": dict(entry["kinds"])} for name, entry in column_by_name.items()}


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "messages" if value and isinstance(value[0], Mapping) else "list"
    kinds = {str: "text", bool: "yes or no", int: "number", float: "number", type(None): "null", dict: "mapping"}
    return kinds.get(type(value), type(value).__name__)


def _shorten(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def spread(lengths: Sequence[int]) -> dict[str, float] | None:
    """Return smallest, median and largest length; None for an empty list."""
    if not lengths:
        return None
    return {"min": min(lengths), "median": statistics.median(lengths), "max": max(lengths)}


# ---------------------------------------------------------------- warnings
def first_names(names: Sequence[Any]) -> str:
    """Join the first names, and count the others.

    >>> first_names(["a", "b"]), first_names(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    texts = [" and ".join(n) if isinstance(n, tuple) else str(n) for n in names[:MAX_NAMED]]
    return ", ".join(texts) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _file_warnings(figures: Mapping[str, Any]) -> list[str]:
    faults = list(figures["faults"])
    out = [f"{len(faults)} line(s) can't be read, and a run refuses the file: {f}" for f in faults[:1]]
    out += faults[1:MAX_NAMED]
    if len(faults) > MAX_NAMED:
        out.append(f"{len(faults) - MAX_NAMED} more lines can't be read (--json lists all)")
    if figures["refused"] and not faults:
        out.append(f"a run refuses these tasks: {figures['refused']}")
    if figures["no_answer"]:
        out.append(
            f"{len(figures['no_answer'])} task(s) have no answer: {first_names(figures['no_answer'])}; give one, or "
            "take a reward that needs none (reward=majority_vote, reward=judge or a function of your own)"
        )
    return out


def _tool_call_warnings(tasks: Sequence[Task]) -> list[str]:
    padding_by_task = [
        (task.id, padded_arguments(_messages_of(task))) for task in tasks if not isinstance(task.prompt, str)
    ]
    padded = [(name, keys) for name, keys in padding_by_task if keys]
    if not padded:
        return []
    names = ", ".join(sorted(padded[0][1]))
    return [
        f"{len(padded)} prompt(s) have tool calls with null for arguments of other tools ({names}): "
        f"{first_names([name for name, _ in padded])}; rows of Arrow that were written as JSON look so: read the "
        "Parquet file or the data set itself, or leave these keys out"
    ]


def _messages_of(task: Task) -> list[Message]:
    """Return the messages of a prompt; [] for token ids."""
    try:
        return normal_messages([m for m in task.prompt if isinstance(m, Mapping)])
    except ModelError as error:
        raise ModelError(f"task {task.id!r}: {error}") from error


TOO_LONG = {  # by `tasks.too_long`
    "error": "a run refuses the tasks: shorten or drop them, or set tasks.too_long=drop or truncate_left",
    "drop": "a run leaves them out (tasks.too_long=drop)",
    "truncate_left": "a run cuts off their beginning (tasks.too_long=truncate_left)",
}


def _length_warnings(figures: Mapping[str, Any], too_long: str) -> list[str]:
    out = []
    # `tasks.too_long` decides what a run does with them, so each warning says that
    if figures["over_limit"]:
        out.append(
            f"{len(figures['over_limit'])} prompt(s) fill the context of {figures['context_limit']} tokens: "
            f"{first_names(figures['over_limit'])}; {TOO_LONG[too_long]}"
        )
    if figures["no_room"]:
        out.append(
            f"{len(figures['no_room'])} prompt(s) leave less than sampling.max_new_tokens={figures['max_new_tokens']} "
            f"of the context's {figures['context_limit']} tokens: {first_names(figures['no_room'])}; "
            f"{TOO_LONG[too_long]}, or lower sampling.max_new_tokens"
        )
    if figures["unknown_tokens"]:
        out.append(
            f"{len(figures['unknown_tokens'])} prompt(s) have characters that the tokenizer of {figures['model']} does "
            f"not know: {first_names(figures['unknown_tokens'])}; the model can't read them: take another model, or "
            "spell them otherwise"
        )
    # in characters an answer can't be held against a limit of tokens
    longest = figures["answer_lengths"]
    if figures["unit"] == "tokens" and longest and longest["max"] > figures["max_new_tokens"]:
        out.append(
            f"reference answers have up to {longest['max']} tokens, and sampling.max_new_tokens is "
            f"{figures['max_new_tokens']}: raise it, or those tasks can't be solved"
        )
    return out


def _overlap_warnings(overlaps: Overlap) -> list[str]:
    out = []
    if overlaps.conflicts:
        out.append(f"one prompt, different answers: {first_names(overlaps.conflicts)}; correct or drop one of each")
    if overlaps.leaks:
        out.append(
            f"{len(overlaps.leaks)} held-out task(s) are also in training, in the same or nearly the same words: "
            f"{first_names(overlaps.leaks)}; drop one of each, or evaluation counts what was trained on"
        )
    if overlaps.duplicates:
        out.append(
            f"{len(overlaps.duplicates)} duplicate(s): {first_names(overlaps.duplicates)}; "
            "each copy weighs its task more"
        )
    if overlaps.near:
        out.append(f"{len(overlaps.near)} near-duplicate(s), the same but for spelling: {first_names(overlaps.near)}")
    return out


def _split_warnings(figures: Mapping[str, Any], settings: RunSettings) -> list[str]:
    if not figures["complete"]:
        return []
    out = []
    training, held_out = figures["training"], figures["held_out"]
    if training < settings.tasks.per_step:
        out.append(
            f"{training} training task(s), and a step draws tasks.per_step={settings.tasks.per_step}: tasks come "
            f"several times in a step; set tasks.per_step={max(1, training)} or lower"
        )
    if held_out < FEW_HELD_OUT:
        half = 1.96 * math.sqrt(0.25 / max(1, held_out))
        width = f"the 95% interval of an accuracy is up to +-{half:.2f} wide" if held_out else "nothing is evaluated"
        out.append(
            f"{held_out} held-out task(s): {width}; set tasks.options.held_out=FILE, or raise "
            "tasks.options.held_out_fraction"
        )
    return out


def _reward_warnings(figures: Mapping[str, Any]) -> list[str]:
    reward = figures["reward"]
    if reward is None or "full" not in reward:
        return []
    out = [f"the reward {trouble}: {first}" for trouble, first in reward["failures"].items()]
    # the answer or the reward may be wrong: only the user can tell, so both are named
    if reward["unpaid"]:
        names = [f"{x['id']} (answer {_shorten(x['answer'])!r}: {_number(x['pays'])})" for x in reward["unpaid"]]
        out.append(
            f"the reference answer does not earn the full {reward['full']:g} in {len(names)} of {reward['tasks']} "
            f"tasks, however it is written: {first_names(names)}; correct these answers, or the reward"
        )
    needs_form = reward["form"] != "bare" and reward["forms"]["bare"] != reward["full"]
    if reward["full"] is not None and needs_form and not reward["of_the_task"]:  # gxpo's own tasks are in their form
        out.append(
            f"a bare answer earns {_number(reward['forms']['bare'])}, one written as {reward['example']!r} "
            f"{reward['full']:g}: ask for that form in the prompt (chat.system), or read more forms in the reward"
        )
    # nothing may earn more than trying: an empty completion above a wrong answer teaches silence
    empty, wrong, full = reward["empty"], reward["wrong"], reward["full"]
    if None not in (empty, wrong, full) and full > wrong and empty > wrong + 0.05 * (full - wrong):
        rewards_text = f"an empty completion earns {_number(empty)}, a wrong answer {_number(wrong)}"
        out.append(f"{rewards_text}: let the reward give it nothing")
    if None not in (wrong, full) and full <= wrong:
        out.append(
            f"another task's answer earns {wrong:g}, the right one {full:g}: the reward does not tell them apart"
        )
    return out


def _number(value: float | None) -> str:
    return "nothing (unscored)" if value is None else f"{value:.3g}"

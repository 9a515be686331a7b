"""`gxpo tasks`: what a task source gives a model, and what is wrong with it, before any training."""

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
from gxpo.explain.task_reward import paid
from gxpo.models import chat
from gxpo.models.chat.messages import normal_messages, padded_arguments, with_tags
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.rendered import prompt_warnings
from gxpo.parts.protocols import Message, Task
from gxpo.parts.settings import RunSettings
from gxpo.sampling.rollouts.context import prompt_messages
from gxpo.training.models.load import rows_of_model
from gxpo.training.models.without_weights import positions, tokenizer_of

FEW = 30  # held-out tasks below which an accuracy has an interval wider than +-0.18
FRACTIONS = (0.2, 0.3, 0.5)  # tried where the one that is set leaves a side empty
NAMED = 5  # tasks that a warning names


@dataclass
class _Some(ListedTasks):
    """The readable tasks of a file that a run would refuse."""

    name: str
    seed: int
    per_step: int


@dataclass(frozen=True)
class Rendered:
    """A prompt as the model sees it. `unknown`: characters or words that the tokenizer has no token for."""

    text: str
    tokens: int
    unknown: int


class Reader:
    """The tokenizer and chat format of a model; without a model, texts as they are, measured in characters."""

    def __init__(self, s: RunSettings, model: str | None) -> None:
        self.system, self.limit = s.chat.system, s.env.max_context
        self.unit, self.chat = "characters", None
        if model is not None:
            self.tokenizer = tokenizer_of(model)
            self.chat = chat.make(
                self.tokenizer,
                template=s.chat.template,
                kwargs=s.chat.kwargs,
                tools_format=s.chat.tools,
                rewrites=s.chat.rewrites,
                rows_of=rows_of_model(model, s.task),
            )
            self.tokens, self.unit = Tokens(self.tokenizer), "tokens"
            self.limit = min((x for x in (self.limit, positions(model, s.task)) if x is not None), default=None)

    def prompt(self, task: Task) -> Rendered:
        """A task's prompt, template and system message included."""
        if not isinstance(task.prompt, str) and task.prompt and isinstance(task.prompt[0], int):
            ids: Sequence[int] = task.prompt  # type: ignore[assignment]  # the other kinds are texts and messages
        elif self.chat is None:
            lines = [] if self.system is None else [f"[system] {self.system}"]
            prompt = task.prompt
            shown_as = [prompt] if isinstance(prompt, str) else with_tags(_messages_of(task))
            lines += [m if isinstance(m, str) else f"[{m['role']}] {m['content']}" for m in shown_as]
            text = "\n".join(lines)
            return Rendered(text, len(text), 0)
        else:
            try:
                messages = prompt_messages(self.chat, self.system, task.prompt)  # type: ignore[arg-type]
                ids = self.chat.start(messages).context
            except (ModelError, PictureError) as error:
                raise TaskError(f"task {task.id!r}: {error}") from error
        if self.chat is None:
            return Rendered(" ".join(map(str, ids)), len(ids), 0)
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        text = media.readable(ids, lambda own: self.tokenizer.decode(own, clean_up_tokenization_spaces=False))
        return Rendered(text, len(ids), 0 if unknown is None else list(ids).count(unknown))

    def length(self, text: str) -> int:
        """Length of an answer."""
        return len(text) if self.chat is None else len(self.tokens.encode(self.tokens.typed(text)))


def report(s: RunSettings, *, model: str | None = None, n: int = 512, scored: int = 64) -> dict[str, Any]:
    """Look at the tasks of a run's settings.

    s       the task with its options, the reward, chat and sampling; `s.model` is not read
    model   whose tokenizer and chat template prompts are rendered with; None: characters instead of tokens
    n       tasks of each side, where the source generates them; of a file all are read
    scored  tasks whose reference answer is given to the reward, and whose empty completion is

    Gives a JSON object; `warnings` are lines that say what to change. Raises `TaskError` where there is no task.
    """
    source, faults, refused = _source(s)
    listed = isinstance(source, ListedTasks)
    training = source.training if listed else list({t.id: t for t in source.draw(n, 1)}.values())
    held_out = source.held_out(1 << 30 if listed else n)
    tasks = [*training, *held_out]
    reader = Reader(s, model)
    shown = [reader.prompt(t) for t in tasks]
    answers = [reader.length(str(t.answer)) for t in tasks if t.answer is not None]
    found = overlap(training, held_out)
    rewarded = paid(s, source, tasks[:scored]) if tasks else None
    limit = reader.limit
    over = [] if limit is None else [t.id for t, p in zip(tasks, shown, strict=True) if p.tokens >= limit]
    room = math.inf if limit is None else limit - s.sampling.max_new_tokens
    tight = [t.id for t, p in zip(tasks, shown, strict=True) if room < p.tokens and t.id not in over]
    out: dict[str, Any] = {
        "task": s.task,
        "model": model,
        "complete": listed,
        "training": len(training),
        "held_out": len(held_out),
        "columns": columns(tasks),
        "unit": reader.unit,
        "prompt_lengths": spread([p.tokens for p in shown]),
        "answer_lengths": spread(answers),
        "context_limit": limit,
        "max_new_tokens": s.sampling.max_new_tokens,
        "over_limit": over,
        "no_room": tight,
        "unknown_tokens": [t.id for t, p in zip(tasks, shown, strict=True) if p.unknown],
        "no_answer": [t.id for t in tasks if t.answer is None or not str(t.answer).strip()],
        "duplicates": found.duplicates,
        "conflicting_answers": found.conflicts,
        "near_duplicates": found.near,
        "leaks": found.leaks,
        "all_pairs_compared": found.compared,
        "faults": faults,
        "refused": refused,
        "reward": rewarded,
        "prompts": [
            {"id": t.id, "text": p.text, "answer": None if t.answer is None else str(t.answer)}
            for t, p in zip(tasks[:8], shown, strict=False)
        ],
    }
    marked = prompt_warnings(tasks, reader.chat, s.chat.template)
    warning_lines = [
        *_of_file(out),
        *marked,
        *_of_calls(tasks),
        *_of_texts(out, s.tasks.too_long),
        *_of_pairs(found),
        *_of_split(out, s),
        *_of_reward(out),
    ]
    return out | {"warnings": warning_lines}


# ---------------------------------------------------------------- reading
def _source(s: RunSettings) -> tuple[Any, list[str], str | None]:
    """The task source; of a file that a run would refuse, its readable tasks, every line at fault, and the refusal."""
    given = {"seed": s.seed, "options": s.tasks.options, "per_step": s.tasks.per_step}
    try:
        world = worlds.make(s.task, workers=s.env.workers, timeout=s.env.timeout, **given)
    except TaskError as error:
        if not (s.task.endswith(".jsonl") and Path(s.task).is_file()):
            raise
        source, faults = _readable(s)
        if source is None:
            raise
        return source, faults, str(error)
    if world.envs is not None:
        world.close()
        raise TaskError(f"{s.task} is an environment, whose tasks are episodes: gxpo check-env {s.task} plays some")
    return world.source, [], None


def _readable(s: RunSettings) -> tuple[_Some | None, list[str]]:
    path, second = Path(s.task), s.tasks.options.get("held_out")
    tasks, faults = readable(path)
    held_out = None
    if isinstance(second, str) and Path(second).is_file():
        held_out, more = readable(Path(second))
        faults += more
    stated = s.tasks.options.get("held_out_fraction", 0.1)
    for fraction in (stated, *FRACTIONS):
        source = _Some(s.task, s.seed, s.tasks.per_step)
        try:
            source.split(tasks, held_out, fraction)
        except TaskError:
            continue
        return source, faults
    source = _Some(s.task, s.seed, s.tasks.per_step)
    source._training, source._held_out = tasks, held_out or []
    return (source if tasks else None), faults


def readable(path: Path) -> tuple[list[Task], list[str]]:
    """The tasks of a JSON Lines file that can be read, and a message for each line that can't."""
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
        where = f"{path}, line {number}"
        try:
            task = parse_task(line, where, f"{path.stem}/{number}")
        except TaskError as error:
            faults.append(str(error))
            continue
        if task.id in tasks:
            faults.append(f"{where}: id {task.id!r} is already that of another line")
        tasks.setdefault(task.id, task)
    return list(tasks.values()), faults


def columns(tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
    """Fields of the tasks: how many have it, of which kind, and an example."""
    found: dict[str, dict[str, Any]] = {}

    def note(name: str, value: Any) -> None:
        entry = found.setdefault(name, {"tasks": 0, "kinds": Counter(), "example": _short(value)})
        entry["tasks"] += 1
        entry["kinds"][_kind(value)] += 1

    for task in tasks:
        note("prompt", task.prompt)
        if task.answer is not None:
            note("answer", task.answer)
        for name, value in task.info.items():
            note(name, value)
    return {name: {**entry, "kinds": dict(entry["kinds"])} for name, entry in found.items()}


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "messages" if value and isinstance(value[0], Mapping) else "list"
    kinds = {str: "text", bool: "yes or no", int: "number", float: "number", type(None): "null", dict: "mapping"}
    return kinds.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def spread(lengths: Sequence[int]) -> dict[str, float] | None:
    """Smallest, median and largest; None of nothing."""
    if not lengths:
        return None
    return {"min": min(lengths), "median": statistics.median(lengths), "max": max(lengths)}


# ---------------------------------------------------------------- warnings
def some(names: Sequence[Any]) -> str:
    """The first few, and how many more.

    >>> some(["a", "b"]), some(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    shown = [" and ".join(n) if isinstance(n, tuple) else str(n) for n in names[:NAMED]]
    return ", ".join(shown) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _of_file(r: Mapping[str, Any]) -> list[str]:
    faults = list(r["faults"])
    out = [f"{len(faults)} line(s) can't be read, and a run refuses the file: {f}" for f in faults[:1]]
    out += faults[1:NAMED]
    if len(faults) > NAMED:
        out.append(f"{len(faults) - NAMED} more lines can't be read (--json lists all)")
    if r["refused"] and not faults:
        out.append(f"a run refuses these tasks: {r['refused']}")
    if r["no_answer"]:
        out.append(
            f"{len(r['no_answer'])} task(s) have no answer: {some(r['no_answer'])}; give one, or take a reward that "
            "needs none (reward=majority_vote, reward=judge or a function of your own)"
        )
    return out


def _of_calls(tasks: Sequence[Task]) -> list[str]:
    padding_by_task = [
        (task.id, padded_arguments(_messages_of(task))) for task in tasks if not isinstance(task.prompt, str)
    ]
    padded = [(name, keys) for name, keys in padding_by_task if keys]
    if not padded:
        return []
    names = ", ".join(sorted(padded[0][1]))
    return [
        f"{len(padded)} prompt(s) have tool calls with null for arguments of other tools ({names}): "
        f"{some([name for name, _ in padded])}; rows of Arrow that were written as JSON look so: read the Parquet file "
        "or the data set itself, or leave these keys out"
    ]


def _messages_of(task: Task) -> list[Message]:
    """The messages of a prompt; of token ids none."""
    try:
        return normal_messages([m for m in task.prompt if isinstance(m, Mapping)])
    except ModelError as error:
        raise ModelError(f"task {task.id!r}: {error}") from error


TOO_LONG = {
    "error": "a run refuses the tasks: shorten or drop them, or set tasks.too_long=drop or truncate_left",
    "drop": "a run leaves them out (tasks.too_long=drop)",
    "truncate_left": "a run cuts off their beginning (tasks.too_long=truncate_left)",
}


def _of_texts(r: Mapping[str, Any], too_long: str) -> list[str]:
    out = []
    if r["over_limit"]:
        out.append(
            f"{len(r['over_limit'])} prompt(s) fill the context of {r['context_limit']} tokens: "
            f"{some(r['over_limit'])}; {TOO_LONG[too_long]}"
        )
    if r["no_room"]:
        out.append(
            f"{len(r['no_room'])} prompt(s) leave less than sampling.max_new_tokens={r['max_new_tokens']} of the "
            f"context's {r['context_limit']} tokens: {some(r['no_room'])}; {TOO_LONG[too_long]}, or lower "
            "sampling.max_new_tokens"
        )
    if r["unknown_tokens"]:
        out.append(
            f"{len(r['unknown_tokens'])} prompt(s) have characters that the tokenizer of {r['model']} does not know: "
            f"{some(r['unknown_tokens'])}; the model can't read them: take another model, or spell them otherwise"
        )
    longest = r["answer_lengths"]
    if r["unit"] == "tokens" and longest and longest["max"] > r["max_new_tokens"]:
        out.append(
            f"reference answers have up to {longest['max']} tokens, and sampling.max_new_tokens is "
            f"{r['max_new_tokens']}: raise it, or those tasks can't be solved"
        )
    return out


def _of_pairs(found: Overlap) -> list[str]:
    out = []
    if found.conflicts:
        out.append(f"one prompt, different answers: {some(found.conflicts)}; correct or drop one of each")
    if found.leaks:
        out.append(
            f"{len(found.leaks)} held-out task(s) are also in training, in the same or nearly the same words: "
            f"{some(found.leaks)}; drop one of each, or evaluation counts what was trained on"
        )
    if found.duplicates:
        out.append(f"{len(found.duplicates)} duplicate(s): {some(found.duplicates)}; each copy weighs its task more")
    if found.near:
        out.append(f"{len(found.near)} near-duplicate(s), the same but for spelling: {some(found.near)}")
    return out


def _of_split(r: Mapping[str, Any], s: RunSettings) -> list[str]:
    if not r["complete"]:
        return []
    out = []
    training, held_out = r["training"], r["held_out"]
    if training < s.tasks.per_step:
        out.append(
            f"{training} training task(s), and a step draws tasks.per_step={s.tasks.per_step}: tasks come several "
            f"times in a step; set tasks.per_step={max(1, training)} or lower"
        )
    if held_out < FEW:
        half = 1.96 * math.sqrt(0.25 / max(1, held_out))
        width = f"the 95% interval of an accuracy is up to +-{half:.2f} wide" if held_out else "nothing is evaluated"
        out.append(
            f"{held_out} held-out task(s): {width}; set tasks.options.held_out=FILE, or raise "
            "tasks.options.held_out_fraction"
        )
    return out


def _of_reward(r: Mapping[str, Any]) -> list[str]:
    reward = r["reward"]
    if reward is None or "full" not in reward:
        return []
    out = [f"the reward {what}: {first}" for what, first in reward["failures"].items()]
    if reward["unpaid"]:
        names = [f"{x['id']} (answer {_short(x['answer'])!r}: {_number(x['pays'])})" for x in reward["unpaid"]]
        out.append(
            f"the reference answer does not earn the full {reward['full']:g} in {len(names)} of {reward['tasks']} "
            f"tasks, however it is written: {some(names)}; correct these answers, or the reward"
        )
    in_form = reward["form"] != "bare" and reward["forms"]["bare"] != reward["full"]
    if reward["full"] is not None and in_form and not reward["of_the_task"]:  # gxpo's own tasks are in their form
        out.append(
            f"a bare answer earns {_number(reward['forms']['bare'])}, one written as {reward['example']!r} "
            f"{reward['full']:g}: ask for that form in the prompt (chat.system), or read more forms in the reward"
        )
    empty, wrong, full = reward["empty"], reward["wrong"], reward["full"]
    if None not in (empty, wrong, full) and full > wrong and empty > wrong + 0.05 * (full - wrong):
        earned = f"an empty completion earns {_number(empty)}, a wrong answer {_number(wrong)}"
        out.append(f"{earned}: let the reward give it nothing")
    if None not in (wrong, full) and full <= wrong:
        out.append(
            f"another task's answer earns {wrong:g}, the right one {full:g}: the reward does not tell them apart"
        )
    return out


def _number(value: float | None) -> str:
    return "nothing (unscored)" if value is None else f"{value:.3g}"

"""Banks of experience in the prompt, edited from step to step in the place of weights (Training-Free GRPO)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from gxpo.base.errors import CheckpointError
from gxpo.base.usercode import described
from gxpo.forest.forest import Forest
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.between import with_component
from gxpo.sampling.rollouts.build import first_best
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.wording import Wording, check_template

ASK = """{task}

A right attempt:
{right}

A wrong attempt:
{wrong}

Experiences so far:
{bank}

Say in one short sentence what to do in tasks like this. Answer in one line: ADD: sentence, or MODIFY G0: sentence.
"""
_OPERATION = re.compile(r"(?im)^[^\w\n]*(add|modify|merge|delete)\s*((?:[GC]\d+[ ,]*)*):?[ \t]*(.*)$")


class Contrast(NamedTuple):
    """A group with successes and failures, as a writer reads it: texts of its task, a right and a wrong attempt."""

    task: str
    right: str
    wrong: str
    bank: tuple[str, ...]


Operation = Mapping[str, Any]  # op: add, modify, merge or delete; id or ids; text


def edit(bank: Sequence[str], operations: Sequence[Operation], plan: Sequence[Operation] = ()) -> tuple[list[str], int]:
    """Edit a bank: entries are G0, G1..., those that `operations` add C0, C1...; `plan` then revises both.

    Returns the new bank, whose entries are numbered anew, and how many operations could not be carried out.

    >>> edit(["a"], [{"op": "add", "text": "b"}, {"op": "modify", "id": "G0", "text": "A"}],
    ...      [{"op": "merge", "ids": ["G0", "C0"], "text": "c"}])
    (['c'], 0)
    """
    entries = {f"G{i}": text for i, text in enumerate(bank)}
    n_refused = n_added = 0
    for operation in (*operations, *plan):
        op, text = operation.get("op"), str(operation.get("text") or "").strip()
        ids = [str(x) for x in operation.get("ids") or ([operation["id"]] if "id" in operation else [])]
        is_valid = all(i in entries for i in ids) and bool(ids) != (op == "add") and (bool(text) or op == "delete")
        if not is_valid or op not in ("add", "modify", "merge", "delete"):
            n_refused += 1
        elif op == "add":
            entries[f"C{n_added}"] = text
            n_added += 1
        else:
            # the first of its entries holds the new text, the others go
            entries = {i: text if i == ids[0] else old for i, old in entries.items() if i == ids[0] or i not in ids}
            if op == "delete":
                entries.pop(ids[0], None)
    return list(entries.values()), n_refused


def read_operation(text: str) -> Operation | None:
    """Parse a writer's answer, by its last line ADD: ..., MODIFY G0: ..., MERGE G0 G1: ... or DELETE G0.

    >>> read_operation("Hm.\\nMODIFY G1: carry the one")
    {'op': 'modify', 'ids': ['G1'], 'text': 'carry the one'}
    """
    matches = _OPERATION.findall(text)
    if not matches:
        return None
    op, ids, rest = matches[-1]
    return {"op": op.lower(), "ids": re.findall(r"[GC]\d+", ids.upper()), "text": rest.strip()}


@part("bank", stage="rollout")
@dataclass(frozen=True)
class Bank(Rollout):
    """`group_size` attempts at each task, whose prompts begin with a bank of experiences that the groups edit.

    writer    of an edit for each group with successes and failures: "policy", asked under `edit_prompt`; "example": its
              task with its right attempt, as an example; or FILE.py:NAME, a function of a `Contrast` that gives a list
              of operations (see `edit`)
    max_experiences  experiences: beyond it the oldest go;   max_chars  characters of one: a longer one is refused
    acceptance  "always"; "better": an edited bank is tried by half of the next step's attempts, the other half reads
              the one before it, and the one with the better mean outcome stays
    train_attempts  whether attempts are trained; without, nothing but the bank learns
    template  {prompt} and {bank};   entry  {text}, of an experience, and {number}
    edit_prompt  {task}, {right}, {wrong}, {bank}

    Component "experiences" is the number that an attempt read: of a bank that doesn't fit beside the prompt the newest.
    Component "edits" is 1 for a group whose edit was carried out, 0 where it could not be read, or failed (on its first
    attempt). Held-out tasks are read with the bank, and never edit it.

    Source: Training-Free GRPO, arXiv 2510.08191, and its code, without its revision of the whole bank after a step.
    """

    group_size: Count = 8
    writer: Any = "policy"
    max_experiences: Count = 32
    max_chars: Count = 400
    acceptance: Literal["always", "better"] = "always"
    train_attempts: bool = False
    template: str = "{bank}{prompt}"
    entry: str = "[{number}] {text}\n"
    edit_prompt: str = ASK
    banks: dict[str, list[str]] = field(init=False, repr=False, compare=False, default_factory=dict)

    components = ("experiences", "edits")
    is_held_out = False

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt", "bank"))
        check_template("rollout.entry", self.entry, ("text",), ("number",))
        check_template("rollout.edit_prompt", self.edit_prompt, ("task",), ("right", "wrong", "bank"))
        self.banks.setdefault("current", [])

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for a writer that can't be used."""
        if self.writer not in ("policy", "example"):
            user_function(self.writer, "rollout.writer")

    @property
    def evaluation(self) -> Callable[[int], Any]:
        """The rollout for held-out tasks."""
        return self._held_out

    def _held_out(self, samples: int) -> Bank:
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        options.update(group_size=samples)
        twin = _HeldOut(**options)
        twin.banks["current"] = self.banks["current"]
        return twin

    # ------------------------------------------------------------ attempts
    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        candidate = self.banks.get("candidate")
        n_candidate = self.group_size // 2 if candidate is not None else 0
        out = []
        for draw in draws:
            for n, bank, origin in (
                (self.group_size - n_candidate, self.banks["current"], "current"),
                (n_candidate, candidate, "candidate"),
            ):
                if n and bank is not None:
                    begin = 0 if origin == "current" else self.group_size - n_candidate
                    shown_texts = self._fitting(draw, bank, play)
                    wording = Wording(self.template, {"bank": self._text(shown_texts)}) if shown_texts else None
                    info = {"experiences": len(shown_texts), "bank": origin}
                    out.append(
                        draw.attempts(
                            n, first=begin, wording=wording, is_measurement=not self.train_attempts, info=info
                        )
                    )
        return out

    def _text(self, bank: Sequence[str]) -> str:
        return "".join(self.entry.format(text=text, number=i) for i, text in enumerate(bank))

    def _fitting(self, draw: Draw, bank: Sequence[str], play: Play) -> list[str]:
        """Return the newest experiences that leave room for an action beside a prompt; all of them in a world."""
        if play.world:
            return list(bank)
        room = play.session.episode.max_context - play.session.sampling.max_new_tokens
        shown_texts = list(bank)
        while shown_texts:
            worded_task = Wording(self.template, {"bank": self._text(shown_texts)}).of_task(draw.task)
            if len(play.session.encode(worded_task)) <= room:
                break
            shown_texts = shown_texts[1:]
        return shown_texts

    # ------------------------------------------------------------ edits
    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest, episodes = rounds[0].scored, rounds[0].episodes
        edits = [math.nan] * len(episodes)
        if not self.is_held_out:
            self._decide(forest)
            first_row = {group: forest.group.index(group) for group in forest.group}
            contrasts = self._contrasts(rounds[0], play)
            operations: list[Operation] = []
            for group, group_operations in zip(contrasts, self._write(contrasts, play), strict=True):
                _, n_refused = edit(self.banks["current"], group_operations)
                is_carried_out = bool(group_operations) and not n_refused and self._is_short(group_operations)
                edits[first_row[group]] = float(is_carried_out)
                episodes[first_row[group]].info["edit"] = list(group_operations)
                operations += group_operations if is_carried_out else []
            self._take(operations)
        forest = forest.replace(info=[{**i, **e.info} for i, e in zip(forest.info, episodes, strict=True)])
        forest = with_component(forest, "experiences", [float(e.info["experiences"]) for e in episodes])
        return with_component(forest, "edits", edits)

    def _is_short(self, operations: Sequence[Operation]) -> bool:
        return all(len(str(operation.get("text") or "")) <= self.max_chars for operation in operations)

    def _take(self, operations: Sequence[Operation]) -> None:
        """Carry out a step's edits; with `acceptance` "better" the edited bank is tried first."""
        if operations:
            edited_bank = edit(self.banks["current"], operations)[0][-self.max_experiences :]
            self.banks["current" if self.acceptance == "always" else "candidate"] = edited_bank

    def _decide(self, forest: Forest) -> None:
        """Keep the bank that was tried if its attempts did better on average."""
        if (candidate := self.banks.pop("candidate", None)) is None:
            return
        outcomes: dict[str, list[float]] = {"current": [], "candidate": []}
        for info, outcome in zip(forest.info, forest.outcome.tolist(), strict=True):
            if math.isfinite(outcome):
                outcomes[info["bank"]].append(outcome)
        if all(outcomes.values()) and fmean(outcomes["candidate"]) > fmean(outcomes["current"]):
            self.banks["current"] = candidate

    def _contrasts(self, round: Round, play: Play) -> dict[str, Contrast]:
        """Return the writer's input for each group that has a success and a failure."""
        forest, out = round.scored, dict[str, Contrast]()
        rows_by_group: dict[str, list[int]] = {}
        for r, group in enumerate(forest.group):
            if math.isfinite(forest.outcome[r]):
                rows_by_group.setdefault(group, []).append(r)
        for group, rows in rows_by_group.items():
            outcomes = [float(forest.outcome[r]) for r in rows]
            if max(outcomes) > min(outcomes):
                best, worst = (round.episodes[rows[first_best([s * x for x in outcomes])]] for s in (1.0, -1.0))
                task = _text_of_task(best, play)
                out[group] = Contrast(task, play.transcript(best), play.transcript(worst), tuple(self.banks["current"]))
        return out

    def _write(self, contrasts: Mapping[str, Contrast], play: Play) -> list[list[Operation]]:
        """Have the operations of each group written; a writer that fails writes none."""
        if self.writer == "example":
            return [[{"op": "add", "text": f"{c.task}{c.right}"}] for c in contrasts.values()]
        if self.writer != "policy":
            return [self._ask_editor(contrast) for contrast in contrasts.values()]
        session, out = play.session, list[list[Operation]]()
        bank = self._text(self.banks["current"])
        for number, contrast in enumerate(contrasts.values()):
            question = self.edit_prompt.format(
                task=contrast.task, right=contrast.right, wrong=contrast.wrong, bank=bank
            )
            task = dataclasses.replace(play.step_draws[0].task, prompt=question)
            context = session.encode(task)
            if len(context) > session.episode.max_context - session.sampling.max_new_tokens:
                out.append([])
                continue
            key = StreamKey(session.seed, session.step, "bank", number)
            ((completion,),) = session.sample([Request(context, (key,))])
            operation = read_operation(session.decode(completion.tokens))
            out.append([] if operation is None else [operation])
        return out

    def _ask_editor(self, contrast: Contrast) -> list[Operation]:
        try:
            operations = list(user_function(self.writer, "rollout.writer")(contrast))
        except Exception as error:
            return [{"op": "failed", "text": described(error)}]
        is_list_of_mappings = all(isinstance(operation, Mapping) for operation in operations)
        return operations if is_list_of_mappings else [{"op": "failed", "text": "an operation is no mapping"}]

    # ------------------------------------------------------------ memory
    def state_dict(self) -> dict[str, Any]:
        return {name: list(bank) for name, bank in self.banks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "current" not in state or not set(state) <= {"current", "candidate"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, no bank")
        self.banks.clear()
        self.banks.update({name: [str(text) for text in bank] for name, bank in state.items()})


def _text_of_task(episode: Episode, play: Play) -> str:
    """Return the text of an attempt's task, or an episode's first observation."""
    if play.world:
        return str(episode.turns[0].get("observation_text") or "")
    prompt = episode.spec.task.prompt if episode.spec is not None else episode.task.prompt
    return prompt if isinstance(prompt, str) else play.session.decode(play.session.encode(episode.task))


class _HeldOut(Bank):
    """Attempts at held-out tasks under the bank, which they don't edit."""

    is_held_out = True

"""ToolQA: questions answered with a calculator, tables and a search engine over a made-up encyclopaedia."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import Message, TimeStep, ToolCall
from gxpo_worlds.grid import stream
from gxpo_worlds.toolqa_corpus import Encyclopaedia, encyclopaedia
from gxpo_worlds.toolqa_questions import (
    Call,
    Question,
    calculator_question,
    mixed_question,
    retrieval_question,
    table_question,
)
from gxpo_worlds.toolqa_text import ANSWER, INSTRUCTIONS, PLAIN_CALL, bare_call, bare_text, message, opening, plain_call
from gxpo_worlds.toolqa_tools import MOST_PASSAGES, SCHEMAS, CallError, calculate, checked, normalised, number_text

QUESTION = 6  # first word of the key of an instance's stream
KINDS = {  # the tools that a kind of question needs
    "calculator": ("calculator",),
    "table": ("lookup", "calculator"),
    "retrieval": ("search",),
    "mixed": ("search", "calculator"),
}
BARE_KINDS = ("calculator", "table")


@dataclass(kw_only=True)
class ToolQA:
    """Question with one exact answer, found by tool calls.

    Pays 1 for the right answer (compared by `toolqa_tools.normalised`) and 0 for another; either ends the
    episode. A call that can't be carried out is answered with what is wrong, and is illegal; a turn without call and
    answer is malformed. A state is the set of results seen so far. The info of the first TimeStep has the `gold_calls`
    and the `expected` answer, that of every other the `calls` of its turn, that of the last the `answer` as well.

    style   "chat": the policy's calls come to `call` and results go back as messages of tools. Calls in plain text are
            `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as the expert writes them.
            "bare": `step` alone, no instructions, kinds "calculator" and "table" only. A screen is the question, then
            what was found. `37*24` calculates, `b3` looks up row b, column 3 of the table, `#888` answers
    kinds   of questions, equally likely: "calculator" (an expression), "table" (numbers of small tables that are new in
            each instance), "retrieval" (chains through the encyclopaedia) and "mixed" (arithmetic on what was
            retrieved). The tools that these kinds need are offered. None named: all that the style has.
            "retrieval" and "mixed" need the extra `envs`
    hops    how many look-ups (of "calculator": operations) a question may take, each of 1, 2, 3; equally likely
    corpus  seed of the encyclopaedia, which all instances share
    """

    style: str = "chat"
    max_turns: int = 8
    kinds: Sequence[str] = ()
    hops: Sequence[int] = (1, 2, 3)
    corpus: int = 0
    instructions: str = field(init=False, repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(init=False, repr=False)

    name: ClassVar[str] = "toolqa"

    def __post_init__(self) -> None:
        if self.style not in ("chat", "bare"):
            raise ConfigError(f"toolqa: style must be 'chat' or 'bare', not {self.style!r}")
        self._bare = self.style == "bare"
        all_kinds = BARE_KINDS if self._bare else tuple(KINDS)
        self.kinds = _check_selection("kinds", self.kinds, all_kinds) or all_kinds
        self.hops = _check_selection("hops", self.hops, (1, 2, 3))
        if not self.hops:
            raise ConfigError("toolqa: hops must name at least one of 1, 2, 3")
        for option, value, low in (("max_turns", self.max_turns, 1), ("corpus", self.corpus, 0)):
            if type(value) is not int or value < low:
                raise ConfigError(f"toolqa: {option} must be a whole number from {low}, not {value!r}")
        needed_tools = {tool for kind in self.kinds for tool in KINDS[kind]}
        self._offered = tuple(tool for tool in SCHEMAS if tool in needed_tools or tool == "finish")
        self.tools = () if self._bare else tuple(SCHEMAS[tool] for tool in self._offered)
        self.instructions = "" if self._bare else INSTRUCTIONS
        self._encyclopaedia: Encyclopaedia | None = encyclopaedia(self.corpus) if "search" in needed_tools else None
        self._question: Question | None = None
        self._seed, self._turn, self._finished = 0, 0, False
        self._call_by_result: dict[str, Call] = {}  # the calls that were carried out, by the result that they gave
        self._calls: list[dict[str, Any]] = []  # of this turn, as far as they could be read

    # ------------------------------------------------------------ the protocol
    def reset(self, seed: int) -> TimeStep:
        self._question = self._ask(seed)
        self._seed, self._turn, self._finished, self._call_by_result = seed, 0, False, {}
        gold = [{"name": name, "arguments": dict(arguments)} for name, arguments in self._question.calls]
        about = {**self._about(self._question), "gold_calls": gold}
        return TimeStep(self._screen() if self._bare else opening(self._question), self._state, info=about)

    def call(self, content: str, calls: Sequence[ToolCall]) -> TimeStep:
        """Carry out the calls in order, up to a `finish`. `content` is the text of the action: without calls, it may
        have calls in plain text, or else an answer, the last `<answer>`."""
        question = self._open()
        self._turn, self._calls = self._turn + 1, []
        calls = calls or [plain_call(text) for text in PLAIN_CALL.findall(content)]
        # neither a call nor an answer takes a turn, as any invalid action
        if not calls:
            tagged_answers = ANSWER.findall(content)
            if not tagged_answers:
                return self._time_step(
                    f"No tool call and no answer. The tools are {', '.join(self._offered)}.", "malformed"
                )
            return self._finish(question, tagged_answers[-1], "")
        messages: list[Message] = []
        errors: set[str | None] = set()
        answer = None
        for tool_call in calls:
            text, error, answer = self._carry_out(tool_call)
            messages.append(message(tool_call, text))
            if answer is not None:
                break
            errors.add(error)
        # chat templates want results of tools right after the calls, before a message of the user's
        messages.sort(key=lambda m: m["role"] != "tool")
        if answer is not None:
            return self._finish(question, answer, tuple(messages), _worst(errors))
        return self._time_step(tuple(messages), _worst(errors))

    def step(self, action: str) -> TimeStep:
        if not self._bare:
            return self.call(action, ())
        question = self._open()
        self._turn, self._calls = self._turn + 1, []
        call = bare_call(action.strip())
        if call is None:
            return self._time_step(self._screen(), "malformed")
        _, error, answer = self._carry_out(ToolCall(*call))
        return self._time_step(self._screen(), error) if answer is None else self._finish(question, answer, "")

    def content(self, seed: int) -> str:
        question = self._ask(seed)
        return json.dumps([question.text, question.tables])

    def answer(self, seed: int) -> str:
        """Right answer of a seed's question."""
        return self._ask(seed).answer

    def expert(self) -> str | None:
        """Next call of an expert who knows every passage, `finish` at the end; None once the episode is over."""
        if self._question is None or self._over:
            return None
        final_call: Call = ("finish", {"answer": self._question.answer})
        open_calls = (call for call in self._question.calls if self._result(*call)[0] not in self._call_by_result)
        name, arguments = next(open_calls, final_call)
        if self._bare:
            return bare_text(name, arguments)
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    def snapshot(self) -> str:
        """Complete state of the episode, without the options."""
        calls = list(self._call_by_result.values())
        return json.dumps({"seed": self._seed, "turn": self._turn, "finished": self._finished, "made": calls})

    def restore(self, text: str) -> None:
        """Continue from a `snapshot`, in an environment with the same options: the calls are carried out again."""
        try:
            snapshot = json.loads(text)
            question, turn, finished = self._ask(snapshot["seed"]), int(snapshot["turn"]), bool(snapshot["finished"])
            self._question, self._call_by_result = question, {}
            self._call_by_result = {
                self._result(n, checked(n, a, self._offered))[0]: (n, a) for n, a in snapshot["made"]
            }
        except (ValueError, KeyError, TypeError) as error:
            self._question = None
            raise GxpoError(f"toolqa: this is no snapshot of it: {text[:80]!r}") from error
        self._seed, self._turn, self._finished = snapshot["seed"], turn, finished

    # ------------------------------------------------------------ the question and its state
    def _ask(self, seed: int) -> Question:
        random = stream(QUESTION, seed)
        kind = self.kinds[int(random.integers(len(self.kinds)))]
        hops = self.hops[int(random.integers(len(self.hops)))]
        if kind in BARE_KINDS:
            return (calculator_question if kind == "calculator" else table_question)(random, hops, self._bare)
        assert self._encyclopaedia is not None
        return (retrieval_question if kind == "retrieval" else mixed_question)(random, hops, self._encyclopaedia)

    def _open(self) -> Question:
        if self._question is None or self._over:
            raise GxpoError(f"toolqa: the episode {'is over' if self._question else 'has not begun'}: call reset(seed)")
        return self._question

    @property
    def _over(self) -> bool:
        return self._finished or self._turn >= self.max_turns

    @property
    def _state(self) -> str:
        return ";".join(sorted(self._call_by_result))

    def _screen(self) -> str:
        """The bare screen: the question and the results, a line each, in any order."""
        return "\n".join((self._question.text if self._question else "", *sorted(self._call_by_result), ">"))

    # ------------------------------------------------------------ tools
    def _carry_out(self, tool_call: ToolCall) -> tuple[str, str | None, str | None]:
        """Carry out a call; return the result's text, "malformed", "illegal" or None, and the answer of a `finish`."""
        if tool_call.error is not None:
            return f"Error: {tool_call.error}", "malformed", None
        if tool_call.name != "finish":
            plain = {key: x if isinstance(x, str | int) else str(x) for key, x in tool_call.arguments.items()}
            self._calls.append({"name": tool_call.name, "arguments": plain})
        try:
            arguments = checked(tool_call.name, tool_call.arguments, self._offered)
            if tool_call.name == "finish":
                return "The answer was taken down.", None, arguments["answer"]
            key, text = self._result(tool_call.name, arguments)
        except CallError as error:
            return f"Error: {error}", "illegal", None
        self._call_by_result[key] = (tool_call.name, arguments)
        return text, None, None

    def _result(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Result of a call as (name, text); equal results have equal names, which make up the state."""
        if name == "calculator":
            value = number_text(calculate(arguments["expression"]))
            return f"{''.join(arguments['expression'].split())}={value}", value
        if name == "lookup":
            return self._table_cell(arguments["table"], arguments["row"], arguments["column"])
        return self._passages(arguments["query"], arguments.get("k", 3))

    def _table_cell(self, table: str, row: str, column: str) -> tuple[str, str]:
        entry: Any = self._question.tables if self._question else {}
        for axis, name in (("table", table), ("row", row), ("column", column)):
            if name not in entry:
                raise CallError(f"There is no {axis} {name!r}; there are {', '.join(entry) or 'none'}.")
            entry = entry[name]
        return f"{table}{'.' if table else ''}{row}{'.' if table else ''}{column}={entry}", str(entry)

    def _passages(self, query: str, k: int) -> tuple[str, str]:
        if not 1 <= k <= MOST_PASSAGES:
            raise CallError(f"search: k must be from 1 to {MOST_PASSAGES}, not {k}.")
        assert self._encyclopaedia is not None
        book, numbers = self._encyclopaedia, self._encyclopaedia.search(query, k)
        passages = [f"[{book.titles[i]}] {book.texts[i]}" for i in numbers]
        return f"passages {','.join(map(str, numbers))}", "\n".join(passages) or "No passage matches."

    # ------------------------------------------------------------ time steps
    def _time_step(self, observation: str | tuple[Message, ...], error: str | None) -> TimeStep:
        success = False if self._over else None
        info = {"calls": self._calls}
        return TimeStep(observation, self._state, 0.0, self._over, success, error, truncated=self._over, info=info)

    def _finish(
        self, question: Question, answer: str, observation: str | tuple[Message, ...], error: str | None = None
    ) -> TimeStep:
        self._finished = True
        right = normalised(answer) == normalised(question.answer)
        info = {**self._about(question), "answer": answer.strip(), "calls": self._calls}
        return TimeStep(observation, f"{self._state};finished", float(right), True, right, error, info=info)

    @staticmethod
    def _about(question: Question) -> dict[str, Any]:
        return {"kind": question.kind, "hops": question.hops, "expected": question.answer}


def _worst(errors: Collection[str | None]) -> str | None:
    return next((error for error in ("malformed", "illegal") if error in errors), None)


def _check_selection(option: str, names: Any, entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an option that names some distinct ones of `entries`; ConfigError for any other."""
    if not isinstance(names, list | tuple) or any(x not in entries for x in names) or len(set(names)) < len(names):
        raise ConfigError(f"toolqa: {option} must name some of {', '.join(map(str, entries))}, not {names!r}")
    return tuple(names)

"""Token history of one episode: which call continues which recorded reply, and the rollout record.

A call goes on from a recorded action where its messages begin with those of that action's call and with what was
answered: then the policy reads the ids that it sampled, and the call is the next turn of the same context. Any other
call begins a context of its own, with its whole prompt. Nothing that the policy wrote is ever tokenised again to be
trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.base.usercode import described
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.tools import structured
from gxpo.parts.protocols import Chat, Completion, ContextUpdate, Conversation, Message, Reply, ToolCall
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.refusal import Refused, too_long
from gxpo.sampling.serve.request import Asked


# ---------------------------------------------------------------- messages
# Match messages of clients with recorded ones, and prepare them for the model's chat format.
def identity(message: Message) -> str:
    """What two messages have in common where one is the other sent back by a client.

    Clients drop ids of calls and thinking, write arguments anew, and strip what the policy said.
    """
    role, content = message["role"], message["content"]
    if role != "assistant":
        return json.dumps([role, content, message.get("tool_call_id")], ensure_ascii=False)
    calls = [[c["name"], c["arguments"]] for c in message.get("tool_calls", ())]
    return json.dumps([role, content.strip(), calls], ensure_ascii=False, sort_keys=True)


def beginnings(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """A digest of the tools and of the first i + 1 messages, for each i."""
    running = hashlib.blake2b(json.dumps(list(tools), sort_keys=True).encode(), digest_size=16)
    out = []
    for message in messages:
        text = identity(message).encode("utf-8", "surrogatepass")
        running.update(len(text).to_bytes(8, "big") + text)
        out.append(running.digest())
    return out


def shown(messages: Sequence[Message], chat: Chat) -> list[Message]:
    """The messages as the chat format takes them: calls that a client wrote are text where the format has no place for
    them, and what the system says is the user's where it has no such role."""
    out: list[Message] = []
    facts = getattr(chat, "facts", None)
    for message in messages:
        calls = [ToolCall(c["name"], c["arguments"], c["id"]) for c in message.get("tool_calls", ())]
        if calls and getattr(chat, "tools_format", "tags") == "tags":
            tags = (f"<tool>{c.name}({json.dumps(dict(c.arguments), ensure_ascii=False)})</tool>" for c in calls)
            message = {"role": "assistant", "content": "\n".join([message["content"], *tags]).strip()}
        elif calls:
            message = {**message, "tool_calls": structured(calls, bool(facts and facts.arguments_as_json))}
        out.append(message)
    if getattr(facts, "system", True):
        return out
    said = "\n\n".join(m["content"] for m in out if m["role"] == "system")
    rest = [m for m in out if m["role"] != "system"]
    for i, message in enumerate(rest):
        if said and message["role"] == "user":
            return [*rest[:i], {**message, "content": f"{said}\n\n{message['content']}"}, *rest[i + 1 :]]
    return [{"role": "user", "content": said}, *rest] if said else rest


def answer(reply: Reply, written: str, stop: Sequence[str], parse: bool) -> Message:
    """The policy's action as the message that its client gets, up to the first stop text.

    written  the whole action as text: what the client gets where calls are not read, or can't be
    """
    calls = [c for c in reply.calls if c.error is None]
    readable = parse and len(calls) == len(reply.calls)
    content = reply.content if readable or not reply.calls else written
    message: dict[str, Any] = {"role": "assistant", "content": until(content, stop)}
    if parse and calls:
        message["tool_calls"] = [{"id": c.id or "", "name": c.name, "arguments": dict(c.arguments)} for c in calls]
    if reply.reasoning is not None:
        message["reasoning"] = reply.reasoning
    return message


def until(text: str, stop: Sequence[str]) -> str:
    """The text before the first of the stop texts.

    >>> until("a = 1; b = 2", [";", "b"])
    'a = 1'
    """
    places = [place for s in stop if (place := text.find(s)) >= 0]
    return text[: min(places)] if places else text


# ---------------------------------------------------------------- history
LONG_TOKEN = 64  # characters that no text has for each of its tokens


@dataclass(eq=False)
class Thread:
    """A running context: the turns that went on from one another, and when each was taken."""

    number: int
    agent: str
    turns: list[dict[str, Any]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Said:
    """A recorded action, with all that a later call would go on from.

    conversation  of a chat, after the action; else `text` is the prompt and what was returned
    ids           everything up to its end
    stop          the text that ended what was returned, where more was sampled than returned
    closed        the token that ended the action, where one did
    continued     a later call has gone on from here: another one is a branch, and begins a context of its own
    """

    thread: Thread
    ids: tuple[int, ...]
    conversation: Conversation | None = None
    text: str | None = None
    stop: str = ""
    closed: int | None = None
    continued: bool = False


@dataclass(frozen=True, eq=False)
class Draft:
    """One prompt of a call in token ids, before it is settled which of the episode's calls goes on from an action.

    action  the recorded one that it goes on from, or branches off from; None: it begins anew
    opening, ids, new_text, conversation, marks  as of `Prompt`; no marks: `part` of a completion's prompts is continued
    """

    action: Said | None
    opening: ContextUpdate
    ids: tuple[int, ...]
    new_text: str
    conversation: Conversation | None = None
    marks: tuple[bytes, ...] | None = None
    part: str | tuple[int, ...] = ""


@dataclass(frozen=True, eq=False)
class Prompt:
    """One prompt of a call, as ids.

    opening   what is new of them, or, rebuilt, all
    after     the action that it goes on from; None: a new context
    lane      the number of its context
    new_text  the new messages as text
    marks     digests of the beginnings of its messages
    """

    asked: Asked
    opening: ContextUpdate
    ids: tuple[int, ...]
    after: Said | None
    lane: int
    new_text: str
    conversation: Conversation | None = None
    text: str | None = None
    marks: tuple[bytes, ...] = ()

    @cached_property
    def digest(self) -> int:
        """A name for the ids: with the number of samples drawn under it, that of a random stream."""
        text = b"".join(i.to_bytes(4, "big") for i in self.ids)
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


@dataclass(frozen=True)
class Choice:
    """A sample as the client gets it: a message of a chat, or a text."""

    message: Message | None
    text: str
    completion: Completion
    prompt: Prompt


class History:
    """The calls of one episode.

    chat    the format of conversations; `system`, a message before those that have none of their own
    limit   tokens of a context; None: what is too long for one is found out when it has been put into tokens
    """

    def __init__(self, chat: Chat, tokenizer: Any, system: str | None = None, limit: int | None = None) -> None:
        self.chat, self.system, self.limit = chat, system, limit
        self.tokens: Tokens = getattr(chat, "tokens", None) or Tokens(tokenizer)
        self.threads: list[Thread] = []
        self.overridden = 0  # calls that asked for other sampling than the run's
        self._drawn: dict[int, int] = {}  # samples under each prompt
        self._chats: dict[bytes, list[Said]] = {}
        self._texts: list[Said] = []
        self._clock = self._lanes = 0

    # ------------------------------------------------------------ before sampling
    def drafts(self, asked: Asked) -> list[Draft]:
        """The prompts of a call in token ids: what takes longest of a call. Any thread may ask for it, as it changes
        nothing. `Refused` where the policy can't be given these messages, or this prompt."""
        self._check_size(asked)
        marks = None if asked.messages is None else tuple(beginnings(asked.messages, asked.tools))
        return [self._draft(asked, marks, part) for part in asked.prompts or ("",)]

    def prompts(self, asked: Asked, drafts: Sequence[Draft] | None = None) -> list[Prompt]:
        """The prompts of a call, each in its context. A draft is used unless other actions have been taken since that
        it goes on from."""
        out = []
        for draft in self.drafts(asked) if drafts is None else drafts:
            if self._origin(draft.marks, draft.part)[0] is not draft.action:
                draft = self._draft(asked, draft.marks, draft.part)
            action, lane = self._going_on(draft.action)
            opening = draft.opening if action is not None else ContextUpdate(draft.ids, rebuilt=True)
            text = draft.part if draft.marks is None and isinstance(draft.part, str) else None
            marks = draft.marks or ()
            out.append(Prompt(asked, opening, draft.ids, action, lane, draft.new_text, draft.conversation, text, marks))
        return out

    def streams(self, prompt: Prompt, n: int) -> list[tuple[int, int]]:
        """(digest, number) of the next `n` samples under a prompt: they depend on what is read, not on when."""
        first = self._drawn.get(prompt.digest, 0)
        self._drawn[prompt.digest] = first + n
        return [(prompt.digest, first + i) for i in range(n)]

    def drop(self, prompt: Prompt) -> None:
        """The prompt is not sampled under after all: another call may go on from where it would have."""
        if prompt.after is not None:
            prompt.after.continued = False

    def _origin(self, marks: Sequence[bytes] | None, part: str | tuple[int, ...]) -> tuple[Said | None, int]:
        """The action that a conversation with these marks (None: a prompt) goes on from, and how many of the messages
        are known by then."""
        if marks is not None:
            for length in range(len(marks), 0, -1):
                if action := _open_one(self._chats.get(marks[length - 1], ())):
                    return action, length
            return None, 0
        if isinstance(part, str):
            candidates = [(len(s.text), s) for s in self._texts if s.text is not None and part.startswith(s.text)]
        else:
            candidates = [(len(s.ids), s) for s in self._texts if part[: len(s.ids)] == s.ids]
        longest = max((size for size, _ in candidates), default=0)
        return _open_one([s for size, s in candidates if size == longest]), 0

    def _draft(self, asked: Asked, marks: tuple[bytes, ...] | None, part: str | tuple[int, ...]) -> Draft:
        action, length = self._origin(marks, part)
        try:
            if marks is not None:
                return self._chat(asked, marks, action, length)
            return self._continuation(part, action)
        except Refused:
            raise
        except Exception as error:  # templates and tokenizers raise what they like, and one call is to blame
            message = (
                str(error) if isinstance(error, ModelError) else f"the policy can't be given it: {described(error)}"
            )
            raise Refused(message, param="prompt" if marks is None else "messages") from error

    def _chat(self, asked: Asked, marks: tuple[bytes, ...], action: Said | None, length: int) -> Draft:
        messages = asked.messages or ()
        new = messages[length:]
        if action is not None:
            assert action.conversation is not None
            conversation = action.conversation.copy()
            opening = conversation.observe(shown(new, self.chat))
        else:
            prompt_messages = shown(messages, self.chat)
            if self.system is not None and all(m["role"] != "system" for m in messages):
                prompt_messages = shown([{"role": "system", "content": self.system}, *messages], self.chat)
            conversation, opening = self.chat.start(prompt_messages, asked.tools), ContextUpdate((), rebuilt=True)
        ids, new_text = tuple(conversation.context), "\n".join(m["content"] for m in new)
        if opening.rebuilt:
            opening = ContextUpdate(ids, rebuilt=True)
        return Draft(action, opening, ids, new_text, conversation, marks=marks)

    def _going_on(self, action: Said | None) -> tuple[Said | None, int]:
        """The action to go on from, unless another call has, and the number of the context."""
        if action is None or action.continued:
            self._lanes += 1
            return None, self._lanes - 1
        action.continued = True
        return action, action.thread.number

    def _continuation(self, part: str | tuple[int, ...], action: Said | None) -> Draft:
        """The prompt of a completion: a text is taken as it stands, names of special tokens included."""
        new_text = ""
        if isinstance(part, str):
            new_text = part[len((action and action.text) or "") :]
            ids = self._encode_start(part) if action is None else action.ids + self._rest(action, new_text)
        else:
            self._check_ids(part if action is None else part[len(action.ids) :])
            ids = part
        if not ids:
            raise Refused("the prompt is empty", param="prompt")
        opening = ContextUpdate(ids if action is None else ids[len(action.ids) :], rebuilt=action is None)
        return Draft(action, opening, ids, new_text, part=part)

    def _check_size(self, asked: Asked) -> None:
        """`Refused` for a call that is far too long for a context, before time is spent on its tokens."""
        if self.limit is None:
            return
        longest = max((len(p) for p in asked.prompts if not isinstance(p, str)), default=0)
        if longest >= self.limit:
            raise too_long(f"{longest} tokens", self.limit)
        size = max((len(p) for p in asked.prompts if isinstance(p, str)), default=0)
        for message in asked.messages or ():
            size += len(message["content"]) + sum(len(json.dumps(c)) for c in message.get("tool_calls", ()))
        size += sum(len(json.dumps(tool)) for tool in asked.tools)
        if size >= self.limit * LONG_TOKEN:
            raise too_long(f"{size} characters", self.limit)

    def _encode_start(self, text: str) -> tuple[int, ...]:
        """Ids of a text that begins a context: bos stands once before it."""
        ids, bos = self.tokens.encode(text), self.tokens.bos
        return ids if bos and ids[: len(bos)] == bos else bos + ids

    def _check_ids(self, ids: Sequence[int]) -> None:
        """`Refused` for ids that are no tokens of the policy's."""
        size = max(len(self.tokens.tokenizer), 1 + max(self.tokens.markers.values(), default=0))
        if ids and max(ids) >= size:
            raise Refused(f"prompt has the token id {short_repr(max(ids))}; there are 0 to {size - 1}", param="prompt")

    def _rest(self, action: Said, text: str) -> tuple[int, ...]:
        """Ids of what a client put behind an action; what the action ended with already is not there twice."""
        ids = self.tokens.encode_after(text.removeprefix(action.stop) if action.stop else text)
        return ids[1:] if action.closed is not None and ids[:1] == (action.closed,) else ids

    # ------------------------------------------------------------ after sampling
    def take(self, prompt: Prompt, completions: Sequence[Completion], turns: Sequence[dict[str, Any]]) -> list[Choice]:
        """The samples of a prompt, written down. `turns`: of each, the fields of its turn that are the engine's."""
        return [self._said(prompt, c, turn, i) for i, (c, turn) in enumerate(zip(completions, turns, strict=True))]

    def _said(self, prompt: Prompt, completion: Completion, turn: dict[str, Any], number: int) -> Choice:
        asked = prompt.asked
        self._pay(asked)
        if prompt.after is not None and number == 0:
            thread, opening = prompt.after.thread, prompt.opening
        else:  # every further sample is a context of its own
            self._lanes += number > 0
            thread = Thread(self._lanes - 1 if number else prompt.lane, asked.agent)
            self.threads.append(thread)
            opening = ContextUpdate(prompt.ids, rebuilt=True)
        turn["context" if opening.rebuilt else "observation"] = list(opening.ids)
        turn["observation_text"] = prompt.new_text
        turn["state"] = asked.state or f"{prompt.digest:014x}"
        thread.turns.append(turn)
        thread.times.append(self._clock)
        self._clock += 1
        action = Said(thread, prompt.ids + tuple(completion.tokens))
        text, action.closed = self.tokens.split_stop(completion.tokens, getattr(self.chat, "stop_ids", ()))
        text = self.tokens.without_special(text)
        if prompt.conversation is None:
            shown_text = until(text, asked.stop)
            action.stop = next((s for s in asked.stop if text[len(shown_text) :].startswith(s)), "")
            action.text = None if prompt.text is None else prompt.text + shown_text
            self._texts.append(action)
            return Choice(None, shown_text, completion, prompt)
        action.conversation = prompt.conversation.copy()
        reply = action.conversation.act(completion.tokens)
        message = answer(reply, text, asked.stop, asked.parse)
        mark = beginnings([*(asked.messages or ()), message], asked.tools)[-1]
        self._chats.setdefault(mark, []).append(action)
        return Choice(message, message["content"], completion, prompt)

    def _pay(self, asked: Asked) -> None:
        """The reward that a call brings is that of its agent's newest action."""
        own = [(t.times[-1], t.turns[-1]) for t in self.threads if t.agent == asked.agent]
        if asked.reward is not None and own:
            max(own, key=lambda entry: entry[0])[1]["reward"] = asked.reward

    # ------------------------------------------------------------ the record
    def turns(self) -> list[dict[str, Any]]:
        """All turns in the order in which they were taken, each with its agent: contexts of one agent that were under
        way at the same time have names of their own (agent, agent.2, ...)."""
        ends: dict[str, list[int]] = {}  # agent -> last time of each of its lanes
        timed: list[tuple[int, dict[str, Any]]] = []
        for thread in self.threads:
            lanes = ends.setdefault(thread.agent, [])
            lane = next((i for i, end in enumerate(lanes) if end < thread.times[0]), len(lanes))
            lanes[lane : lane + 1] = [thread.times[-1]]
            name = thread.agent if lane == 0 else f"{thread.agent}.{lane + 1}"
            timed += [(when, {**turn, "agent": name}) for when, turn in zip(thread.times, thread.turns, strict=True)]
        return [turn for _, turn in sorted(timed, key=lambda entry: entry[0])]


def _open_one(found: Sequence[Said]) -> Said | None:
    """Of equal actions the first that nobody has gone on from; else the newest."""
    return next((s for s in found if not s.continued), found[-1] if found else None)

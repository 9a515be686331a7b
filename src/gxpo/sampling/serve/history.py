"""Token history of an agent's episode: matches calls with recorded replies, and builds the rollout record.

A call continues a recorded action if its messages begin with those of that action's call plus its reply: then the
policy reads the ids that it sampled, and the call is the next turn of the same context. Any other call begins a new
context with its whole prompt. Text that the policy wrote is never tokenised again for training.
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
from gxpo.models.chat.variables import with_variables
from gxpo.parts.protocols import Chat, Completion, ContextUpdate, Conversation, Message, Reply, ToolCall
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.request import CallRequest, Refused, too_long


# ---------------------------------------------------------------- messages
# Match messages of clients with recorded ones, and prepare them for the model's chat format.
def message_key(message: Message) -> str:
    """Key by which a message equals its copy that a client sends back.

    Clients drop call ids and reasoning, reformat arguments, and strip whitespace of replies, so the key has none of it.
    """
    role, content = message["role"], message["content"]
    if role != "assistant":
        return json.dumps([role, content, message.get("tool_call_id")], ensure_ascii=False)
    calls = [[c["name"], c["arguments"]] for c in message.get("tool_calls", ())]
    return json.dumps([role, content.strip(), calls], ensure_ascii=False, sort_keys=True)


def prefix_digests(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None
) -> list[bytes]:
    """Digest of the tools, the template's variables and the first i + 1 messages, for each i."""
    fields = [list(tools), dict(template)] if template else list(tools)
    digest = hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16)
    out = []
    for message in messages:
        text = message_key(message).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "big") + text)
        out.append(digest.digest())
    return out


def as_chat_messages(messages: Sequence[Message], chat: Chat) -> list[Message]:
    """Adapt messages to the chat format.

    Tool calls become text if the format has no field for them, and the system message becomes part of the first user
    message if the format has no such role.
    """
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
    # A template without a system role would raise: its text goes before that of the first user message.
    if getattr(facts, "system", True):
        return out
    system_text = "\n\n".join(m["content"] for m in out if m["role"] == "system")
    conversation = [m for m in out if m["role"] != "system"]
    for i, message in enumerate(conversation):
        if system_text and message["role"] == "user":
            return [
                *conversation[:i],
                {**message, "content": f"{system_text}\n\n{message['content']}"},
                *conversation[i + 1 :],
            ]
    return [{"role": "user", "content": system_text}, *conversation] if system_text else conversation


def answer(reply: Reply, action_text: str, stop: Sequence[str], parse: bool) -> Message:
    """Convert the policy's action to the client's message, up to the first stop text.

    action_text  the whole action, which the client gets if tool calls are not parsed or one is malformed
    """
    calls = [c for c in reply.calls if c.error is None]
    readable = parse and len(calls) == len(reply.calls)
    content = reply.content if readable or not reply.calls else action_text
    message: dict[str, Any] = {"role": "assistant", "content": text_before_stop(content, stop)}
    if parse and calls:
        message["tool_calls"] = [{"id": c.id or "", "name": c.name, "arguments": dict(c.arguments)} for c in calls]
    if reply.reasoning is not None:
        message["reasoning"] = reply.reasoning
    return message


def text_before_stop(text: str, stop: Sequence[str]) -> str:
    """Text before the first of the stop texts.

    >>> text_before_stop("a = 1; b = 2", [";", "b"])
    'a = 1'
    """
    places = [position for s in stop if (position := text.find(s)) >= 0]
    return text[: min(places)] if places else text


# ---------------------------------------------------------------- history
MOST_CHATS = 16  # different variables of the template in an episode
LONG_TOKEN = 64  # characters per token that no text reaches


@dataclass(eq=False)
class Thread:
    """Growing context of an agent: its turns in order, and the time of each by the history's clock."""

    number: int
    agent: str
    turns: list[dict[str, Any]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


@dataclass(eq=False)
class RecordedAction:
    """Recorded action that a later call may continue.

    conversation  of a chat, after the action; of a completion `text` is the prompt and the returned text
    ids           context and action
    stop          stop text that cut the returned text off, if more was sampled than returned
    end_token     token that ended the action, if one did
    is_continued  True once a later call continues it: the next one is a branch, and begins a new context
    """

    thread: Thread
    ids: tuple[int, ...]
    conversation: Conversation | None = None
    text: str | None = None
    stop: str = ""
    end_token: int | None = None
    is_continued: bool = False


@dataclass(frozen=True, eq=False)
class Draft:
    """Prompt of a call in token ids, before it is settled which of several calls continues an action.

    action  recorded action that it continues or branches from; None: it begins a new context
    opening, ids, new_text, conversation, marks  as of `Prompt`; marks None: a completion, of the prompt `part`
    """

    action: RecordedAction | None
    opening: ContextUpdate
    ids: tuple[int, ...]
    new_text: str
    conversation: Conversation | None = None
    marks: tuple[bytes, ...] | None = None
    part: str | tuple[int, ...] = ""


@dataclass(frozen=True, eq=False)
class Prompt:
    """Prompt of a call in token ids, with its place in the history.

    opening   ids new to the context, or all of them, if rebuilt
    after     action that it continues; None: a new context
    lane      number of its context
    new_text  new messages as text
    marks     `prefix_digests` of its messages
    """

    request: CallRequest
    opening: ContextUpdate
    ids: tuple[int, ...]
    after: RecordedAction | None
    lane: int
    new_text: str
    conversation: Conversation | None = None
    text: str | None = None
    marks: tuple[bytes, ...] = ()

    @cached_property
    def digest(self) -> int:
        """Hash of the ids; with the number of samples drawn for it, it names a random stream."""
        text = b"".join(i.to_bytes(4, "big") for i in self.ids)
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


@dataclass(frozen=True)
class Choice:
    """Sample in the client's form: a chat message, or a text."""

    message: Message | None
    text: str
    completion: Completion
    prompt: Prompt


class History:
    """History of an episode's calls.

    chat    chat format;   system  message for conversations that have no system message of their own
    limit   longest context, by which oversized calls are refused before they are tokenised; None: no such check
    """

    def __init__(self, chat: Chat, tokenizer: Any, system: str | None = None, limit: int | None = None) -> None:
        self.chat, self.system, self.limit = chat, system, limit
        self.tokens: Tokens = getattr(chat, "tokens", None) or Tokens(tokenizer)
        self.threads: list[Thread] = []
        self._chats: dict[str, Chat] = {}  # by a call's variables of the template
        self.overridden = 0  # calls that requested other sampling settings than the run's
        self._sample_counts: dict[int, int] = {}  # samples drawn so far, by digest of the prompt
        self._actions_by_digest: dict[bytes, list[RecordedAction]] = {}
        self._completion_actions: list[RecordedAction] = []
        self._clock = self._lanes = 0

    # ------------------------------------------------------------ before sampling
    def drafts(self, request: CallRequest) -> list[Draft]:
        """Tokenise the prompts of a call, its slowest step; changes nothing, so any thread may call it.

        `Refused` if the chat format or the tokenizer can't take these messages or this prompt.
        """
        self._check_size(request)
        self._check_bias(request)
        marks = (
            None
            if request.messages is None
            else tuple(prefix_digests(request.messages, request.tools, request.template))
        )
        return [self._make_draft(request, marks, part) for part in request.prompts or ("",)]

    def prompts(self, request: CallRequest, drafts: Sequence[Draft] | None = None) -> list[Prompt]:
        """Assign each prompt of a call to a context; drafts are made again if the action that they continue changed."""
        out = []
        for draft in self.drafts(request) if drafts is None else drafts:
            if self._continued_action(draft.marks, draft.part)[0] is not draft.action:
                draft = self._make_draft(request, draft.marks, draft.part)
            action, lane = self._enter_context(draft.action)
            opening = draft.opening if action is not None else ContextUpdate(draft.ids, rebuilt=True)
            text = draft.part if draft.marks is None and isinstance(draft.part, str) else None
            marks = draft.marks or ()
            out.append(
                Prompt(request, opening, draft.ids, action, lane, draft.new_text, draft.conversation, text, marks)
            )
        return out

    def streams(self, prompt: Prompt, n: int) -> list[tuple[int, int]]:
        """Stream names (digest, number) of the next `n` samples of a prompt, which depend on its ids, not on timing."""
        first = self._sample_counts.get(prompt.digest, 0)
        self._sample_counts[prompt.digest] = first + n
        return [(prompt.digest, first + i) for i in range(n)]

    def drop(self, prompt: Prompt) -> None:
        """Release a prompt that is not sampled after all: another call may continue its action."""
        if prompt.after is not None:
            prompt.after.is_continued = False

    def _continued_action(
        self, marks: Sequence[bytes] | None, part: str | tuple[int, ...]
    ) -> tuple[RecordedAction | None, int]:
        """Find the recorded action that a chat (by marks) or prompt continues, and its number of messages."""
        # The longest match wins: it leaves the least text to be tokenised again.
        if marks is not None:
            for length in range(len(marks), 0, -1):
                if action := _first_open(self._actions_by_digest.get(marks[length - 1], ())):
                    return action, length
            return None, 0
        if isinstance(part, str):
            candidates = [
                (len(s.text), s) for s in self._completion_actions if s.text is not None and part.startswith(s.text)
            ]
        else:
            candidates = [(len(s.ids), s) for s in self._completion_actions if part[: len(s.ids)] == s.ids]
        longest = max((size for size, _ in candidates), default=0)
        return _first_open([s for size, s in candidates if size == longest]), 0

    def _make_draft(self, request: CallRequest, marks: tuple[bytes, ...] | None, part: str | tuple[int, ...]) -> Draft:
        action, length = self._continued_action(marks, part)
        try:
            if marks is not None:
                return self._chat_draft(request, marks, action, length)
            return self._completion_draft(part, action)
        except Refused:
            raise
        except Exception as error:  # templates and tokenizers raise anything, and only this call must fail
            message = (
                str(error) if isinstance(error, ModelError) else f"the policy can't be given it: {described(error)}"
            )
            raise Refused(message, param="prompt" if marks is None else "messages") from error

    def _chat_draft(
        self, request: CallRequest, marks: tuple[bytes, ...], action: RecordedAction | None, length: int
    ) -> Draft:
        messages, chat = request.messages or (), self.chat_of(request)
        _check_thought(request, chat)
        new_messages = messages[length:]
        if action is not None:
            assert action.conversation is not None
            conversation = action.conversation.copy()
            opening = conversation.observe(as_chat_messages(new_messages, chat))
        else:
            prompt_messages = as_chat_messages(messages, chat)
            if self.system is not None and all(m["role"] != "system" for m in messages):
                prompt_messages = as_chat_messages([{"role": "system", "content": self.system}, *messages], chat)
            conversation, opening = chat.start(prompt_messages, request.tools), ContextUpdate((), rebuilt=True)
        ids, new_text = tuple(conversation.context), "\n".join(m["content"] for m in new_messages)
        if opening.rebuilt:
            opening = ContextUpdate(ids, rebuilt=True)
        return Draft(action, opening, ids, new_text, conversation, marks=marks)

    def chat_of(self, request: CallRequest) -> Chat:
        """The chat format with the call's variables of the template; a history under others is another context."""
        if not request.template:
            return self.chat
        key = json.dumps(request.template, sort_keys=True)
        if key not in self._chats:
            if len(self._chats) >= MOST_CHATS:
                raise Refused(
                    f"an episode may have {MOST_CHATS} different chat_template_kwargs, and this one has had them",
                    param="chat_template_kwargs",
                )
            self._chats[key] = with_variables(self.chat, request.template)
        return self._chats[key]

    def _enter_context(self, action: RecordedAction | None) -> tuple[RecordedAction | None, int]:
        """Continue the action's context, or open a new one if another call continues it already."""
        if action is None or action.is_continued:
            self._lanes += 1
            return None, self._lanes - 1
        action.is_continued = True
        return action, action.thread.number

    def _completion_draft(self, part: str | tuple[int, ...], action: RecordedAction | None) -> Draft:
        """Draft of a completion: a text is tokenised as it stands, names of special tokens included."""
        new_text = ""
        if isinstance(part, str):
            new_text = part[len((action and action.text) or "") :]
            ids = (
                self._encode_start(part) if action is None else action.ids + self._encode_continuation(action, new_text)
            )
        else:
            self._check_ids(part if action is None else part[len(action.ids) :])
            ids = part
        if not ids:
            raise Refused("the prompt is empty", param="prompt")
        opening = ContextUpdate(ids if action is None else ids[len(action.ids) :], rebuilt=action is None)
        return Draft(action, opening, ids, new_text, part=part)

    def _check_size(self, request: CallRequest) -> None:
        """Refuse a call that is far too long for a context, before time is spent on tokenising it."""
        if self.limit is None:
            return
        longest = max((len(p) for p in request.prompts if not isinstance(p, str)), default=0)
        if longest >= self.limit:
            raise too_long(f"{longest} tokens", self.limit)
        size = max((len(p) for p in request.prompts if isinstance(p, str)), default=0)
        for message in request.messages or ():
            size += len(message["content"]) + sum(len(json.dumps(c)) for c in message.get("tool_calls", ()))
        size += sum(len(json.dumps(tool)) for tool in request.tools)
        if size >= self.limit * LONG_TOKEN:
            raise too_long(f"{size} characters", self.limit)

    def _encode_start(self, text: str) -> tuple[int, ...]:
        """Tokenise a text that begins a context, with one bos before it."""
        ids, bos = self.tokens.encode(text), self.tokens.bos
        return ids if bos and ids[: len(bos)] == bos else bos + ids

    def _check_ids(self, ids: Sequence[int], name: str = "prompt") -> None:
        """Refuse ids outside the policy's vocabulary."""
        size = max(len(self.tokens.tokenizer), 1 + max(self.tokens.markers.values(), default=0))
        if ids and max(ids) >= size:
            raise Refused(f"{name} has the token id {short_repr(max(ids))}; there are 0 to {size - 1}", param=name)

    def _check_bias(self, request: CallRequest) -> None:
        """Refuse a bias of ids outside the policy's vocabulary."""
        self._check_ids([i for i, _ in request.options.logit_bias] if request.options else (), "logit_bias")

    def _encode_continuation(self, action: RecordedAction, text: str) -> tuple[int, ...]:
        """Tokenise a client's text behind an action, without the stop text or end token that ended the action."""
        ids = self.tokens.encode_after(text.removeprefix(action.stop) if action.stop else text)
        return ids[1:] if action.end_token is not None and ids[:1] == (action.end_token,) else ids

    # ------------------------------------------------------------ after sampling
    def take(self, prompt: Prompt, completions: Sequence[Completion], turns: Sequence[dict[str, Any]]) -> list[Choice]:
        """Record the samples of a prompt; `turns` holds the engine's fields of each sample's turn."""
        return [
            self._record_sample(prompt, c, turn, i) for i, (c, turn) in enumerate(zip(completions, turns, strict=True))
        ]

    def _record_sample(self, prompt: Prompt, completion: Completion, turn: dict[str, Any], sample_index: int) -> Choice:
        """Record one sample as a turn, and as an action that later calls may continue."""
        request = prompt.request
        self._assign_reward(request)
        # The first sample continues the thread; every further one is a branch, with the whole prompt as its context.
        if prompt.after is not None and sample_index == 0:
            thread, opening = prompt.after.thread, prompt.opening
        else:
            self._lanes += sample_index > 0
            thread = Thread(self._lanes - 1 if sample_index else prompt.lane, request.agent)
            self.threads.append(thread)
            opening = ContextUpdate(prompt.ids, rebuilt=True)
        turn["context" if opening.rebuilt else "observation"] = list(opening.ids)
        turn["observation_text"] = prompt.new_text
        turn["state"] = request.state or f"{prompt.digest:014x}"
        thread.turns.append(turn)
        thread.times.append(self._clock)
        self._clock += 1
        # A completion is matched by its text up to the stop text: the client gets nothing else to send back.
        action = RecordedAction(thread, prompt.ids + tuple(completion.tokens))
        text, action.end_token = self.tokens.split_stop(completion.tokens, getattr(self.chat, "stop_ids", ()))
        text = self.tokens.without_special(text)
        if prompt.conversation is None:
            returned_text = text_before_stop(text, request.stop)
            action.stop = next((s for s in request.stop if text[len(returned_text) :].startswith(s)), "")
            action.text = None if prompt.text is None else prompt.text + returned_text
            self._completion_actions.append(action)
            return Choice(None, returned_text, completion, prompt)
        # A chat is matched by its messages with this reply. Each sample gets a copy of the conversation, as samples of
        # one prompt end in different states.
        action.conversation = prompt.conversation.copy()
        reply = action.conversation.act(completion.tokens)
        message = answer(reply, text, request.stop, request.parse)
        mark = prefix_digests([*(request.messages or ()), message], request.tools, request.template)[-1]
        self._actions_by_digest.setdefault(mark, []).append(action)
        return Choice(message, message["content"], completion, prompt)

    def _assign_reward(self, request: CallRequest) -> None:
        """Give the reward that a call brings to its agent's latest action."""
        turns_by_time = [(t.times[-1], t.turns[-1]) for t in self.threads if t.agent == request.agent]
        if request.reward is not None and turns_by_time:
            max(turns_by_time, key=lambda entry: entry[0])[1]["reward"] = request.reward

    # ------------------------------------------------------------ the record
    def turns(self) -> list[dict[str, Any]]:
        """All turns in order of time, each with its agent's name.

        Contexts of one agent that overlap in time get names of their own: agent, agent.2, ...
        """
        ends: dict[str, list[int]] = {}  # agent -> last time of each of its lanes
        entries: list[tuple[int, dict[str, Any]]] = []
        for thread in self.threads:
            lanes = ends.setdefault(thread.agent, [])
            # A context may take over a lane whose last turn came before its first.
            lane = next((i for i, end in enumerate(lanes) if end < thread.times[0]), len(lanes))
            lanes[lane : lane + 1] = [thread.times[-1]]
            name = thread.agent if lane == 0 else f"{thread.agent}.{lane + 1}"
            entries += [(time, {**turn, "agent": name}) for time, turn in zip(thread.times, thread.turns, strict=True)]
        return [turn for _, turn in sorted(entries, key=lambda entry: entry[0])]


def _check_thought(request: CallRequest, chat: Chat) -> None:
    """Refuse a format where the prompt opens a thought, which would have to have it."""
    facts = getattr(chat, "facts", None)
    if request.options is not None and request.options.grammar is not None and getattr(facts, "opens_reasoning", False):
        raise Refused(
            "the chat template opens a thought before each reply, and a format is that of the whole reply: turn the "
            'thought off (chat_template_kwargs: {"enable_thinking": false}, where the template reads it)',
            param="response_format",
        )


def _first_open(actions: Sequence[RecordedAction]) -> RecordedAction | None:
    """First of equal actions that no call continues; else the newest."""
    return next((s for s in actions if not s.is_continued), actions[-1] if actions else None)

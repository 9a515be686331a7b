"""Test whether a chat template supports multi-turn conversations, with results as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.models.chat.facts import CALL, TOOL, call_message, message, render_or_none
from gxpo.models.chat.markers import tags_in
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.reading import THINKING_TAGS, opened_by
from gxpo.models.chat.render import shared_prefix
from gxpo.models.chat.template import TemplateChat, TemplateConversation
from gxpo.parts.protocols import Message

ANSWERS = ("Four.", 'A list: ["x", {"y": 1}].', "Für Elise — 7 µs")


@dataclass(frozen=True)
class Check:
    """Result of one check. verdict: "ok"; "note": gxpo copes, and you should know; "fails": training would suffer."""

    name: str
    verdict: str
    detail: str


@dataclass(frozen=True)
class Report:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return all(c.verdict != "fails" for c in self.checks)

    def __getitem__(self, name: str) -> Check:
        return next(c for c in self.checks if c.name == name)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(c) for c in self.checks]}

    def text(self) -> str:
        """Text of the report, one line for each check."""
        width = max(len(c.name) for c in self.checks)
        return "\n".join(f"{c.verdict:5}  {c.name:{width}}  {c.detail}" for c in self.checks)


def check_template(chat: Any, template: str | None = None, kwargs: Mapping[str, Any] | None = None) -> Report:
    """Check a chat template with canned conversations.

    chat  a `TemplateChat`, or a tokenizer with `template` and `kwargs` as there
    """
    if not isinstance(chat, TemplateChat):
        try:
            chat = TemplateChat(chat, template, kwargs, rewrites="keep")
        except ModelError as error:
            return Report((Check("renders", "fails", str(error)),))
    return Report(tuple(_checks(chat)))


def _checks(chat: TemplateChat) -> Iterator[Check]:
    yield Check("renders", "ok", f"a question and an answer; the next answer begins after {_prompt(chat)}")
    for check in (
        _ends,
        _turns,
        _tokens,
        _cut,
        _blanks,
        _thinking,
        _roles,
        _tools,
        _answers,
        _bos,
        _date,
        _forgery,
        _tags,
    ):
        # each check plays a conversation of its own, so that one that fails does not hide what the others find
        try:
            yield check(chat)
        except ModelError as error:
            yield Check(check.__name__[1:], "fails", str(error))


def _prompt(chat: TemplateChat) -> str:
    return repr(chat.facts.generation_prompt) if chat.facts.generation_prompt else "the question itself"


def _canonical(chat: TemplateChat, messages: Sequence[Message], answer: Message, tools: Sequence[Any] = ()) -> str:
    """Action that the template itself would write for `answer`, without its end-of-turn token."""
    prompt = chat.template.render(messages, tools)
    full_text = chat.template.render([*messages, answer], tools, answer=False)
    # some templates rewrite the prompt once an answer follows: where it is not a prefix, only the content itself is
    # certain
    text = (
        full_text[shared_prefix(prompt, full_text) :]
        if full_text.startswith(prompt.rstrip())
        else str(answer["content"])
    )
    # a policy samples its end-of-turn token itself, so the text stops before the first one
    ends = [i for e in chat.facts.ends if (i := text.rfind(e)) >= 0]
    text = text[: min(ends)] if ends else text
    # an opened thought that is not closed would swallow the answer: the reading would find no content
    close = opened_by(prompt)
    return text if close is None or close in text else f"Thinking.\n{close}\n\n{text}"


def _stop(chat: TemplateChat) -> list[int]:
    end = chat.facts.last_end or chat.facts.next_end
    openers = [t for t in chat.facts.stops if chat.tokens.one_id(t) != chat.tokens.eos]
    return [chat.tokens.one_id(t) for t in ([end] if end else openers or chat.facts.stops)[:1]]


def _play(chat: TemplateChat, answers: Sequence[str], stop: bool = True) -> tuple[TemplateConversation, list[Message]]:
    """Play a conversation in which the policy writes these answers as the template would."""
    # through the conversation's own act and observe, so that the checks see the contexts that a run would see
    messages = [message("user", "What is two and two?")]
    conversation = chat.start(messages)
    for answer in answers:
        text = _canonical(chat, messages, message("assistant", answer))
        conversation.act([*chat.tokens.encode_after(text), *(_stop(chat) if stop else [])])
        question = message("user", "And now?")
        conversation.observe([question])
        messages += [message("assistant", answer), question]
    return conversation, messages


def _changes(conversation: TemplateConversation) -> int:
    return conversation.rebuilt + conversation.kept_against_template


def _ends(chat: TemplateChat) -> Check:
    facts = chat.facts
    if not chat.stop_ids:
        return Check(
            "ends", "fails", "neither the tokenizer nor the template has a token that ends an action: give stop="
        )
    stops = ", ".join(facts.stops)
    # a template may end the last message of a history otherwise than a message in its middle: masks and stops then
    # differ
    if facts.last_end != facts.next_end and facts.ends:
        last, later = facts.last_end or "nothing", facts.next_end or "nothing"
        return Check(
            "ends", "note", f"an action ends with {last} if it is the last one, later with {later}; stops: {stops}"
        )
    return Check("ends", "ok", f"stops: {stops}")


def _turns(chat: TemplateChat) -> Check:
    conversation, _ = _play(chat, ANSWERS)
    if n := _changes(conversation):
        return Check("turns", "note", f"{n} of {len(ANSWERS)} turns rewrite what the policy saw: {_policy(chat)}")
    if conversation.respelled:
        return Check("turns", "note", "plain answers are written another way, or end in another way, in the history")
    return Check("turns", "ok", "earlier turns stay as the policy saw them")


def _policy(chat: TemplateChat) -> str:
    return "rewrites='rebuild' follows the template, 'keep' does not"


def _tokens(chat: TemplateChat) -> Check:
    conversation, messages = _play(chat, ANSWERS)
    text = chat.template.render(messages)
    if conversation.context == chat.tokens.encode(text):
        return Check("tokens", "ok", "answers in the tokenizer's own spelling give the ids of the whole text")
    if _changes(conversation) or conversation.respelled:
        return Check("tokens", "note", "the ids are not those of the template's whole text, which has another history")
    return Check("tokens", "note", "as one text, tokens merge across the border of an action; the policy's ids stay")


def _cut(chat: TemplateChat) -> Check:
    conversation, _ = _play(chat, ANSWERS[:1], stop=False)
    end = chat.facts.next_end
    # nothing can be missing where the template writes nothing, but then a cut action runs into the next message
    if end is None:
        return Check("cut", "note", "the template ends an action with nothing, one that was cut included")
    closed = chat.tokens.one_id(end) in conversation.context
    detail = f"an action without end-of-turn token is given {end}"
    return Check(
        "cut", "ok" if closed else "fails", detail if closed else f"{end} is missing after an action that was cut"
    )


def _blanks(chat: TemplateChat) -> Check:
    answer = message("assistant", "\n Q9 \n")
    if "\n Q9 \n" not in chat.template.render([message("user", "Two?"), answer, message("user", "And now?")]):
        return Check(
            "blanks", "note", "white space around an answer is taken off in the history; the policy's ids stay"
        )
    return Check("blanks", "ok", "white space around an answer stays")


def _thinking(chat: TemplateChat) -> Check:
    messages = [message("user", "Two?")]
    key = chat.facts.reasoning_key
    # a key of its own (reasoning_content) is tested by that key; else thoughts are tags in the content, which a
    # template may strip
    if key is not None:
        answer = message("assistant", "Four.", **{key: "Q8thought."})
        is_kept = "Q8thought." in chat.template.render([*messages, answer, message("user", "And now?")])
        source_text = f"read from {key}"
    else:
        open_, close = THINKING_TAGS[0]
        answer = message("assistant", f"{open_}\nQ8thought.\n{close}\n\nFour.")
        is_kept = "Q8thought." in chat.template.render([*messages, answer, message("user", "And now?")])
        source_text = "text of the content"
    if chat.facts.opens_reasoning:
        source_text += ", opened by the generation prompt"
    if is_kept:
        return Check("thinking", "ok", f"{source_text}; stays in later turns")
    return Check("thinking", "note", f"{source_text}; taken out of earlier turns: {_policy(chat)}")


def _roles(chat: TemplateChat) -> Check:
    user, reply = message("user", "Two?"), message("assistant", "Four.")
    # failures here are limits of a task's messages and not of the template's use, so they are notes
    shortcomings = [] if chat.facts.system else ["no system message"]
    probes: list[tuple[str, Callable[[], str | None]]] = [
        ("two user messages in a row", lambda: render_or_none(chat.template, user, reply, user, user)),
        ("a first message of the assistant", lambda: render_or_none(chat.template, reply, user)),
    ]
    shortcomings += [f"refuses {what}" for what, text in probes if text() is None]
    plain = render_or_none(chat.template, user, answer=False) or ""
    before = plain.partition("Two?")[0]
    # a few words are the markup of a role; more is a default system prompt that the task did not write
    if len(before.split()) > 4:
        shortcomings.append("puts words of its own before the first message")
    return Check(
        "roles", "note" if shortcomings else "ok", "; ".join(shortcomings) or "system, user and assistant in any order"
    )


def _tools(chat: TemplateChat) -> Check:
    facts = chat.facts
    # without tools in its text the model would not know of them, and without a parser its calls would be lost
    if not facts.shows_tools:
        return Check(
            "tools", "note", "the template shows no tools: they are explained in words, calls are <tool>...</tool>"
        )
    if facts.form is None:
        return Check(
            "tools", "note", "calls can't be read back as the template writes them: calls are <tool>...</tool>"
        )
    user = message("user", "Look it up.")
    conversation = chat.start([user], [TOOL])
    if chat.tools_format == "tags":
        return Check("tools", "ok", "calls are <tool>...</tool>, by choice")
    # sample the call that the template itself would write, and see whether its tokens are read as that call
    text = _canonical(chat, [user], call_message(CALL, facts.arguments_as_json), [TOOL])
    reply = conversation.act([*chat.tokens.encode_after(text), *_stop(chat)])
    conversation.observe([message("tool", "found")])
    if [(c.name, c.error) for c in reply.calls] != [(CALL.name, None)]:
        return Check("tools", "fails", f"a call in the form {facts.form.name} is not read back from tokens")
    # some templates refuse more than one call in an action
    two = render_or_none(
        chat.template, user, {**call_message(CALL, facts.arguments_as_json), "tool_calls": _twice(facts)}, tools=[TOOL]
    )
    detail = f"calls in the form {facts.form.name} are read back; answers have the role tool"
    if _changes(conversation):
        return Check("tools", "note", f"{detail}; the turn of a call is rewritten: {_policy(chat)}")
    if two is None:
        return Check("tools", "note", f"{detail}; two calls in one action are refused, and shown as text")
    return Check("tools", "ok", detail)


def _twice(facts: Any) -> list[Any]:
    return [c for _ in range(2) for c in call_message(CALL, facts.arguments_as_json)["tool_calls"]]


def _answers(chat: TemplateChat) -> Check:
    if chat.tools_format == "native" and not chat.facts.bare_answers:
        return Check(
            "answers", "note", "an answer to a malformed call is given as a user's message: the template wants a call"
        )
    return Check("answers", "ok", "a malformed call can be answered")


def _bos(chat: TemplateChat) -> Check:
    bos = chat.tokenizer.bos_token_id
    ids = chat.start([message("user", "Two?")]).context
    # a doubled first token is out of the distribution of every pretrained model, and nothing else shows it
    if bos is not None and ids[:2] == (bos, bos):
        return Check("bos", "fails", "the template writes the first token twice")
    adds = list(chat.tokenizer("a", verbose=False).input_ids)[:1] == [bos] and bos is not None
    if adds and ids[:1] == (bos,):
        return Check(
            "bos", "ok", "written by the template; tokenizing its text again with special tokens would double it"
        )
    return Check("bos", "ok", "written by the template" if ids[:1] == (bos,) else "the template writes none")


def _date(chat: TemplateChat) -> Check:
    if "strftime_now" in chat.template.text:
        detail = (
            "the template may write today's date, so runs differ by day: set it in kwargs (date_string for Llama 3)"
        )
        return Check("date", "note", detail)
    return Check("date", "ok", "the text does not depend on the clock")


def _forgery(chat: TemplateChat) -> Check:
    end = chat.facts.last_end or chat.facts.next_end
    if end is None:
        return Check("forgery", "ok", "there is no end-of-turn token to forge")
    one = chat.start([message("user", "Two?")]).context.count(chat.tokens.one_id(end))
    two = chat.start([message("user", f"Two?{end}")]).context.count(chat.tokens.one_id(end))
    if two > one:
        return Check("forgery", "fails", f"{end} typed into a message becomes the token")
    return Check("forgery", "ok", f"{end} typed into a message stays text")


def _tags(chat: TemplateChat) -> Check:
    if note := tag_note(chat.tokens):
        return Check("tags", "note", note)
    return Check("tags", "ok", "no tag for the policy to write is a special token")


def tag_note(tokens: Tokens) -> str:
    """Note on special tokens that are tags for the policy to write; "" where there are none."""
    tags = tags_in(tokens.text_of(i) for i in sorted(tokens.content))
    if not tags:
        return ""
    more = f" and {len(tags) - 4} more" if len(tags) > 4 else ""
    return (
        f"special tokens {', '.join(tags[:4])}{more}: completions and replies keep them, programs that decode with "
        "skip_special_tokens=True do not; their names in prompts stay letters"
    )

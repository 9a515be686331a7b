"""Properties of a chat template, found by rendering small conversations and comparing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.chat.formats import NATIVE, Format
from gxpo.models.chat.messages import THOUGHT_KEYS
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.reading import THINKING_TAGS, Reading, opened_by, read, same
from gxpo.models.chat.render import Endless, Template, shared_prefix
from gxpo.models.chat.tools import structured
from gxpo.parts.protocols import Message, ToolCall

USER, ASSISTANT, NEXT, RESULT, SYSTEM = "Q0user7Z", "Q1said7Z", "Q2next7Z", "Q3found7Z", "Q4rules7Z"
PROBE = "sha256:" + "0" * 64 + ".png"
TOOL = {
    "type": "function",
    "function": {
        "name": "q_lookup",
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What."}, "count": {"type": "integer"}},
            "required": ["key"],
        },
    },
}
CALL = ToolCall("q_lookup", {"key": "Q5key7Z", "count": 3}, "call00000")


@dataclass(frozen=True)
class Facts:
    """generation_prompt: text added before an answer. ends: tokens that end an action; stops: those to sample to.

    lead           blanks that it puts before an answer, beyond the generation prompt
    header         text that it puts there, except for an empty thought: blanks, or the name of a channel
    reasoning_key  the field of a message whose thinking it writes (None: thinking stays in the content)
    form           format of its calls (None: it writes none that can be read back)
    call_end       its text from the last argument to the end of the action
    bare_answers   it takes a tool's answer after an action without a call
    writes_calls   it writes the calls of the history, and their answers
    frame          added tokens that it puts around messages, thinking apart
    """

    generation_prompt: str
    ends: tuple[str, ...]
    stops: tuple[str, ...]
    last_end: str | None
    next_end: str | None
    lead: str
    header: str
    opens_reasoning: bool
    reasoning_key: str | None
    system: bool
    shows_tools: bool
    bare_answers: bool
    form: Format | None = None
    arguments_as_json: bool = False
    writes_calls: bool = False
    call_end: str = field(default="", repr=False)
    frame: tuple[str, ...] = ()


def message(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def render_or_none(
    template: Template, *messages: Message, tools: Sequence[Any] = (), answer: bool = True
) -> str | None:
    """Render messages; None if the template refuses them, which is an answer to a probe, too."""
    try:
        return template.render(messages, tools, answer)
    except Endless:
        raise
    except ModelError:
        return None


def _shows_both(template: Template, parts: bool) -> bool:
    """Return True if contents in this form appear in the rendered text."""
    template.parts = parts
    text = render_or_none(template, message("user", USER), message("assistant", ASSISTANT)) or ""
    return USER in text and ASSISTANT in text


def shows_pictures(template: Template, picture: str) -> bool:
    """Return True if the template writes the placeholder `picture` once for each picture of a message."""
    original_picture, content = template.picture, f"{USER}{media.MARK[0]}{PROBE}{media.MARK[1]}{NEXT}"
    template.picture = picture
    try:
        one = render_or_none(template, message("user", content)) or ""
        two = render_or_none(template, message("user", content + content)) or ""
    finally:
        template.picture = original_picture
    return all(word in one for word in (USER, NEXT)) and two.count(PROBE) == 2


def facts_of_template(template: Template, tokens: Tokens) -> Facts:
    """Find a template's properties by rendering; ModelError if it rejects or hides user or assistant messages."""
    user, answer_message = message("user", USER), message("assistant", ASSISTANT)
    # templates of some vision models take contents as parts alone
    template.parts = not _shows_both(template, False) and _shows_both(template, True)
    # what the generation prompt adds shows where an answer begins
    prompt_text, bare_prompt = template.render([user]), template.render([user], answer=False)
    answered_text = template.render([user, answer_message], answer=False)
    if USER not in prompt_text or ASSISTANT not in answered_text:
        raise ModelError("the chat template does not write the text of a user's or an assistant's message")
    # what precedes an answer beyond the prompt was not sampled: it is a header of the answer, or blanks
    before_last, _, after_last = answered_text.partition(ASSISTANT)
    lead = before_last[len(prompt_text) :] if before_last.startswith(prompt_text) else ""
    # the token behind an answer may differ once a message follows, so both histories are rendered
    followed = render_or_none(template, user, answer_message, message("user", NEXT)) or ""
    after_next = followed.partition(ASSISTANT)[2]
    last_end, next_end = tokens.marker_at_start(after_last), tokens.marker_at_start(after_next)
    # the token behind an answer ends it, unless it is the first one of the next message
    eos = tokens.text_of(tokens.eos) if tokens.eos is not None else None
    opener = None
    if next_end is not None and next_end not in (eos, last_end, *_markers_after(prompt_text, USER, tokens)):
        opener, next_end = next_end, None  # it opens the next message: the template ends an action with nothing
    tool = _tool_facts(template, tokens, prompt_text)
    end = last_end or next_end
    result_text = render_or_none(
        template, user, answer_message, message("tool", RESULT, tool_call_id=CALL.id, name=CALL.name)
    )
    # without an end token of the template, the model stops where the next message or a tool's result would begin
    stops = [end] if end else [opener, tokens.marker_at_start((result_text or "").partition(ASSISTANT)[2])]
    tools_text = render_or_none(template, user, tools=[TOOL]) or ""
    system_text = render_or_none(template, message("system", SYSTEM), user) or ""
    return Facts(
        generation_prompt=prompt_text[shared_prefix(prompt_text, bare_prompt) :],
        ends=_distinct(last_end, next_end, tool.get("end")),
        stops=_distinct(eos, *stops, tool.get("end")),
        last_end=last_end,
        next_end=next_end,
        # blanks alone are stripped from answers; a lead with words is part of the header
        lead="" if lead.strip() else lead,
        header="" if any(tag in lead for pair in THINKING_TAGS for tag in pair) else lead,
        opens_reasoning=opened_by(prompt_text) is not None,
        reasoning_key=_reasoning_key(template, user),
        system=SYSTEM in system_text,
        shows_tools=TOOL["function"]["name"] in tools_text,
        bare_answers=RESULT in (result_text or ""),
        form=tool.get("form"),
        arguments_as_json=bool(tool.get("as_json")),
        writes_calls="as_json" in tool and _writes_answers(template, tool["as_json"]),
        call_end=tool.get("call_end", ""),
        # tokens that frame messages must not be typed by a user or a tool, so they are guarded (`Tokens.guard`)
        frame=tuple(
            m
            for m in tokens.markers
            if _is_frame(m) and any(m in text for text in (prompt_text, answered_text, followed))
        ),
    )


def _is_frame(marker: str) -> bool:
    """Return True for a marker in brackets of some kind that is no thinking tag, which prompts mention."""
    tags = {tag for pair in THINKING_TAGS for tag in pair}
    return (
        len(marker) > 2
        and not any(end.isalnum() or end.isspace() for end in (marker[0], marker[-1]))
        and marker not in tags
    )


def _distinct(*texts: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t for t in texts if t))


def _markers_after(text: str, word: str, tokens: Tokens) -> list[str]:
    tail = text.partition(word)[2]
    return [m for m in tokens.markers if m in tail]


def _reasoning_key(template: Template, user: Message) -> str | None:
    for key in THOUGHT_KEYS:
        text = render_or_none(template, user, message("assistant", ASSISTANT, **{key: RESULT}), answer=False)
        if text is not None and RESULT in text:
            return key
    return None


def call_message(call: ToolCall, as_json: bool, content: str = "") -> Message:
    return {"role": "assistant", "content": content, "tool_calls": structured([call], as_json)}


def _tool_facts(template: Template, tokens: Tokens, prompt_text: str) -> dict[str, Any]:
    """Format of tool calls: the first parser that reads back the template's own output; without one, the form of
    arguments that it writes."""
    # the tools change the prompt, so the call begins where this prompt's text ends
    prompt_text = render_or_none(template, message("user", USER), tools=[TOOL]) or prompt_text
    texts = _written_calls(template)
    # templates take arguments as objects or as JSON text, and only trying shows which: the one that is read back is
    # right
    for as_json, text in texts.items():
        text_of_call = text[shared_prefix(text, prompt_text) :]
        for form in NATIVE:
            if _reads_back(form, text_of_call, tokens):
                return {"form": form, "as_json": as_json, **_call_end(template, tokens, as_json)}
    # an object that comes out as Python spells it is not what the template's authors gave it
    clean = [as_json for as_json, text in texts.items() if str(dict(CALL.arguments)) not in text]
    return {"as_json": clean[0]} if clean else {}


def _written_calls(template: Template) -> dict[bool, str]:
    """Conversations with a call, by True for arguments as JSON text, in the forms that the template writes."""
    user, texts = message("user", USER), {}
    for as_json in (False, True):
        text = render_or_none(template, user, call_message(CALL, as_json), tools=[TOOL], answer=False)
        if text is not None and CALL.name in text.partition(USER)[2] and CALL.arguments["key"] in text:
            texts[as_json] = text
    return texts


def _writes_answers(template: Template, as_json: bool) -> bool:
    """Return True if the template takes the answer to a call of the history."""
    answer = message("tool", RESULT, tool_call_id=CALL.id, name=CALL.name)
    return RESULT in (render_or_none(template, message("user", USER), call_message(CALL, as_json), answer) or "")


def _reads_back(form: Format, text_of_call: str, tokens: Tokens) -> bool:
    if form.opens not in text_of_call:
        return False
    expected = Reading("", "", "", calls=(CALL,))
    # Qwen's XML has texts alone: types are needed to read 3 as a number, as they are in a run
    types = {"q_lookup": {"key": "string", "count": "integer"}}
    # without the end-of-turn token too: the policy's action is read without it
    candidates = [text_of_call, *(text_of_call[:i] for m in tokens.markers if (i := text_of_call.rfind(m)) > 0)]
    for text in candidates:
        reading = read(text, form, types, True)
        if same(Reading("", "", "", calls=reading.calls), expected):
            return True
    return False


def _call_end(template: Template, tokens: Tokens, as_json: bool) -> dict[str, Any]:
    """Text after the last argument, up to the end of the action, and the token that ends it."""
    # one argument, with a value that occurs nowhere else: what follows it is the template's own
    marked = call_message(ToolCall("q_lookup", {"key": "Q6last7Z"}, CALL.id), as_json)
    user = message("user", USER)
    last = render_or_none(template, user, marked, tools=[TOOL], answer=False) or ""
    answer = message("tool", RESULT, tool_call_id=CALL.id, name=CALL.name)
    followed = render_or_none(template, user, marked, answer, tools=[TOOL]) or last
    tails = [t.partition("Q6last7Z")[2] for t in (last, followed)]
    tail = tails[0].rstrip()
    # `</tool_call>` may be a special token too, but it belongs to the call's form and does not end the action
    special = [m for m in tokens.markers if tail.endswith(m) and not m.startswith("</")]
    end = max(special, key=len) if special else None
    if tokens.eos is not None and tail.endswith(tokens.text_of(tokens.eos)):
        end = tokens.text_of(tokens.eos)
    # what both histories write after the call is its closing; what only one of them writes belongs to the next message
    common = tails[0][: shared_prefix(*tails)]
    return {"end": end, "call_end": common[: common.rfind(end)] if end and end in common else common.rstrip()}

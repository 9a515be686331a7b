import json

import pytest
from tests.models.chat.families import tokenizer_of
from tests.models.chat.test_conversation import USER, chat_of
from tests.models.chat.writers import TOOLS, action_text

from gxpo.base.errors import ConfigError
from gxpo.models.chat.tools import as_user, function_of, instructions, types_of, with_call_ids, with_instructions
from gxpo.parts.protocols import ToolCall

SYSTEM = {"role": "system", "content": "rules"}
RESULT = {"role": "tool", "content": "found"}


def test_where_the_instructions_stand():
    with_system = with_instructions([SYSTEM, USER], TOOLS, True)
    assert with_system[0]["content"].startswith("rules\n\nTools. Write calls as <tool>") and with_system[1] == USER
    without = with_instructions([USER], TOOLS, True)
    assert [m["role"] for m in without] == ["system", "user"]
    refused = with_instructions([SYSTEM, USER], TOOLS, False)
    assert refused[0] == SYSTEM and refused[1]["content"].endswith(f"\n\n{USER['content']}")
    for messages in (with_system, without, refused):
        text = "".join(m["content"] for m in messages)
        assert text.count("- look(key?: string, count?: integer, deep?: boolean): Looks.") == 1


def test_a_tool_is_a_line_as_a_person_would_write_it():
    find = {
        "name": "find",
        "description": "Search the notes.",
        "parameters": {
            "type": "object",
            "title": "findArguments",
            "properties": {
                "text": {"title": "Text", "type": "string", "description": "what to look for"},
                "most_hits": {"title": "Most Hits", "type": "integer", "default": 10},
                "order": {"enum": ["new", "old"], "type": "string"},
                "near": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["text", "near"],
        },
    }
    assert instructions([find]).splitlines()[-1] == (
        '- find(text: string (what to look for), most_hits?: integer = 10, order?: "new" | "old", '
        'near: {"type": "array", "items": {"type": "number"}}): Search the notes.'
    )
    assert instructions([{"name": "stop"}]).endswith("\n- stop()")


def test_what_a_line_cannot_say_stays_json_schema():
    open_ended = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}
    for schema in (open_ended, {**open_ended, "$defs": {}}, {"type": "object", "required": ["a"]}):
        *_, head, text = instructions([{"name": "put", "description": "Keeps.", "parameters": schema}]).splitlines()
        assert head == "- put: Keeps." and json.loads(text.removeprefix("  arguments: ")) == schema
    bounded = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}, "m": True, "title": {"title": "x"}},
    }
    assert instructions([{"name": "f", "parameters": bounded}]).endswith(
        '- f(n?: {"type": "integer", "minimum": 1}, m?: true, title?: {"title": "x"})'
    )


def test_answers_of_tools_as_messages_of_the_user():
    assert as_user([RESULT, {**RESULT, "content": None}, USER, RESULT]) == [
        {"role": "user", "content": "<tool_result>\nfound\n</tool_result>\n<tool_result>\n\n</tool_result>"},
        USER,
        {"role": "user", "content": "<tool_result>\nfound\n</tool_result>"},
    ]


def test_answers_without_ids_take_those_of_the_calls_in_order():
    calls = [ToolCall("look", {}, "call00000"), ToolCall("find.all", {}, "call00001")]
    own_settings = {**RESULT, "tool_call_id": "mine"}
    first, second, third = with_call_ids([RESULT, own_settings, RESULT], calls)
    assert (first["tool_call_id"], first["name"]) == ("call00000", "look")
    assert (second["tool_call_id"], second["name"]) == ("mine", "find.all")
    assert third == RESULT


def test_types_of_parameters():
    assert types_of(TOOLS)["look"] == {"key": "string", "count": "integer", "deep": "boolean"}
    assert types_of([{"name": "bare"}]) == {"bare": {}}
    with pytest.raises(ConfigError, match="a tool is"):
        function_of({"type": "function"})


@pytest.mark.parametrize(("name", "arguments"), [("qwen25", {"key": "a"}), ("deepseek_v3", '{"key": "a"}')])
def test_messages_say_what_the_action_said(name, arguments):
    talk = chat_of(name).start([USER], TOOLS)
    form = talk.chat.form
    assert form is not None
    text = action_text(form.name, "So.", None, [("look", {"key": "a"})])
    talk.act([*tokenizer_of(name)(text, add_special_tokens=False).input_ids, talk.chat.stop_ids[0]])
    call = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": arguments}}
    assert talk.messages == [USER, {"role": "assistant", "content": "So.", "tool_calls": [call]}]


def test_thinking_stands_where_the_template_reads_it():
    text = "<think>\nhm\n</think>\n\nSo."
    for name, message in (
        ("qwen3", {"role": "assistant", "content": "So.", "reasoning_content": "hm"}),
        ("chatml", {"role": "assistant", "content": text}),
    ):
        talk = chat_of(name).start([USER])
        reply = talk.act([*tokenizer_of(name)(text, add_special_tokens=False).input_ids, talk.chat.stop_ids[0]])
        assert (reply.content, reply.reasoning) == ("So.", "hm")
        assert talk.messages[-1] == message

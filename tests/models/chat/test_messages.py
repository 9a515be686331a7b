"""Messages of others: tool calls of the history, parts of text, answers that are begun. Texts are written by hand."""

import json

import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.models.chat.test_conversation import NEXT, USER, chat_of, decoded, spell
from tests.models.chat.writers import TOOLS

from gxpo.base.errors import ModelError
from gxpo.models.chat.messages import normal_message, padded_arguments
from gxpo.models.chat.plain import PlainChat
from gxpo.models.chat.template import TemplateChat

CALLS = [{"id": "1", "type": "function", "function": {"name": "get", "arguments": {"city": "Paris", "n": 2}}}]
TEXT = [{"id": "1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Paris", "n": 2}'}}]
ANSWER = {"role": "tool", "content": "sunny", "tool_call_id": "1"}
WRITTEN = {  # how each family writes the call; all others know none, and have it as a tag
    "qwen25": '<tool_call>\n{"name": "get", "arguments": {"city": "Paris", "n": 2}}\n</tool_call>',
    "qwen3": '<tool_call>\n{"name": "get", "arguments": {"city": "Paris", "n": 2}}\n</tool_call>',
    "qwen_coder": "<function=get>\n<parameter=city>\nParis\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>",
    "llama3": '{"name": "get", "parameters": {"city": "Paris", "n": 2}}',
    "mistral": '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "Paris", "n": 2}, "id": "hist00000"}]',
    "deepseek_v3": 'get\n```json\n{"city": "Paris", "n": 2}\n```',
    "glm": "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>n</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "command": '<|START_ACTION|>[{"tool_name": "get", "parameters": {"city": "Paris", "n": 2}}]<|END_ACTION|>',
    "harmony": ' to=functions.get<|channel|>commentary json<|message|>{"city": "Paris", "n": 2}<|call|>',
    "granite": '<|tool_call|>[{"name": "get", "arguments": {"city": "Paris", "n": 2}}]',
}
ITEMS = (  # neither read back by a parser nor given JSON text
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
    "{{ c.function.name }}{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLS_OR_TEXT = (  # of messages with a text it writes no calls
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% else %}"
    "{% for c in m.tool_calls %}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
)


def history(calls, content=None, **answer):
    called = {"role": "assistant", "content": content, "tool_calls": calls}
    return [USER, called, {**ANSWER, **answer}]


def text_of(name, messages, tools=()):
    chat = chat_of(name)
    return decoded(chat, chat.start(messages, tools).context)


def test_calls_of_the_history_have_each_templates_form():
    wrong = {}
    for name in FAMILIES:
        expected = WRITTEN.get(name, '<tool>get({"city": "Paris", "n": 2})</tool>')
        texts = [text_of(name, history(calls)) for calls in (CALLS, TEXT)]
        if texts[0] != texts[1] or texts[0].count(expected) != 1 or texts[0].count("sunny") != 1:
            wrong[name] = texts
    assert not wrong


def test_calls_of_a_later_message_are_written_so_too():
    talk = chat_of("qwen25").start([USER])
    talk.act(spell("qwen25", "wait", 0))
    opening = talk.observe([NEXT, {"role": "assistant", "content": None, "tool_calls": TEXT}, ANSWER])
    assert WRITTEN["qwen25"] in decoded(talk.chat, opening.ids)


def test_arguments_are_objects_for_templates_that_iterate_them():
    chat = TemplateChat(tokenizer_of("chatml"), ITEMS)
    assert chat.tools_format == "tags" and chat.facts.writes_calls
    text = decoded(chat, chat.start(history(TEXT, "so")).context)
    assert text == (
        "<|im_start|>user\nhello there, what is the answer?<|im_end|>\n<|im_start|>assistant\nso<call>get"
        "<city>Paris<n>2</call><|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )
    explained = decoded(chat, chat.start(history(TEXT), TOOLS).context)
    assert '<tool>get({"city": "Paris", "n": 2})</tool>' in explained and "<call>" not in explained
    by_choice = TemplateChat(tokenizer_of("chatml"), ITEMS, tools_format="tags")
    assert "<tool>get(" in decoded(by_choice, by_choice.start(history(TEXT)).context)


def test_a_call_that_the_template_leaves_out_is_refused():
    chat = TemplateChat(tokenizer_of("chatml"), CALLS_OR_TEXT)
    assert chat.facts.form is not None and chat.facts.form.name == "hermes"
    for content in (None, ""):
        assert WRITTEN["qwen25"] in decoded(chat, chat.start(history(TEXT, content)).context)
    with pytest.raises(ModelError, match=r"leaves out the call of 'get' in the history: chat\.tools=tags"):
        chat.start(history(TEXT, "I look it up"))


def test_a_template_that_refuses_calls_names_the_way_out():
    two = [TEXT[0], {**TEXT[0], "id": "2"}]
    with pytest.raises(ModelError, match=r"refuses the messages .*; chat\.tools=tags writes the tool calls"):
        chat_of("llama3").start(history(two))
    chat = TemplateChat(tokenizer_of("llama3"), FAMILIES["llama3"].template, tools_format="tags")
    assert decoded(chat, chat.start(history(two)).context).count('<tool>get({"city": "Paris", "n": 2})</tool>') == 2


def test_without_a_template_calls_are_tags():
    tokenizer = tokenizer_of("chatml")
    talk = PlainChat(tokenizer).start(history(TEXT, "so"))
    assert tokenizer.decode(talk.context) == (
        'hello there, what is the answer?\nso\n<tool>get({"city": "Paris", "n": 2})</tool>\n'
        "<tool_result>\nsunny\n</tool_result>"
    )


def test_answers_without_an_id_belong_to_the_calls_in_order():
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("get", "add")]
    answers = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    text = text_of("mistral", [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *answers])
    assert '"id": "hist00000"' in text and '{"content": "two", "call_id": "hist00001"}' in text


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("{}", {}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ({"a": None}, {"a": None}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
    ],
)
def test_arguments_of_every_form_become_objects(arguments, read):
    message = {"role": "assistant", "content": None}
    nested = {**message, "tool_calls": [{"function": {"name": "get", "arguments": arguments}}]}
    (call,) = normal_message(nested)["tool_calls"]
    assert call == {"type": "function", "function": {"name": "get", "arguments": read}}
    flat = {**message, "tool_calls": [{"name": "get", "arguments": arguments, "id": 7, "function": None}]}
    assert normal_message(flat)["tool_calls"] == [{**call, "id": "7"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"city": ', "is not valid JSON"),
        ("{'city': 'Paris'}", "is not valid JSON"),
        ("[" * 10**5, "is not valid JSON"),
        ('"Paris"', "is an object or JSON text of one"),
        (json.dumps('{"city": "Paris"}'), "is an object or JSON text of one"),
        ("[1]", "is an object or JSON text of one"),
        ("null", "is an object or JSON text of one"),
        (3, "is an object or JSON text of one"),
    ],
)
def test_arguments_that_are_no_object_are_refused(arguments, words):
    calls = [CALLS[0], {"function": {"name": "add", "arguments": arguments}}]
    with pytest.raises(ModelError, match=rf"message 1: tool call 1 \(add\): 'arguments' {words}") as caught:
        chat_of("qwen25").start(history(calls))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "input_text", "text": "b"}]}, "a b"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "image": None}], "name": None}, "a"),
        ({"role": "tool", "content": None}, ""),
    ],
)
def test_parts_of_text_are_joined_and_nulls_left_out(message, read):
    assert normal_message(message) == {"role": message["role"], "content": read}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hi", "a message is an object"),
        ({"role": [], "content": "a"}, "'role' is a text"),
        ({"content": "a"}, "'role' is a text"),
        ({"role": "user"}, "'content' is missing"),
        ({"role": "user", "content": None}, "'content' is missing"),
        ({"role": "user", "content": []}, "'content' is missing"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "'content' is missing"),
        ({"role": "user", "content": 3}, "'content' is a text or a list of parts"),
        ({"role": "user", "content": ["a"]}, "part 0 of 'content' is a text or an image"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "part 0 of 'content' is a text",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": None, "image": None}]},
            "part 0 of 'content' has no text",
        ),
        ({"role": "user", "content": "a", "tool_calls": CALLS}, "'tool_calls' belongs to the assistant"),
        ({"role": "assistant", "content": "a", "tool_calls": {"get": {}}}, "'tool_calls' is a list"),
        ({"role": "assistant", "content": "a", "tool_calls": ["get"]}, "tool call 0 is"),
        ({"role": "assistant", "content": "a", "tool_calls": [{"function": {"arguments": {}}}]}, "tool call 0 is"),
        ({"role": "assistant", "content": "a", "function_call": {"name": "get"}}, "'function_call' is the old form"),
    ],
)
def test_messages_that_can_not_be_read_are_refused(message, words):
    with pytest.raises(ModelError, match=words):
        normal_message(message)


def test_null_arguments_of_other_tools_look_like_padding():
    def called(*calls):
        return [{"tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]}]

    padded = called(("weather", {"city": "a", "n": None}), ("add", {"city": None, "n": 1}))
    unpadded = called(("weather", {"city": "a", "unit": None}), ("weather", {"city": None, "unit": "C"}))
    assert padded_arguments(padded) == {"city", "n"} and padded_arguments(unpadded) == set()


# ---------------------------------------------------------------- answers that are begun
BEGUN = {  # what follows the user's message where the answer begins with "The answer is"
    "chatml": "<|im_end|>\n<|im_start|>assistant\nThe answer is",
    "qwen3": "<|im_end|>\n<|im_start|>assistant\nThe answer is",
    "llama3": "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nThe answer is",
    "mistral": "[/INST] The answer is",
    "gemma": "<end_of_turn>\n<start_of_turn>model\nThe answer is",
    "harmony": "<|end|><|start|>assistant<|channel|>final<|message|>The answer is",
    "vicuna": " ASSISTANT: The answer is",
    "deepseek_v3": "<\uff5cAssistant\uff5c>The answer is",
}


def begun(text):
    return [USER, {"role": "assistant", "content": text}]


def test_an_answer_that_is_begun_is_continued():
    for name, expected in BEGUN.items():
        assert text_of(name, begun("The answer is")).endswith(USER["content"] + expected), name
    for name in FAMILIES:
        assert text_of(name, begun("<think>\nso")).endswith("<think>\nso"), name


@pytest.mark.parametrize("name", ["chatml", "qwen25", "llama3", "mistral", "harmony", "vicuna", "olmo", "parts"])
def test_the_turn_after_it_shows_one_answer(name):
    talk = chat_of(name).start(begun("The answer"))
    before = talk.context
    reply = talk.act([*spell(name, " there.", 0), talk.chat.stop_ids[0]])
    assert reply.content.strip() == "there."
    assert [m["content"] for m in talk.messages[1:]] == ["The answer there."]
    opening = talk.observe([NEXT])
    assert not opening.rebuilt and talk.context[: len(before)] == before
    full_users = [USER, {"role": "assistant", "content": "The answer there."}, NEXT]
    assert decoded(talk.chat, talk.context).replace("<|return|>", "<|end|>") == talk.chat.template.render(full_users)


def test_a_prefilled_thought_is_read_as_a_thought():
    talk = chat_of("qwen3").start(begun("<think>\nso"))
    stop = tokenizer_of("qwen3").convert_tokens_to_ids("<|im_end|>")
    reply = talk.act([*spell("qwen3", " then\n</think>\n\nFour.", 0), stop])
    assert (reply.reasoning, reply.content) == (" then", "Four.")
    opening = talk.observe([NEXT])
    assert opening.rebuilt
    assert decoded(talk.chat, talk.context) == (
        "<|im_start|>user\nhello there, what is the answer?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n"
        "<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_thought_that_the_template_opens_is_not_opened_again():
    opened = text_of("deepseek_r1", [USER])
    assert opened.endswith("<think>\n")
    assert text_of("deepseek_r1", begun("<think>")) == opened
    assert text_of("deepseek_r1", begun("<think>\nso")) == opened + "so"
    assert text_of("deepseek_r1", begun("so</think>four")) == opened + "so</think>four"
    with pytest.raises(ModelError, match=r"opens a thought \(<think>\) before the answer"):
        chat_of("deepseek_r1").start(begun("The answer is"))


def test_control_tokens_in_an_answer_that_is_begun_stay_text():
    talk = chat_of("chatml").start(begun("four<|im_end|>"))
    end = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    assert talk.context.count(end) == 1 and decoded(talk.chat, talk.context).endswith("four<|im_end|>")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, {"role": "assistant", "content": "", "tool_calls": CALLS}], "the last message is a tool call"),
        ([USER, {"role": "assistant", "content": "a", "reasoning_content": "b"}], "write its 'reasoning_content'"),
        ([{"role": "assistant", "content": "a"}], "stands alone"),
    ],
)
def test_what_can_not_be_continued_is_refused(messages, words):
    with pytest.raises(ModelError, match=words):
        chat_of("qwen25").start(messages)


def test_without_a_template_the_text_goes_on():
    tokenizer = tokenizer_of("chatml")
    talk = PlainChat(tokenizer).start(begun("It is"))
    assert tokenizer.decode(talk.context) == "hello there, what is the answer?\nIt is"
    talk.act(spell("chatml", " four", 0))
    assert talk.messages == [USER, {"role": "assistant", "content": "It is four"}]

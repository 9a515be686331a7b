"""The known ways in which chat templates break training, one test each; expected texts are written out by hand."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.models.chat.test_conversation import NEXT, USER, chat_of, decoded, spell
from tests.models.chat.writers import TOOLS

from gxpo.base.errors import GxpoError, ModelError
from gxpo.models.chat import render
from gxpo.models.chat.template import TemplateChat

RESULT = {"role": "tool", "content": "found it"}


def turn(talk, name: str, text: str, stop: str | None, *new):
    """One exchange; the text of the observation that follows the action."""
    ids = spell(name, text, 1)
    reply = talk.act(ids + ([tokenizer_of(name).convert_tokens_to_ids(stop)] if stop else []))
    opening = talk.observe(new)
    return reply, decoded(talk.chat, opening.ids), opening


@pytest.mark.parametrize("when", ["true", "messages|length > 1"])  # from the first question on, or not
def test_a_template_without_end_is_stopped(when, monkeypatch):
    monkeypatch.setattr(render, "LONGEST", 0.1)
    before = signal.getsignal(signal.SIGVTALRM)
    loop = f"{{% if {when} %}}{'{% for i in range(99999) %}' * 3}{'{% endfor %}' * 3}{{% endif %}}"
    with pytest.raises(ModelError, match=r"comes to no end: it was stopped after 0\.1 seconds"):
        TemplateChat(tokenizer_of("qwen3"), "{% for m in messages %}{{ m.content }}{% endfor %}" + loop)
    assert signal.getsignal(signal.SIGVTALRM) is before and signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0


def test_a_template_is_rendered_in_any_thread():
    with ThreadPoolExecutor(1) as pool:
        talk = pool.submit(lambda: chat_of("qwen3").start([USER])).result()
    assert talk.context == chat_of("qwen3").start([USER]).context


def test_dropped_thinking_of_earlier_turns_rebuilds_the_context():
    talk = chat_of("qwen3").start([USER])
    _, text, opening = turn(talk, "qwen3", "<think>\nfour?\n</think>\n\nFour.", "<|im_end|>", NEXT)
    assert opening.rebuilt and talk.rebuilt == 1 and talk.context == opening.ids
    assert text == (
        "<|im_start|>user\nhello there, what is the answer?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n"
        "<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_keep_appends_to_what_the_policy_saw_and_counts():
    talk = chat_of("qwen3", rewrites="keep").start([USER])
    before = talk.context
    _, text, opening = turn(talk, "qwen3", "<think>\nfour?\n</think>\n\nFour.", "<|im_end|>", NEXT)
    assert not opening.rebuilt and (talk.rebuilt, talk.kept_against_template) == (0, 1)
    assert text == "\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    assert talk.context[: len(before)] == before


def test_thinking_before_a_call_stays_until_the_user_speaks():
    talk = chat_of("qwen3").start([USER], TOOLS)
    call = '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"key": "a"}}\n</tool_call>'
    reply, _, opening = turn(talk, "qwen3", call, "<|im_end|>", RESULT)
    assert not opening.rebuilt and reply.reasoning == "look"
    _, text, opening = turn(talk, "qwen3", "Found.", "<|im_end|>", NEXT)
    assert opening.rebuilt and "look\n</think>" not in text  # the thinking before the call


def test_surviving_actions_keep_their_ids_in_a_rebuilt_context():
    name = "qwen3"
    talk = chat_of(name).start([USER])
    odd = spell(name, "the answer is there", 7)
    assert odd != tokenizer_of(name)("the answer is there", add_special_tokens=False).input_ids
    talk.act([*odd, talk.chat.stop_ids[0]])
    talk.observe([NEXT])
    turn(talk, name, "<think>\nhm\n</think>\n\nFour.", "<|im_end|>", NEXT)
    assert talk.rebuilt == 1
    ids = list(talk.context)
    assert any(ids[i : i + len(odd)] == odd for i in range(len(ids)))


def test_an_empty_thought_of_the_generation_prompt_is_dropped():
    talk = chat_of("qwen3", kwargs={"enable_thinking": False}).start([USER])
    assert decoded(talk.chat, talk.context).endswith("<think>\n\n</think>\n\n")
    _, text, opening = turn(talk, "qwen3", "Four.", "<|im_end|>", NEXT)
    assert opening.rebuilt and text.count("<think>") == 1  # that of the next action


def test_layout_of_json_is_no_rewrite():
    talk = chat_of("qwen25").start([USER], TOOLS)
    call = '<tool_call>{"arguments":{"deep":true,"key":"a"},"name":"look"}</tool_call>'
    reply, text, opening = turn(talk, "qwen25", call, "<|im_end|>", RESULT)
    assert [(c.name, c.arguments) for c in reply.calls] == [("look", {"deep": True, "key": "a"})]
    assert (opening.rebuilt, talk.respelled) == (False, 1)
    assert text == "\n<|im_start|>user\n<tool_response>\nfound it\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_a_capital_true_of_the_template_is_no_rewrite():
    talk = chat_of("qwen_coder").start([USER], TOOLS)
    call = "<tool_call>\n<function=look>\n<parameter=deep>\ntrue\n</parameter>\n</function>\n</tool_call>"
    reply, _, opening = turn(talk, "qwen_coder", call, "<|im_end|>", RESULT)
    assert reply.calls[0].arguments == {"deep": True}
    assert (opening.rebuilt, talk.respelled) == (False, 1)
    assert "\ntrue\n" in decoded(talk.chat, talk.context)  # not the template's True


def test_eos_and_newline_only_the_newline_is_added():
    _, text, _ = turn(chat_of("zephyr").start([USER]), "zephyr", "Four.", "</s>", NEXT)
    assert text == "\n<|user|>\nand now?</s>\n<|assistant|>\n"


def test_blanks_that_an_end_token_swallows_are_not_added():
    tokenizer = tokenizer_of("phi", swallows="<|end|>")
    talk = TemplateChat(tokenizer).start([USER])
    answer = tokenizer("so", add_special_tokens=False).input_ids
    talk.act([*answer, tokenizer.convert_tokens_to_ids("<|end|>")])
    talk.observe([NEXT])
    full_input_ids = tokenizer(talk.chat.template.render(talk.messages), add_special_tokens=False).input_ids
    assert list(talk.context) == full_input_ids and talk.respelled == 0


def test_an_action_that_was_cut_is_closed_by_the_template():
    _, text, _ = turn(chat_of("zephyr").start([USER]), "zephyr", "Fou", None, NEXT)
    assert text == "</s>\n<|user|>\nand now?</s>\n<|assistant|>\n"


@pytest.mark.parametrize("thought", ["<think>\nI am not do", "<think>not a new line"])
def test_a_thought_that_was_cut_is_closed_too(thought):
    talk = chat_of("qwen3", rewrites="keep").start([USER], TOOLS)
    reply, text, _ = turn(talk, "qwen3", thought, None, NEXT)
    assert reply.content == "" and reply.reasoning == thought.removeprefix("<think>").strip()
    assert text == "\n</think>\n\n<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"


def test_an_end_of_turn_inside_a_thought_is_the_end():
    talk = chat_of("qwen3", rewrites="keep").start([USER], TOOLS)
    reply, text, _ = turn(talk, "qwen3", "<think>\nI am not do", "<|im_end|>", NEXT)
    assert (reply.reasoning, reply.content) == ("I am not do", "")
    assert text == "\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"


def test_another_end_of_turn_token_replaces_the_templates():
    talk = chat_of("phi").start([USER])  # eos where the template has <|end|>
    _, text, _ = turn(talk, "phi", "Four.", "<|endoftext|>", NEXT)
    assert text == "\n<|user|>\nand now?<|end|>\n<|assistant|>\n" and talk.respelled == 1


def test_eos_behind_the_last_answer_only():
    talk = chat_of("last_eos").start([USER])
    _, text, opening = turn(talk, "last_eos", "Four.", "<|endoftext|>", NEXT)
    assert text == "\n<|user|>\nand now?\n<|assistant|>\n"
    assert not opening.rebuilt and talk.respelled == 1


def test_harmony_return_stays_in_the_context():
    talk = chat_of("harmony").start([USER])
    _, text, opening = turn(talk, "harmony", "<|channel|>final<|message|>Four.", "<|return|>", NEXT)
    assert text == "<|start|>user<|message|>and now?<|end|><|start|>assistant"
    assert not opening.rebuilt


def test_a_turn_without_end_token_overlaps_with_the_next_opener():
    talk = chat_of("glm").start([USER], TOOLS)
    call = "\n<think></think>\n<tool_call>look\n<arg_key>key</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"
    reply, text, _ = turn(talk, "glm", call, "<|observation|>", RESULT)
    assert reply.calls[0].arguments == {"key": "a"}
    assert text == "\n<tool_response>\nfound it\n</tool_response><|assistant|>"
    assert decoded(talk.chat, talk.context).count("<|observation|>") == 1


def test_a_default_system_prompt_is_in_the_context_once():
    talk = chat_of("qwen25").start([USER])
    turn(talk, "qwen25", "Four.", "<|im_end|>", NEXT)
    assert decoded(talk.chat, talk.context).count("You answer in these tests.") == 1


def test_white_space_that_a_template_strips_stays_in_the_action():
    talk = chat_of("llama3").start([USER])
    ids = spell("llama3", "  four \n", 0)
    talk.act([*ids, talk.chat.stop_ids[0]])
    opening = talk.observe([NEXT])
    assert not opening.rebuilt and talk.respelled == 1
    assert decoded(talk.chat, talk.context).count("  four \n<|eot_id|>") == 1


@pytest.mark.parametrize(
    ("name", "messages", "words"),
    [
        ("gemma", [{"role": "system", "content": "rules"}, USER], "System role not supported"),
        ("mistral", [USER, USER], "user and assistant have to alternate"),
    ],
)
def test_refusals_have_the_templates_words(name, messages, words):
    with pytest.raises(ModelError, match=words):
        chat_of(name).start(messages)


def test_a_refusal_leaves_the_conversation_unchanged():
    talk = chat_of("gemma").start([USER])
    talk.act(spell("gemma", "four", 0))
    before, messages = talk.context, list(talk.messages)
    with pytest.raises(ModelError, match="roles must alternate"):
        talk.observe([NEXT, NEXT])
    assert talk.context == before and talk.messages == messages
    talk.observe([NEXT])


def test_tools_that_move_to_the_newest_message_are_a_rewrite():
    moving = FAMILIES["mistral"].template.replace("tools and loop.first", "tools and loop.last")
    talk = chat_of("mistral", template=moving).start([USER], TOOLS)
    _, text, opening = turn(talk, "mistral", " Four.", "</s>", NEXT)
    assert (
        opening.rebuilt
        and text.count("[AVAILABLE_TOOLS]") == 1
        and text.index("Four.") < text.index("[AVAILABLE_TOOLS]")
    )


def test_a_prefill_follows_the_header_as_the_template_writes_it():
    talk = chat_of("vicuna").start([USER])  # "ASSISTANT:" is the generation prompt, "ASSISTANT: Four." the history
    _, text, _ = turn(talk, "vicuna", " Four.", "</s>", NEXT)
    assert talk.respelled == 0 and text == "USER: and now? ASSISTANT:"


def test_a_respelled_call_that_was_cut_is_closed_once():
    talk = chat_of("qwen25").start([USER], TOOLS)
    call = '<tool_call>{"name": "look", "arguments": {"key": "a"}}</tool_call>'
    _, text, _ = turn(talk, "qwen25", call, None, RESULT)
    assert text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>") and talk.respelled == 1


def test_two_calls_that_the_template_refuses_are_shown_as_text():
    talk = chat_of("llama3").start([USER], TOOLS)
    call = '{"name": "look", "parameters": {"key": "a"}}; {"name": "look", "parameters": {"key": "b"}}'
    reply, text, opening = turn(talk, "llama3", call, "<|eot_id|>", RESULT, RESULT)
    assert [c.arguments["key"] for c in reply.calls] == ["a", "b"]
    assert not opening.rebuilt and text.count("found it") == 2


def test_an_answer_to_a_malformed_call_may_be_a_user_message():
    talk = chat_of("mistral").start([USER], TOOLS)
    reply, text, _ = turn(talk, "mistral", '[TOOL_CALLS] [{"name": "lo', None, RESULT)
    assert [c.error for c in reply.calls] == ["the call is not JSON"]
    assert text == "</s>[INST] <tool_result>\nfound it\n</tool_result>[/INST]"


def test_calls_by_tags_where_the_template_knows_no_tools():
    chat = chat_of("gemma")
    assert chat.tools_format == "tags"
    talk = chat.start([USER], TOOLS)
    first = decoded(chat, talk.context)
    assert (
        '<tool>name({"argument": value})</tool>' in first
        and "- find.all(key?: string, count?: integer, deep?: boolean): Looks." in first
    )
    call = 'Let me look. <tool>look({"key": "a"})</tool><tool>find.all({})</tool>'
    reply, text, opening = turn(talk, "gemma", call, "<end_of_turn>", RESULT, {**RESULT, "content": "no"})
    assert [(c.name, c.arguments) for c in reply.calls] == [("look", {"key": "a"}), ("find.all", {})]
    assert reply.content == "Let me look." and not opening.rebuilt
    assert text == (
        "\n<start_of_turn>user\n<tool_result>\nfound it\n</tool_result>\n<tool_result>\nno\n</tool_result>"
        "<end_of_turn>\n<start_of_turn>model\n"
    )


def test_answers_are_given_the_id_and_name_of_their_call():
    talk = chat_of("mistral").start([USER], TOOLS)
    calls = '[TOOL_CALLS] [{"name": "look", "arguments": {}}, {"name": "find.all", "arguments": {}}]'
    _, text, _ = turn(talk, "mistral", calls, "</s>", RESULT, RESULT)
    assert text.count('"call_id": "call00000"') == text.count('"call_id": "call00001"') == 1
    assert [m.get("name") for m in talk.messages[-2:]] == ["look", "find.all"]


def test_without_tools_an_answer_in_json_is_no_call():
    talk = chat_of("llama3").start([USER])
    reply, _, _ = turn(talk, "llama3", '{"name": "Ann", "parameters": {}}', "<|eot_id|>", NEXT)
    assert reply.calls == () and reply.content == '{"name": "Ann", "parameters": {}}'


def test_a_copy_goes_its_own_way():
    talk = chat_of("chatml").start([USER])
    turn(talk, "chatml", "one", "<|im_end|>", NEXT)
    twin = talk.copy()
    turn(twin, "chatml", "two", "<|im_end|>", NEXT)
    assert len(twin.messages) == len(talk.messages) + 2
    assert twin.context[: len(talk.context)] == talk.context != twin.context
    turn(talk, "chatml", "two", "<|im_end|>", NEXT)
    assert talk.context == twin.context and talk.messages == twin.messages


def test_order_of_calls_is_checked():
    talk = chat_of("chatml").start([USER])
    with pytest.raises(GxpoError, match="comes after act"):
        talk.observe([NEXT])
    talk.act(spell("chatml", "one", 0))
    with pytest.raises(GxpoError, match="two actions in a row"):
        talk.act(spell("chatml", "two", 0))


def test_special_tokens_are_not_content():
    talk = chat_of("chatml").start([USER])
    reply, _, _ = turn(talk, "chatml", "a<|im_start|>b", "<|im_end|>", NEXT)
    assert reply.content == "ab"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_conversation_costs_no_state_of_the_chat(name):
    chat = chat_of(name)
    texts = []
    for _ in range(2):
        talk = chat.start([USER])
        turn(talk, name, "the answer", None, NEXT)
        texts.append(talk.context)
    assert texts[0] == texts[1]


def test_a_copy_after_an_action_is_independent():
    talk = chat_of("chatml").start([USER])
    talk.act(spell("chatml", "one", 0))
    twin = talk.copy()
    twin.observe([NEXT])
    twin.act([*spell("chatml", "another answer", 0), twin.chat.stop_ids[0]])
    opening = talk.observe([NEXT])
    assert decoded(talk.chat, opening.ids).startswith("<|im_end|>\n<|im_start|>user")


def test_calls_by_tags_in_the_final_channel():
    talk = chat_of("harmony", tools_format="tags").start([USER], TOOLS)
    message = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>So. <tool>look({})</tool>"
    )
    reply, text, opening = turn(talk, "harmony", message, "<|return|>", RESULT)
    assert [c.name for c in reply.calls] == ["look"] and (reply.content, reply.reasoning) == ("So.", "hm")
    assert opening.rebuilt  # a message of the user's follows, so the thinking goes
    assert "So. <tool>look({})</tool><|end|><|start|>user<|message|><tool_result>\nfound it" in text

"""Which calls go on from which: token ids in, token ids out; rewritten histories, branches, parallel conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.sampling.serve.agent_session import ADD, CALL, CHAT, END, TOKENIZER, user

from gxpo.models.chat import TemplateChat
from gxpo.parts.protocols import Completion
from gxpo.sampling.serve import reply
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.request import Refused, read

SYSTEM = {"role": "system", "content": "Be brief."}


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


class Client:
    """Asks, and is answered what it is told to be, over JSON."""

    def __init__(self, chat: Any = CHAT, tokenizer: Any = TOKENIZER) -> None:
        self.history, self.tokenizer, self.end = History(chat, tokenizer), tokenizer, chat.stop_ids[0]
        self.read: list[tuple[int, ...]] = []

    def __call__(self, messages: list[Any], *says: str, tokens: list[int] | None = None, **body: Any) -> dict[str, Any]:
        requests = read({"messages": messages, "n": max(1, len(says)), **body}, chat=True)
        (prompt,) = self.history.prompts(requests)
        self.read.append(prompt.ids)
        message = [tokens or [*self.tokenizer(s, add_special_tokens=False).input_ids, self.end] for s in says or ("",)]
        actual = [Completion(t, [-1.0] * len(t), "stop") for t in message]
        choices = self.history.take(prompt, actual, [{"action": t} for t in message])
        body = json.loads(json.dumps(reply.body(requests, choices, self.tokenizer.decode)))
        return body["choices"][-1]["message"]

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.history.turns()


def test_turns_of_one_conversation_are_one_context():
    client, messages = Client(), [SYSTEM, user("one")]
    # "there" is one token of this tokenizer; the policy wrote it as letters, and reads its own ids again
    letters = [i for c in "there" for i in ids(c)]
    assert letters != ids("there")
    messages += [client(messages, tokens=[*letters, END]), user("two")]
    messages += [client(messages, "yes"), user("three")]
    client(messages, "no")
    first, second, third = client.turns
    assert "context" in first and "observation" in second and "observation" in third
    full_contexts = [
        *first["context"],
        *first["action"],
        *second["observation"],
        *second["action"],
        *third["observation"],
    ]
    assert client.read[2] == tuple(full_contexts) and letters == full_contexts[len(first["context"]) :][: len(letters)]
    assert TOKENIZER.decode(second["observation"]) == "\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "returned",
    [
        lambda m: {**m, "content": None},  # a client that keeps no empty text
        lambda m: {
            **m,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
        },  # a dump of the SDK's
        lambda m: {**m, "tool_calls": [{**m["tool_calls"][0], "id": "mine"}]},
        lambda m: {**m, "content": [{"type": "text", "text": m["content"] or ""}]},
        lambda m: {
            **m,
            "tool_calls": [{**m["tool_calls"][0], "function": {"name": "add", "arguments": '{"b":1,"a":1}'}}],
        },
    ],
)
def test_messages_that_clients_reformat_still_match(returned):
    client, messages = Client(), [user("1+1?")]
    message = client(messages, CALL, tools=[ADD])
    messages += [returned(message), {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}]
    client(messages, "two", tools=[ADD])
    first, second = client.turns
    assert first["action"] == [*ids(CALL), END] and "observation" in second
    assert "<tool_response>\n2\n</tool_response>" in TOKENIZER.decode(second["observation"])


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda ms: [{"role": "system", "content": "Be long."}, *ms[1:]],  # another system prompt
        lambda ms: [ms[0], *ms[3:]],  # the beginning is dropped
        lambda ms: [ms[0], user("In short: one was asked."), ms[-1]],  # a summary
        lambda ms: [*ms[:2], {**ms[2], "content": "another answer"}, *ms[3:]],  # an answer put right
    ],
)
def test_a_rewritten_history_begins_a_new_context(rewrite):
    client, messages = Client(), [SYSTEM, user("one")]
    messages += [client(messages, "yes"), user("two")]
    client(rewrite(messages), "no")
    first, second = client.turns
    assert second["context"] == list(client.read[1]) and second["agent"] == first["agent"] == "agent"
    assert TOKENIZER.decode(second["context"]) == CHAT.template.render(rewrite(messages))


def test_other_tools_begin_a_new_context():
    client, messages = Client(), [user("one")]
    messages += [client(messages, "yes", tools=[ADD]), user("two")]
    client(messages, "no")
    assert "context" in client.turns[1]


def test_a_branch_reads_the_sampled_ids_in_a_new_context():
    client, messages = Client(), [user("one")]
    letters = [i for c in "there" for i in ids(c)]
    messages += [client(messages, tokens=[*letters, END])]
    client([*messages, user("left")], "l")
    client([*messages, user("right")], "r")
    first, left, right = client.turns
    assert "observation" in left and right["context"][: len(client.read[0]) + len(letters)] == [
        *client.read[0],
        *letters,
    ]
    assert (first["agent"], left["agent"], right["agent"]) == ("agent", "agent", "agent")


def test_conversations_side_by_side_have_names_of_their_own():
    client, a, b = Client(), [user("a")], [user("b")]
    a += [client(a, "a1"), user("more")]
    b += [client(b, "b1"), user("more")]
    client(a, "a2")
    client(b, "b2")
    assert [t["agent"] for t in client.turns] == ["agent", "agent.2", "agent", "agent.2"]
    assert ["context" in t for t in client.turns] == [True, True, False, False]


def test_agents_are_told_apart_by_model_or_metadata():
    client = Client()
    client([user("a")], "x", model="policy/planner")
    client([user("b")], "x", metadata={"agent": "worker", "state": "room 3"})
    client([user("c")], "x", metadata={"agent": "worker", "reward": "0.5"}, model="policy/planner")
    assert [t["agent"] for t in client.turns] == ["planner", "worker", "worker"]
    assert client.turns[1]["state"] == "room 3" and client.turns[1]["reward"] == 0.5 and "reward" not in client.turns[0]


def test_each_of_several_samples_can_be_continued():
    client, messages = Client(), [user("one")]
    last = client(messages, "first", "second")
    client([*messages, last, user("two")], "x")
    first, second, went_on = client.turns
    assert first["context"] == second["context"] and TOKENIZER.decode(second["action"][:-1]) == "second"
    assert client.read[1] == (*second["context"], *second["action"], *went_on["observation"])
    assert went_on["agent"] == second["agent"]


def test_streams_depend_on_the_prompt_and_its_count():
    one, two = Client(), Client()
    for client, order in ((one, "ab"), (two, "ba")):
        client.keys = {}
        for text in order:
            (prompt,) = client.history.prompts(read({"messages": [user(text)]}, chat=True))
            client.keys[text] = client.history.streams(prompt, 2) + client.history.streams(prompt, 1)
    assert one.keys == two.keys
    (digest,) = {d for d, _ in one.keys["a"]}
    assert one.keys["a"] == [(digest, 0), (digest, 1), (digest, 2)] and digest != one.keys["b"][0][0]


def test_a_template_that_drops_thinking_rebuilds_the_context():
    family, tokenizer = FAMILIES["qwen3"], tokenizer_of("qwen3")
    client, messages = Client(TemplateChat(tokenizer, family.template), tokenizer), [user("one")]
    message = client(messages, "<think>\nhm\n</think>\n\nyes")
    assert message["content"] == "yes" and message["reasoning_content"].strip() == "hm"
    client([*messages, message, user("two")], "no")
    second = client.turns[1]
    assert "context" in second and "hm" not in tokenizer.decode(second["context"])


def test_without_a_system_role_the_user_message_holds_it():
    family, tokenizer = FAMILIES["gemma"], tokenizer_of("gemma")
    client = Client(TemplateChat(tokenizer, family.template), tokenizer)
    client([SYSTEM, user("one")], "yes")
    assert "Be brief.\n\none" in tokenizer.decode(client.read[0])


def test_tool_calls_are_text_where_the_template_has_no_tools():
    family, tokenizer = FAMILIES["chatml"], tokenizer_of("chatml")
    client = Client(TemplateChat(tokenizer, family.template), tokenizer)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    output = [
        user("1+1?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    client(output, "two", tools=[ADD])
    text = tokenizer.decode(client.read[0])
    assert '<tool>add({"a": 1})</tool>' in text and "<tool_result>\n2\n</tool_result>" in text


def test_what_the_template_refuses_is_the_clients_error():
    family, tokenizer = FAMILIES["mistral"], tokenizer_of("mistral")
    client = Client(TemplateChat(tokenizer, family.template), tokenizer)
    with pytest.raises(Refused, match="template refuses"):
        client([user("one"), user("two")], "x")

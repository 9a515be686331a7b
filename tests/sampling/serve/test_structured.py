"""Replies in the format that a call demands, of a policy that knows none: what is read, recorded and trained."""

from __future__ import annotations

import json

import pytest
import torch
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.sampling.serve.agent_session import ADD, HTTP, TOKENIZER, post, session, user
from tests.sampling.serve.test_http import serving
from transformers import LlamaConfig, LlamaForCausalLM

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat import TemplateChat
from gxpo.models.chat.variables import with_variables
from gxpo.parts.protocols import Completion, Sampling
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.request import Refused, read

pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}, "n": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
ASK = [user("Where?")]


def policy() -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
        ends = {"eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": None}
        config = LlamaConfig(vocab_size=len(TOKENIZER) + 5, max_position_embeddings=4096, **ends, **settings)
        return LlamaForCausalLM(config).eval()


MODEL = policy()


def serve():
    return serving(None, model=MODEL, sampling=Sampling(max_new_tokens=200))


def record_of(attempt) -> Forest:
    first, *rest = attempt.history.turns()
    turns = [{k: v for k, v in first.items() if k != "context"}, *rest]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": first["context"], "turns": turns}
    return Forest.from_records([{**record, "reward": 1.0, "sampling": {"temperature": 1.0}}])


def test_replies_follow_their_schema_and_train_at_a_ratio_of_one():
    with serve() as (url, attempt, _):
        replies = [post(url, "sk-1", messages=ASK, response_format=FORMAT).json()["choices"][0] for _ in range(3)]
        cut = post(url, "sk-1", messages=ASK, response_format=FORMAT, max_tokens=4).json()["choices"][0]
        penalised = post(url, "sk-1", messages=ASK, presence_penalty=1.0, logit_bias={"9": 4}, max_tokens=8).json()
    for reply in replies:
        place = json.loads(reply["message"]["content"])
        assert place["city"] in ("Bonn", "Rome") and 10 <= place["n"] <= 99 and reply["finish_reason"] == "stop"
    assert cut["finish_reason"] == "length" and penalised["usage"]["completion_tokens"] <= 8
    forest = record_of(attempt)
    # replies to one prompt are contexts of their own, whose prompt is stored once
    assert forest.n_steps == 5 and len(forest.biases) > 10
    learner = TorchLearner(MODEL, lr=1e-2)
    outputs = learner.outputs(forest, ("logprob", "entropy"))
    assert torch.allclose(outputs["logprob"], forest.path_behaviour_logprob, atol=1e-5, rtol=0)
    # where the format leaves one token, it is certain
    forced = forest.path_behaviour_logprob == 0
    assert int(forced.sum()) > 5 and float(outputs["entropy"][forced].abs().max()) < 1e-5


def test_a_call_that_is_demanded_is_made():
    other = {"type": "function", "function": {"name": "nothing"}}
    tool = {"type": "function", "function": {"name": "go", "parameters": SCHEMA}}
    choice = {"type": "function", "function": {"name": "go"}}
    with serve() as (url, _, _):
        asked = {"messages": ASK, "tools": [other, tool], "max_tokens": 190}
        named = post(url, "sk-1", **asked, tool_choice=choice).json()["choices"][0]
        (first, *_) = post(url, "sk-1", **asked, tool_choice="required").json()["choices"]
    (call,) = named["message"]["tool_calls"]
    assert call["function"]["name"] == "go" and named["finish_reason"] == "tool_calls"
    assert set(json.loads(call["function"]["arguments"])) == {"city", "n"}
    assert first["finish_reason"] in ("tool_calls", "length")


def test_likeliest_tokens_and_ids_are_in_the_reply():
    with serve() as (url, _, _):
        body = post(
            url, "sk-1", messages=ASK, logprobs=True, top_logprobs=3, max_tokens=5, return_token_ids=True
        ).json()
        done = post(url, "sk-1", "/completions", prompt="ab", logprobs=2, max_tokens=4, return_token_ids=True).json()
        gone_on = post(url, "sk-1", "/completions", prompt_token_ids=[5, 6], max_tokens=2).json()
        response = post(url, "sk-1", "/responses", input="hi", top_logprobs=2, max_output_tokens=4).json()
        claude = HTTP.post(
            f"{url}/messages",
            headers={"x-api-key": "sk-1"},
            json={
                "messages": ASK,
                "max_tokens": 150,
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            },
        )
    rows = body["choices"][0]["logprobs"]["content"]
    assert all(len(row["top_logprobs"]) == 3 for row in rows) and len(body["choices"][0]["token_ids"]) == len(rows)
    for row in rows:
        values = [each["logprob"] for each in row["top_logprobs"]]
        assert values == sorted(values, reverse=True) and row["logprob"] <= values[0] + 1e-9
    choice = done["choices"][0]
    assert len(choice["token_ids"]) == 4 and len(choice["prompt_token_ids"]) == done["usage"]["prompt_tokens"]
    # the sampled token is always listed, so that there may be one more than asked for, or fewer of equal texts
    assert all(
        1 <= len(top) <= 3 and own in top
        for top, own in zip(choice["logprobs"]["top_logprobs"], choice["logprobs"]["tokens"], strict=True)
    )
    assert gone_on["usage"]["prompt_tokens"] == 2
    assert all(len(row["top_logprobs"]) == 2 for row in response["output"][0]["content"][0]["logprobs"])
    assert set(json.loads(claude.json()["content"][0]["text"])) == {"city", "n"}


def test_an_engine_without_options_refuses_them():
    with serving(lambda read, key: "hi") as (url, attempt, _):
        refused = post(url, "sk-1", messages=ASK, min_p=0.2)
        assert refused.status_code == 400 and "set sampling.engine=torch" in refused.json()["error"]["message"]
        assert post(url, "sk-1", messages=ASK, tools=[ADD], tool_choice="required").status_code == 200
    assert attempt.calls == 1


# ---------------------------------------------------------------- variables of the template
def qwen3() -> TemplateChat:
    return TemplateChat(tokenizer_of("qwen3"), FAMILIES["qwen3"].template)


def test_variables_of_the_template_are_those_of_the_call():
    chat = qwen3()
    history = History(chat, chat.tokenizer)

    def text(**fields):
        (draft,) = history.drafts(read({"messages": ASK, **fields}, chat=True))
        return chat.tokenizer.decode(draft.ids)

    closed = "<think>\n\n</think>\n\n"
    assert not text().endswith(closed) and text(chat_template_kwargs={"enable_thinking": False}).endswith(closed)
    assert text(chat_template_kwargs={"enable_thinking": True}) == text()
    for variables, words in (
        ({"enable_thoughts": False}, "the chat template reads no variable 'enable_thoughts'"),
        ({"tokenize": True}, "'tokenize' is no variable of a template"),
    ):
        with pytest.raises(Refused, match=words):
            text(chat_template_kwargs=variables)


def test_a_history_under_other_variables_is_a_context_of_its_own():
    chat = qwen3()
    rollout_session = session(lambda read, key: "Rome.")
    rollout_session.chat = chat
    variables = {"enable_thinking": False}
    first = read({"messages": ASK, "chat_template_kwargs": variables}, chat=True)
    history = History(chat, chat.tokenizer)
    (prompt,) = history.prompts(first)
    reply = chat.tokenizer("Rome.", add_special_tokens=False).input_ids
    completion = Completion([*reply, chat.stop_ids[0]], [-1.0] * (len(reply) + 1), "stop")
    (choice,) = history.take(prompt, [completion], [{"action": completion.tokens}])
    later = [*ASK, {"role": "assistant", "content": choice.text}, user("Why?")]
    (same,) = history.drafts(read({"messages": later, "chat_template_kwargs": variables}, chat=True))
    (other,) = history.drafts(read({"messages": later}, chat=True))
    assert same.action is not None and same.ids != other.ids
    assert other.action is None and other.opening.rebuilt


def test_a_format_under_an_opened_thought_is_refused():
    prompt = "{{- '<|im_start|>assistant\\n' -}}"
    template = FAMILIES["qwen25"].template
    assert prompt in template
    chat = TemplateChat(TOKENIZER, template.replace(prompt, prompt.replace("assistant\\n", "assistant\\n<think>\\n")))
    assert chat.facts.opens_reasoning
    call = read({"messages": ASK, "response_format": {"type": "json_object"}}, chat=True)
    with pytest.raises(Refused, match="opens a thought before each reply"):
        History(chat, TOKENIZER).drafts(call)


def test_plain_texts_have_no_variables():
    from gxpo.base.errors import ModelError
    from gxpo.models.chat.plain import PlainChat

    with pytest.raises(ModelError, match="no chat template"):
        with_variables(PlainChat(TOKENIZER), {"a": 1})


def test_a_format_that_the_engine_can_not_follow_costs_its_call_alone():
    with serve() as (url, attempt, engine):
        engine.tokenizer = None
        refused = post(url, "sk-1", messages=ASK, response_format=FORMAT)
        assert refused.status_code == 400 and "needs the tokenizer's texts" in refused.json()["error"]["message"]
        assert post(url, "sk-1", messages=ASK, max_tokens=2).status_code == 200
        endless = post(url, "sk-1", messages=ASK, tools=[ADD], tool_choice="required", ignore_eos=True)
        assert endless.status_code == 400
    assert attempt.calls == 1

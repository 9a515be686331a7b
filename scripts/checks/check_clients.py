"""Make 83 calls of real clients on `gxpo serve`, and print which are accepted, which refused with which reason.

    python -m venv clients && clients/bin/pip install openai litellm openai-agents pydantic-ai-slim[openai] \
        smolagents[openai] langchain-openai inspect-ai anthropic
    python scripts/checks/check_clients.py --python clients/bin/python

The policy is a small model that is trained here, in some seconds, to answer "Done.", "Done here." or with a call of the
tool `add`. The clients have an environment of their own, since their requirements are large. A row is `accepted`,
`refused` (the endpoint answered with an error that says why) or `BROKEN`: accepted, but the reply is not what the call
asks for. Exit status 1 if one is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "even": {"type": "boolean"}},
    "required": ["a", "even"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "What is 1 + 2?"}]


# ---------------------------------------------------------------- the policy
TEMPLATE = """{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else -%}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set call = call.function or call %}
<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
</tool_call>
{%- endfor -%}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{%- endif -%}"""
ANSWERS = ("Done.", "Done here.", '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>')


def make_policy(folder: Path) -> None:
    """Train the policy and write it, with its tokenizer and chat template."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = [*ANSWERS, "What is 1 + 2?", "assistant user system", "<tool_response>\n3\n</tool_response>"] * 4
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    )
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    # Contexts are noise, so that a reply of any conversation is one of the answers.
    optimiser, ids = torch.optim.AdamW(model.parameters(), lr=3e-3), len(tokenizer)
    header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False).input_ids
    answers = [tokenizer(text + "<|im_end|>", add_special_tokens=False).input_ids for text in ANSWERS]
    for step in range(240):
        rows = []
        for i in range(12):
            noise = torch.randint(0, ids - 3, (int(torch.randint(4, 60, ())),)).tolist()
            rows.append([*noise, *header, *answers[(step + i) % 3]])
        longest = max(map(len, rows))
        batch = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        labels = torch.full_like(batch, -100)
        for row, label in zip(rows, labels, strict=True):
            start = len(row) - next(len(a) for a in answers if row[-len(a) :] == a)
            label[-(len(row) - start) :] = torch.tensor(row[start:])
        loss = model(batch, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# ---------------------------------------------------------------- calls
CALLS: list[tuple[str, Callable[[], Any]]] = []
URL = KEY = ""


def call(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        CALLS.append((name, function))
        return function

    return register


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def client() -> Any:
    import openai

    return openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def chat(**fields: Any) -> Any:
    return client().chat.completions.create(**{"model": "policy", "messages": ASK, **fields})


def summarize(completion: Any) -> Any:
    choice = completion.choices[0]
    return [choice.message.content or [c.function.name for c in choice.message.tool_calls or ()], choice.finish_reason]


@call("openai sync")
def _() -> Any:
    return summarize(chat())


@call("openai async x4 concurrent")
def _() -> Any:
    import openai

    async def all_of_them() -> list[Any]:
        async_client = openai.AsyncOpenAI(base_url=URL, api_key=KEY)
        calls = (async_client.chat.completions.create(model="policy", messages=ASK) for _ in range(4))
        return await asyncio.gather(*calls)

    return [summarize(c) for c in asyncio.run(all_of_them())]


@call("openai stream + usage")
def _() -> Any:
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    expect(chunks[-1].usage.total_tokens > 0, "no usage at the end")
    return [len(chunks), chunks[-1].usage.total_tokens]


@call("openai stream helper")
def _() -> Any:
    with client().chat.completions.stream(model="policy", messages=ASK) as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_completion().choices[0].finish_reason]


@call("openai tools loop")
def _() -> Any:
    messages: list[Any] = list(ASK)
    for turn in range(6):
        message = chat(messages=messages, tools=[ADD]).choices[0].message
        messages.append(message)
        for tool_call in message.tool_calls or ():
            arguments = json.loads(tool_call.function.arguments)
            messages.append(
                {"role": "tool", "tool_call_id": tool_call.id, "content": str(arguments["a"] + arguments["b"])}
            )
        if not message.tool_calls:
            return [turn + 1, message.content]
    return "six calls of a tool"


@call("openai logprobs")
def _() -> Any:
    completion = chat(logprobs=True)
    rows = completion.choices[0].logprobs.content
    expect(len(rows) == completion.usage.completion_tokens, "a log-prob is missing")
    return [[row.token, round(row.logprob, 3)] for row in rows]


def check_top(n: int) -> Callable[[], Any]:
    def run() -> Any:
        rows = chat(logprobs=True, top_logprobs=n).choices[0].logprobs.content
        expect(all(1 <= len(row.top_logprobs) <= n for row in rows), "a list of likeliest tokens has another length")
        likeliest = [[(t.token, round(t.logprob, 2)) for t in row.top_logprobs] for row in rows]
        for row in rows:
            values = [t.logprob for t in row.top_logprobs]
            expect(values == sorted(values, reverse=True), "the likeliest is not the first")
            own_logprobs = [t.logprob for t in row.top_logprobs if t.token == row.token]
            expect(not own_logprobs or abs(own_logprobs[0] - row.logprob) < 1e-5, "the token's own log-prob differs")
        return likeliest[0]

    return run


CALLS += [("openai top_logprobs=3", check_top(3)), ("openai top_logprobs=1", check_top(1))]


@call("openai n=4")
def _() -> Any:
    choices = chat(n=4).choices
    expect([c.index for c in choices] == [0, 1, 2, 3], "not four choices")
    return [c.message.content or "call" for c in choices]


@call("openai stop")
def _() -> Any:
    completion = chat(stop=["here"], max_tokens=20)
    expect("here" not in (completion.choices[0].message.content or ""), "the stop text is in the reply")
    return summarize(completion)


@call("openai seed twice the same, other keys")
def _() -> Any:
    return [summarize(client().with_options(api_key=f"{KEY}-{i}").chat.completions.create(
        model="policy", messages=ASK, seed=1)) for i in range(2)]  # fmt: skip


@call("openai response_format text")
def _() -> Any:
    return summarize(chat(response_format={"type": "text"}))


def parse_json(completion: Any) -> Any:
    choice = completion.choices[0]
    if choice.finish_reason == "length":
        return ["length", choice.message.content[:60]]
    return json.loads(choice.message.content)


@call("openai response_format json_object")
def _() -> Any:
    value = parse_json(chat(response_format={"type": "json_object"}, max_tokens=400))
    expect(isinstance(value, dict | list), "no object")
    return value


@call("openai response_format json_schema")
def _() -> Any:
    schema = {"name": "sum", "schema": SUM, "strict": True}
    value = parse_json(chat(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=400))
    expect(isinstance(value, dict) and set(value) == {"a", "even"}, f"not of the schema: {value}")
    return value


@call("openai parse(pydantic)")
def _() -> Any:
    import pydantic

    class Sum(pydantic.BaseModel):
        a: int = pydantic.Field(le=99)
        even: bool

    parsed = client().chat.completions.parse(model="policy", messages=ASK, response_format=Sum, max_tokens=400)
    value = parsed.choices[0].message.parsed
    expect(isinstance(value, Sum), f"nothing was parsed: {parsed.choices[0].message.content}")
    return str(value)


def has_call(completion: Any) -> None:
    calls = completion.choices[0].message.tool_calls or []
    expect(bool(calls) and all(c.function.name == "add" for c in calls), "no call of the tool that was demanded")
    expect(all(set(json.loads(c.function.arguments)) == {"a", "b"} for c in calls), "arguments not of the schema")


def has_tokens(completion: Any) -> None:
    expect(completion.usage.completion_tokens == 30, "it ended before max_tokens")


def has_ids(completion: Any) -> None:
    expect(len(completion.choices[0].token_ids) == completion.usage.completion_tokens, "no token ids")
    expect(len(completion.prompt_token_ids) == completion.usage.prompt_tokens, "no ids of the prompt")


def is_json(completion: Any) -> None:
    parse_json(completion)


def has_three(completion: Any) -> None:
    expect(completion.usage.completion_tokens >= 3, "fewer than min_tokens")


LONG = [{"role": "user", "content": "x" * 20_000}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL_TALK = [
    *ASK,
    {"role": "assistant", "content": None,
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
]  # fmt: skip
PARTS = [{"role": "system", "content": [{"type": "text", "text": "sys"}]}, *ASK]
PARAMETERS: list[tuple[dict[str, Any], Callable[[Any], None] | None]] = [
    ({"temperature": 0.0}, None), ({"temperature": 0.7}, None), ({"top_p": 0.9}, None), ({"max_tokens": 2}, None),
    ({"max_completion_tokens": 2}, None), ({"presence_penalty": 0.5}, None), ({"frequency_penalty": 0.0}, None),
    ({"logit_bias": {"5": -100}}, None),
    ({"tool_choice": "required", "tools": [ADD]}, has_call),
    ({"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": [ADD]}, has_call),
    ({"tool_choice": "none", "tools": [ADD]}, None), ({"parallel_tool_calls": False, "tools": [ADD]}, None),
    ({"user": "u"}, None), ({"metadata": {"state": "s1"}}, None), ({"store": False}, None),
    ({"reasoning_effort": "low"}, None), ({"service_tier": "auto"}, None), ({"extra_body": {"top_k": 5}}, None),
    ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, None),
    ({"extra_body": {"guided_json": {}}, "max_tokens": 300}, is_json),
    ({"extra_body": {"return_token_ids": True}}, has_ids),
    ({"extra_body": {"ignore_eos": True}, "max_tokens": 30}, has_tokens), ({"extra_body": {"min_p": 0.1}}, None),
    ({"prediction": {"type": "content", "content": "x"}}, None), ({"modalities": ["text"]}, None), ({"n": 0}, None),
    ({"n": 200}, None), ({"max_tokens": 0}, None), ({"stop": ["a", "b", "c", "d", "e"]}, None), ({"stop": ""}, None),
    ({"model": "gpt-4o"}, None), ({"messages": []}, None), ({"functions": [{"name": "f"}]}, None),
    ({"web_search_options": {}}, None), ({"timeout": 5}, None), ({"extra_body": {"add_generation_prompt": True}}, None),
    ({"extra_body": {"skip_special_tokens": False}}, None), ({"extra_body": {"min_tokens": 3}}, has_three),
    ({"messages": PARTS}, None), ({"messages": [{"role": "developer", "content": "d"}, *ASK]}, None),
    ({"messages": TOOL_TALK}, None), ({"messages": [{"role": "user", "content": [PICTURE]}]}, None),
    ({"messages": [{"role": "user", "content": ""}]}, None), ({"messages": LONG}, None),
]  # fmt: skip


def parameter(fields: dict[str, Any], check: Callable[[Any], None] | None) -> Callable[[], Any]:
    def run() -> Any:
        completion = chat(**fields)
        if check is not None:
            check(completion)
        return summarize(completion)

    return run


CALLS += [(f"openai param {json.dumps(fields)[:90]}", parameter(fields, check)) for fields, check in PARAMETERS]


@call("openai completions")
def _() -> Any:
    choice = client().completions.create(model="policy", prompt="1 + 2", logprobs=2, max_tokens=4).choices[0]
    expect(all(choice.logprobs.top_logprobs), "no likeliest tokens")
    return [choice.text, choice.finish_reason]


@call("openai completions list n=2 echo")
def _() -> Any:
    choices = client().completions.create(model="policy", prompt=["a", "b"], n=2, max_tokens=4, echo=False).choices
    return [[c.index, c.text] for c in choices]


@call("openai models.list / retrieve")
def _() -> Any:
    return [[m.id for m in client().models.list()], client().models.retrieve("policy").id]


@call("openai responses API")
def _() -> Any:
    text = {"format": {"type": "json_schema", "name": "sum", "schema": SUM, "strict": True}}
    response = client().responses.create(model="policy", input="What is 1 + 2?", text=text, max_output_tokens=400)
    value = json.loads(response.output_text)
    expect(set(value) == {"a", "even"}, f"not of the schema: {value}")
    return value


@call("openai embeddings")
def _() -> Any:
    return client().embeddings.create(model="policy", input="a").data


@call("openai no key")
def _() -> Any:
    import urllib.error
    import urllib.request

    body = json.dumps({"model": "policy", "messages": ASK}).encode()
    request = urllib.request.Request(f"{URL}/chat/completions", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())["error"]["type"]]
    raise AssertionError("a call without a key was answered")


@call("openai with_raw_response headers")
def _() -> Any:
    raw = client().chat.completions.with_raw_response.create(model="policy", messages=ASK)
    return [raw.http_response.status_code, raw.headers["content-type"], summarize(raw.parse())[1]]


# ---------------------------------------------------------------- other clients
def lite(model: str = "openai/policy", **fields: Any) -> Any:
    import litellm

    litellm.num_retries = 0
    return litellm.completion(model=model, api_base=URL, api_key=KEY, messages=ASK, **fields)


@call("litellm completion")
def _() -> Any:
    return lite().choices[0].message.content or "call"


@call("litellm stream")
def _() -> Any:
    return len(list(lite(stream=True)))


@call("litellm async")
def _() -> Any:
    import litellm

    return asyncio.run(
        litellm.acompletion(model="openai/policy", api_base=URL, api_key=KEY, messages=ASK)
    ).choices[0].finish_reason  # fmt: skip


@call("litellm hosted_vllm")
def _() -> Any:
    return lite("hosted_vllm/policy").choices[0].finish_reason


def openai_agent() -> Any:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = agents.OpenAIChatCompletionsModel("policy", openai.AsyncOpenAI(base_url=URL, api_key=KEY))
    return agents.Agent(name="adder", instructions="Add.", tools=[add], model=model)


@call("openai-agents (chat completions model)")
def _() -> Any:
    import agents

    return asyncio.run(agents.Runner.run(openai_agent(), "What is 1 + 2?")).final_output


@call("openai-agents streamed")
def _() -> Any:
    import agents

    async def run() -> Any:
        streamed = agents.Runner.run_streamed(openai_agent(), "What is 1 + 2?")
        events = [event async for event in streamed.stream_events()]
        return [len(events), streamed.final_output]

    return asyncio.run(run())


def pydantic_agent(**fields: Any) -> Any:
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=URL, api_key=KEY))
    return pydantic_ai.Agent(model, **fields)


@call("pydantic-ai agent")
def _() -> Any:
    agent = pydantic_agent()

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return agent.run_sync("What is 1 + 2?").output


@call("pydantic-ai structured output (tool)")
def _() -> Any:
    import pydantic

    class Sum(pydantic.BaseModel):
        a: int = pydantic.Field(le=99)
        even: bool

    output = pydantic_agent(output_type=Sum).run_sync("What is 1 + 2?").output
    expect(isinstance(output, Sum), "no output of the type")
    return str(output)


def smol(kind: str) -> Any:
    import smolagents

    @smolagents.tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one
            b: other
        """
        return a + b

    model = smolagents.OpenAIModel(model_id="policy", api_base=URL, api_key=KEY)
    agent = getattr(smolagents, kind)(tools=[add], model=model, max_steps=2, verbosity_level=0)
    return str(agent.run("What is 1 + 2?"))[:60]


CALLS += [(f"smolagents {kind}", lambda kind=kind: smol(kind)) for kind in ("ToolCallingAgent", "CodeAgent")]


def chain(**fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="policy", base_url=URL, api_key=KEY, max_retries=0, **fields)  # type: ignore[arg-type]


@call("langchain ChatOpenAI invoke")
def _() -> Any:
    message = chain().invoke("What is 1 + 2?")
    return [message.content, message.usage_metadata]


@call("langchain tools loop")
def _() -> Any:
    from langchain_core.messages import HumanMessage, ToolMessage

    model, messages = chain().bind_tools([ADD]), [HumanMessage("What is 1 + 2?")]
    for turn in range(6):
        messages.append(model.invoke(messages))
        messages += [ToolMessage("3", tool_call_id=c["id"]) for c in messages[-1].tool_calls]
        if messages[-1].type == "ai":
            return [turn + 1, messages[-1].content]
    return "six calls of a tool"


@call("langchain stream")
def _() -> Any:
    return [chunk.content for chunk in chain().stream("What is 1 + 2?")]


def structured_output(**fields: Any) -> Callable[[], Any]:
    def run() -> Any:
        import pydantic

        class Sum(pydantic.BaseModel):
            """A sum."""

            a: int = pydantic.Field(le=99)
            even: bool

        value = chain(max_tokens=400).with_structured_output(Sum, **fields).invoke("What is 1 + 2?")
        expect(isinstance(value, Sum), f"no output of the type: {value}")
        return str(value)

    return run


CALLS += [
    ("langchain with_structured_output (default)", structured_output()),
    ("langchain with_structured_output function_calling", structured_output(method="function_calling")),
]


def run_inspect(model: str) -> Callable[[], Any]:
    def run() -> Any:
        import inspect_ai
        from inspect_ai.dataset import Sample
        from inspect_ai.model import get_model
        from inspect_ai.scorer import includes

        task = inspect_ai.Task([Sample("What is 1 + 2?", target="Done")], scorer=includes())
        with tempfile.TemporaryDirectory() as folder:
            (log,) = inspect_ai.eval(
                task, model=get_model(model, base_url=URL, api_key=KEY), log_dir=folder, display="none"
            )
            if log.status != "success":
                raise RuntimeError(str(log.error.message if log.error else log.status))
            return [log.status, log.results.scores[0].metrics["accuracy"].value]

    return run


CALLS += [
    ("inspect_ai eval", run_inspect("openai-api/gxpo/policy")),
    ("inspect_ai default openai/ provider", run_inspect("openai/policy")),
]


# ---------------------------------------------------------------- running
def run_calls(only: str) -> int:
    """Make the calls; a line of JSON for each: name, status, and what came or why it was refused."""
    global KEY
    broken = 0
    for i, (name, function) in enumerate(CALLS):
        if only not in name:
            continue
        KEY = f"sk-gxpo-check-{i}"
        try:
            status, result = "accepted", function()
        except AssertionError as error:
            status, result = "BROKEN", str(error)
        except BaseException as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            # an endpoint that refuses says so in words; anything else is a failure of the client on what it got
            status, result = ("refused" if "Error code: 4" in text or " 404" in text else "BROKEN"), text
            if status == "BROKEN" and os.environ.get("TRACE"):
                traceback.print_exc()
        broken += status == "BROKEN"
        print(json.dumps([name, status, result], default=str), flush=True)
    return int(broken > 0)


def serve_and_run(python: str, only: str, policy: Path | None) -> int:
    """Serve the policy, and make the calls with another interpreter; print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = policy or Path(temporary) / "policy"
        if not (folder / "config.json").is_file():
            make_policy(folder)
        gxpo = [sys.executable, "-m", "gxpo", "serve", str(folder), "--port", "0", "--json"]
        settings = ["--set", "sampling.max_new_tokens=400", "--out", f"{temporary}/episodes.jsonl"]
        server = subprocess.Popen([*gxpo, *settings], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["base_url"]
            command = [python, __file__, "--client", url, "--only", only]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        finally:
            server.terminate()
            server.wait(30)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    for name, status, result in rows:
        print(f"{status:9} {name[:70]:70} {json.dumps(result)[:150]}")
    counts = {kind: sum(row[1] == kind for row in rows) for kind in ("accepted", "refused", "BROKEN")}
    print(f"{len(rows)} calls: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return run.returncode


def main() -> int:
    global URL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the clients")
    parser.add_argument("--only", default="", help="part of the name of the calls to make")
    parser.add_argument("--policy", type=Path, help="folder of the policy: made if it is not there, and kept")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        URL = arguments.client
        return run_calls(arguments.only)
    return serve_and_run(arguments.python, arguments.only, arguments.policy)


if __name__ == "__main__":
    raise SystemExit(main())

"""Agents that nobody here wrote, as they are: the `openai` package in a loop with tools, smolagents' own agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.sampling.serve.agent_session import ADD, CALL, TASKS, TOKENIZER, session, user

import gxpo
from gxpo.sampling.rollouts.agent import AgentEpisodes

pytestmark = pytest.mark.thorough


def played(run: Any, say: Any, tasks: Any = TASKS, size: int = 2) -> tuple[Any, Any]:
    rollout_session = session(say)
    return AgentEpisodes(run, group_size=size).grow(tasks, rollout_session), rollout_session


def read(forest: Any, step: int) -> str:
    """All that the action was sampled under."""
    return TOKENIZER.decode(forest.context(int(forest.parent[forest.step_nodes(step)[0]])))


def test_the_openai_package_in_a_loop_with_tools():
    openai = pytest.importorskip("openai")

    def run(prompt, answer, base_url, api_key):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        messages: list[Any] = [user(prompt)]
        for _ in range(4):
            message = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[ADD]).choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                arguments = json.loads(call.function.arguments)
                messages.append(
                    {"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])}
                )
            if not message.tool_calls:
                return message.content == answer
        return False

    forest, session = played(run, lambda text, key: "2" if "<tool_response>" in text else CALL)
    assert [info["agent"] for info in forest.info] == [{"end": "done", "contexts": 1, "overridden": 0}] * 4
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0] and forest.n_steps == 8
    assert read(forest, 1).endswith(f"{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\n2\n</tool_response>"
                                    "<|im_end|>\n<|im_start|>assistant\n")  # fmt: skip
    assert [len(batch) for batch in session.engine.batches] == [4, 4]


def test_the_openai_package_streams_and_reads_errors():
    openai = pytest.importorskip("openai")
    names = []

    async def run(base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        stream = await client.chat.completions.create(model="x", messages=[user("hi")], stream=True, tools=[ADD])
        calls = [c async for chunk in stream for c in chunk.choices[0].delta.tool_calls or ()]
        names.append([c.function.name for c in calls])
        try:
            await client.chat.completions.create(model="x", messages=[user("long " * 5000)])
        except openai.BadRequestError as error:
            names.append(error.code)
        done = await client.completions.create(model="x", prompt="hi", logprobs=1)
        names.append(len(done.choices[0].logprobs.token_logprobs))
        return 1.0

    played(run, lambda text, key: CALL, TASKS[:1], 1)
    assert names[:2] == [["add"], "context_length_exceeded"] and names[2] > 5


def test_smolagents_calls_its_tools():
    smolagents = pytest.importorskip("smolagents")

    @smolagents.tool
    def multiply(a: int, b: int) -> int:
        """Multiplies.

        Args:
            a: one
            b: other
        """
        return a * b

    def run(prompt, base_url, api_key):
        model = smolagents.OpenAIModel(model_id="policy", api_base=base_url, api_key=api_key)
        agent = smolagents.ToolCallingAgent(tools=[multiply], model=model, max_steps=3, verbosity_level=0)
        return str(agent.run(prompt))

    def called(name: str, **arguments: Any) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    def say(text, key):
        return called("final_answer", answer="42") if text.count("Observation:\n42") else called("multiply", a=6, b=7)

    forest, _ = played(run, say, TASKS[:1], 1)
    assert forest.info[0]["agent"]["end"] == "done", forest.info[0]
    assert forest.n_steps == 2 and "Observation:\n42" in read(forest, 1)
    assert forest.info[0]["agent"]["contexts"] == 2  # it shows its calls as a text of its own: a rewritten history


def test_openai_agents_through_the_responses_api():
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def run(prompt, answer, base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        model = agents.OpenAIResponsesModel(model="policy", openai_client=client)
        agent = agents.Agent(name="adder", instructions="Add.", tools=[add], model=model)
        return (await agents.Runner.run(agent, prompt)).final_output == answer

    forest, _ = played(run, lambda text, key: "2" if "<tool_response>" in text else CALL)
    assert [info["agent"] for info in forest.info] == [{"end": "done", "contexts": 1, "overridden": 0}] * 4
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0] and forest.n_steps == 8


def test_handoffs_of_openai_agents_are_contexts_of_one_trajectory():
    """The expert has instructions and tools of its own, so its context is a new one; both calls get the credit."""
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    async def run(prompt, answer, base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        triage_model, expert_model = (
            agents.OpenAIChatCompletionsModel(model=f"policy/{name}", openai_client=client)
            for name in ("triage", "expert")
        )
        expert = agents.Agent(name="expert", instructions="Answer.", model=expert_model)
        triage = agents.Agent(name="triage", instructions="Hand over.", handoffs=[expert], model=triage_model)
        return (await agents.Runner.run(triage, prompt)).final_output == answer

    handoff = f"<tool_call>\n{json.dumps({'name': 'transfer_to_expert', 'arguments': {}})}\n</tool_call>"
    forest, _ = played(run, lambda text, key: handoff if "Hand over." in text else str(2 + key.attempt), TASKS[:1])
    assert [info["agent"] for info in forest.info] == [{"end": "done", "contexts": 2, "overridden": 0}] * 2
    assert [forest.agent_names[a] for a in forest.step_agent.tolist()] == ["triage", "expert"] * 2
    assert "Hand over." in read(forest, 0) and "transfer_to_expert" in read(forest, 0)
    assert "system\nAnswer." in read(forest, 1) and "What is 1+1?" in read(forest, 1)
    advantage_P = gxpo.method("dr_grpo").advantages(forest)
    assert forest.outcome.tolist() == [1.0, 0.0]
    assert advantage_P.tolist() == [0.5 if r == 0 else -0.5 for r in forest.path_trajectory.tolist()]


def test_the_anthropic_package_in_a_loop_with_tools():
    anthropic = pytest.importorskip("anthropic")
    tools = [{"name": "add", "description": "Adds.", "input_schema": ADD["function"]["parameters"]}]

    def run(prompt, answer, base_url, api_key):
        client = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key)
        messages: list[Any] = [user(prompt)]
        for _ in range(4):
            with client.messages.stream(model="x", max_tokens=64, messages=messages, tools=tools) as stream:
                reply = stream.get_final_message()
            if reply.stop_reason != "tool_use":
                return reply.content[0].text == answer
            (use,) = reply.content
            result = {"type": "tool_result", "tool_use_id": use.id, "content": str(use.input["a"] + use.input["b"])}
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
        return False

    forest, _ = played(run, lambda text, key: "2" if "<tool_response>" in text else CALL)
    assert [info["agent"] for info in forest.info] == [{"end": "done", "contexts": 1, "overridden": 0}] * 4
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0] and forest.n_steps == 8

"""Episodes of a user's agent: what is recorded is what the learner computes; rewards, failures, order, commands."""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.sampling.serve.agent_session import ADD, CALL, END, HTTP, TASKS, TOKENIZER, ask, post, session, user
from transformers import LlamaConfig, LlamaForCausalLM

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.agent import AgentEpisodes
from gxpo.training import config


def two_turns(prompt, base_url, api_key):
    """A tool's answer, another question; then what was said is summed up and asked again; a reward of its own."""
    messages = [{"role": "system", "content": "Use the tool."}, user(prompt)]
    text = ask(base_url, api_key, messages, tools=[ADD])
    calls = text.get("tool_calls", [])
    answers = [{"role": "tool", "tool_call_id": c["id"], "content": "2"} for c in calls] or [user("And?")]
    text = ask(base_url, api_key, [*messages, text, *answers], tools=[ADD])
    ask(base_url, api_key, [user(f"In short: {text['content']}")])
    return float(sum(map(ord, text["content"] or "")) % 5)


def model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENIZER), num_key_value_heads=2, **sizes)).eval()


def grown(run, tasks=TASKS, group_size=2, say=lambda read, key: "yes", **given):
    options = {k: given.pop(k) for k in list(given) if k in AgentEpisodes.__dataclass_fields__}
    rollout_session = session(say if "model" not in given else None, **given)
    return AgentEpisodes(run, group_size=group_size, **options).grow(tasks, rollout_session), rollout_session


# ---------------------------------------------------------------- what is trained
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_log_probs_are_the_learners(temperature):
    policy = model()
    forest, _ = grown(two_turns, model=policy, group_size=4, sampling=Sampling(temperature, max_new_tokens=12))
    actual = TorchLearner(policy, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert forest.n_steps == 3 * 8 and bool(forest.path_trainable.all())
    assert torch.allclose(actual.double(), forest.path_behaviour_logprob, rtol=0, atol=1e-5)
    assert len(set(forest.group)) == 2 and forest.outcome.isfinite().all()


def test_tool_conversation_contexts_keep_the_sampled_ids():
    says = {1: CALL, 2: "two"}
    forest, session = grown(two_turns, TASKS[:1], 1, say=lambda read, key: says.get(read.count("assistant"), "x"))
    requests = session.engine.requests
    first = [*requests[0].prompt, *TOKENIZER(CALL, add_special_tokens=False).input_ids, END]
    assert requests[1].prompt[: len(first)] == tuple(first)
    display = TOKENIZER.decode(list(requests[1].prompt))
    assert "# Tools" in display and display.endswith(
        "<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    contexts = [forest.context(int(forest.parent[forest.step_nodes(s)[0]])) for s in range(forest.n_steps)]
    assert [tuple(c) for c in contexts] == [r.prompt for r in requests]
    assert [r.keep for r in requests] == [
        ("one/0/0",),
        ("one/0/0",),
        ("one/0/1",),
    ] and "one/0/1" in session.engine.released
    assert forest.info[0]["agent"] == {"end": "done", "contexts": 2, "overridden": 0}
    assert session.budget.rollouts == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "gigpo"])
def test_methods_train_on_it(method, tmp_path):
    composed_method = gxpo.method(method, {"rollout": "agent", "rollout.run": two_turns, "rollout.group_size": 4})
    small = {"tasks.per_step": 2, "sampling.max_new_tokens": 8, "eval.tasks": 2, "trainer.rollouts_every": 1}
    run = gxpo.train("tiny:cold", "arithmetic", composed_method, steps=2, out=tmp_path / "run", set=small)
    assert run.metrics[-1]["agent_calls_mean"] == 3 and run.metrics[-1]["optimiser_steps"] == 1
    assert run.metrics[0]["sampler_gap"] < 1e-5 and run.metrics[0]["zero_signal_groups"] < 1
    turns = run.samples[0]["turns"]
    assert [t.get("context") is None for t in turns] == [True, True, False] and len({t["state"] for t in turns}) == 3


def test_states_and_step_rewards_are_the_agents():
    def walk(base_url, api_key):
        for k in range(3):
            ask(base_url, api_key, [user("go")], metadata={"state": f"room {k}", "reward": str(k)})
        return 1

    forest, _ = grown(walk, TASKS[:1], 1)
    assert [forest.state_names[i] for i in forest.step_state.tolist()] == ["room 0", "room 1", "room 2"]
    assert forest.step_reward.tolist()[:2] == [1.0, 2.0] and math.isnan(forest.step_reward[2])


# ---------------------------------------------------------------- rewards
def once(base_url, api_key):
    ask(base_url, api_key, [user("x")])


def returns(value):
    def run(base_url, api_key):
        once(base_url, api_key)
        return value

    return run


@pytest.mark.parametrize(
    ("value", "outcome", "success"),
    [
        (0.25, 0.25, None),
        (True, 1.0, True),
        ({"reward": 2, "success": False}, 2.0, False),
        (torch.tensor(0.5), 0.5, None),
    ],
)
def test_what_an_agent_returns(value, outcome, success):
    forest, _ = grown(returns(value), TASKS[:1], 1)
    assert forest.outcome.item() == outcome
    assert forest.components[0, forest.component_names.index("agent")] == outcome
    assert forest.success.item() == success if success is not None else math.isnan(forest.success.item())


@pytest.mark.parametrize(
    ("value", "judged"), [(None, "#2"), ("#4", "#4"), ({"answer": "#2", "rewards": {"speed": 0.5}}, "#2")]
)
def test_the_runs_reward_judges_where_the_agent_gives_none(value, judged):
    forest, _ = grown(returns(value), TASKS[:1], 1, say=lambda read, key: "#2")
    assert forest.outcome.item() == float(judged == "#2")


def test_the_runs_reward_weighs_the_agents():
    def short(completion):
        return float(len(completion) < 5)

    forest, _ = grown(returns(0.5), TASKS[:1], 1, reward={"agent": 2.0, short: 0.25})
    assert forest.outcome.item() == 2.0 * 0.5 + 0.25


def test_a_posted_reward_counts_where_none_is_returned():
    def run(base_url, api_key):
        once(base_url, api_key)
        post(base_url, api_key, "/reward", reward=0.75)

    assert grown(run, TASKS[:1], 1)[0].outcome.item() == 0.75


# ---------------------------------------------------------------- failures
def fails(prompt, base_url, api_key):
    """The first task's episodes break; the second's do not."""
    once(base_url, api_key)
    if "1+1" in prompt:
        raise KeyError("tool")
    return 1.0


def hangs(prompt, base_url, api_key):
    once(base_url, api_key)
    if "1+1" in prompt:
        threading.Event().wait(20)
    return 1.0


async def hangs_in_a_coroutine(prompt, base_url, api_key):
    await asyncio.to_thread(once, base_url, api_key)
    if "1+1" in prompt:
        await asyncio.sleep(20)
    return 1.0


def silent(prompt, base_url, api_key):
    return 1.0 if "1+1" in prompt else once(base_url, api_key) or 1.0


def nonsense(prompt, base_url, api_key):
    once(base_url, api_key)
    return [1] if "1+1" in prompt else 1.0


@pytest.mark.parametrize(
    ("run", "end", "said"),
    [
        (fails, "raised", "KeyError: 'tool' (test_agent.py line"),
        (hangs, "timeout", "longer than rollout.timeout=0.4 s"),
        (hangs_in_a_coroutine, "timeout", "longer than rollout.timeout=0.4 s"),
        (silent, "silent", "asked the policy for nothing"),
        (nonsense, "nonsense", "returned a list"),
    ],
)
@pytest.mark.parametrize("failed", [None, -1.0])
def test_a_failure_costs_its_episode_alone(run, end, said, failed):
    start = time.monotonic()
    forest, _ = grown(run, timeout=0.4, patience=0.1, failure_reward=failed)
    assert time.monotonic() - start < 15
    assert [info["agent"]["end"] for info in forest.info] == [end, end, "done", "done"]
    assert said in forest.info[0]["failure"] and "failure" not in forest.info[2]
    assert forest.outcome[2:].tolist() == [1.0, 1.0]
    assert forest.scored.tolist() == [failed is not None] * 2 + [True] * 2
    assert failed is None or forest.outcome[:2].tolist() == [-1.0, -1.0]


@pytest.mark.slow
def test_a_run_says_what_broke(tmp_path):
    method = gxpo.method("grpo", {"rollout": "agent", "rollout.run": fails, "rollout.group_size": 2})
    source = tmp_path / "t.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"1+1 {i}", "answer": "2"}) + "\n" for i in range(20)))
    with pytest.warns(UserWarning, match=r"unscored \(agent: KeyError: 'tool' \(test_agent.py line"):
        run = gxpo.train("tiny:cold", str(source), method, steps=1, out=tmp_path / "run",
                         set={"tasks.per_step": 1, "sampling.max_new_tokens": 3, "eval.tasks": 1})  # fmt: skip
    assert run.metrics[0]["agent_raised"] == 2 and run.metrics[0]["unscored"] == 2


def endless(base_url, api_key):
    messages = [user("x")]
    while True:
        messages += [ask(base_url, api_key, messages), user("and " * 20)]


@pytest.mark.parametrize(("given", "end"), [({"max_calls": 3}, "turns"), ({"max_context": 80}, "context")])
def test_an_episode_that_runs_into_a_limit_has_failed(given, end):
    forest, _ = grown(endless, TASKS[:1], 1, **given)
    assert forest.info[0]["agent"]["end"] == end and forest.truncated.tolist() == [True]
    assert forest.outcome.tolist() == [0.0] and forest.success.tolist() == [0.0] and "failure" not in forest.info[0]


# ---------------------------------------------------------------- malformed calls and results
MALFORMED = [
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    ("/chat/completions", b'{"messages": [{"role": [], "content": "x"}]}'),
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"agent": ["x"]}}'),
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"agent": 7}}'),
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"state": {}}}'),
    ("/chat/completions", b'{"messages": [{"role": "user"}], "metadata": {"reward": 1' + b"0" * 400 + b"}}"),
    ("/chat/completions", b'{"messages": [{"role": "user"}], "tools": [{"function": {"name": "\\udfff"}}]}'),
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "stop": 5}'),
    ("/completions", b'{"prompt": [99999]}'),
    ("/completions", b'{"prompt": [1099511627776]}'),
    ("/completions", b'{"prompt": [1' + b"0" * 30 + b"]}"),
    ("/completions", b'{"prompt": [true]}'),
]  # fmt: skip


def malformed(prompt, attempt, base_url, api_key):
    """Each of the calls is refused, and an honest one after it answered. The first task's results are no rewards."""
    headers = {"Authorization": f"Bearer {api_key}"}
    statuses = {HTTP.post(base_url + path, content=body, headers=headers).status_code for path, body in MALFORMED}
    once(base_url, api_key)
    if prompt == TASKS[0].prompt:
        return [10**400, {"reward": "much"}, "\ud800", {"info": {"a": float("nan")}}][attempt]
    return 1.0 if statuses == {400} else 0.0


def test_a_malformed_call_or_result_costs_itself_alone():
    forest, _ = grown(malformed, group_size=4)
    assert [info["agent"]["end"] for info in forest.info] == ["nonsense"] * 4 + ["done"] * 4
    assert forest.scored.tolist() == [False] * 4 + [True] * 4 and forest.outcome[4:].tolist() == [1.0] * 4
    assert forest.n_steps == 8  # a refused call is no action
    json.dumps(forest.to_records()).encode()


@pytest.mark.slow
def test_a_run_with_malformed_calls_goes_on(tmp_path):
    def run(attempt, base_url, api_key):
        malformed("", attempt, base_url, api_key)
        return [10**400, 0.0, 1.0, 1.0][attempt]

    method = gxpo.method("grpo", {"rollout": "agent", "rollout.run": run, "rollout.group_size": 4})
    small = {"tasks.per_step": 1, "sampling.max_new_tokens": 3, "eval.tasks": 1, "eval.samples": 4}
    done = gxpo.train("tiny:cold", "arithmetic", method, steps=2, out=tmp_path / "run", set=small)
    assert [row["agent_nonsense"] for row in done.metrics] == [1, 1]
    assert [row["optimiser_steps"] for row in done.metrics] == [1, 1]


@pytest.mark.parametrize("body", [b"1e999", b'{"reward": 1' + b"0" * 400 + b"}", b"[1]", b"{", b"\xff"])
def test_what_cant_be_read_of_a_posted_reward_is_nonsense(body):
    def run(base_url, api_key):
        once(base_url, api_key)
        answer = HTTP.post(f"{base_url}/reward", content=body, headers={"Authorization": f"Bearer {api_key}"})
        assert answer.status_code == 400

    forest, _ = grown(run, TASKS[:1], 1)
    assert forest.info[0]["agent"]["end"] == "nonsense" and forest.scored.tolist() == [False]
    assert forest.info[0]["failure"].startswith("agent: posted to /v1/reward: ")


# ---------------------------------------------------------------- order
def jittery(attempt, base_url, api_key):
    """As long between its calls as others are not."""
    messages = [user("x")]
    for k in range(3):
        time.sleep(0.005 * ((attempt * 7 + k * 3) % 4))
        messages += [ask(base_url, api_key, messages), user("y")]
    return 1.0


def test_episodes_are_sampled_together_whatever_the_clock_says():
    _, session = grown(jittery, group_size=3)
    assert [len(batch) for batch in session.engine.batches] == [6, 6, 6]
    names = [("one", 0), ("one", 1), ("one", 2), ("two", 0), ("two", 1), ("two", 2)]
    assert [[(k.task, k.attempt) for k in batch] for batch in session.engine.batches] == [names] * 3
    assert len({k for batch in session.engine.batches for k in batch}) == 18


def test_cohorts_are_sampled_apart_whatever_the_clock_says():
    """Six episodes in two cohorts, three under way at once: two places for the first cohort and one for the second."""
    _, session = grown(jittery, group_size=3, cohorts=2, concurrency=3)
    numbers = [[3 * (k.task == "two") + k.attempt for k in batch] for batch in session.engine.batches]
    assert [n for n in numbers if n[0] % 2 == 0] == [[0, 2]] * 3 + [[4]] * 3
    assert [n for n in numbers if n[0] % 2 == 1] == [[1]] * 3 + [[3]] * 3 + [[5]] * 3


def test_one_cohort_is_sampled_while_tools_of_the_other_work():
    """The first attempt's tool ends only after the second attempt's third reply."""
    has_ended = threading.Event()

    def run(base_url, api_key, attempt):
        for _ in range(3):
            ask(base_url, api_key, [user("x")])
            if attempt == 0:
                assert has_ended.wait(20)
        has_ended.set()
        return 1.0

    forest, session = grown(run, TASKS[:1], cohorts=2)
    assert forest.outcome.tolist() == [1.0, 1.0] and len(session.engine.batches) == 6


@pytest.mark.slow
def test_equal_runs_match_in_bits_and_other_batchings_in_tokens():
    forest, again = (grown(jittery, model=model(), sampling=Sampling(max_new_tokens=6))[0] for _ in range(2))
    assert forest.to_records() == again.to_records()
    apart, _ = grown(jittery, model=model(), sampling=Sampling(max_new_tokens=6), patience=0.0, concurrency=1)
    assert apart.token.tolist() == forest.token.tolist()
    assert torch.allclose(apart.path_behaviour_logprob, forest.path_behaviour_logprob, rtol=0, atol=1e-5)


def test_concurrent_calls_of_an_agent_are_reproducible():
    async def run(base_url, api_key):
        asked_threads = [asyncio.to_thread(ask, base_url, api_key, [user(x)]) for x in ("a", "b", "c")]
        text = await asyncio.gather(*asked_threads)
        return {"reward": 1.0, "info": {"said": [m["content"] for m in text]}}

    a, b = (grown(run, TASKS[:1], 2, model=model(), sampling=Sampling(max_new_tokens=6))[0] for _ in range(2))
    assert [i["said"] for i in a.info] == [i["said"] for i in b.info] and a.n_steps == 6


def test_no_more_episodes_than_asked_are_under_way():
    now, most = [], []

    def run(base_url, api_key):
        now.append(1)
        most.append(len(now))
        ask(base_url, api_key, [user("x")])
        now.pop()
        return 1.0

    forest, _ = grown(run, group_size=3, concurrency=2)
    assert max(most) == 2 and forest.outcome.tolist() == [1.0] * 6


# ---------------------------------------------------------------- commands
COMMAND = """
import json, os, subprocess, sys, time, urllib.request
task = json.loads(sys.stdin.readline())
body = json.dumps({"messages": [{"role": "user", "content": task["prompt"]}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                 {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
if "anthropic" in sys.argv:
    body = json.dumps({"messages": [{"role": "user", "content": said}], "max_tokens": 9}).encode()
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body,
                                     {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
    said = json.load(urllib.request.urlopen(request))["content"][0]["text"]
if "hang" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(sys.argv[-1], "w").write(str(child.pid))
    time.sleep(60)
if "fail" in sys.argv:
    sys.exit("no tool today")
if "post" in sys.argv:
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/reward", b"0.25",
                           {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})).close()
if "prints" in sys.argv:
    sys.stdout.buffer.write(eval(sys.argv[-1]))
    sys.exit()
print("working")
print(json.dumps({"reward": float(said == "yes"), "info": {"id": task["id"], "answer": task["answer"]}}))
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "agent.py").write_text(COMMAND)
    return f"{sys.executable} -S {tmp_path}/agent.py"


def test_a_command_plays_an_episode(command):
    forest, _ = grown(command, group_size=1)
    assert forest.outcome.tolist() == [1.0, 1.0]
    assert [info["id"] for info in forest.info] == ["one", "two"] and forest.info[1]["answer"] == "4"


def test_a_command_calls_through_anthropic_s_api(command):
    forest, _ = grown(f"{command} anthropic", TASKS[:1], 1)
    assert forest.outcome.tolist() == [1.0] and forest.n_steps == 2


def test_a_command_that_fails_or_is_not_there(command):
    forest, _ = grown(f"{command} fail", TASKS[:1], 1)
    assert forest.info[0]["failure"] == "agent: exit status 1: no tool today"
    forest, _ = grown("/no/such/program", TASKS[:1], 1)
    assert "can't be started" in forest.info[0]["failure"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("b'done'", "Expecting value"),
        ("b'\\xff\\xfe'", "is not UTF-8"),
        ("b'1'+b'0'*400", "the reward is 1000"),
        ("b'1e999'", "1e999 is too large"),
        ("b'['*100000", "nested deeper"),
        ("b'a'*3000000", "longer than 1048576 bytes"),
        ("b'[1]'", "its last line has a list"),
        ("b'{'", "property name"),
    ],
)
def test_what_cant_be_read_of_a_commands_result_is_nonsense(command, output, says):
    forest, _ = grown(f"{command} prints {shlex.quote(output)}", TASKS[:1], 1)
    assert forest.info[0]["agent"]["end"] == "nonsense" and says in forest.info[0]["failure"]
    assert forest.scored.tolist() == [False]


def test_a_command_that_posts_its_reward_may_print_a_log(command):
    forest, _ = grown(f"{command} post prints \"b'done'\"", TASKS[:1], 1)
    assert forest.outcome.tolist() == [0.25]


def test_command_that_prints_nothing_is_judged_by_its_last_reply(command):
    forest, _ = grown(f"{command} prints \"b''\"", TASKS[:1], 1, say=lambda read, key: "#2")
    assert forest.outcome.tolist() == [1.0]


@pytest.mark.slow
def test_a_command_that_hangs_is_ended_with_its_children(command, tmp_path):
    forest, _ = grown(f"{command} hang {tmp_path}/child", TASKS[:1], 1, timeout=3.0)
    assert forest.info[0]["agent"]["end"] == "timeout"
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 5
    state = ["ps", "-o", "stat=", "-p", str(child)]
    while time.monotonic() < until and subprocess.run(state, capture_output=True, text=True).stdout.strip()[:1] not in (
        "",
        "Z",
    ):
        time.sleep(0.05)
    assert subprocess.run(state, capture_output=True, text=True).stdout.strip()[:1] in ("", "Z")


# ---------------------------------------------------------------- configuration
@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("", "rollout.run is missing"),
        ("nowhere.py:run", "no such file nowhere.py"),
        ("mine.py:other", "no 'other'"),
        ("mine.py:value", "is a int, not a function"),
        ("mine.py:asks", "asks for 'client'"),
        ("mine.py:run 'x", "No closing quotation"),
    ],
)
def test_mistakes_are_found_before_the_run(run, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("value = 1\ndef asks(client): ...\ndef run(base_url, api_key): ...\n")
    settings = {"model": "tiny:cold", "task": "arithmetic", "rollout": "agent", "rollout.run": run}
    with pytest.raises(ConfigError, match=says):
        resolved = config.resolve({k: config.SettingValue(v, "test") for k, v in settings.items()})
        resolved.method.rollout.check_sampling(Sampling())


def test_an_evaluation_is_the_agents(tmp_path):
    evaluations = []

    def run(base_url, api_key, evaluation):
        evaluations.append(evaluation)
        once(base_url, api_key)
        return True

    method = gxpo.method("grpo", {"rollout": "agent", "rollout.run": run, "rollout.group_size": 2})
    small = {"tasks.per_step": 1, "sampling.max_new_tokens": 2, "eval.tasks": 3, "eval.samples": 2}
    done = gxpo.train("tiny:cold", "arithmetic", method, steps=1, out=tmp_path / "run", set=small)
    assert (
        done.evaluations[0]["eval_accuracy"] == 1.0 and evaluations.count(True) == 12 and evaluations.count(False) == 2
    )

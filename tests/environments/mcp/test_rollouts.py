"""Rollouts with tools: what is shown, what is trained, what the task's reward reads, what is counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.environments.mcp.mcp_servers import calculator, over_http
from tests.environments.mcp.test_episodes import FILE, episodes, gone

import gxpo
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks import make
from gxpo.models.chat import PlainChat
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, Task
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.logged import Logged
from gxpo.training.session import Session
from gxpo.training.tool_figures import tool_figures

ROOT = Path(__file__).parents[3]
CALL = '<tool>add({"a": 37, "b": 48})</tool>'
TASK = Task("arithmetic/37+48", "37+48=", "85", {"a": 37, "operation": "+", "b": 48})


class Script:
    """An engine whose attempt number i says `scripts[i][turn]`."""

    def __init__(self, scripts: Sequence[Sequence[str]]) -> None:
        self.scripts, self.tokenizer, self.prompts = scripts, character_tokenizer(), list[str]()

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        out = []
        for request in requests:
            self.prompts.append(self.tokenizer.decode(request.prompt, skip_special_tokens=True))
            texts = [self.scripts[key.attempt][key.turn] for key in request.streams]
            ids = [[*self.tokenizer(t, add_special_tokens=False).input_ids, self.tokenizer.eos_token_id] for t in texts]
            out.append([Completion(tokens, [0.0] * len(tokens), "stop") for tokens in ids])
        return out

    def release(self, names=None) -> None:
        pass


def session(engine, envs, source=None, max_turns=3):
    source = source or make("arithmetic", seed=0)
    return Session(
        source=source, engine=engine, rewards=RewardSet.make(None, source=source), tokenizer=engine.tokenizer,
        sampling=Sampling(max_new_tokens=99), seed=0, step=1, chat=PlainChat(engine.tokenizer), envs=envs,
        episode=EpisodeRules(max_turns=max_turns),
    )  # fmt: skip


@pytest.fixture(scope="module")
def envs():
    with over_http(calculator()) as url:
        pool = episodes({"url": url, "allow": ["add"]})
        yield pool
        pool.close()


def played(envs, *scripts, max_turns=3):
    engine = Script(scripts)
    s = session(engine, envs, max_turns=max_turns)
    s.know([TASK])
    return s.score(Independent(len(scripts)).grow([TASK], s)), engine


def test_the_tasks_own_reward_scores_the_last_reply(envs):
    forest, engine = played(
        envs,
        [CALL, "#85"],  # right, after a call
        [CALL, "#84"],  # wrong
        ["3+4=7#85"],  # right without a call
        [CALL, CALL, CALL],  # no answer within the limit of turns
        ["#85" + CALL, "no"],  # what is said beside a call is no answer
    )
    assert forest.outcome.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert forest.success.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert [info["end"] for info in forest.info] == ["done", "done", "done", "turns", "done"]
    assert forest.component_names == ("correct", "format")
    # every token that the policy wrote is trained, none of the results
    actions = ["".join(engine.tokenizer.decode(forest.action(s), skip_special_tokens=True)) for s in range(2)]
    assert actions == [CALL, "#85"] and bool(forest.path_trainable.all())
    assert forest.observation_text[1] == "<tool_result>\n85\n</tool_result>" or forest.observation_text[1] == "85"


def test_the_tools_are_in_the_prompt_and_results_follow_the_calls(envs):
    _, engine = played(envs, [CALL, "#85"])
    first, second = engine.prompts
    assert (
        "- add(a: integer, b: integer): Sum of two whole numbers." in first
        and first.endswith("37+48=")
        and "hidden" not in first
    )
    assert second == f"{first}{CALL}<tool_result>\n85\n</tool_result>"


def test_calls_are_counted_by_what_came_of_them(envs):
    wrong = '<tool>add({"a": "x", "b": 1})</tool>'
    forest, _ = played(envs, [CALL + wrong, "#85"], ["<tool>add(", "#85"], ["#85"])
    assert tool_figures(forest) == {
        "tool_calls_mean": 1.0, "tool_invalid_rate": 2 / 3, "tool_error_rate": 0.0, "tool_failures": 0,
    }  # fmt: skip
    calls = forest.step_info[0]["calls"]
    assert calls[0] == {"name": "add", "arguments": {"a": 37, "b": 48}, "outcome": "ok", "result": "85"}
    assert calls[1]["outcome"] == "invalid" and "'x' is not of type 'integer'" in calls[1]["result"]


def test_logged_dialogues_are_trained_under_prompts_with_the_tools(envs):
    dialogue = [
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "85"},
        {"role": "assistant", "content": "#85"},
    ]
    rows = [
        {"prompt": p, "answer": "85", "completion": c, "score": 1.0} for p, c in (("37+48=", dialogue), ("9", "#9"))
    ]
    engine = Script([])
    s = session(engine, envs)
    tasks = [
        Task(str(i), row["prompt"], "85", {k: row[k] for k in ("completion", "score")}) for i, row in enumerate(rows)
    ]
    forest = Logged().grow(tasks, s)
    tokenizer = engine.tokenizer
    paths = [tokenizer.decode(forest.context(int(a)), skip_special_tokens=True) for a in forest.step_action]
    sampled = played(envs, [CALL, "#85"])[1].prompts
    assert [text.removesuffix(end) for text, end in zip(paths[:2], (CALL, "#85"), strict=True)] == sampled
    assert "- add(a: integer, b: integer): Sum of two whole numbers." in paths[2] and forest.outcome.tolist() == [
        1.0,
        1.0,
    ]
    s.sampling = Sampling(max_new_tokens=len(CALL))  # its end has no room
    with pytest.warns(UserWarning, match=f"a logged turn has {len(CALL) + 1} tokens and sampling.max_new_tokens is"):
        Logged().grow(tasks, s)


SMALL = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 1, "sampling.max_new_tokens": 4}


@pytest.mark.slow
def test_a_run_has_tools_and_is_repeated_exactly(tmp_path):
    entry = {"command": ["python", FILE], "allow": ["add"], "timeout": 60}
    rows = []
    for name in ("one", "two"):
        run = gxpo.train(
            "tiny:cold", "arithmetic", steps=2, out=str(tmp_path / name), set={**SMALL, "env.mcp": [entry]}
        )
        rows.append([{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in run.metrics])
    assert rows[0] == rows[1] and rows[0][0]["tool_calls_mean"] == 0.0 and run.metrics[0]["time_tools_s"] == 0.0
    record = json.loads((tmp_path / "one" / "rollouts").glob("*.jsonl").__next__().read_text().splitlines()[0])
    assert "- add(a: integer, b: integer): Sum of two whole numbers." in record["prompt_text"]


KILLED = """
import sys, time
from gxpo.environments.mcp.episodes import ToolEpisodes
from gxpo.environments.mcp.settings import servers_of
from gxpo.parts.protocols import Reply, Task, ToolCall
envs = ToolEpisodes(servers_of([{"command": [sys.executable, *sys.argv[1:3]], "allow": ["pid"]}], 60.0, 100))
envs.reset({"e": Task("t", "?")})
print(envs.step({"e": Reply("", calls=(ToolCall("pid"),))})["e"].info["calls"][0]["result"], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_servers_end_with_a_killed_trainer(tmp_path):
    words = [sys.executable, "-c", KILLED, FILE, str(tmp_path / "pids")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as trainer:
        pid = int(trainer.stdout.readline())
        os.kill(trainer.pid, signal.SIGKILL)
    assert gone(pid, 30.0)


def test_a_dry_run_starts_no_server(tmp_path, monkeypatch):
    from tests import command_line

    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "started"
    entry = json.dumps([{"command": ["touch", str(mark)], "allow": ["add"]}])
    words = ["train", "--set", "model=tiny:cold", "--set", f"env.mcp={entry}", "--dry-run"]
    code, out, err = command_line.run(words)
    assert code == 0, err or out
    code, _, err = command_line.run([*words, "--set", "env.mcp=[{command: [touch, x]}]"])
    assert code == 2 and "needs allow" in err
    assert not mark.exists()

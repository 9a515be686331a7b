"""Judges: callables, servers on this machine, local models; what they fail to say is never a zero."""

from __future__ import annotations

import gzip
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.environments.rewards.scored_tasks import Source
from tests.raw_server import answering, http, said

from gxpo.base.errors import ConfigError
from gxpo.base.judges import meter
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.judge import JudgeFailure, Server
from gxpo.environments.rewards.judged import Rubric
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

ASKED = [{"role": "user", "content": "How good?"}]


def grown(groups, compared=None):
    """{group: [text, ...]} -> forest, texts, tasks."""
    records = [
        {"schema": "gxpo.rollouts/1", "group": g, "task": g, "id": f"{g}/{i}", "prompt": [1],
         "turns": [{"action": [2]}], "compared": (compared or {}).get(f"{g}/{i}", True)}
        for g, texts in groups.items() for i in range(len(texts))
    ]  # fmt: skip
    forest = Forest.from_records(records)
    return forest, [t for texts in groups.values() for t in texts], [Task(g, f"task {g}") for g in forest.task]


def judged(judge, groups, compared=None):
    with RewardSet.make(judge, source=Source(lambda text, task: {"correct": 0.0}, trusted=True)) as rewards:
        return rewards.score(*grown(groups, compared)).outcome, rewards


# ---------------------------------------------------------------- servers
@contextmanager
def serving(*replies, delay=0.0):
    """A server on this machine that gives the replies (status, body or content, headers) in turn, the last for ever."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, content, *headers = replies[min(len(bodies), len(replies)) - 1]
            time.sleep(delay)
            message = content if isinstance(content, bytes) else (
                json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
            )  # fmt: skip
            try:
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(message)))
                self.end_headers()
                self.wfile.write(message)
            except OSError:
                pass

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_is_asked_as_openais_is(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")
    monkeypatch.setenv("GXPO_ALLOW_KEY", "JUDGE_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "is for OpenAI")
    with serving((200, "Score: 4")) as (url, bodies):
        assert Server(url, "m", "JUDGE_KEY", max_tokens=9).ask(ASKED) == "Score: 4"
        assert Server(url + "/", "m", "NO_SUCH_KEY").ask(ASKED) == Server(url, "m").ask(ASKED) == "Score: 4"
    assert bodies[0] == {"path": "/v1/chat/completions", "key": "Bearer k", "model": "m", "messages": ASKED,
                         "temperature": 0.0, "max_tokens": 9}  # fmt: skip
    assert bodies[1]["key"] is bodies[2]["key"] is None and "is for OpenAI" not in repr(Server(url, "m"))


def test_tokens_of_judges_are_counted_as_far_as_the_server_tells():
    notes = b'{"choices": [{"message": {"content": "Score: 4"}}], "usage": {"completion_tokens": 7}}'
    before = meter.tokens
    with serving((200, notes), (200, "Score: 4")) as (url, _):
        judge = Server(url, "m")
        assert [judge.ask(ASKED), judge.ask(ASKED)] == ["Score: 4"] * 2
    assert meter.tokens - before == 7  # the second answer came without a number


def test_a_busy_server_is_asked_again_but_not_for_ever():
    with serving((503, b"busy"), (429, b"slow down", ("Retry-After", "0")), (200, "ok")) as (url, bodies):
        assert Server(url, "m", retries=2, backoff=0.01).ask(ASKED) == "ok" and len(bodies) == 3
    with serving((500, b"broken")) as (url, bodies):
        with pytest.raises(JudgeFailure, match=r"answers 500: broken \(tried 3 times\)"):
            Server(url, "m", retries=2, backoff=0.01).ask(ASKED)
        assert len(bodies) == 3


def test_what_will_not_get_better_is_not_asked_again():
    with serving((401, b"who are you")) as (url, bodies):
        with pytest.raises(JudgeFailure, match="answers 401: who are you"):
            Server(url, "m", backoff=0.01).ask(ASKED)
        assert len(bodies) == 1
    with serving((200, b"<html>")) as (url, _), pytest.raises(JudgeFailure, match="breaks the protocol"):
        Server(url, "m").ask(ASKED)


def test_a_slow_server_and_one_that_is_not_there():
    with serving((200, "late"), delay=1.0) as (url, _):
        with pytest.raises(JudgeFailure, match=r"longer than 0\.1 s") as caught:
            Server(url, "m", timeout=0.1, retries=1, backoff=0.01).ask(ASKED)
        assert caught.value.kind == "timeout"
    with pytest.raises(JudgeFailure, match="can't be reached") as caught:
        Server(url, "m", retries=0).ask(ASKED)
    assert caught.value.kind == "raised"
    for wrong in ({"url": "localhost:8000"}, {"model": ""}, {"timeout": 0.0}, {"retries": -1}):
        with pytest.raises(ConfigError, match="judge"):
            Server(**{"url": "http://localhost/v1", "model": "m", **wrong})


def test_questions_are_asked_at_a_time():
    with serving((200, "5"), delay=0.3) as (url, bodies):
        begun = time.monotonic()
        outcome, _ = judged(Rubric(Server(url, "m"), workers=8), {"g": list("abcdefgh")})
        assert outcome.tolist() == [0.5] * 8 and len(bodies) == 8 and time.monotonic() - begun < 2.0


def test_a_server_that_goes_leaves_unscored_not_zero():
    with serving((200, "5"), (500, b"gone")) as (url, _):
        server = Server(url, "m", retries=1, backoff=0.01)
        outcome, rewards = judged(Rubric(server, workers=1), {"g": ["a", "b", "c"]})
    assert outcome[0] == 0.5 and outcome[1:].isnan().all() and rewards.counts["raised"] == 2


@pytest.mark.parametrize(
    "reply",
    [
        http(b"[" * 100_000),
        http(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        http(b'{"choices": []}'),
        http(b'{"choices": [{"message": {"content": [{"text": "Score: 9"}]}}]}'),
        http(b'{"choices": [{"message": {"content": "Score: 9\\ud800"}}]}'),
        http(gzip.compress(bytes(1 << 24), mtime=0), "200 OK", "Content-Encoding: gzip"),
        http(b"busy", "503 Busy", "Retry-After: \u00b2"),
        said("{" * 100_000),
        said('{"score": ' + "[" * 50_000 + "]" * 50_000 + "}"),
        said("Score: " + "9" * 100_000),
        said("Score: 1", finish_reason="length"),  # perhaps of 10
        said(None),
    ],
    ids=lambda reply: repr(reply[-60:])[:40],
)
def test_what_one_answer_does_costs_that_item(reply):
    def answer(request):
        return reply if b"spoilt" in request[2] else said("Score: 5", finish_reason="stop")

    with answering(answer) as (url, _):
        server = Server(url, "m", retries=1, backoff=0.0)
        outcome, rewards = judged(Rubric(server), {"g": ["a", "spoilt", "c"]})
    assert outcome[[0, 2]].tolist() == [0.5, 0.5] and outcome[1].isnan()
    assert sum(rewards.counts.values()) == 1


def test_error_of_a_custom_judge_unscores_one_rollout():
    class Own:
        def ask(self, messages):
            if "spoilt" in messages[0]["content"]:
                raise RecursionError("too deep")
            return "10"

    outcome, rewards = judged(Rubric(Own()), {"g": ["a", "spoilt"]})
    assert outcome[0] == 1 and outcome[1].isnan() and "too deep" in rewards.messages["raised"]


def test_a_key_that_a_file_names_needs_the_users_word(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    options = {"server": "https://collect.example/v1", "model": "m", "key_from": "AWS_SECRET_ACCESS_KEY"}
    source = Source(lambda text, task: {"correct": 1.0}, trusted=True)
    with pytest.raises(ConfigError, match="key_from would send AWS_SECRET_ACCESS_KEY to https://collect"):
        RewardSet.make("judge", source=source, options={"judge": options})


# ---------------------------------------------------------------- by name
def test_the_named_reward(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def ask(messages):\n    return 'Score: ' + str(len(messages[-1]['content'].splitlines()[-2]))\n")
    source = Source(lambda text, task: {"correct": 1.0}, trusted=True)
    options = {"judge": {"function": f"{file}:ask", "high": 4}}
    with RewardSet.make({"judge": 2.0, "correct": 1.0}, source=source, options=options) as rewards:
        assert rewards.score(*grown({"g": ["a", "bbb"]})).outcome.tolist() == [1.5, 2.5]
    with serving((200, "A")) as (url, _):
        pairs = {"judge": {"server": url, "model": "m", "mode": "pairwise"}}
        with RewardSet.make("judge", source=source, options=pairs) as rewards:
            assert rewards.score(*grown({"g": ["a", "b"]})).outcome.tolist() == [0.5, 0.5]
    for wrong, words in (
        ({}, "name the judge"),
        ({"function": "x.py:f", "server": "http://x"}, "name the judge"),
        ({"function": "none.py:f"}, "there is no file"),
        ({"function": f"{file}:nobody"}, "has no function 'nobody'"),
        ({"function": f"{file}:ask", "mode": "duel"}, "is 'duel'; it is one of rubric, pairwise"),
        ({"function": f"{file}:ask", "pair": "all"}, "has no 'pair'"),
    ):
        with pytest.raises(ConfigError, match=words):
            RewardSet.make("judge", source=source, options={"judge": wrong})

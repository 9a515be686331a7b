"""`gxpo serve`: episodes are records as soon as they end, whatever ends the server."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from tests import started
from tests.sampling.serve.agent_session import HTTP, ask, post, user

import gxpo
from gxpo.base.errors import ConfigError, RecordError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.build import record
from gxpo.training.serving import EpisodeFile

SMALL = ["--set", "sampling.max_new_tokens=3", "--set", "model=tiny:cold"]


def served(out, *more):
    """A server with its address, as a process of its own."""
    process = started.Started(["-m", "gxpo", "serve", "tiny:cold", "--out", out, "--json", *SMALL[:2], *more])
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, json.loads(line)["base_url"]


def episode(url, key, reward=None):
    text = ask(url, key, [user("1+1=")])
    ask(url, key, [user("1+1="), text, user("2+2=")])
    if reward is not None:
        assert post(url, key, "/reward", reward=reward).json() == {"ok": True}


def lines(path):
    forest = gxpo.records.load(path)
    return {name: reward if scored else None for name, reward, scored in zip(
        forest.id, forest.outcome.tolist(), forest.scored.tolist(), strict=True)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT twice", "SIGKILL"])
def test_no_episode_is_lost(tmp_path, how):
    out = tmp_path / "episodes.jsonl"
    process, url = served(out)
    with process:
        for n in range(2):
            episode(url, "one", reward=n)
        episode(url, "two", reward=0.5)
        assert lines(out) == {"one": 0.0, "one#1": 1.0, "two": 0.5}  # each is there once its reward is answered
        episode(url, "three")
        process.send_signal(getattr(signal, how.split()[0]))
        if how == "SIGINT twice":
            time.sleep(0.02)
            process.send_signal(signal.SIGINT)
        code = process.wait(30)
    assert code == (-signal.SIGKILL if how == "SIGKILL" else 0)
    scores = {"one": 0.0, "one#1": 1.0, "two": 0.5}
    assert lines(out) == (scores if how == "SIGKILL" else {**scores, "three": None})


@pytest.mark.slow
def test_server_appends_to_its_file_and_survives_bad_calls(tmp_path):
    out = tmp_path / "episodes.jsonl"
    for expected in ({"k": 1.0}, {"k": 1.0, "k#1": 1.0}):
        process, url = served(out, "--set", "sampling.top_p=0.9", "--temperature", "2")
        with process:
            assert post(url, "k", "/reward", reward=1).status_code == 409  # nothing has been said yet
            for body in ({"prompt": [10**30]}, {"prompt": "x", "metadata": {"agent": ["x"]}}):
                assert post(url, "k", "/completions", **body).status_code == 400
            raw = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
            headers = {"Authorization": "Bearer k"}
            assert HTTP.post(f"{url}/chat/completions", content=raw, headers=headers).status_code == 400
            episode(url, "k", reward=1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert lines(out) == expected
    supports = [name for name in gxpo.records.load(out).extras]
    assert supports == ["support"] and len(list(tmp_path.glob("*.safetensors"))) == 2


# ---------------------------------------------------------------- the file
def forest(name):
    turn = {"action": [1, 2], "logprob": [-1.0, -1.0], "finish": "stop", "policy_version": 0}
    task = gxpo.parts.protocols.Task(name, "")
    return gxpo.Forest.from_records([record(task, name, name, Sampling(), prompt=[3], turns=[turn])])


def test_a_file_that_is_there_is_gone_on_with(tmp_path):
    path = tmp_path / "e.jsonl"
    for _ in range(2):
        file = EpisodeFile(path)
        file.append(forest(file.name("a")))
        file.close()
    path.write_text(path.read_text().rstrip("\n"))  # an editor's doing
    file = EpisodeFile(path)
    file.append(forest(file.name("a")))
    file.close()
    assert gxpo.records.load(path).id == ["a", "a#1", "a#2"]


def test_a_file_that_holds_something_else_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(RecordError, match=r"notes.txt:1: not a JSON object.*name another"):
        EpisodeFile(path)
    assert path.read_text() == "dear diary\n"
    with pytest.raises(ConfigError, match="No such file or directory; give a file"):
        EpisodeFile(tmp_path / "no" / "e.jsonl")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit of the size of files")
def test_a_full_disk_costs_nothing_that_was_written(tmp_path):
    path = tmp_path / "e.jsonl"
    done = started.run(["-c", f"""
import resource, signal
from tests.training.test_serving import EpisodeFile, forest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = EpisodeFile(__import__("pathlib").Path({str(path)!r}))
file.append(forest(file.name("a")))
size = {str(path)!r} and __import__("os").path.getsize({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
try:
    file.append(forest(file.name("b")))
except Exception as error:
    print(error)
print(__import__("os").path.getsize({str(path)!r}) == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append(forest(file.name("c")))
file.close()
"""])  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 episodes are not written yet" in done.stdout and "True" in done.stdout
    assert gxpo.records.load(path).id == ["a", "b", "c"]

"""Servers that speak OpenAI's protocol: one that gxpo can train on, and those that it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from tests.engines.conversations import forced
from tests.engines.fake_server import served
from tests.engines.letters import letters, llama

from gxpo.engines.openai import OpenAIEngine
from gxpo.errors import ConfigError, ModelError
from gxpo.protocols import Request, Sampling, StreamKey

PROMPTS = [(5, 6, 7, 8, 9), (11,), (12, 13, 14)]
SHORT = Sampling(max_new_tokens=5)
ONE = [Request((5, 6), (StreamKey(0, 0, "t", 0),))]


def requests(samples=2, seed=0):
    return [
        Request(p, tuple(StreamKey(seed, 0, str(i), attempt) for attempt in range(samples)))
        for i, p in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def server():
    with served() as (url, how):
        yield url, how


@pytest.mark.parametrize("ids", ["both", "written"])
@pytest.mark.parametrize(
    "sampling", [SHORT, replace(SHORT, temperature=0.7), replace(SHORT, temperature=1.3, top_k=4, top_p=0.9)]
)
def test_logprobs_are_those_of_the_server_s_model(ids, sampling):
    with served(ids=ids) as (url, how):
        engine = OpenAIEngine(url, tokenizer=letters(), batch_rows=4)
        for request, completions in zip(requests(), engine.sample(requests(), sampling), strict=True):
            for c in completions:
                expected = forced(how.model, request.prompt, c, sampling.temperature)
                assert np.allclose(c.logprobs, expected, rtol=0, atol=1e-5)
                assert (c.finish == "stop") == (1 in c.tokens) and (c.support is None) == (sampling.top_k == 0)
        assert engine.prefilled_tokens == 2 * sum(map(len, PROMPTS)) and engine.positions == 128
        engine.close()


def test_seeds_are_those_of_the_streams(server):
    engine = OpenAIEngine(server[0], tokenizer=letters())
    once, again, other = (engine.sample(requests(seed=seed), SHORT) for seed in (0, 0, 1))
    engine.close()
    assert once == again != other
    assert len({body["seed"] for body, _ in server[1].asked[-6:]}) == 6


def test_stop_strings_and_greedy(server):
    engine = OpenAIEngine(server[0], tokenizer=letters())
    ended = [c for group in engine.sample(requests(3), Sampling(max_new_tokens=20, stop=("c",))) for c in group]
    assert any("c" in letters().decode(c.tokens) for c in ended)
    assert all("c" not in letters().decode(c.tokens[:-1]) for c in ended)
    assert set(engine.sample(ONE, replace(SHORT, temperature=0.0))[0][0].logprobs) == {0.0}
    engine.close()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"ids": "none"}, "answers in text without token ids"),
        ({"logprobs": False}, "no log-prob for every token"),
        ({"before": [3]}, "other tokens than the prompt"),
        ({"finish": "abort"}, "gave up a sample .finish_reason 'abort'."),
        ({"failing": 500}, "answers 500: .*no.*room"),
    ],
)
def test_servers_that_are_refused(settings, words):
    with served(**settings) as (url, _):
        engine = OpenAIEngine(url)
        with pytest.raises(ModelError, match=words) as caught:
            engine.sample(ONE, SHORT)
        engine.close()
    assert "\n" not in str(caught.value)


def test_raw_logprobs_will_do_only_where_they_are_the_same():
    with served(raw=True) as (url, how):
        engine = OpenAIEngine(url)
        (c,) = engine.sample(ONE, SHORT)[0]
        assert np.allclose(c.logprobs, forced(how.model, ONE[0].prompt, c, 1.0), rtol=0, atol=1e-5)
        assert set(engine.sample(ONE, replace(SHORT, temperature=0.0))[0][0].logprobs) == {0.0}
        for sampling in (replace(SHORT, temperature=0.5), replace(SHORT, top_k=3)):
            with pytest.raises(ModelError, match="--logprobs-mode processed_logprobs"):
                engine.sample(ONE, sampling)
        engine.close()


def test_more_possible_tokens_than_were_named_is_an_error(server):
    engine = OpenAIEngine(server[0])
    with pytest.raises(ModelError, match="top_k and top_p left 8 tokens or more"):
        engine.sample(ONE, replace(SHORT, top_p=0.999))
    engine.close()


def test_weights_that_do_not_follow():
    with served() as (url, _):
        engine = OpenAIEngine(url)
        assert engine.sample(ONE, SHORT)[0][0].policy_version == 0
        engine.policy_version = 1
        with pytest.raises(ModelError, match=r"version 1, and nobody updates .*stale: true"):
            engine.sample(ONE, SHORT)
        told = OpenAIEngine(url, stale=True)
        told.policy_version = 4
        assert told.sample(ONE, SHORT)[0][0].policy_version == 0
        engine.close()
        told.close()


def test_somebody_else_updates_the_server():
    with served() as (url, _):
        versions = iter([7, 7, 7, 8])
        engine = OpenAIEngine(url, version=lambda: next(versions))
        engine.policy_version = 3  # the learner's; the stamp is the server's
        assert engine.sample(ONE, SHORT)[0][0].policy_version == 7
        with pytest.raises(ModelError, match="given other weights while it sampled"):
            engine.sample(ONE, SHORT)
        engine.close()


def test_an_idle_connection_that_was_closed_is_opened_again():
    with served() as (url, how):
        engine = OpenAIEngine(url)
        engine.sample(ONE, SHORT)
        how.drops = 1
        assert len(engine.sample(ONE, SHORT)[0]) == 1
        how.drops = 2
        with pytest.raises(ModelError, match="can't be reached"):
            engine.sample(ONE, SHORT)
        engine.close()


def test_names_and_addresses():
    with served(models=["a", "b"]) as (url, _):
        with pytest.raises(ModelError, match=r"several models \(a, b\)"):
            OpenAIEngine(url)
        with pytest.raises(ModelError, match="no model 'c'"):
            OpenAIEngine(url, model="c")
        OpenAIEngine(url, model="b").close()
    with pytest.raises(ModelError, match="can't be reached"):
        OpenAIEngine("http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="is no address"):
        OpenAIEngine("localhost:8000")


def test_the_key_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with served(model=llama()) as (url, how):
        engine = OpenAIEngine(url)
        engine.sample(ONE, SHORT)
        engine.close()
        assert {key for _, key in how.asked} == {"Bearer secret"}

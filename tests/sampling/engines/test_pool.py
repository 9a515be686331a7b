"""Several servers: who is asked, what becomes of the requests of one that fails, and which weights sample."""

import asyncio
import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.sampling.engines.conversations import forced
from tests.sampling.engines.fake_server import Cut, Loader, served
from tests.sampling.engines.letters import letters, llama

from gxpo.base import remote
from gxpo.base.errors import ConfigError, ModelError, SamplersLost
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.weight_transfer import WeightFiles

SHORT = Sampling(max_new_tokens=5)
PROMPTS = [(5, 6, 7, 8, 9), (11,), (12, 13, 14), (7, 7)]


def requests(samples=2, step=0, keep=False):
    return [
        Request(
            p,
            tuple(StreamKey(0, step, str(i), attempt) for attempt in range(samples)),
            keep=tuple(f"{i}/{attempt}" for attempt in range(samples)) if keep else (),
        )
        for i, p in enumerate(PROMPTS)
    ]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(remote, "pause", lambda seconds: asyncio.sleep(0.001))


@contextmanager
def servers(n, **settings):
    """Addresses and settings of `n` servers with equal models of their own."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(served(**settings)) for _ in range(n)]
        yield [url for url, _ in pairs], [how for _, how in pairs]


@contextmanager
def engine_on(urls, **settings):
    engine = OpenAIEngine(urls, tokenizer=letters(), **settings)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def calm():
    """What one server answers."""
    with served() as (url, _), engine_on(url) as engine:
        return engine.sample(requests(), SHORT)


def sampled(how):
    """Requests for samples that a server was sent, those that look at how it answers left out."""
    return [body for body, _ in how.asked if body["max_tokens"] == SHORT.max_new_tokens]


# ---------------------------------------------------------------- who is asked
def test_requests_are_spread_and_answered_as_by_one_server(calm):
    with servers(3) as (urls, hows), engine_on(urls) as engine:
        assert engine.sample(requests(), SHORT) == calm
        counts = [len(sampled(how)) for how in hows]
    assert sum(counts) == 8 and min(counts) >= 2


def test_the_turns_of_an_episode_go_to_one_server():
    with servers(2) as (urls, hows), engine_on(urls) as engine:
        for step in range(3):
            engine.sample(requests(step=step, keep=True), SHORT)
        prompts_by_server = [{(*body["prompt"], body["seed"]) for body in sampled(how)} for how in hows]
        homes = {name: replica.url for name, replica in engine.pool._homes.items()}
        assert len(homes) == 8 and set(homes.values()) == set(urls)
        engine.sample(requests(step=3, keep=True), SHORT)
        assert {name: replica.url for name, replica in engine.pool._homes.items()} == homes
        engine.release(["0/0"])
        assert "0/0" not in engine.pool._homes
    assert not prompts_by_server[0] & prompts_by_server[1]


def test_a_server_has_no_more_requests_under_way_than_allowed():
    most, under_way, lock = [0], [0], threading.Lock()

    def count(body):
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])

    def spoil(said):
        under_way[0] -= 1
        return said

    with servers(1, before_answer=count, spoil=spoil) as (urls, _), engine_on(urls, batch_rows=2) as engine:
        engine.sample(requests(), SHORT)
    assert most[0] <= 2


# ---------------------------------------------------------------- what fails
def cut(body):
    raise Cut


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        {"failing": 500},
        {"failing": 429},
        {"before_answer": cut},
        {"drops": 10**6},
        {"finish": "abort"},
        {"ids": "none"},
        {"spoil": lambda said: {}},
    ],
    ids=lambda x: next(iter(x)),
)
def test_requests_that_one_server_fails_go_to_another(calm, broken):
    with servers(2) as (urls, hows), engine_on(urls) as engine:
        hows[0].__dict__.update(broken)
        assert engine.sample(requests(), SHORT) == calm
        assert engine.figures()["sampler_failures"] >= 1 and hows[0].asked
        assert len(sampled(hows[1])) == 8


@pytest.mark.slow
def test_requests_of_a_hanging_server_go_to_another(calm):
    over = threading.Event()
    with servers(2) as (urls, hows), engine_on(urls, timeout=0.5) as engine:
        hows[0].before_answer = lambda body: over.wait(30)
        try:
            assert engine.sample(requests(), SHORT) == calm
        finally:
            over.set()
        assert engine.figures()["sampler_failures"] >= 1


@pytest.mark.slow
def test_a_server_that_recovers_gets_requests_again():
    with servers(2) as (urls, hows), engine_on(urls) as engine:
        hows[0].failing = hows[0].healthy = 503
        engine.sample(requests(), SHORT)
        first = engine.pool.replicas[0]
        assert not first.up and "503" in first.problem
        hows[0].failing, hows[0].healthy = None, 200
        before = len(sampled(hows[0]))
        while not first.up:
            threading.Event().wait(0.002)
        engine.sample(requests(step=1), SHORT)
        assert len(sampled(hows[0])) > before and engine.figures()["sampler_failures"] == 1


def test_a_request_that_no_server_answers():
    lost = pytest.raises(SamplersLost, match=r"answers 500.*tried 3 times")
    with servers(2, failing=500) as (urls, hows), engine_on(urls, retries=1) as engine, lost:
        engine.sample(requests()[1:2], SHORT)
    with servers(2, ids="none") as (urls, hows), engine_on(urls) as engine:
        with pytest.raises(ModelError, match="answers in text without token ids"):
            engine.sample(requests()[1:2], SHORT)
        assert [len(how.asked) > 0 for how in hows] == [True, True]


def test_below_min_replicas_the_run_stops_or_waits():
    with servers(2) as (urls, hows):
        with engine_on(urls, min_replicas=2, patience=0.0) as engine:
            hows[0].failing = hows[0].healthy = 503
            with pytest.raises(SamplersLost, match=r"1 of 2 servers can sample, min_replicas is 2: .*503") as caught:
                engine.sample(requests(), SHORT)
            assert "\n" not in str(caught.value)

        hows[0].failing, hows[0].healthy = None, 200
        with engine_on(urls, min_replicas=2, patience=60.0) as engine:
            hows[0].failing = hows[0].healthy = 503
            pool, actual = engine.pool, []
            thread = threading.Thread(target=lambda: actual.extend(engine.sample(requests(), SHORT)))
            thread.start()
            while pool.replicas[0].up:
                threading.Event().wait(0.002)
            hows[0].failing, hows[0].healthy = None, 200
            thread.join(60)
            assert len(actual) == len(PROMPTS) and engine.figures()["time_wait_servers_s"] > 0


@pytest.mark.slow
def test_a_server_missing_at_the_start_is_reported_and_joins():
    messages = []
    with servers(1) as ((url,), _):
        with engine_on([url, "http://127.0.0.1:9/v1"], retries=0, notify=messages.append) as engine:
            assert len(engine.sample(requests(), SHORT)) == len(PROMPTS)
        assert len(messages) == 1 and "127.0.0.1:9" in messages[0] and "can't be reached" in messages[0]
        with pytest.raises(ModelError, match="1 of 2 servers can sample, min_replicas is 2"):
            OpenAIEngine([url, "http://127.0.0.1:9/v1"], retries=0, min_replicas=2)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"servers": []}, "at least one server"),
        ({"servers": ["http://a/v1", "http://a/v1"]}, "each once"),
        ({"min_replicas": 2}, "min_replicas is 2, and sampling.servers has 1"),
        ({"patience": -1.0}, "patience must be at least 0"),
    ],
)
def test_impossible_settings_of_a_pool_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        OpenAIEngine(**{"servers": ["http://127.0.0.1:9/v1"], **settings})


def test_servers_with_different_models():
    with served(models=["a"]) as (one, _), served(models=["b", "a"]) as (other, _):
        with pytest.raises(ModelError, match=r"several models|another model"):
            OpenAIEngine([one, other])
        OpenAIEngine([one, other], model="a").close()


# ---------------------------------------------------------------- which weights sample
@contextmanager
def updated(n, tmp_path, learner, **settings):
    """`n` servers that load weights, an engine that publishes the learner's to them, and the settings of each."""
    with ExitStack() as stack:
        pairs = []
        for i in range(n):
            model = llama(seed=10 + i)
            pairs.append(stack.enter_context(served(model=model, loader=Loader(model))))
        urls = [url for url, _ in pairs]
        yield (
            stack.enter_context(engine_on(urls, learner=learner, weights=str(tmp_path), **settings)),
            [how for _, how in pairs],
        )


def moved(model, seed):
    with torch.no_grad():
        for p, q in zip(model.parameters(), llama(seed=seed).parameters(), strict=True):
            p.copy_(q)


def of_model(found, model):
    """Whether all samples have the model's log-probs."""
    return all(
        np.allclose(c.logprobs, forced(model, request.prompt, c, 1.0), rtol=0, atol=1e-5)
        for request, group in zip(requests(), found, strict=True)
        for c in group
    )


@pytest.mark.slow
def test_weights_are_published_to_all_servers_with_a_stamp(tmp_path):
    learner = llama(seed=1)
    with updated(2, tmp_path, learner) as (engine, hows):
        first = engine.sample(requests(), SHORT)
        assert of_model(first, learner) and {c.policy_version for g in first for c in g} == {0}
        moved(learner, 2)
        engine.policy_version = 3
        later = engine.sample(requests(), SHORT)
        assert of_model(later, learner) and not of_model(first, learner)
        assert {c.policy_version for g in later for c in g} == {3}
        assert [how.rpcs.count("gxpo_load") for how in hows] == [2, 2] and [how.resets for how in hows] == [2, 2]
        salts = [body["cache_salt"] for how in hows for body in sampled(how)]
        assert len(set(salts)) == 2 and all(salts)
        again = engine.sample(requests(), SHORT)
        assert [how.rpcs.count("gxpo_load") for how in hows] == [2, 2] and again == later
        assert engine.figures()["time_publish_s"] > 0
        assert len(list(tmp_path.glob("*/*.safetensors"))) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_server_samples_before_it_has_the_weights(tmp_path):
    learner, records = llama(seed=1), []
    with updated(2, tmp_path, learner) as (engine, hows):
        for how in hows:
            how.before_answer = lambda body, how=how: records.append(how.loader.gxpo_stamp == body.get("cache_salt"))
        for step in range(3):
            moved(learner, step)
            engine.policy_version = step
            engine.sample(requests(step=step), SHORT)
    with_salt = [x for x in records if x]
    assert len(with_salt) == 24  # the probes carry none


@pytest.mark.slow
def test_a_server_that_cannot_load_is_left_out_until_it_can(tmp_path):
    learner = llama(seed=1)

    def broken(method):
        if method == "gxpo_load":
            raise RuntimeError("no room")

    with updated(2, tmp_path, learner) as (engine, hows):
        hows[0].rpc = broken
        actual = engine.sample(requests(), SHORT)
        assert of_model(actual, learner) and sampled(hows[0]) == [] and hows[0].rpcs.count("gxpo_load") >= 2
        assert engine.figures()["sampler_failures"] == 1
        hows[0].rpc = lambda method: None
        while not engine.pool.replicas[0].up:
            threading.Event().wait(0.002)
        assert of_model(engine.sample(requests(), SHORT), learner) and len(sampled(hows[0])) > 0


def test_a_publication_that_no_server_loads_ends_the_run(tmp_path):
    learner = llama(seed=1)

    class Mistaken(Loader):
        def gxpo_load(self, message):
            text = super().gxpo_load(message)
            return {**text, "held": {name: x + 1 for name, x in text["held"].items()}}

    with updated(1, tmp_path, learner) as (engine, (how,)):
        how.loader = Mistaken(how.model)
        how.healthy = 503  # so that it is not tried again while this test looks
        with pytest.raises(
            SamplersLost, match=r"version 0 of the weights was not loaded by 1 of 1.*checksum"
        ) as caught:
            engine.sample(requests(), SHORT)
        assert "\n" not in str(caught.value) and how.rpcs.count("gxpo_load") == 2 and sampled(how) == []
    lost = pytest.raises(SamplersLost, match=r"404.*--worker-extension-cls gxpo_vllm.WeightLoader")
    with served() as (url, _), engine_on(url, learner=learner, weights=str(tmp_path)) as engine, lost:
        engine.sample(requests(), SHORT)


def test_weights_of_runs_that_were_killed_are_removed(tmp_path):
    """A run that is killed at once, without closing anything, one that goes on, and a folder of somebody else's."""
    learner = llama(seed=4)
    (tmp_path / "gxpo-weights-mine").mkdir()
    child = os.fork()
    if child == 0:
        WeightFiles(learner, str(tmp_path)).write(1)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    going_on = WeightFiles(learner, str(tmp_path))
    publication = going_on.write(1)
    other = WeightFiles(learner, str(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} == {"gxpo-weights-mine", going_on.folder.name, other.folder.name}
    going_on.keep_only(publication)
    WeightFiles(learner, str(tmp_path)).close()
    assert publication.path.is_file()
    going_on.close()
    other.close()
    assert [p.name for p in tmp_path.iterdir()] == ["gxpo-weights-mine"]


def test_a_file_with_wrong_checksums_changes_no_server(tmp_path):
    model = llama(seed=4)
    loader = Loader(model)
    before = [p.detach().clone() for p in model.parameters()]
    publication = WeightFiles(llama(seed=5), str(tmp_path)).write(1)
    name = next(iter(publication.sums))
    text = loader.gxpo_load(replace(publication, sums={**publication.sums, name: publication.sums[name] + 1}).message)
    assert text["wrong"] == [name] and text["stamp"] is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert loader.gxpo_load(publication.message)["stamp"] == publication.stamp
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True) if a.dim() > 1)


@pytest.mark.slow
def test_samples_of_a_restarted_server_are_repeated(tmp_path):
    learner = llama(seed=1)
    with updated(2, tmp_path, learner) as (engine, hows):
        engine.sample(requests(), SHORT)
        fresh = llama(seed=99)
        once = threading.Lock()

        def restart(body):
            if body["max_tokens"] == SHORT.max_new_tokens and once.acquire(blocking=False):
                hows[0].model, hows[0].loader = fresh, Loader(fresh)

        hows[0].before_answer = restart
        actual = engine.sample(requests(), SHORT)
        assert once.locked() and of_model(actual, learner)
        assert engine.figures()["sampler_failures"] == 1


def test_another_model_is_noticed_before_its_first_sample(tmp_path):
    learner = llama(seed=1)

    class Half(Loader):
        """Says that it has loaded all, and has loaded the norms alone."""

        def __init__(self, model):
            super().__init__(model)
            parameters = dict(model.named_parameters())
            model.load_weights = lambda weights: [parameters[n].data.copy_(x) for n, x in weights if x.dim() == 1]

    with updated(1, tmp_path, learner) as (engine, (how,)):
        how.loader = Half(how.model)
        with pytest.raises(ModelError, match="computes something else from the learner's weights"):
            engine.sample(requests(), SHORT)
        assert sampled(how) == []


@pytest.mark.slow
def test_threads_sample_while_the_weights_change(tmp_path):
    learner, actual, errors = llama(seed=1), {}, []
    with updated(2, tmp_path, learner) as (engine, _):

        def work(step):
            try:
                actual[step] = engine.sample(requests(step=step), SHORT)
            except Exception as error:
                errors.append(error)

        for version in range(2):
            moved(learner, version)
            engine.policy_version = version
            threads = [threading.Thread(target=work, args=(10 * version + i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(of_model(actual[10 * version + i], learner) for i in range(4))
    assert errors == [] and len(actual) == 8

"""A run on several servers that are given its weights: a death changes nothing; where too few are left, it resumes."""

import asyncio
import copy
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.sampling.engines.fake_server import Loader, served

import gxpo
from gxpo.base import remote
from gxpo.base.errors import ConfigError, SamplersLost
from gxpo.training import models

REWARD = f"{Path(__file__).with_name('parity_reward.py')}:parity"
SMALL = {
    "tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 4, "eval.every": 0, "eval.tasks": 2,
    "optim.lr": 0.01, "sampling.engine": "openai",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(remote, "pause", lambda seconds: asyncio.sleep(0.001))


@pytest.fixture(scope="module")
def tiny():
    return models.load("tiny:cold", task="arithmetic")


@contextmanager
def servers(n, tiny):
    with ExitStack() as stack:
        pairs = []
        for _ in range(n):
            model = copy.deepcopy(tiny.model)
            pairs.append(stack.enter_context(served(model=model, tokenizer=tiny.tokenizer, loader=Loader(model))))
        yield [url for url, _ in pairs], [how for _, how in pairs]


def train(path, urls, steps=3, shared=None, **given):
    options = {"weights": str(shared or path), "patience": 0.0, "min_replicas": 1}
    keys = {**SMALL, "sampling.servers": urls, "sampling.engine_options": options, **given.get("set", {})}
    path.mkdir(exist_ok=True)
    return gxpo.train("tiny:cold", "arithmetic", "grpo", steps, REWARD, out=path / "run", set=keys)


def told(run):
    return [(row["weights_fingerprint"], row["reward_mean"], row["generated_tokens"]) for row in run.metrics]


@pytest.fixture(scope="module")
def calm(tiny, tmp_path_factory):
    with servers(1, tiny) as (urls, _):
        return train(tmp_path_factory.mktemp("calm"), urls)


@pytest.mark.slow
def test_samples_are_of_the_weights_that_the_learner_has(calm):
    assert [row["sampler_gap"] < 1e-4 for row in calm.metrics] == [True] * 3
    assert [row["staleness_mean"] for row in calm.metrics] == [0, 0, 0]
    assert len({crc for crc, _, _ in told(calm)}) == 3
    assert [row["sampler_failures"] for row in calm.metrics] == [0, 0, 0]
    assert all(row["time_publish_s"] > 0 for row in calm.metrics[1:]) and calm.metrics[0]["time_wait_servers_s"] == 0


@pytest.mark.slow
def test_dying_and_restarting_servers_change_nothing(tiny, tmp_path, calm):
    with servers(3, tiny) as (urls, hows):
        fates = iter([hows[0], hows[1]])
        seen_values, lock = [0], threading.Lock()

        def count(body):
            with lock:
                seen_values[0] += body["max_tokens"] == 4
                if seen_values[0] == 20:  # in a later step
                    next(fates).__dict__.update(failing=503, healthy=503)
                if seen_values[0] == 24:
                    fresh = copy.deepcopy(tiny.model)
                    next(fates).__dict__.update(model=fresh, loader=Loader(fresh))

        for how in hows:
            how.before_answer = count
        run = train(tmp_path, urls)
    assert told(run) == told(calm) and sum(row["sampler_failures"] for row in run.metrics) >= 1


@pytest.mark.slow
def test_lost_servers_end_the_run_with_its_steps_saved(tiny, tmp_path, calm):
    with servers(1, tiny) as (urls, (how,)):
        how.rpc = lambda method: how.rpcs.count("gxpo_load") < 3 or setattr(how, "healthy", 503) or 1 / 0
        with pytest.raises(
            SamplersLost, match=r"not loaded by 1 of 1 servers.*\(step 2 is saved: gxpo resume "
        ) as caught:
            train(tmp_path, urls)
        assert "\n" not in str(caught.value)
        how.rpc, how.healthy = lambda method: None, 200
        run = gxpo.resume(tmp_path / "run")
    assert told(run) == told(calm)


@pytest.mark.slow
def test_groups_sampled_ahead_are_of_the_version_they_state(tiny, tmp_path):
    runs = []
    for i in range(2):
        with servers(2, tiny) as (urls, hows):
            runs.append(train(tmp_path / f"{i}", urls, set={"async.max_staleness": 1}))
            assert all(how.rpcs.count("gxpo_load") >= 3 for how in hows)
    assert [row["staleness_max"] for row in runs[0].metrics] == [0, 1, 1]
    assert told(runs[0]) == told(runs[1]) and len({crc for crc, _, _ in told(runs[0])}) == 3


def test_settings_of_servers(tmp_path):
    with pytest.raises(ConfigError, match=r"weights=.*is no folder"), served() as (url, _):
        train(tmp_path, [url], shared=tmp_path / "none")
    with pytest.raises(ConfigError, match="sampling"):
        gxpo.train(
            "tiny:cold", "arithmetic", "grpo", 1, REWARD, out=tmp_path / "x",
            set={"sampling.servers": "http://127.0.0.1:9/v1", "sampling.engine": "torch"},
        )  # fmt: skip

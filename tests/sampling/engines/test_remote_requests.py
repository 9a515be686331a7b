"""Requests for engines in other processes: seeds of streams, and requests that no such engine takes."""

from dataclasses import replace

import pytest

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.remote_requests import check, seed_of

KEY = StreamKey(seed=7, step=3, task="gsm8k/17", attempt=2, path=(1, 0), turn=4)
SHORT = Sampling(max_new_tokens=4)


def checked(request=None, sampling=SHORT, **options):
    settings = {"policy": "main", "positions": 10, "limit": "max_model_len", **options}
    check([request or Request((5, 6), (KEY,))], sampling, **settings)


def test_a_seed_is_recorded_and_has_63_bits():
    # recorded once; a change here changes every run that samples on servers
    assert seed_of(KEY) == RECORDED and 0 <= RECORDED < 2**63


@pytest.mark.parametrize(
    "change", [{"seed": 8}, {"step": 4}, {"task": "gsm8k/1"}, {"attempt": 3}, {"path": (1,)}, {"turn": 5}]
)
def test_every_field_of_a_key_changes_the_seed(change):
    assert seed_of(replace(KEY, **change)) != seed_of(KEY)


def test_a_context_may_fill_all_positions_and_no_more():
    checked(Request((5,) * 6, (KEY,)))
    with pytest.raises(ModelError, match=r"7 tokens and max_new_tokens 4 exceed 10 \(max_model_len\)"):
        checked(Request((5,) * 7, (KEY,)))
    checked(Request((5,) * 7, (KEY,)), positions=None)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request((), (KEY,)), "empty prompt"),
        (Request((5, -1), (KEY,)), "no vocabulary ids"),
        (Request((5,), (KEY,), extras={"latent": [[0.0]]}), "no vocabulary ids"),
        (Request((5, media.FIRST), (KEY,)), "a picture, which is handed to the torch and the vLLM engine alone"),
        (Request((5,), (KEY,), policy="judge"), "policy 'judge', and the engine knows one policy, 'main'"),
    ],
)
def test_requests_that_servers_cannot_sample_are_refused(request_, words):
    with pytest.raises(ModelError, match=words):
        checked(request_)


def test_pictures_pass_where_the_engine_takes_them():
    checked(Request((5, media.FIRST), (KEY,)), pictures=None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": -1.0}, "impossible"),
        ({"top_p": 0.0}, "impossible"),
        ({"top_k": -1}, "impossible"),
        ({"max_new_tokens": 0}, "impossible"),
        ({"temperature": 0.009}, "vLLM samples at 0.01 or more"),
        ({"stop": ("a", "")}, "empty string"),
    ],
)
def test_settings_that_servers_cannot_sample_are_refused(change, words):
    with pytest.raises(ModelError, match=words):
        checked(sampling=replace(SHORT, **change))


def test_the_least_temperature_and_greedy_are_taken():
    checked(sampling=replace(SHORT, temperature=0.01))
    checked(sampling=replace(SHORT, temperature=0.0))


RECORDED = 8790595857948611788

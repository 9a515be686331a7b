"""Responses of OpenAI-compatible servers: validation of ids, log-probs and supports."""

from dataclasses import replace

import pytest

from gxpo.parts.protocols import Sampling
from gxpo.sampling.engines.openai_reply import Models, Reply, completion, max_reply_bytes

SHORT = Sampling(max_new_tokens=5)


def converted(ids, finish, sampling=SHORT, top=None):
    """Completion of a reply with these ids, where 1 ends an action."""
    logprobs = {"token_logprobs": [-0.5] * len(ids), "top_logprobs": top}
    reply = Reply.model_validate({"choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": finish}]})
    return completion(reply, (5, 6), sampling, ends={1}, vocabulary=None, version=0)


def test_an_action_ends_with_a_stop_id_and_nowhere_else():
    assert converted([5, 1], "stop").finish == converted([5], "stop", replace(SHORT, stop=("a",))).finish == "stop"
    for ids, finish, words in (([5, 1, 6], "length", "went on after token 1"), ([5], "stop", "stopped after token 5")):
        with pytest.raises(ValueError, match=words):
            converted(ids, finish)


@pytest.mark.parametrize(
    "top, words",
    [
        (None, "possible tokens at 0 of 1 places"),
        ([None], "without the id of token 5"),
        ([{"token_id:6": -1.0}], "without the id of token 5"),
        ([{"token_id:5": -9999.0}], "without the id of token 5"),
        ([{"token_id:5": -1.0, "five": -1.0}], "without the id of token 5"),
        ([{"token_id:5": -1.0, "token_id:\u00b2": -1.0}], "without the id of token 5"),
    ],
)
def test_a_support_holds_ids_and_the_sampled_one(top, words):
    with pytest.raises(ValueError, match=words):
        converted([5], "length", replace(SHORT, top_k=2), top)


def test_supports_are_sorted_and_padded():
    top = [{"token_id:7": -1.0, "token_id:5": -2.0, "token_id:9": -9999.0}, {"token_id:6": 0.0}]
    assert converted([5, 6], "length", replace(SHORT, top_k=2), top).support.tolist() == [[5, 7], [6, -1]]


def test_a_support_that_may_be_cut_off_is_refused():
    top = [{f"token_id:{i}": -1.0 for i in range(10)}]  # top_k 2 and 8 more were requested: there may be others
    with pytest.raises(ValueError, match="left 10 tokens or more possible"):
        converted([5], "length", replace(SHORT, top_k=2), top)


def test_tokens_written_as_ids_replace_missing_ids():
    logprobs = {"tokens": ["token_id:5", "token_id:1"], "token_logprobs": [-0.5, -0.25]}
    reply = Reply.model_validate({"choices": [{"logprobs": logprobs, "finish_reason": "stop"}]})
    sample = completion(reply, (5, 6), SHORT, ends={1}, vocabulary=None, version=3)
    assert (sample.tokens, sample.logprobs, sample.policy_version) == ([5, 1], [-0.5, -0.25], 3)


def test_greedy_tokens_have_probability_one():
    assert converted([5, 6], "length", replace(SHORT, temperature=0.0)).logprobs == [0.0, 0.0]


def test_cached_tokens_are_zero_where_nothing_is_reported():
    choices = [{"token_ids": [5]}]
    assert Reply.model_validate({"choices": choices}).n_cached == 0
    usage = {"prompt_tokens_details": {"cached_tokens": 16}}
    assert Reply.model_validate({"choices": choices, "usage": usage}).n_cached == 16


def test_models_may_have_a_context_limit():
    models = Models.model_validate({"data": [{"id": "a"}, {"id": "b", "max_model_len": 128}]}).data
    assert [(m.id, m.max_model_len) for m in models] == [("a", None), ("b", 128)]


def test_the_byte_limit_grows_with_prompt_and_sample():
    # 1 MiB, 32 bytes a prompt token, 1024 and 64 for each of 8 + top_k alternatives a sampled token
    assert max_reply_bytes(10, replace(SHORT, top_k=2)) == 2**20 + 320 + 5 * (1024 + 640)

"""What all rollouts share: requests of several lengths, and actions made of pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.sampling.rollouts.tree_session import TreeSession

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Completion, Request, StreamKey
from gxpo.sampling.rollouts.build import action, dotted_name, group_of, random_for, sample_within, stream
from gxpo.sampling.rollouts.tree import Tree


def test_requests_of_equal_length_are_batched_and_keep_order():
    session = TreeSession(end=-99.0)  # nothing ends by itself
    requests = [Request((7, i), (stream(session, "a", i),)) for i in range(4)]
    actual = sample_within(session, requests, [3, 5, 3, 1])
    assert [len(completion.tokens) for (completion,) in actual] == [3, 5, 3, 1]
    assert sorted((sampling.max_new_tokens, len(own_value)) for sampling, own_value in session.calls) == [
        (1, 1),
        (3, 2),
        (5, 1),
    ]
    # what is sampled depends on the request alone
    single_parts = [sample_within(session, [r], [room])[0] for r, room in zip(requests, [3, 5, 3, 1], strict=True)]
    assert actual == single_parts


def test_action_of_pieces_joins_tokens_and_ends_as_the_last():
    given_completion = Completion([4, 5], [math.nan, math.nan], "stop")
    sampled = Completion([6], [-0.5], "length", np.array([[6, 2, 9]]), policy_version=3)
    turn = action(given_completion, sampled)
    assert (turn["action"], turn["logprob"]) == ([4, 5, 6], [None, None, -0.5])
    assert (turn["finish"], turn["policy_version"]) == ("length", 3)
    # a token that nobody sampled has itself for a support
    assert turn["extras"]["support"].tolist() == [[4, -1, -1], [5, -1, -1], [6, 2, 9]]
    assert action(given_completion)["extras"] == {}


def test_names_of_groups_attempts_and_decisions():
    session = TreeSession(step=3)
    assert group_of(session, "a#1") == "s3/a#1"
    assert stream(session, "a", 2, (0, 1), 4) == StreamKey(5, 3, "a", 2, (0, 1), 4)
    assert dotted_name(stream(session, "a", 2, (0, 1))) == "2.0.1"
    assert (
        random_for(session, "a", 1).random()
        == random_for(session, "a", 1).random()
        != random_for(session, "a", 2).random()
    )


def test_options_are_refused_under_the_keys_of_configurations():
    with pytest.raises(ConfigError, match=r"^rollout\.trees is 0; it is 1 or more$"):
        Tree(trees=0)

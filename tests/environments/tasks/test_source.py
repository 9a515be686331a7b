import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thorough import SLOW, some

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import Arithmetic, make
from gxpo.environments.tasks.source import fraction_of, reserved, stream

OWN = [
    ("arithmetic", {}), ("arithmetic", {"digits": 3, "operations": "+-*"}), ("countdown", {"count": 4}),
    ("shapes", {"questions": ["count", "same"], "cell": 2}), ("charts", {"noise": 0}),
]  # fmt: skip


def test_streams_depend_on_the_key_alone():
    first = stream(1, 2, 3).random(4)
    np.random.seed(0)
    random.seed(0)
    assert (stream(1, 2, 3).random(4) == first).all()
    others = [stream(1, 2, 4), stream(1, 2), stream(1, 3, 2), stream(0, 1, 2, 3)]
    assert all((other.random(4) != first).all() for other in others)


def test_the_split_is_fixed():
    # a change here changes every held-out set
    assert fraction_of("37+48") == int.from_bytes(bytes.fromhex("d0d4c3ec29c3edb8"), "big") / 2**64
    assert 0.22 < sum(reserved(str(i)) for i in range(4000)) / 4000 < 0.28


@pytest.mark.parametrize(("name", "options"), OWN)
@given(seed=st.integers(0, 2**31), step=st.integers(0, 10**6), n=st.integers(0, 12), more=st.integers(0, 12))
@settings(max_examples=20, deadline=None)
def test_a_draw_depends_on_seed_and_step_and_begins_longer_ones(name, options, seed, step, n, more):
    source = make(name, seed=seed, options=options)
    longer = source.draw(n + more, step)
    source.draw(3, step + 1)  # what else was drawn does not matter
    assert source.draw(n, step) == longer[:n]
    assert make(name, seed=seed, options=options).draw(n + more, step) == longer


@pytest.mark.parametrize(("name", "options"), OWN)
def test_steps_and_seeds_draw_different_tasks(name, options):
    source = make(name, seed=0, options=options)
    draws = [source.draw(16, 0), source.draw(16, 1), make(name, seed=1, options=options).draw(16, 0)]
    ids = [[t.id for t in tasks] for tasks in draws]
    assert ids[0] != ids[1] and ids[0] != ids[2] and ids[1] != ids[2]
    for tasks in ids:
        assert len(set(tasks)) == len(tasks)


@pytest.mark.parametrize(("name", "options"), some(OWN, OWN[:3], SLOW))
def test_held_out_tasks_are_fixed_and_never_drawn(name, options):
    held_out = make(name, seed=0, options=options).held_out(200)
    assert len({t.id for t in held_out}) == 200
    assert make(name, seed=7, options=options).held_out(200) == held_out
    assert make(name, seed=7, options=options).held_out(10) == held_out[:10]
    source = make(name, seed=7, options=options)
    drawn_contents = {source.content(t) for step in range(20) for t in source.draw(64, step)}
    assert not drawn_contents & {source.content(t) for t in held_out}


@pytest.mark.slow
def test_a_small_generator_repeats_tasks_and_holds_out_all():
    source = Arithmetic(digits=1)  # 100 ordered pairs
    held_out = source.held_out(1000)
    expected = {(a, b) for a in range(10) for b in range(10) if fraction_of(f"{min(a, b)}+{max(a, b)}") < 0.25}
    assert {(t.info["a"], t.info["b"]) for t in held_out} == expected
    tasks = source.draw(200, 0)
    assert len(tasks) == 200 and len({t.id for t in tasks}) == 100 - len(expected)


def test_own_sources_keep_no_state():
    source = make("arithmetic", seed=0)
    assert source.state_dict() == {}
    source.load_state_dict({})
    with pytest.raises(TaskError, match="cursor"):
        source.load_state_dict({"cursor": 3})


def test_a_negative_seed_is_refused():
    with pytest.raises(TaskError, match="seed must not be negative, not -1"):
        make("arithmetic", seed=-1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetics", {}, "did you mean 'arithmetic'"),
        ("zzz", {}, "reasoning_gym:GENERATOR"),
        ("reasoning_gym", {}, "reasoning_gym:GENERATOR"),
        ("arithmetic", {"digit": 3}, "did you mean 'digits'"),
        ("countdown", {"count": "3"}, "'count' must be int, not '3'"),
    ],
)
def test_bad_names_and_options(name, options, message):
    with pytest.raises(TaskError, match=message) as caught:
        make(name, seed=0, options=options)
    assert "\n" not in str(caught.value)

"""Rewards of a batch with TRL's signature, lists of rewards, async ones, rubrics."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math

import numpy as np
import pytest
import torch
from tests.environments.rewards.scored_tasks import Source, forest_of

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.batch import Batch
from gxpo.environments.rewards.functions import from_file
from gxpo.environments.rewards.worker import load as load_in_worker
from gxpo.parts.protocols import Task

NO_SCORER = Source(default=None)
NO_SCORER.held_out = lambda n: [Task("held", "?", "0", {"level": 1, "kind": "math"})][:n]
nan = math.nan


def tasks(texts, *, chat=False, **columns):
    prompt = ({"role": "user", "content": "2+2="},) if chat else "2+2="
    return [Task(f"t{i}", prompt, "4", {k: v[i] for k, v in columns.items()}) for i in range(len(texts))]


def scored(spec, texts, *, source=NO_SCORER, chat=False, step=0, **columns):
    """(outcomes, components, counts of failures) of these texts."""
    columns = {"level": [0] * len(texts), "kind": ["math"] * len(texts)} | columns
    with RewardSet.make(spec, source=source) as rewards:
        rewards.at(step, 10)
        out = rewards.score(forest_of(texts), texts, tasks(texts, chat=chat, **columns))
        listed_components = {k: out.components[:, i].tolist() for i, k in enumerate(out.component_names)}
        return out.outcome.tolist(), listed_components, rewards


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def math_only(completions, kind, **kwargs):
    return [1.0 if k == "math" else None for k in kind]


def code_only(completions, kind, **kwargs):
    return [5.0 if k == "code" else None for k in kind]


def test_all_rollouts_come_at_once_with_their_columns():
    calls = {}

    def reward(prompts, completions, completion_ids, answer, level, **others):
        calls.update(locals())
        return torch.tensor([1.0, 2.0])

    outcome, components, _ = scored(reward, ["ab", "c"], level=[3, 5], step=7)
    assert outcome == [1.0, 2.0] and components == {"reward": [1.0, 2.0]}
    assert calls["prompts"] == ["2+2=", "2+2="] and calls["completions"] == ["ab", "c"]
    assert calls["completion_ids"] == [[97, 98], [99]] and calls["answer"] == ["4", "4"] and calls["level"] == [3, 5]
    assert calls["others"]["kind"] == ["math", "math"] and calls["others"]["trainer_state"].global_step == 7
    calls["others"]["log_extra"]("column", [1, 2])
    calls["others"]["log_metric"]("name", 0.5)


def test_an_answer_keeps_the_type_that_it_has_in_the_data():
    def exact(completions, answer):
        return [float(type(a) is int and text == str(a)) for text, a in zip(completions, answer, strict=True)]

    assert scored(exact, ["4", "5"], answer=[4, 4])[0] == [1.0, 0.0]


def test_conversations_are_messages():
    def reward(prompts, completions):
        assert prompts[0] == [{"role": "user", "content": "2+2="}]
        return [float(c[0]["content"] == "4" and c[0]["role"] == "assistant") for c in completions]

    assert scored(reward, ["4", "5"], chat=True)[0] == [1.0, 0.0]


def test_none_leaves_a_rollout_to_the_other_rewards():
    """1 from mathematics, 5 from code, and nobody for the third; weights 1 and 0.5."""
    outcome, components, rewards = scored(
        [math_only, (code_only, 0.5)], ["a", "b", "c"], kind=["math", "code", "poetry"]
    )
    assert outcome[:2] == [1.0, 2.5] and math.isnan(outcome[2])
    assert (
        components["math_only"][0] == 1.0
        and math.isnan(components["math_only"][1])
        and components["code_only"][1] == 5.0
    )
    assert sum(rewards.counts.values()) == 0


def test_a_list_is_a_sum_and_pairs_have_weights():
    assert scored([length, math_only], ["a", "bb"])[0] == [2.0, 3.0]
    assert scored([(length, 0.5), math_only], ["a", "bb"])[0] == [1.5, 2.0]
    assert scored({length: 2.0, math_only: -1.0}, ["a", "bb"])[0] == [1.0, 3.0]


def test_one_alone_is_the_verifier_and_of_several_none_is():
    with RewardSet.make(math_only, source=NO_SCORER) as rewards:
        out = rewards.score(forest_of(["a", "b"]), ["a", "b"], tasks(["a", "b"], kind=["math", "code"]))
        assert out.success[0] == 1.0 and out.success[1].isnan()
    with RewardSet.make([length, math_only], source=NO_SCORER) as rewards:
        out = rewards.score(forest_of(["a"]), ["a"], tasks(["a"], kind=["math"]))
        assert out.success.isnan().all()


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([1.0], "nonsense", "1 numbers for 2 completions"),
        (1.0, "nonsense", "float where a list of 2 numbers"),
        (["a", "b"], "nonsense", "'a' (str), not a number"),
        (ZeroDivisionError(), "raised", "ZeroDivisionError"),
    ],
)
def test_failed_batch_function_leaves_its_rollouts_unscored(value, kind, message):
    def reward(completions, **kwargs):
        if isinstance(value, Exception):
            raise value
        return value

    outcome, _, rewards = scored([reward, length], ["a", "b"])
    assert all(map(math.isnan, outcome))
    assert rewards.counts[kind] == 2 and message in rewards.messages[kind]


def test_numbers_of_every_kind():
    outcome, *_ = scored(lambda completions: [True, np.float32(0.5), torch.tensor(2)], ["a", "b", "c"])
    assert outcome == [1.0, 0.5, 2.0]


def test_signatures_that_do_not_tell():
    def both(prompts, completion):
        return 0.0

    def neither(**kwargs):
        return 0.0

    def missing(completions, solution):
        return [0.0]

    def column(completion, level):
        return 0.0

    for reward, message in (
        (both, "asks for 'prompts' .of a batch. and 'completion'"),
        (neither, "do not say what it scores: name completions"),
        (missing, "asks for 'solution', and the tasks have no such column; there is answer, kind, level"),
        (column, "asks for 'level'; a reward is given .*`info`"),
        ([], "an empty list"),
        ([length, length], "'length' is listed twice"),
        ([(length, 1.0, 2)], "neither a reward nor"),
        ([(length, "much")], "must be a finite number"),
        (3, "3 is neither a name nor a function"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            RewardSet.make(reward, source=NO_SCORER)
        assert "\n" not in str(caught.value)


def test_async_batch_and_single_functions_run_concurrently():
    running = {"now": 0, "most": 0}

    async def one(completion, answer, finish):
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0.01)
        running["now"] -= 1
        if completion == "raise":
            raise ValueError("no")
        if completion == "hang":
            await asyncio.sleep(60)
        return {"correct": completion == answer, "stopped": finish == "stop"}

    async def batch(completions, **kwargs):
        await asyncio.sleep(0)
        return [0.0] * len(completions)

    with RewardSet.make({one: 1.0, batch: 1.0, "correct": 1.0}, source=NO_SCORER, timeout=0.5) as rewards:
        texts = ["4", "5", "raise", "hang"]
        out = rewards.score(forest_of(texts), texts, tasks(texts))
    listed_components = {k: out.components[:, i].tolist() for i, k in enumerate(out.component_names)}
    assert listed_components["correct"][:2] == [1.0, 0.0] and out.success.tolist()[:2] == [1.0, 0.0]
    assert out.outcome.tolist()[:2] == [2.0, 1.0] and all(map(math.isnan, out.outcome.tolist()[2:]))
    assert running["most"] == 4 and rewards.counts["raised"] == rewards.counts["timeout"] == 1


def test_async_rewards_run_where_a_loop_runs_already():
    async def one(completion):
        return 1.0

    async def notebook():
        return scored(one, ["a"])[0]

    assert asyncio.run(notebook()) == [1.0]


FILE = """
import re

NUMBER = re.compile("[0-9]+")

def batch(completions, *, answer, **kwargs):
    return [float(bool(NUMBER.fullmatch(t)) and t == a) for t, a in zip(completions, answer)]

async def later(completion):
    return 2.0

def single(completion, answer):
    return 3.0
"""


def test_functions_of_files_are_known_by_their_parameters(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(FILE)
    outcome, components, _ = scored([f"{path}:batch", f"{path}:later", f"{path}:single"], ["4", "5"])
    assert components == {"batch": [1.0, 0.0], "later": [2.0, 2.0], "single": [3.0, 3.0]} and outcome == [6.0, 5.0]


def test_reward_that_needs_an_answer_is_refused_without_one(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(FILE + "\ndef optional(completion, answer=None):\n    return 1.0\n")
    source = Source(default="math")
    source.unanswered = Task("q/1", "why?")
    for spec, message in (
        (None, "no reward was given, and math compares with an answer, and task 'q/1' has none: add a column 'answer'"),
        ("math", "reward math compares with an answer"),
        (f"{path}:single", "compares with an answer"),
        (lambda completion, answer: 1.0, "compares with an answer"),
    ):
        with pytest.raises(ConfigError, match=message):
            RewardSet.make(spec, source=source)
    for spec in (f"{path}:optional", length):
        RewardSet.make(spec, source=source).close()


# ---------------------------------------------------------------- rubrics
class StandIn:
    """What we use of `verifiers.Rubric`: it calls functions by the names of their parameters, logs what they raise and
    goes on with 0."""

    def __init__(self, *funcs, group=False):
        self.funcs, self.has_group_rewards = funcs, group

    def add_reward_func(self, *_): ...

    def _get_reward_func_names(self):
        return [f.__name__ for f in self.funcs]

    async def score_rollout(self, state):
        await self.score_group([state])

    async def score_group(self, states):
        for state in states:
            values = {}
            for f in self.funcs:
                try:
                    arguments = {k: v for k, v in state.items() if k in inspect.signature(f).parameters}
                    values[f.__name__] = f(**arguments, **({"group": len(states)} if self.has_group_rewards else {}))
                except Exception as error:
                    logging.getLogger("verifiers.rubrics").error(f"Error calling {f.__name__}: {error}")
                    values[f.__name__] = 0.0
            state["reward"], state["metrics"] = sum(values.values()), values


def exact(completion, answer):
    if completion[0]["content"] == "raise":
        raise ValueError("no")
    return float(completion[0]["content"] == answer)


def level(info, prompt):
    assert prompt == [{"role": "user", "content": "2+2="}]
    return info["level"] / 10


# ---------------------------------------------------------------- completions with their special tokens
def raw_alone(completion, completion_raw):
    return {"length": len(completion_raw), "same": completion == completion_raw}


async def raw_async(completion_raw):
    return len(completion_raw)


def raw_batch(completions, completions_raw, **kwargs):
    assert all(isinstance(text, str) for text in completions_raw)
    return [len(text) for text in completions_raw]


def raw_step(forest, texts, tasks, texts_raw):
    import torch

    return torch.tensor([float(len(text)) for text in texts_raw])


def raw_rubric(completion_raw):
    return float(len(completion_raw))


def test_every_kind_of_reward_can_ask_for_the_special_tokens(tmp_path):
    path = tmp_path / "raw.py"
    names = ("raw_alone", "raw_async", "raw_batch", "raw_step")
    path.write_text("\n\n".join(inspect.getsource(globals()[name]) for name in names))
    function = lambda completion, completion_raw: raw_alone(completion, completion_raw)  # noqa: E731  in this process
    forms = [
        function,
        raw_async,
        raw_batch,
        raw_step,
        StandIn(raw_rubric),
        *(f"{path}:{name}" for name in names),
    ]
    wrong = []
    for form in forms:
        with RewardSet.make({form: 1.0} if isinstance(form, str) else form, source=NO_SCORER) as rewards:
            for decode, lengths in ((None, [2.0, 1.0]), (lambda ids: "".join(map(chr, ids)) + "<eos>", [7.0, 6.0])):
                if decode is not None:
                    rewards.read_with(decode)
                out = rewards.score(forest_of(["ab", "c"]), ["ab", "c"], tasks(["ab", "c"], chat=True))
                column = dict(zip(out.component_names, out.components.T.tolist(), strict=True))
                if next(iter(column.values())) != lengths or column.get("same", lengths) not in (
                    lengths,
                    [decode is None] * 2,
                ):
                    wrong.append((form, column))
    assert not wrong


def test_a_reward_of_special_tokens_is_of_a_batch_or_of_one():
    with pytest.raises(ConfigError, match=r"asks for 'completions_raw' .of a batch. and 'completion_raw' .of one"):
        RewardSet.make(lambda completions_raw, completion_raw: 0.0, source=NO_SCORER)


OBJECTS = """
import functools

def base(completions, scale=1.0, **kw):
    return [scale * len(c) for c in completions]

part = functools.partial(base, scale=2.0)
single = functools.partial(lambda completion, tol: tol, tol=0.5)

def make(scale=1.0):
    def reward(completions, **kw):
        return [scale * len(c) for c in completions]
    return reward

def exact(shift):
    def reward(completion, answer):
        return shift + (completion == answer)
    return reward

class Scorer:
    def __init__(self, k=1.0):
        self.k = k
    def __call__(self, prompts, completions, **kw):
        return [self.k for _ in completions]
    def one(self, completion):
        return self.k
    async def later(self, completion):
        return self.k

scorer = Scorer(3.0)
bound = scorer.one
every = lambda completions, **kw: [0.5 for _ in completions]

def kept(function):
    @functools.wraps(function)
    def inner(*a, **k):
        return function(*a, **k)
    return inner

def lost(function):
    def inner(*a, **k):
        return function(*a, **k)
    return inner

@kept
def wrapped(completions, **kw):
    return [1.0] * len(completions)

@kept
def wrapped_single(completion, answer):
    return 1.0

@lost
def unwrapped(completion):
    return 1.0

async def awaited(completions, **kw):
    return [1.0] * len(completions)

def later(completion):
    return 1.0

later = functools.partial(base, scale=3.0)
mixed = lambda completion, completions: 1
number = 5
"""


def test_signature_of_an_object_in_a_file_tells_what_it_scores(tmp_path):
    (tmp_path / "r.py").write_text(OBJECTS)
    batch = {
        "base": "base", "part": "part", "make()": "make", "make(scale=2.0)": "make", "scorer": "scorer",
        "Scorer()": "Scorer", "every": "every", "wrapped": "wrapped", "awaited": "awaited", "later": "later",
    }  # fmt: skip
    for name, component in batch.items():
        actual = from_file(f"{tmp_path}/r.py:{name}")
        assert isinstance(actual.call, Batch) and actual.name == component, name
    words = (
        "single",
        "exact(0.5)",
        "exact(shift=1)",
        "scorer.one",
        "bound",
        "wrapped_single",
        "Scorer(k=2).one",
    )
    for name in words:  # in the worker
        actual = from_file(f"{tmp_path}/r.py:{name}")
        assert actual.source is not None and not actual.grouped, name
    assert (
        from_file(f"{tmp_path}/r.py:exact(0.5)").needs_answer
        and from_file(f"{tmp_path}/r.py:wrapped_single").needs_answer
    )
    assert type(from_file(f"{tmp_path}/r.py:scorer.later").call).__name__ == "AsyncEach"
    refused = {
        "make": r"its parameters \(scale=1\.0\) do not say what it scores.*name the call, as .*make\(scale=\.\.\.\)",
        "exact": r"it asks for 'shift'.*if it makes a reward, name the call, as .*r\.py:exact\(shift=\.\.\.\)",
        "exact()": r"TypeError while making exact\(\).*'shift'",
        "Scorer": r"is a class: name what it makes, as .*r\.py:Scorer\(\)",
        "unwrapped": r"its parameters do not say what it scores.*functools\.wraps",
        "mixed": r"asks for 'completions' \(of a batch\) and 'completion'",
        "number": "is a int, not a function",
        "make(scale)": "name a function in the file",
        "make + 1": "name a function in the file",
    }
    for name, message in refused.items():
        with pytest.raises(ConfigError, match=message) as caught:
            from_file(f"{tmp_path}/r.py:{name}")
        assert "\n" not in str(caught.value), name


def test_what_partials_instances_and_factories_make_scores_a_run(tmp_path):
    (tmp_path / "r.py").write_text(OBJECTS)
    rows = {"part": 2.0, "make(scale=4.0)": 4.0, "later": 3.0}
    for name, scale in rows.items():
        call = from_file(f"{tmp_path}/r.py:{name}").call
        assert call.function(completions=["a", "bcd"]) == [scale, 3 * scale], name
    pool = from_file(f"{tmp_path}/r.py:exact(0.5)").source
    assert load_in_worker(pool)(completion="7", answer="7") == 1.5

import dataclasses
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from tests.thorough import some

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import make
from gxpo.environments.tasks.reasoning_gym import generators, score
from gxpo.environments.tasks.source import solution_of

NO_REFERENCE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
SLOW = {"futoshiki", "knight_swap"}  # seconds for an entry


@pytest.mark.parametrize("generator", some(generators(), generators()[::10]))
def test_every_generator_draws_and_scores_its_own_reference(generator):
    source = make(f"reasoning_gym:{generator}", seed=1)
    if generator in SLOW:
        source.content = lambda task: "any"  # one proposal is enough here  # type: ignore[method-assign]
    [task] = source.draw(1, 0)
    assert isinstance(task.prompt, str) and task.info["entry"]["question"] in task.prompt
    assert (task.answer is None) == (generator in NO_REFERENCE)
    task = pickle.loads(pickle.dumps(task))  # what a worker process is sent
    assert score("<answer></answer>", task)["correct"] == 0
    if task.answer is not None:
        assert score(f"So it is <answer>{task.answer}</answer>.", task) == {"correct": 1.0, "format": 1.0, "score": 1.0}
    # the reference of imitation and of methods that put one in each group
    reference = solution_of(source, task)
    assert reference is None if task.answer is None else score(reference, task)["correct"] == 1


GARBAGE = (
    "", " ", "text", "I don't know", "9" * 5000, "nan", "inf", "-inf", "nan+nanj", "-1", "0", "1e999", "1/0", "None",
    "null", "[]", "{}", "[[]]", '{"a": 1}', "[1, 2", '[["a"], 1, null]', "[nan, nan]", "\u0663\u00e9\u2603\U0001f600",
    "\ud800", "(", "lambda: 0", "open('/dev/null')", "x" * 5000, "a b c d e", "9**9**9", "((9**99)**99)**99",
    "\\boxed{}", "\x00", "\n\n",
)  # fmt: skip
RAISING = ("boxnet", "coin_flip", "game_of_life", "prime_factorization")  # scorers that raise on some of it
REPAIRED = ("coin_flip", "complex_arithmetic", "game_of_life_halting", "puzzle24")
EVALUATING = ("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication",
              "simple_integration", "spiral_matrix", "string_insertion")  # fmt: skip
# most that a wrong answer earns: by distance from the right one, or as "on" lies in "None"
PARTIAL = {"acre": 0.5, "rectangle_count": 0.64, "polynomial_equations": 0.5}


def garbage_that_pays(generator, seed):
    """(answer, score) of garbage that is paid more than 0.2 of the right answer's 1."""
    random = np.random.default_rng(seed)
    task = make(f"reasoning_gym:{generator}", seed=0).propose(random)
    right = str(task.answer).strip().casefold()
    actual = []
    for text in GARBAGE:
        score_of = score(f"<answer>{text}</answer>", task)["score"]
        assert math.isfinite(score_of) and 0 <= score_of <= 1, (generator, text)
        is_right = generator in ("gsm_symbolic", "polynomial_equations") and right in ("0", "0.0", "9")
        if score_of > PARTIAL.get(generator, 0.2) and right not in text.casefold() and not is_right:
            actual.append((generator, seed, text[:40], right[:40], score_of))
    return actual


@pytest.mark.parametrize("generator", some(generators(), {*RAISING, *REPAIRED, *EVALUATING, "acre", "maze"}))
def test_garbage_is_wrong_and_scored(generator):
    assert garbage_that_pays(generator, 1) == []


def test_what_the_repaired_scorers_pay():
    def scores(generator, *texts, seed=0):
        task = make(f"reasoning_gym:{generator}", seed=seed).draw(1, 0)[0]
        return task, [score(f"<answer>{x}</answer>", task)["score"] for x in texts]

    def with_entry(generator, answer, metadata, *texts):
        task = make(f"reasoning_gym:{generator}", seed=0).draw(1, 0)[0]
        entry = {**task.info["entry"], "answer": answer}
        entry["metadata"] = {**entry["metadata"], **metadata}
        task = dataclasses.replace(task, answer=answer, info={**task.info, "entry": entry})
        return [score(f"<answer>{x}</answer>", task)["score"] for x in texts]

    assert with_entry("game_of_life_halting", "False", {}, "False", "false", "True", "no") == [1, 1, 0, 0]
    assert with_entry("game_of_life_halting", "True", {}, "False", "True", "text", "") == [0, 1, 0, 0]
    # a beginning of the right one, 0 for a small one, a near one
    assert with_entry("coin_flip", "0.3125", {}, "0", "0.", "0.3", "5/16", "0.31251", "0.4") == [0, 0, 0, 1, 1, 0]
    assert with_entry("coin_flip", "3.0517e-05", {}, "0", "3.05e-5", "1/32768") == [0, 1, 1]
    numbers = {"numbers": [4, 7, 8, 8]}
    texts = ("(7 - 8/8)*4", "6*4*1*1", "8+8+7+1", "(7 - 8/8)*4 + 1/2")
    assert with_entry("puzzle24", "(7 - 8/8)*4", numbers, *texts) == [1, 0.01, 0.01, 0.01]
    close = with_entry("complex_arithmetic", "1+2i", {"result": (1.0, 2.0)}, "1+2i", "nan", "nan+nanj", "inf", "1+3i")
    assert close == [1, 0, 0, 0, pytest.approx(math.exp(-1))]


def test_answers_are_never_run_as_python(tmp_path):
    for generator in (*EVALUATING, "puzzle24"):
        [task] = make(f"reasoning_gym:{generator}", seed=0).draw(1, 0)
        file = tmp_path / generator
        for code in (f"open({str(file)!r}, 'w').close()", f"[open({str(file)!r}, 'w')]",
                     f"__import__('pathlib').Path({str(file)!r}).touch()",
                     f"[x for x in [__import__('os')] if x.close(x.open({str(file)!r}, 64))]"):  # fmt: skip
            assert score(f"<answer>{code}</answer>", task)["score"] <= 0.01
        assert not file.exists(), generator


def test_an_error_of_the_task_is_none_of_the_answer():
    [task] = make("reasoning_gym:prime_factorization", seed=0).draw(1, 0)
    assert score("<answer>seven</answer>", task)["score"] == 0
    broken = dataclasses.replace(task, info={**task.info, "entry": {**task.info["entry"], "answer": "seven"}})
    with pytest.raises(ValueError, match="seven"):  # which leaves the rollout unscored
        score("<answer>2</answer>", broken)


def test_there_are_all_but_the_composite():
    import reasoning_gym

    assert set(generators()) == set(reasoning_gym.factory.DATASETS) - {"composite"}
    assert len(generators()) >= 105
    with pytest.raises(TaskError, match="composite' is not supported"):
        make("reasoning_gym:composite", seed=0)


def test_the_last_answer_counts_and_a_bare_one_is_taken_whole():
    [task] = make("reasoning_gym:gcd", seed=0).draw(1, 0)
    right = task.answer
    assert score(f" {right}\n", task) == {"correct": 1.0, "format": 0.0, "score": 1.0}
    assert score(f"<answer>0</answer> no: <answer> {right} </answer>", task)["correct"] == 1
    assert score(f"<answer>{right}</answer><answer>0</answer>", task)["correct"] == 0
    partly = score(f"<answer>it is {right}</answer>", task)
    assert partly["correct"] == 0 and 0 < partly["score"] < 1


def test_config_reaches_generator_and_scorer():
    source = make("reasoning_gym:chain_sum", seed=0, options={"config": {"max_terms": 2}, "template": "{question}\n"})
    for task in source.draw(5, 0):
        assert task.prompt == task.info["entry"]["question"] + "\n"
        assert task.info["config"] == {"max_terms": 2} and task.info["entry"]["metadata"]["num_terms"] == 2


def test_training_and_held_out_questions_differ():
    # count_bits of small numbers: so few questions that seeds alone would not keep them apart
    options = {"config": {"min_n": 1, "max_n": 40}}
    source = make("reasoning_gym:count_bits", seed=0, options=options)
    held_out = {t.info["entry"]["question"] for t in source.held_out(30)}
    training = {t.info["entry"]["question"] for step in range(5) for t in source.draw(30, step)}
    assert held_out and training and not held_out & training
    assert [t.id for t in make("reasoning_gym:count_bits", seed=4, options=options).held_out(30)] == [
        t.id for t in source.held_out(30)
    ]


def test_draws_repeat_exactly():
    source = make("reasoning_gym:simple_equations", seed=3)
    assert source.draw(4, 9) == make("reasoning_gym:simple_equations", seed=3).draw(6, 9)[:4]
    assert source.draw(4, 9) != source.draw(4, 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reasoning_gym:cuntdown", {}, "did you mean 'countdown'"),
        ("reasoning_gym:gcd", {"config": {"nope": 1}}, "nope"),
        ("reasoning_gym:gcd", {"config": {"min_numbers": -3}}, "is refused"),
        ("reasoning_gym:gcd", {"config": {"seed": 1}}, "must not hold 'seed'"),
        ("reasoning_gym:gcd", {"template": "answer it"}, "must contain {question}"),
        ("reasoning_gym:gcd", {"templat": "x"}, "did you mean 'template'"),
    ],
)
def test_bad_names_and_options(name, options, message):
    with pytest.raises(TaskError, match=message) as caught:
        make(name, seed=0, options=options)
    assert "\n" not in str(caught.value)


def test_it_is_imported_only_when_used():
    code = (
        "import sys, gxpo.environments.tasks; assert not {'reasoning_gym', 'transformers', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reference_is_written_as_it_is_read():
    sums = {"min_terms": 2, "max_terms": 2, "operators": ["+"]}
    source = make("reasoning_gym:basic_arithmetic", seed=1, options={"config": sums, "reading": "number"})
    [task] = source.draw(1, 0)
    assert solution_of(source, task) == task.answer and score(task.answer, task)["correct"] == 1

import pickle
import subprocess
import sys

import pytest
from tests.thorough import some

from gxpo.errors import TaskError
from gxpo.tasks import make
from gxpo.tasks.reasoning_gym import generators, score

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
    code = "import sys, gxpo.tasks; assert not {'reasoning_gym', 'transformers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Episodes: what is sampled is what the learner scores, under every context; every end has its name and is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.battery import made_up
from tests.thorough import ALL

import gxpo
from gxpo.environments.envs import EnvPool, source
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.forest.forest import ACTION
from gxpo.learning.torch import TorchLearner
from gxpo.methods import METHODS
from gxpo.models.chat import PlainChat, TemplateChat
from gxpo.parts.protocols import EpisodeRules, Sampling, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.context import Context
from gxpo.training.models import character_tokenizer, tiny_model
from gxpo.training.session import Session

ENV = f"{Path(__file__).with_name('countdown_env.py')}:Steps"
TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant: {% endif %}"
)
DROPPED = "!#$%&*+,-./:;=?@^_|~()<>[]"  # signs that this template leaves out of what the policy wrote
REWRITING = TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' %}{{ m.content" + "".join(f"|replace('{c}', '')" for c in DROPPED) + " }}"
    "{% else %}{{ m.content }}{% endif %}",
)


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


def session(model, envs, *, chat=None, rules=None, sampling=None, system=None):
    tokenizer = character_tokenizer()
    tasks = SeedTasks("steps", lambda seeds: [str(s) for s in seeds])
    return Session(
        source=tasks,
        engine=TorchEngine(model, tokenizer),
        rewards=RewardSet.make(None, source=tasks),
        tokenizer=tokenizer,
        sampling=sampling or Sampling(max_new_tokens=3),
        seed=0,
        step=1,
        chat=chat(tokenizer) if chat else PlainChat(tokenizer),
        system=system,
        envs=envs,
        episode=rules or EpisodeRules(max_turns=envs.max_turns),
    )


def grown(s, seeds=(0, 1, 2), group=2):
    tasks = [Task(f"steps/{seed}", "", info={"seed": seed}) for seed in seeds]
    s.know(tasks)
    return Independent(group).grow(tasks, s)


@pytest.fixture(scope="module")
def steps():
    with EnvPool(source(ENV), workers=0) as pool:
        yield pool


FULL, WINDOW, NOTHING = EpisodeRules(20), EpisodeRules(20, "window", 2), EpisodeRules(20, "window", 0)
SUMMARY = EpisodeRules(20, "summary", 2)


RULES = {"full": FULL, "window2": WINDOW, "window0": NOTHING, "summary": SUMMARY}
CHATS = {
    "plain": PlainChat,
    "template": lambda t: TemplateChat(t, TEMPLATE),
    "rewriting": lambda t: TemplateChat(t, REWRITING),
}
SAMPLINGS = (Sampling(max_new_tokens=3), Sampling(0.7, top_k=5, max_new_tokens=3))


@pytest.mark.parametrize(
    ("rules", "chat", "sampling"),
    [  # in `make test` every pair of rules and chat once
        pytest.param(RULES[r], CHATS[c], SAMPLINGS[s], marks=[ALL] * ((i + j + s) % 2), id=f"{r}-{c}-{s}")
        for i, r in enumerate(RULES)
        for j, c in enumerate(CHATS)
        for s in range(2)
    ],
)
def test_sampled_log_probs_are_the_learners(model, steps, rules, chat, sampling):
    forest = grown(session(model, steps, chat=chat, rules=rules, sampling=sampling))
    assert forest.n_steps > 3 * forest.n_trajectories
    actual = TorchLearner(model, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rules", [FULL, WINDOW, SUMMARY], ids=["full", "window", "summary"])
def test_only_actions_are_trained(model, steps, rules):
    forest = grown(session(model, steps, rules=rules))
    kinds = forest.kind[forest.token_node]
    assert bool(forest.trainable[kinds == ACTION].all()) and not bool(forest.trainable[kinds != ACTION].any())
    assert int((kinds != ACTION).sum()) > 0


def steps_without_history(forest):
    """Count the steps whose context has no earlier action on its path: it was begun anew."""
    above = [forest.path(int(action))[:-1] for action in forest.step_action]
    return sum(not bool((forest.kind[nodes] == ACTION).any()) for nodes in above)


def test_a_growing_context_is_one_path_and_a_window_is_many(model, steps):
    full, window = (grown(session(model, steps, rules=r), seeds=(0,), group=1) for r in (FULL, WINDOW))
    assert (steps_without_history(full), steps_without_history(window)) == (1, window.n_steps)
    first = window.path(int(window.step_action[0]))[0]
    assert character_tokenizer().decode(window.context(int(first)), skip_special_tokens=True) == "count\n\n3 left\n>"


def test_window_shows_the_last_exchanges_after_the_instructions(model, steps):
    tokenizer = character_tokenizer()
    context = Context(PlainChat(tokenizer), WINDOW, "count")
    context.open("one")
    for seen_text, said_text in (("two", "A"), ("three", "B"), ("four", "C")):
        context.act([*tokenizer(said_text, add_special_tokens=False).input_ids, tokenizer.eos_token_id])
        context.observe(seen_text)
    assert tokenizer.decode(context.ids, skip_special_tokens=True) == "count\n\ntwo\nB\nthree\nC\nfour"


def test_a_summary_stands_in_place_of_what_it_sums_up(model, steps):
    tokenizer = character_tokenizer()
    context = Context(PlainChat(tokenizer), SUMMARY, "count")

    def say(text):
        return context.act([*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id])

    context.open("one")
    say("A")
    assert not context.observe("two").rebuilt and not context.summarising
    say("B")
    context.observe("three")
    assert context.summarising
    opening = context.summarise(say("so far AB").content)
    assert opening.rebuilt and not context.summarising
    output = tokenizer.decode(context.ids, skip_special_tokens=True)
    assert output == "count\n\nWhat you wrote down so far:\nso far AB\n\nthree"


def test_summaries_are_actions_that_the_environment_does_not_see(model, steps):
    forest = grown(session(model, steps, rules=SUMMARY))
    summaries = [i for i, info in enumerate(forest.step_info) if info.get("summary")]
    assert summaries and all(int(forest.step_state[i]) == -1 for i in summaries)
    assert not bool(forest.step_reward[summaries].isfinite().any())
    moves = Counter(forest.step_trajectory.tolist()) - Counter(forest.step_trajectory[summaries].tolist())
    assert [moves[r] for r in range(forest.n_trajectories)] == [info["moves"] for info in forest.info]


def test_a_rewriting_template_opens_a_new_root_and_is_counted(model, steps):
    forest = grown(session(model, steps, chat=lambda t: TemplateChat(t, REWRITING)), seeds=(0,), group=1)
    message = [character_tokenizer().decode(forest.action(i)) for i in range(forest.n_steps - 1)]
    rewritten = sum(any(c in text for c in DROPPED) for text in message)
    assert forest.info[0]["rewritten"] == rewritten > 0
    assert steps_without_history(forest) == 1 + rewritten


def test_steps_carry_states_rewards_and_errors(model):
    with EnvPool(source(ENV, {"start": 2, "good": ""}), workers=0) as pool:
        forest = grown(session(model, pool, rules=EpisodeRules(3)), seeds=(0,), group=1)
    assert [forest.state_names[i] for i in forest.step_state.tolist()] == ["2", "2", "2"]
    assert forest.step_reward.tolist() == [0.0, 0.0, 0.0]
    assert [info["action_error"] for info in forest.step_info] == ["malformed"] * 3
    assert forest.info[0]["end"] == "turns" and forest.truncated.tolist() == [True]
    assert forest.success.tolist() == [0.0] and forest.components.tolist() == [[0.0]]


def test_verdict_is_the_outcome_without_step_rewards(model):
    with EnvPool(source(ENV, {"start": 2, "pays": False}), workers=0) as pool:
        s = session(model, pool)
        forest = s.score(grown(s, seeds=(0,), group=1))
    assert not bool(forest.step_reward.isfinite().any())
    assert forest.outcome.tolist() == forest.success.tolist() == [1.0]


def test_a_context_without_room_ends_the_episode(model, steps):
    """bos + "count\\n\\n3 left\\n>" are 17 tokens; an action and "2 left\\n>" add at least 9."""
    forest = grown(session(model, steps, rules=EpisodeRules(20, max_context=17 + 3)), seeds=(0,), group=1)
    assert forest.info[0]["end"] == "context" and forest.truncated.tolist() == [True]
    assert forest.n_steps == 1 and forest.success.tolist() == [0.0]
    none = grown(session(model, steps, rules=EpisodeRules(20, max_context=10)), seeds=(0,), group=1)
    assert none.info[0]["end"] == "context" and none.n_entries == 0


@pytest.mark.slow
def test_broken_environments_are_unscored_and_the_others_go_on(model):
    """Seeds 0 and 1 raise, 2 hangs, 3 dies at their second action; 4 to 7 reach 0."""
    options = {"crash": 2, "hang": 1, "die": 1}
    with EnvPool(source(ENV, options), workers=2, timeout=3.0) as pool:
        s = session(model, pool)
        forest = s.score(grown(s, seeds=range(8), group=1))
    ends = [info["end"] for info in forest.info]
    assert ends == ["raised", "raised", "timeout", "died", "done", "done", "done", "done"]
    assert forest.scored.tolist() == [False] * 4 + [True] * 4
    assert forest.outcome[4:].tolist() == [1.0] * 4
    assert "planned" in forest.info[0]["failure"]


ON_EPISODES = {  # whose components come from their rewards
    "hdpo": {"credit.weights": {"env": 1.0}, "credit.conditions": {}},
    "primal_dual_marl": {"credit.cost": "env", "credit.cost_limit": 0.5},
    "vgpo": {"credit": "relative"},  # its own is of steps of samples
}


def _noted(forest):
    """With what some rollouts note at action tokens: a label, a value of the state before."""
    label, value = torch.zeros(forest.n_tokens, dtype=torch.int64), torch.full((forest.n_tokens,), torch.nan).double()
    label[forest.path_token] = torch.arange(forest.n_entries) % 5
    value[forest.path_token] = torch.arange(forest.n_entries).double() % 7 / 7
    return forest.replace(extras={**forest.extras, "label": label, "state_value": value})


def test_inserted_observation_tokens_change_no_credit(model, steps):
    """T11: the same actions after longer observations have the same returns and the same credit, bit for bit."""
    s = session(model, steps)
    one = s.score(grown(s))
    one = one.replace(info=[{**info, "tree": r % 2} for r, info in enumerate(one.info)])  # as a tree's rollouts have it
    records = one.to_records()
    for record in records:
        for turn in record["turns"][1:]:
            turn["observation"] = [*turn["observation"], *[5] * 40]
    other = gxpo.Forest.from_records(records)
    one, other = (_noted(forest) for forest in (one, other))
    assert one.n_tokens < other.n_tokens and one.n_entries == other.n_entries
    assert torch.equal(one.returns(0.9), other.returns(0.9))
    for name in METHODS:
        m = gxpo.method(name, {"rollout": "independent", **ON_EPISODES.get(name, {})}).fill(horizon=60.0, max_length=60)
        signals = made_up(m, one, 0)  # equal on R, S and P; of stored tokens credit reads none
        assert torch.equal(m.advantages(one, signals), m.advantages(other, signals)), name


@pytest.mark.parametrize("chat", ["plain", "template"])
def test_answer_begun_by_the_environment_stays_one_in_the_window(chat):
    tokenizer = character_tokenizer()
    context = Context(CHATS[chat](tokenizer), EpisodeRules(20, "window", 1), "count")
    begun = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "It is "}]
    context.open(begun)
    assert tokenizer.decode(context.ids, skip_special_tokens=True).endswith("It is ")
    context.act([*tokenizer("A", add_special_tokens=False).input_ids, tokenizer.eos_token_id])
    context.observe("two")
    assert tokenizer.decode(context.ids, skip_special_tokens=True).count("It is A") == 1
    assert tokenizer.decode(context.ids, skip_special_tokens=True).count("It is") == 1

"""Rollout `logged`: answers of rows in tokens, groups of records in keyed order, what is refused, exact resume."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import gxpo
from gxpo.base.errors import ConfigError, GxpoError, RecordError, TaskError
from gxpo.environments.tasks.rows import COLUMNS, tasks_of
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Sampling, Task
from gxpo.sampling.rollouts.logged import Logged, answers_of
from gxpo.training import models
from gxpo.training.session import Session

TOKENIZER = models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer
END = TOKENIZER.eos_token_id
PAIRS = Path(__file__).parents[2] / "pairs.jsonl"


def session(step: int = 1, seed: int = 0) -> Session:
    lent: dict[str, Any] = {"source": None, "engine": None, "rewards": None}  # nothing is sampled or scored
    return Session(**lent, tokenizer=TOKENIZER, sampling=Sampling(max_new_tokens=4), seed=seed, step=step)


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


def row(**columns: Any) -> Task:
    return Task("q", columns.pop("prompt", "2+3="), None, columns)


# ---------------------------------------------------------------- answers of rows
def test_a_pair_is_a_group_of_two():
    task = row(chosen="#5", rejected="#61", region="north", notes=["not a scalar"])
    forest = Logged().grow([task], session())
    assert forest.id == ["q/chosen", "q/rejected"] and forest.group == ["s1/q"] * 2 and forest.origin == ["logged"] * 2
    assert forest.outcome.tolist() == forest.success.tolist() == [1.0, 0.0]
    assert [forest.action(i) for i in range(2)] == [[*ids("#5"), END], [*ids("#61"), END]]
    assert forest.context(int(forest.prompt_node[0])) == list(session().encode(task))
    assert forest.behaviour_logprob.isnan().all() and bool(forest.path_trainable.all())
    assert forest.info == [{"region": "north"}] * 2


def test_the_same_row_twice_in_a_step():
    task = row(chosen="#5", rejected="#6")
    forest = Logged().grow([task, task], session(step=3))
    assert len(set(forest.id)) == 4 and list(dict.fromkeys(forest.group)) == ["s3/q", "s3/q#1"]


# ---------------------------------------------------------------- prompts that say the outcome
WORDED: dict[str, Any] = {"returns": ["bad", "ok", "good"], "bounds": [0.0, 0.5], "template": "{code}{prompt}"}


def test_prompts_say_how_an_answer_ends():
    """-1 is below both bounds, 0 reaches the first, .5 both."""
    task = row(completions=["#5", "#6", "#7"], scores=[-1, 0, 0.5])
    forest = Logged(**WORDED).grow([task], session())
    prompts = [forest.context(int(forest.prompt_node[i])) for i in range(3)]
    assert prompts == [list(session().encode(row(prompt=f"{word}2+3="))) for word in ("bad", "ok", "good")]
    assert forest.outcome.tolist() == [-1.0, 0.0, 0.5]


def test_evaluations_ask_for_the_best_outcome():
    held_out = Logged(**WORDED).evaluation(3)
    assert (held_out.codes, held_out.group_size, held_out.template) == (["good"], 3, "{code}{prompt}")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bounds": [0.5]}, "give a word for each kind"),
        ({"bounds": [0.5, 0.0]}, "in rising order"),
        ({"file": "runs/first/rollouts"}, "'scores'"),
        ({"template": "{prompt}"}, "lacks {code}"),
    ],
)
def test_words_that_fit_nothing_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        Logged(**{**WORDED, **changed})


def test_an_answer_without_a_score_has_no_word():
    with pytest.raises(TaskError, match="has no score"):
        Logged(**WORDED).grow([row(completions=["#5"])], session())


CALLING = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "get", "arguments": "{}"}}]}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "#"}, {"type": "text", "text": "5", "image": None}]}


@pytest.mark.parametrize(
    ("columns", "outcomes", "verdicts"),
    [
        ({"completions": ["#5", "#6"], "scores": [0.5, 2]}, [0.5, 2.0], [None, None]),
        ({"completions": ["#5", "#6"], "scores": [0.5, None]}, [0.5, None], [None, None]),
        ({"completions": ["#5"]}, [None], [None]),
        ({"completion": "#5", "label": False}, [0.0], [False]),
        ({"completion": [PARTS], "label": True}, [1.0], [True]),
        ({"completion": "#5", "score": 0.25}, [0.25], [None]),
    ],
)
def test_other_columns(columns, outcomes, verdicts):
    actual = answers_of(row(**columns))
    assert [(x.outcome, x.success) for x in actual] == list(zip(outcomes, verdicts, strict=True))


def test_messages_as_data_sets_have_them():
    """With the prompt repeated or not; without a column of prompts the shared opening is the prompt."""
    question, messages = {"role": "user", "content": "2+3="}, {"role": "assistant", "content": "#5"}
    for prompt, chosen in (
        ("2+3=", [question, messages]),
        ((question,), [messages]),
        ((question,), [question, messages]),
        ("2+3=", "#5"),
    ):
        (message, _) = answers_of(row(prompt=prompt, chosen=chosen, rejected="#6"))
        assert message.texts == ("#5",) and message.between == ()
    wrong = {**messages, "content": "#6"}
    (task,) = tasks_of(
        [("line 1", "d/1", {"chosen": [question, messages], "rejected": [question, wrong]})], COLUMNS, "d"
    )
    assert task.prompt == (question,) and [x.texts for x in answers_of(task)] == [("#5",), ("#6",)]
    (task,) = tasks_of(
        [("line 1", "d/1", {"chosen": [question, messages], "rejected": [question, messages]})], COLUMNS, "d"
    )
    assert task.prompt == (question,)  # equal answers are still answers


def test_answers_of_several_turns():
    """The turns are trained, what is said between them is context."""
    talk = [{"role": r, "content": c} for r, c in (("assistant", "1"), ("user", "2"), ("assistant", "3"))]
    forest = Logged().grow([row(chosen=talk, rejected="9")], session())
    first = [s for s, r in enumerate(forest.step_trajectory.tolist()) if r == 0]
    assert [forest.action(s) for s in first] == [[*ids("1"), END], [*ids("3"), END]]
    full_context = forest.context(int(forest.last_action[0]))
    assert (
        full_context[-2:] == forest.action(first[1])
        and ids("2")[0] in full_context[len(session().encode(row())) + 2 : -2]
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "has no answers, and rollout logged samples none"),
        ({"chosen": "#5"}, "'rejected' is missing"),
        ({"chosen": 5, "rejected": "#6"}, "answer 'chosen' must be a text or messages"),
        ({"chosen": "", "rejected": "#6"}, "without a text"),
        ({"chosen": [{"role": "user", "content": "?"}], "rejected": "#6"}, "must begin and end with a message of the"),
        ({"chosen": [{"role": "assistant", "content": "a"}] * 2, "rejected": "#6"}, "two messages of the assistant's"),
        (
            {"chosen": [CALLING], "rejected": "#6"},
            "a message of the assistant's with 'tool_calls': write it into 'content'",
        ),
        ({"chosen": [{**PARTS, "reasoning_content": "so"}], "rejected": "#6"}, "with 'reasoning_content'"),
        (
            {"chosen": [{"role": "assistant", "content": [{"type": "text"}]}], "rejected": "#6"},
            "part 0 of 'content' has no",
        ),
        ({"completions": "#5"}, "'completions' must be a list"),
        ({"completions": ["#5"], "scores": [1.0, 2.0]}, "'scores' must be a list of 1 numbers"),
        ({"completions": ["#5"], "scores": [True]}, "a score must be a number or null"),
        ({"completions": ["#5"], "scores": [math.nan]}, "a score must be a number or null"),
        ({"completion": "#5", "label": 1}, "'label' must be true or false"),
    ],
)
def test_rows_that_can_not_be_read(columns, said):
    with pytest.raises(TaskError, match=said):
        answers_of(row(**columns))


# ---------------------------------------------------------------- groups of records
def line(group: str, name: str, reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    action = [*ids("#5"), END]
    turn = {"action": action, "logprob": [-0.5] * len(action), "policy_version": 7, "action_text": "#5"}
    turn |= more.pop("turn", {})
    base = {"schema": "gxpo.rollouts/1", "task": f"arithmetic/{group}", "group": group, "id": name, "prompt": [1]}
    return {**base, "turns": [turn], "reward": reward, "success": reward == 1.0, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def groups(n: int) -> list[dict[str, Any]]:
    return [line(f"g{i}", f"g{i}/{k}", float(k)) for i in range(n) for k in (0, 1)]


def test_every_epoch_has_all_groups_in_an_order_of_its_own(tmp_path):
    rollout = Logged(write(tmp_path / "r.jsonl", groups(5)))
    nothing = [Task(str(i), "?") for i in range(2)]

    def drawn(seed: int) -> list[str]:
        return [
            name.split("/")[1] for step in range(1, 11) for name in seen(rollout.grow(nothing, session(step, seed)))
        ]

    def seen(forest: Forest) -> list[str]:
        return list(dict.fromkeys(forest.group))

    order = drawn(0)
    epochs = [order[i : i + 5] for i in range(0, 20, 5)]
    assert all(sorted(name.split("#")[0] for name in epoch) == [f"g{i}" for i in range(5)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1 and order == drawn(0) != drawn(1)


def test_recorded_rollouts_are_as_they_were(tmp_path):
    file = write(tmp_path / "r.jsonl", groups(1))
    forest = Logged(file).grow([Task("x", "?")], session(step=4))
    assert forest.id == ["g0/0", "g0/1"] and forest.group == ["s4/g0"] * 2 and forest.task == ["arithmetic/g0"] * 2
    assert forest.outcome.tolist() == [0.0, 1.0] and forest.origin == ["logged"] * 2
    assert forest.path_behaviour_logprob.tolist() == [-0.5] * 6 and Logged(file).has_behaviour
    assert session(step=4).score(forest) is forest  # a known outcome is kept
    again = Logged(file).grow([Task("x", "?")] * 2, session(step=4))  # one group, two places
    assert again.group == ["s4/g0"] * 2 + ["s4/g0#1"] * 2 and len(set(again.id)) == 4


def test_a_folder_of_files(tmp_path):
    write(tmp_path / "b.jsonl", groups(1))
    write(tmp_path / "a.jsonl", [line("z", "z/0"), line("z", "z/1", None)])
    with pytest.warns(UserWarning, match="1 rollouts are not scored and are left out"):
        actual = Logged(str(tmp_path)).records
    assert [(g.name, len(g.rows)) for g in actual.groups] == [("z", 1), ("g0", 2)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([line("g", "g/0", None)], "no rollout in it is scored"),
        ([line("g", "g/0", turn={"action": None, "logprob": None})], "needs token ids"),
        ([{"prompt": "2+3=", "chosen": "#5", "rejected": "#6"}], "schema"),
    ],
)
def test_files_that_can_not_be_used(tmp_path, rows, said):
    with pytest.raises((RecordError, GxpoError), match=said):
        _ = Logged(write(tmp_path / "r.jsonl", rows)).records


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(RecordError, match=r"no \.jsonl file in this folder"):
        _ = Logged(str(tmp_path)).records
    with pytest.raises(RecordError, match="no such file"):
        _ = Logged(str(tmp_path / "none.jsonl")).records


@pytest.mark.parametrize("turn", [{"action_text": "#6"}, {"action": [99_999], "logprob": [-1.0]}])
def test_records_of_another_tokenizer_are_refused(tmp_path, turn):
    rollout = Logged(write(tmp_path / "r.jsonl", [line("g", "g/0", turn=turn)]))
    with pytest.raises(RecordError, match="another tokenizer's"):
        rollout.grow([Task("x", "?")], session())


def test_held_out_tasks_are_refused(tmp_path):
    rollout = Logged(write(tmp_path / "r.jsonl", groups(3)))
    rollout.check_held_out([Task("arithmetic/1+1", "1+1=")])
    with pytest.raises(ConfigError, match="1 of 3 groups are of held-out tasks"):
        rollout.check_held_out([Task("arithmetic/g2", "?")])


# ---------------------------------------------------------------- runs
QUICK = {"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2, "eval.every": 0, "optim.weight_decay": 0.0}
ROWS = {"tasks.options": {"held_out_fraction": 0.4}, "reward": "math", "rollout": "logged"}


def train(method: str, out: Path, task: Any = str(PAIRS), steps: int = 2, **keys: Any) -> list[dict[str, Any]]:
    return gxpo.train("tiny:cold", task, method, steps, out=out, set={**QUICK, **keys}).metrics


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*held out")
def test_pairs_train_and_nothing_is_sampled(tmp_path):
    rows = train("dpo", tmp_path / "run", steps=2, **ROWS)
    assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"] and rows[-1]["generated_tokens"] == 0
    assert [r["pairs"] for r in rows] == [2.0, 2.0] and rows[0]["origin_logged"] == 1.0
    assert rows[0]["success_rate"] is None and rows[0]["staleness_mean"] is None  # not the policy's figures
    assert rows[0]["loss"] == pytest.approx(math.log(2))  # at the reference


@pytest.mark.parametrize("method", ["grpo", "gvpo", "nft", "p3o", "refuel"])
@pytest.mark.filterwarnings("ignore:.*held out")
def test_ratios_to_nobody_are_refused(method, tmp_path):
    keys = {**ROWS, "rollout": "logged"}
    with pytest.raises(
        ConfigError, match="reads importance ratios, and rollout logged has no log-probs of who sampled"
    ):
        gxpo.train("tiny:cold", str(PAIRS), gxpo.method(f"{method}", {"rollout": "logged"}), 1, out=tmp_path / "r",
                   set={k: v for k, v in {**QUICK, **keys}.items() if k != "rollout"})  # fmt: skip


@pytest.mark.slow
def test_what_a_run_has_sampled_trains_another(tmp_path):
    """Records of a run, with the log-probs of who sampled: importance ratios are known there."""
    cold = lambda completion: {"correct": float(sum(map(ord, completion)) % 2)}  # noqa: E731
    first = {**QUICK, "rollout.group_size": 4, "trainer.rollouts_every": 1, "sampling.max_new_tokens": 6}
    gxpo.train("tiny:cold", "arithmetic", "grpo", 2, cold, out=tmp_path / "first", set=first)
    file = {"rollout": "logged", "rollout.file": str(tmp_path / "first" / "rollouts")}
    for method, more in (("dpo", {}), ("grpo", {"objective.ratio_over": "behaviour"}), ("kto", {})):
        rows = train(method, tmp_path / method, "arithmetic", **file, **more)
        assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"] and rows[0]["sampler_gap"] is None
    with pytest.raises(TaskError, match="has no answers"):
        train("dpo", tmp_path / "none", "arithmetic", rollout="logged")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("group_robust_po", {"objective.population_rate": 0.5}),
        pytest.param("power_dl", {}, marks=pytest.mark.thorough),
        pytest.param("mnpo", {"signal.opponents.every": 1}, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.filterwarnings("ignore:.*held out")
def test_a_resumed_run_is_the_run_that_was_never_stopped(method, keys, tmp_path):
    settings = {
        **ROWS,
        **keys,
        "trainer.checkpoint_every": 1,
        "trainer.keep_checkpoints": 9,
        "trainer.rollouts_every": 1,
    }
    full_path, cut = tmp_path / "whole", tmp_path / "cut"
    train(method, full_path, steps=4, **settings)
    shutil.copytree(full_path, cut)
    for step in (3, 4):
        shutil.rmtree(next((cut / "checkpoints").glob(f"step-*{step}")))
    gxpo.resume(cut)

    def lines(run: Path) -> list[dict[str, Any]]:
        actual = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in x.items() if not k.startswith(("time_", "memory_"))} for x in actual]

    assert lines(cut) == lines(full_path) and len(lines(full_path)) == 4
    last = [records.load(run / "rollouts" / "step-000004.jsonl") for run in (full_path, cut)]
    assert last[0].id == last[1].id and torch.equal(last[0].token, last[1].token)

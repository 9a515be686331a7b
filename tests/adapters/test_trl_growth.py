"""Rollouts that a method grows itself, in TRL's trainer: what is sampled, trained, counted and logged."""

import copy
import types

import pytest
import torch
from tests.adapters import fake_trl
from tests.adapters.fake_trl import Config
from tests.adapters.llama_trl import TOKENIZER, Llama, batch_of_our_trainer, names_of, small

import gxpo
from gxpo.adapters import trl as adapter
from gxpo.adapters import trl_growth
from gxpo.base.errors import CheckpointError, ConfigError

TEXTS = ["12+3=", "4+5=", "77+1=", "9-2=", "1+1=", "6*7=", "8+8=", "30-1="]


class Rows(list):
    """Rows of a dataset."""

    @property
    def column_names(self):
        return list(self[0])


class GrownTrainer(adapter.WithMethod, Llama):
    """gxpo's trainer over the stand-in for TRL's, with a dataset to draw further rows from."""

    rows = Rows({"prompt": text, "answer": str(i), "solution": "1 2"} for i, text in enumerate(TEXTS))

    def __init__(self, *given, dataset=None, **named):
        self._dataset = self.rows if dataset is None else dataset
        super().__init__(*given, **named)

    @property
    def train_dataset(self):
        return self._dataset

    @train_dataset.setter
    def train_dataset(self, value):
        pass


class Reward:
    """A third of all answers is right; notes what it was shown."""

    __name__ = "third"

    def __init__(self, right=lambda ids: sum(ids) % 3 == 0):
        self.shown, self.right = [], right

    def __call__(self, prompts, completion_ids):
        self.shown += list(zip(prompts, map(tuple, completion_ids), strict=True))
        return [float(self.right(ids)) for ids in completion_ids]


def make_trainer(method="dapo", micro=16, *, reward=None, overrides=None, out=None, dataset=None, **settings):
    parts = 16 // micro
    start = {"gradient_accumulation_steps": parts, "steps_per_generation": parts, "per_device_train_batch_size": micro}
    options = {"success_at": 1.0, **{k: settings.pop(k) for k in ("success_at", "solutions") if k in settings}}
    config = Config(**{**start, **settings})
    return GrownTrainer(
        small(), Reward() if reward is None else reward, config, out=out, method=method, overrides=overrides,
        dataset=dataset, **options,
    )  # fmt: skip


def step(made, prompts=TEXTS[:4]):
    """(loss, gradient, micro-batches) of an optimiser step; rows of the batch are rows of the dataset."""
    by_prompt = {row["prompt"]: row for row in made.rows}
    inputs = [by_prompt[p] for p in prompts for _ in range(made.num_generations)]
    made.model.train()
    made.model.zero_grad()
    total, batches = 0.0, []
    for _ in range(made.args.gradient_accumulation_steps):
        batch = made._prepare_inputs(inputs)
        loss = made.compute_loss(made.model, batch)
        loss.backward()
        made._step += 1
        total += float(loss.detach())
        batches.append(batch)
    made.state.global_step += 1
    gradient = torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])
    return total, gradient.clone(), batches


def groups_of(forest):
    """Verdicts by group."""
    verdicts = {}
    for group, verdict in zip(forest.group, forest.success.tolist(), strict=True):
        verdicts.setdefault(group, []).append(verdict)
    return verdicts


# ---------------------------------------------------------------- dynamic sampling
def test_dapo_trains_mixed_groups_alone_and_draws_further_rows():
    reward = Reward()
    trainer = make_trainer(reward=reward, seed=5)
    step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    verdicts = groups_of(forest)
    assert len(verdicts) == 4 and all(len(set(v)) == 2 and len(v) == 4 for v in verdicts.values())
    # groups without both verdicts were sampled too: 8 groups of 4, of which the last prompts are new
    prompts = [prompt for prompt, _ in reward.shown]
    assert len(prompts) > 16 and prompts[:16:4] == TEXTS[:4] and set(prompts[16:32]) == set(TEXTS[4:])
    assert trainer._metrics["train"]["gxpo/sampled"] == [len(prompts)]
    assert trainer._metrics["train"]["gxpo/discarded"] == [len(prompts) - 16]


def test_a_step_of_dapo_is_that_of_gxpos_own_trainer():
    trainer = make_trainer(seed=5)
    loss, gradient, _ = step(trainer)
    batch, learner = batch_of_our_trainer(trainer)
    slope = learner.gradient(batch.forest, batch.loss, names=names_of(batch.method), couples=batch.method.couples)
    own_slopes = torch.cat([slope[name].flatten() for name, _ in trainer.model.named_parameters()])
    assert loss == pytest.approx(float(batch.loss(learner.outputs(batch.forest, names_of(batch.method)))), abs=1e-6)
    assert own_slopes.norm() > 1e-3 and (own_slopes - gradient).norm() < 1e-6 * own_slopes.norm()


@pytest.mark.parametrize("micro", [8, 2])
def test_accumulated_micro_batches_add_up_to_the_step(micro):
    loss, gradient, _ = step(make_trainer(seed=5))
    parts, slope, batches = step(make_trainer(micro=micro, seed=5))
    assert len(batches) == 16 // micro
    assert parts == pytest.approx(loss, abs=1e-6) and (gradient - slope).norm() < 1e-6 * gradient.norm()


def test_a_second_pass_trains_the_rollouts_of_the_first():
    reward = Reward()
    trainer = make_trainer(reward=reward, num_iterations=2, seed=5)
    step(trainer)
    sampled, scored = len(reward.shown), trainer._batch_by_mode["train"]
    step(trainer)
    assert len(reward.shown) == sampled and trainer._batch_by_mode["train"] is scored
    step(trainer)
    assert len(reward.shown) > sampled and trainer._batch_by_mode["train"].forest.id[0].startswith("s2/")


def test_counters_hold_all_that_was_sampled_and_the_log_what_is_trained():
    reward = Reward()
    trainer = make_trainer(reward=reward, seed=5)
    step(trainer)
    tokens = sum(len(TOKENIZER(prompt).input_ids) + len(ids) for prompt, ids in reward.shown)
    assert trainer.state.num_input_tokens_seen == tokens and trainer._metrics["train"]["num_tokens"] == [tokens]
    assert trainer._metrics["train"]["frac_reward_zero_std"] == [0.0]
    right = sum(sum(ids) % 3 == 0 for _, ids in reward.shown)
    assert trainer._metrics["train"]["gxpo/sampled_reward"] == [pytest.approx(right / len(reward.shown))]
    forest = trainer._batch_by_mode["train"].forest
    assert list(trainer._logs["completion"]) == [forest.action(r) for r in range(16)]
    assert list(trainer._logs["rewards"]["third"]) == forest.success.tolist()
    assert len(trainer._logs["advantages"]) == len(trainer._logs["prompt"]) == 16


def test_fewer_groups_than_asked_fill_the_batch_with_empty_rows():
    # one prompt of four has mixed groups; TRL cuts its batch into 8 equal parts
    reward = Reward()
    settings = {"reward": reward, "overrides": {"rollout.max_batches": 1}, "seed": 5}
    loss, gradient, _ = step(make_trainer(**settings))
    trainer = make_trainer(micro=2, **settings)
    trainer._generate_single_turn = with_few_mixed(trainer._generate_single_turn)
    full_trainer = make_trainer(**settings)
    full_trainer._generate_single_turn = with_few_mixed(full_trainer._generate_single_turn)
    loss, gradient, _ = step(full_trainer)
    parts, slope, batches = step(trainer)
    assert trainer._batch_by_mode["train"].forest.n_trajectories == 4
    rows = torch.cat([b[adapter.ROW] for b in batches]).tolist()
    assert sorted(rows) == [-1, -1, -1, -1, 0, 1, 2, 3]
    assert parts == pytest.approx(loss, abs=1e-6) and (gradient - slope).norm() < 1e-6 * gradient.norm()


def with_few_mixed(sample):
    """Sampler whose groups after the first are all wrong."""

    def sampled(prompt_ids, images, fields, num_generations):
        ids, logprobs = sample(prompt_ids, images, fields, num_generations)
        return [[3, 3], [4, 1], [4, 1], *([4, 1] for _ in ids[3:])], logprobs

    return sampled


def test_columns_that_reward_functions_log_belong_to_the_trained_rows():
    trainer = make_trainer(seed=5)
    judged = trainer.reward_funcs[0]

    def logs(prompts, completion_ids):
        trainer._pending_extra_logs["total"].extend(sum(ids) for ids in completion_ids)
        return judged(prompts, completion_ids)

    trainer.reward_funcs = [logs]
    step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    assert list(trainer._logs["extra"]["total"]) == [sum(forest.action(r)) for r in range(16)]


# ---------------------------------------------------------------- other rollouts
def test_stored_groups_come_back_with_their_scores_and_their_log_probs():
    trainer = make_trainer("r1v2_ssb", seed=5)
    step(trainer)
    first = trainer._batch_by_mode["train"].forest
    step(trainer, TEXTS[4:])
    forest = trainer._batch_by_mode["train"].forest
    back = [r for r, origin in enumerate(forest.origin) if origin == "replay"]
    assert back and forest.n_trajectories == 16 + len(back)
    for r in back:
        r_first = first.id.index(forest.info[r]["sampled_as"])
        assert forest.action(r) == first.action(r_first) and forest.outcome[r] == first.outcome[r_first]
        assert torch.equal(
            forest.path_behaviour_logprob[forest.path_of(r)], first.path_behaviour_logprob[first.path_of(r_first)]
        )
    # the table of completions has room for all of them
    assert len(trainer._logs["prompt"]) == forest.n_trajectories


def test_a_reference_answer_joins_the_group_as_the_policy_would_write_it():
    trainer = make_trainer("luffy", seed=5)
    step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    demonstrations = [r for r, origin in enumerate(forest.origin) if origin == "demonstration"]
    assert len(demonstrations) == 4 and forest.n_trajectories == 16
    text = TOKENIZER("1 2", add_special_tokens=False).input_ids
    assert (
        forest.action(demonstrations[0])[: len(text)] == text and len(forest.action(demonstrations[0])) == len(text) + 1
    )
    # nobody sampled it: it has no log-prob, and the ratio of the policy is not over one
    assert bool(forest.path_behaviour_logprob[forest.path_of(demonstrations[0])].isnan().all())


def test_unequal_numbers_of_attempts_are_one_batch():
    trainer = make_trainer("ar3po", num_generations=8, overrides={"rollout.stage_size": 4}, seed=5)
    step(trainer, TEXTS[:2])
    sizes = {g: len(v) for g, v in groups_of(trainer._batch_by_mode["train"].forest).items()}
    assert set(sizes.values()) <= {4, 8} and len(sizes) == 2


def test_branches_within_answers_are_rows_that_share_tokens():
    trainer = make_trainer("tree_rl", seed=5)
    loss, gradient, (batch,) = step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    assert forest.n_tokens < len(forest.path_token) + forest.n_trajectories and bool(gradient.any())
    for row, ids, mask in zip(batch[adapter.ROW], batch["completion_ids"], batch["completion_mask"], strict=True):
        assert ids[mask.bool()].tolist() == forest.action(int(row))
    batch_of_ours, learner = batch_of_our_trainer(trainer)
    expected = float(batch_of_ours.loss(learner.outputs(batch_of_ours.forest, names_of(batch_of_ours.method))))
    assert loss == pytest.approx(expected, abs=1e-6)


def test_rows_at_a_temperature_of_their_own_are_read_at_it():
    trainer = make_trainer(
        "erpo", overrides={"rollout.groups": "uniform", "rollout.step": 0.5, "rollout.max_temperature": 2.0}, seed=5
    )
    step(trainer)
    # every task was met once; those whose group was all alike are hotter now
    step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    assert {x["temperature"] for x in forest.sampling} == {1.0, 1.5}
    logprob = trainer._services.learner.outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(logprob, forest.path_behaviour_logprob, atol=1e-9)


def test_a_reference_model_at_one_temperature_is_refused_for_hot_rows():
    trainer = make_trainer("erpo", seed=5)
    trainer.args.beta = 0.1
    forest = gxpo.Forest.from_completions([[3]], [[[4]]], rewards=[1.0]).replace(sampling=[{"temperature": 1.5}])
    with pytest.raises(ConfigError, match="temperatures of their own"):
        trainer._has_other_temperatures(forest)


def test_completions_that_were_cut_keep_their_place_and_are_not_trained():
    trainer = make_trainer(seed=5)
    trainer.mask_truncated_completions = True
    step(trainer)
    forest = trainer._batch_by_mode["train"].forest
    cut_P = forest.to_path(forest.truncated, "R")
    assert bool(cut_P.any()) and not bool(forest.path_trainable[cut_P].any())
    assert bool(forest.path_trainable[~cut_P].all()) and trainer.mask_truncated_completions


# ---------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("tools", [len], "tools= was not tested"),
        ("environment_factories", {}, "environment_factory= was not tested"),
        ("rollout_func", len, "rollout_func= was not tested"),
        ("max_completion_length", None, "max_completion_length=None"),
        ("reward_func_names", ["a", "a"], "two have the same name"),
        ("train_dataset", iter(()), "train_dataset is a stream"),
        ("train_dataset", Rows([{"prompt": "1", "image": 0}]), "a column of images was not tested"),
        ("accelerator", types.SimpleNamespace(num_processes=2), "2 processes was not tested"),
    ],
)
def test_what_was_not_tested_with_grown_rollouts_is_refused_by_name(attribute, value, says):
    trainer = make_trainer()
    plain = types.SimpleNamespace(**{**vars(trainer), "train_dataset": trainer.train_dataset, attribute: value})
    assert trl_growth.setting_problems(trainer, trainer.gxpo_method, "solution") == []
    (problem,) = trl_growth.setting_problems(plain, trainer.gxpo_method, "solution")
    assert says in problem


@pytest.mark.parametrize("name", ["use_vllm", "use_transformers_continuous_batching"])
def test_other_samplers_are_refused_by_name(name):
    trainer = make_trainer()
    trainer.args = types.SimpleNamespace(**{name: True, "temperature": 1.0})
    (problem,) = trl_growth.setting_problems(trainer, trainer.gxpo_method, "solution")
    assert problem.startswith(f"{name}=True was not tested") and "rollout=dynamic_sampling" in problem


def test_a_dataset_without_worked_solutions_is_refused():
    with pytest.raises(ConfigError, match="no column 'worked'; say solutions="):
        make_trainer("gcpo_gold", solutions="worked")
    assert trl_growth.reads_solutions(make_trainer("gcpo_gold").gxpo_method.rollout)
    assert not trl_growth.reads_solutions(make_trainer("dapo").gxpo_method.rollout)


def test_evaluation_is_refused_where_the_credit_reads_branches():
    args = Config()
    args.eval_strategy = "steps"
    from gxpo.adapters.trl_settings import evaluation_problems

    assert evaluation_problems(args, gxpo.method("dapo").fill(max_length=5), True, ["third"]) == []
    (problem,) = evaluation_problems(args, gxpo.method("tree_grpo"), True, ["third"])
    assert "eval_strategy=steps" in problem and "forks" in problem


def test_the_group_size_is_num_generations_unless_the_method_states_one():
    assert make_trainer(num_generations=8).gxpo_method.rollout.group_size == 8
    with pytest.raises(ConfigError, match=r"rollout.group_size=8; set it to 8"):
        make_trainer(overrides={"rollout.group_size": 8})


def test_another_asynchronous_trainer_is_refused_by_name():
    with pytest.raises(ConfigError, match="AsyncGRPOTrainer has no place"):
        from gxpo.adapters.trl import AsyncGRPOTrainer  # noqa: F401


def test_stored_rollouts_are_part_of_the_checkpoint(tmp_path):
    trainer = make_trainer("r1v2_ssb", out=tmp_path, seed=5)
    step(trainer)
    trainer._save_checkpoint(trainer.model, None)
    other = make_trainer("r1v2_ssb", out=tmp_path, seed=5)
    other._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-1"))
    assert other.gxpo_method.state_dict() == trainer.gxpo_method.state_dict()
    assert trainer.gxpo_method.state_dict()["rollout"]["groups"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="rollout can't go on without it"):
        other._load_optimizer_and_scheduler(str(tmp_path / "empty"))


# ---------------------------------------------------------------- rows
def test_a_row_is_named_by_its_prompt_and_its_columns():
    row = {"prompt": "1+1=", "answer": "2"}
    assert trl_growth.row_name(row) == trl_growth.row_name(copy.copy(row))
    names = {trl_growth.row_name(x) for x in (row, {"prompt": "1+1="}, {**row, "answer": "3"}, {**row, "prompt": "2"})}
    assert len(names) == 4


def test_a_batch_is_filled_up_with_rows_of_index_minus_one():
    output = {
        "completion_ids": torch.tensor([[5, 6], [7, 0], [8, 9]]), "completion_mask": torch.ones(3, 2),
        "row": torch.arange(3), "num_items_in_batch": torch.tensor(6),
    }  # fmt: skip
    padded = trl_growth.padded(output, 2, "row")
    assert padded["row"].tolist() == [0, 1, 2, -1] and padded["completion_mask"].sum(1).tolist() == [2, 2, 2, 0]
    assert padded["num_items_in_batch"] == 6 and output["row"].tolist() == [0, 1, 2]
    assert trl_growth.padded(output, 3, "row")["row"].tolist() == [0, 1, 2]


def test_the_share_of_equal_rows_counts_rows_of_any_group_size():
    forest = gxpo.Forest.from_completions([[3], [3]], [[[4], [5]], [[6]]], rewards=[[1.0, 0.0], [1.0]])
    assert trl_growth.share_of_equal_rows(forest) == pytest.approx(1 / 3)
    assert fake_trl.PAD == 0

"""The TRL adapter on a stand-in for TRL's trainer; where it is installed, on TRL (scripts/checks/check_trl.py)."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from tests.adapters import fake_trl
from tests.adapters.fake_trainer import PROMPTS, by_length, by_sum, make_trainer, never, some
from tests.battery import composed_once, kinds_of_parts
from tests.thorough import cover

from gxpo.adapters import trl as adapter
from gxpo.base.errors import CheckpointError, ConfigError, MissingExtra
from gxpo.methods import METHODS
from gxpo.parts.registry import RATIOS

INSTALLED = importlib.util.find_spec("trl") is not None


def rows_of(batches):
    """(prompt, completion, own mask, row) of every row of the micro-batches."""
    for b in batches:
        own_completion_mask = b["completion_mask"] * b.get("tool_mask", torch.ones_like(b["completion_mask"]))
        for i in range(len(own_completion_mask)):
            prompt = b["prompt_ids"][i][b["prompt_mask"][i].bool()].tolist()
            length = int(b["completion_mask"][i].sum())
            yield (
                prompt,
                b["completion_ids"][i, :length].tolist(),
                own_completion_mask[i, :length].tolist(),
                int(b[adapter.ROW][i]),
            )


def dapo_by_hand(table, batches, reward, old=None):
    """(loss, gradient) of TRL's default objective, row by row; rows without a reward are not there."""
    table = table.detach().clone().requires_grad_()
    rows = sorted(rows_of(batches), key=lambda row: row[3])
    rewards = [reward([], [ids])[0] for _, ids, _, _ in rows]
    total, count = 0.0, 0
    for i, (prompt, ids, own_value, _) in enumerate(rows):
        if rewards[i] is None:
            continue
        group = [r for r in rewards[i // 4 * 4 : i // 4 * 4 + 4] if r is not None]
        mean = sum(group) / len(group)
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / max(len(group) - 1, 1))
        advantage = (rewards[i] - mean) / (std + 1e-4) if std > 1e-12 else 0.0
        full_prompts = [*prompt, *ids]
        for t, (token, counts) in enumerate(zip(ids, own_value, strict=True)):
            if counts:
                before = full_prompts[len(prompt) + t - 1]
                logprob = table[before].log_softmax(-1)[token]
                below = logprob.detach() if old is None else old[before].log_softmax(-1)[token]
                ratio = (logprob - below).exp()
                total = total - torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                count += 1
    loss = total / count
    loss.backward()
    return float(loss.detach()), table.grad


@pytest.mark.parametrize("micro", [16, 8, 4])
@pytest.mark.parametrize("tools", [False, True])
def test_three_steps_are_those_of_trl_written_as_a_loop(micro, tools):
    trainer = make_trainer(micro=micro, tools=tools)
    for _ in range(3):
        before = trainer.model.table.detach().clone()
        loss, gradient, batches = trainer.optimiser_step(PROMPTS)
        expected, slope = dapo_by_hand(before, batches, by_sum)
        assert loss == pytest.approx(expected, abs=1e-6)
        assert (gradient - slope).norm() < 1e-10 * slope.norm() and slope.norm() > 0.01


def test_a_second_pass_is_clipped_against_the_first_policy():
    trainer = make_trainer(num_iterations=2)
    first = trainer.model.table.detach().clone()
    trainer.optimiser_step(PROMPTS, lr=3.0)
    before = trainer.model.table.detach().clone()
    loss, gradient, batches = trainer.optimiser_step(PROMPTS, lr=3.0)
    expected, slope = dapo_by_hand(before, batches, by_sum, old=first)
    unclipped = dapo_by_hand(before, batches, by_sum)[0]
    assert loss == pytest.approx(expected, abs=1e-6) and abs(expected - unclipped) > 1e-3
    assert (gradient - slope).norm() < 1e-9 * slope.norm()


@pytest.mark.parametrize(
    ("spec", "couples"),
    [("grpo", "token"), ("grpo+gspo", "trajectory"), ("dr_grpo", "token"), ("gvpo", "group"), ("disco", "step")],
)
def test_any_micro_batches_give_the_same_gradient(spec, couples):
    actual = []
    for micro in (16, 8, 4, 2):
        trainer = make_trainer(spec, micro=micro, success_at=0.7)
        loss, gradient, _ = trainer.optimiser_step(PROMPTS)
        actual.append((loss, gradient))
    assert couples in ("token", "trajectory") or trainer.gxpo_method.couples in ("group", "step")
    assert actual[0][1].norm() > 1e-6
    for loss, gradient in actual[1:]:
        assert loss == pytest.approx(actual[0][0], abs=1e-6)
        assert (gradient - actual[0][1]).norm() < 1e-10 * actual[0][1].norm()


OBJECTIVES = sorted({d.name for d in METHODS.values() if any(k.split(".")[0] == "objective" for k in d.keys)})


def terms_of(name):
    """What decides how a term is cut into micro-batches."""
    m = composed_once(name)
    yield "together", m.outputs, m.couples, m.credit_targets, tuple(sorted(type(t).__name__ for t in m.terms.values()))
    yield from (kind for kind in kinds_of_parts(name) if kind[0] == "terms")


def coupling_of(name):
    """How far a term couples the tokens of a step."""
    yield composed_once(name).couples


@pytest.mark.parametrize("name", cover(OBJECTIVES, terms_of, coupling_of))
def test_objectives_are_the_same_in_any_micro_batches(name):
    """On the second pass over the rollouts, after a step that is felt."""
    actual = []
    for micro in (16, 4):
        try:
            trainer = make_trainer(overrides={"objective": name}, success_at=0.7, micro=micro, num_iterations=2)
        except ConfigError as error:
            assert any(word in str(error) for word in ("objective", "signal", "beta=")), error
            actual.append(str(error))
            continue
        trainer.optimiser_step(PROMPTS, lr=0.01)
        loss, gradient, _ = trainer.optimiser_step(PROMPTS, lr=0.01)
        assert math.isfinite(loss) and bool(gradient.isfinite().all())
        actual.append(gradient)
    if isinstance(actual[0], str):
        assert actual[0] == actual[1]
    else:
        assert actual[0].norm() > 1e-6
        assert (actual[1] - actual[0]).norm() < 1e-9 * actual[0].norm()


@pytest.mark.slow
def test_few_objectives_are_refused():
    """What TRL does not have, and nothing else, keeps an objective out."""
    reasons = {}
    for name in OBJECTIVES:
        try:
            make_trainer(overrides={"objective": name}, success_at=0.7)
        except ConfigError as error:
            reasons[name] = str(error)
    assert len(reasons) < len(OBJECTIVES) / 3, reasons


def test_optimiser_steps_of_one_batch_have_rows_of_their_own():
    trainer = make_trainer(micro=4, gradient_accumulation_steps=2, steps_per_generation=4)
    for _ in range(2):
        _, _, batches = trainer.optimiser_step(PROMPTS, lr=0.0)
        window = trainer._window[1]
        assert sorted(window.rows.tolist()) == sorted(row for *_, row in rows_of(batches))
        assert window.batch.forest.n_trajectories == 8
    credit = trainer._batch_by_mode["train"].credit
    assert credit.numel() == trainer._batch_by_mode["train"].forest.n_entries > window.batch.credit.numel()


def test_rows_know_their_group_after_the_shuffle():
    trainer = make_trainer(micro=4)
    _, _, batches = trainer.optimiser_step(PROMPTS)
    forest = trainer._batch_by_mode["train"].forest
    rows = list(rows_of(batches))
    assert [row for *_, row in rows] != sorted(row for *_, row in rows)
    for prompt, ids, _, row in rows:
        assert prompt == PROMPTS[int(forest.group[row])]
        assert forest.action(row) == ids
    names = {forest.group[r]: forest.task[r] for r in range(16)}
    assert len(set(names.values())) == 4, "a task is a prompt"


def test_a_rollout_without_any_reward_counts_nowhere():
    trainer = make_trainer(reward=some)
    before = trainer.model.table.detach().clone()
    loss, gradient, batches = trainer.optimiser_step(PROMPTS)
    scored = trainer._batch_by_mode["train"]
    assert 0 < int((~scored.forest.scored).sum()) < 16
    assert not scored.credit[scored.forest.entries_of(~scored.forest.scored)].any()
    expected, slope = dapo_by_hand(before, batches, some)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert (gradient - slope).norm() < 1e-10 * slope.norm()


def test_tokens_of_tools_have_neither_credit_nor_gradient():
    trainer = make_trainer(tools=True)
    _, _, (batch,) = trainer.optimiser_step(PROMPTS)
    assert not batch["advantages"][:, 1].any() and batch["advantages"][:, 0].any()
    own_completion_mask = batch["completion_mask"] * batch["tool_mask"]
    assert trainer._batch_by_mode["train"].forest.n_entries == int(own_completion_mask.sum())


def test_all_wrong_groups_move_the_policy_under_ngrpo_only():
    assert not make_trainer("grpo@trl", never).optimiser_step(PROMPTS)[1].any()
    loss, gradient, batches = make_trainer("ngrpo", never).optimiser_step(PROMPTS)
    assert gradient.norm() > 0.01
    # four equal rewards and a virtual 1: mean 1/5, std sqrt(1/5), so A = -1 / sqrt(5) for each token
    own_completion_mask = batches[0]["completion_mask"].bool()
    assert batches[0]["advantages"][own_completion_mask] == pytest.approx(-1 / math.sqrt(5), abs=1e-5)
    assert loss == pytest.approx(1 / math.sqrt(5), abs=1e-5)


def test_named_rewards_are_components_of_the_outcome():
    trainer = make_trainer("grpo@trl", [by_sum, by_length], reward_weights=[1.0, 0.5])
    trainer.optimiser_step(PROMPTS)
    forest = trainer._batch_by_mode["train"].forest
    assert forest.component_names == ("by_sum", "by_length")
    expected = [sum(forest.action(r)) % 5 / 4 + 0.5 * len(forest.action(r)) / 5 for r in range(16)]
    assert forest.outcome.tolist() == pytest.approx(expected, abs=1e-6)


def test_unended_completions_are_cut_and_thresholds_are_verdicts():
    trainer = make_trainer(success_at=0.75)
    trainer.optimiser_step(PROMPTS)
    forest = trainer._batch_by_mode["train"].forest
    for r in range(16):
        assert bool(forest.truncated[r]) == (forest.action(r)[-1] != fake_trl.EOS)
        assert float(forest.success[r]) == float(float(forest.outcome[r]) >= 0.75)


def test_evaluation_leaves_the_training_batch_as_it_is():
    trainer = make_trainer("ngrpo")
    trainer.optimiser_step(PROMPTS)
    training_batch = trainer._batch_by_mode["train"]
    trainer.model.eval()
    batch = trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS for _ in range(4)])
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, batch)
    assert math.isfinite(float(loss)) and trainer._batch_by_mode["train"] is training_batch
    assert trainer._metrics["eval"]["entropy"] and trainer._metrics["eval"]["gxpo/clip_fraction"] == [0.0]


def test_state_is_saved_with_the_checkpoint(tmp_path):
    straight = make_trainer("v05", out=tmp_path)
    for _ in range(2):
        straight.optimiser_step(PROMPTS)
    straight._save_checkpoint(None, None)
    resumed = make_trainer("v05", out=tmp_path)
    resumed.model.load_state_dict(straight.model.state_dict())
    for name in ("draw", "shuffle"):
        getattr(resumed, name).set_state(getattr(straight, name).get_state())
    resumed.state.global_step, resumed._step = 2, 2
    resumed._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-2"))
    fresh = make_trainer("v05", out=tmp_path)
    fresh.model.load_state_dict(straight.model.state_dict())
    for name in ("draw", "shuffle"):
        getattr(fresh, name).set_state(getattr(straight, name).get_state())
    a, b, c = (each.optimiser_step(PROMPTS)[1] for each in (straight, resumed, fresh))
    assert torch.equal(a, b) and not torch.equal(a, c)
    with pytest.raises(CheckpointError, match=r"signal\.task_mean"):
        resumed._load_optimizer_and_scheduler(str(tmp_path))


def test_the_log_has_the_loss_without_the_entropy_bonus():
    for settings, factor in (({}, 1), ({"loss_type": "grpo"}, 4)):  # a mean over tokens is summed, one of rows averaged
        plain, trainer = make_trainer(micro=4, **settings), make_trainer(micro=4, entropy_coef=0.1, **settings)
        for one in (plain, trainer):
            one.optimiser_step(PROMPTS)
        logged = trainer._metrics["train"]
        parts = [x / factor for x in logged["policy_loss"]]
        assert len(parts) == 4 and logged["entropy_coef"] == [0.1]
        assert sum(parts) == pytest.approx(make_trainer(micro=4, **settings).optimiser_step(PROMPTS)[0], abs=1e-6)
        assert "policy_loss" not in plain._metrics["train"] and "entropy_coef" not in plain._metrics["train"]


def test_dapo_and_lead_run_on_trls_rollouts_and_threshold():
    overlong = make_trainer("dapo", overrides={"rollout": "independent"}).gxpo_method.rewards["overlong"]
    assert overlong.max_length == 5
    assert make_trainer("grpo_lead", success_at=1.0).optimiser_step(PROMPTS)[1].any()


def test_the_log_has_trls_names_and_groups_without_signal():
    trainer = make_trainer("ngrpo", never)  # every group is all wrong, and ngrpo learns from it
    trainer.optimiser_step(PROMPTS)
    assert trainer._metrics["train"]["gxpo/zero_signal_groups"] == [0.0]
    trainer = make_trainer("grpo@trl", never)
    trainer.optimiser_step(PROMPTS)
    assert trainer._metrics["train"]["gxpo/zero_signal_groups"] == [1.0]
    moved = make_trainer("grpo@trl", micro=8, num_iterations=2)
    for _ in range(2):
        moved.optimiser_step(PROMPTS, lr=30.0)
    logged = moved._metrics["train"]
    low, high, both = (logged[f"clip_ratio/{name}_mean"][-1] for name in ("low", "high", "region"))
    assert low > 0 and high > 0 and both == pytest.approx(low + high) == pytest.approx(logged["gxpo/clip_fraction"][-1])
    assert 0 <= logged["clip_ratio/low_min"][-1] < low and high < logged["clip_ratio/high_max"][-1] <= 1
    assert logged["clip_ratio/low_mean"][0] == 0


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    trainer = make_trainer("rloo", out=tmp_path, overrides={"objective.clip_high": 0.3})
    trainer.optimiser_step(PROMPTS)
    trainer._save_checkpoint(None, None)
    folder = str(tmp_path / "checkpoint-1")
    make_trainer("rloo", out=tmp_path, epsilon_high=0.3)._load_optimizer_and_scheduler(folder)
    with pytest.raises(
        CheckpointError,
        match=r"method rloo, .*has ngrpo .*credit=default there and pseudo_rollouts here.*start another",
    ):
        make_trainer("ngrpo", overrides={"objective.clip_high": 0.3})._load_optimizer_and_scheduler(folder)
    with pytest.raises(CheckpointError, match=r"objective\.clip_high=0\.3 there and default here"):
        make_trainer("rloo")._load_optimizer_and_scheduler(folder)
    make_trainer("ngrpo")._load_optimizer_and_scheduler(str(tmp_path))  # of TRL without gxpo: a start like any other


def test_the_model_card_names_the_method(tmp_path):
    trainer = make_trainer("rloo", output_dir=str(tmp_path))
    trainer.create_model_card()
    assert "`rloo`" in (text := (tmp_path / "README.md").read_text()) and "`credit.center`: leave_one_out" in text
    assert text.startswith("# a card")


def test_compositions_and_overrides_are_those_of_gxpo_method():
    trainer = make_trainer("ngrpo+gspo", overrides={"objective": "gspo"})
    assert trainer.gxpo_method.terms["policy"].ratio == RATIOS["sequence"]()
    assert trainer.optimiser_step(PROMPTS)[1].any()
    assert make_trainer(overrides={"rollout": "independent"}).gxpo_method.name == "grpo@trl"
    for key, value in (("objectiv", "gspo"), ("weights", "tis"), ("credit.scal", "dr_grpo"), ("objectiv", {})):
        with pytest.raises(ConfigError, match=f"unknown key '{key}'; did you mean"):
            make_trainer("rloo", overrides={key: value})


def test_a_reference_pulls_with_the_coefficient_of_the_method(monkeypatch):
    base = fake_trl.GRPOTrainer._generate_and_score_completions

    def with_reference(self, inputs):
        out = base(self, inputs)
        reference = torch.full(out["completion_ids"].shape, -2.0, dtype=torch.float64)
        return {**out, "ref_per_token_logps": reference}

    monkeypatch.setattr(fake_trl.GRPOTrainer, "_generate_and_score_completions", with_reference)
    pulled = make_trainer("grpo@trl", never, overrides={"objective.kl.coef": 0.5}, beta=0.5)
    before = pulled.model.table.detach().clone().requires_grad_()
    loss, gradient, batches = pulled.optimiser_step(PROMPTS)
    total, count = 0.0, 0
    for prompt, ids, _, _ in rows_of(batches):
        full_prompts = [*prompt, *ids]
        for t in range(len(ids)):
            d = -2.0 - before[full_prompts[len(prompt) + t - 1]].log_softmax(-1)[ids[t]]
            total, count = total + d.exp() - 1 - d, count + 1
    expected = 0.5 * total / count
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-6)
    assert (gradient - before.grad).norm() < 1e-10 * before.grad.norm()


def test_the_module_needs_no_trl_until_its_trainer_is_asked_for():
    if INSTALLED:
        assert adapter.GRPOTrainer.__mro__[1] is adapter.WithMethod
    else:
        with pytest.raises(MissingExtra, match=r"gxpo\[trl\]"):
            _ = adapter.GRPOTrainer
    with pytest.raises(AttributeError):
        _ = adapter.nothing


if INSTALLED:

    @pytest.fixture(scope="module")
    def check():
        path = Path(__file__).parents[2] / "scripts" / "checks" / "check_trl.py"
        spec = importlib.util.spec_from_file_location("check_trl", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @pytest.mark.parametrize("case", ["default", "accumulated", "twice"])
    def test_the_installed_trl_takes_the_same_three_steps(check, case, tmp_path):
        rows = check.against_trl(case, check.save_model(tmp_path))
        assert len(rows) >= 3
        assert all(max(row["loss"], row["gradient"]) < 1e-5 for row in rows), rows

"""Methods in TRL that read more than rewards and log-probs take the steps of gxpo's own trainer."""

import pytest
import torch
from tests.adapters.llama_trl import Trainer, batch_of_our_trainer, names_of, prompts, small, trainer

from gxpo.adapters import asks, available, trl_settings
from gxpo.base.errors import ConfigError
from gxpo.methods import METHODS


def borrowed(name):
    """What it asks of the trainer beside rewards and log-probs."""
    composed, given_value = available.needs_in_trl(name)
    if available.why_not_in_trl(composed, given_value):
        return set()
    return asks.services_used(
        composed, "success_at" in given_value.arguments, ("by_sum", *given_value.rewards), trl_settings.LENDS
    )


READS_MORE = [
    "aspo", "bupo", "capo_curvature", "capo_genprm", "copo", "dra_grpo", "grpo_s", "grpo_vps", "hi_grpo", "hicra",
    "hrm", "igpo", "lc_r1", "mnpo", "oprl", "papo", "poise", "progrpo", "prorag", "rover", "sdpo_self", "seed_grpo",
    "spae", "srpo_routing", "tw_grpo", "verl_rank", "vppo", "vsrm",
]  # fmt: skip


@pytest.mark.thorough
def test_methods_that_borrow_services_are_those_listed():
    grow_rollouts = {"pav", "var_grpo", "vineppo"}  # beyond what the stand-in samples: test_trl_growth.py
    need_items = {"rank_grpo"}  # answers that are lists: in others nothing is compared, and the gradient is 0
    others = grow_rollouts | need_items
    assert [name for name in METHODS if name not in others and borrowed(name)] == READS_MORE


@pytest.mark.parametrize("micro", [pytest.param(16, marks=pytest.mark.thorough), 8])
@pytest.mark.parametrize("name", READS_MORE)
def test_a_step_is_that_of_gxpos_own_trainer(name, micro):
    built_trainer = trainer(name, micro=micro)
    loss, gradient, _ = built_trainer.optimiser_step(prompts())
    batch, learner = batch_of_our_trainer(built_trainer)
    constants = {n: batch.signals[n] for term in batch.method.terms.values() for n in getattr(term, "constants", ())}
    reads = {"names": names_of(batch.method), "constants": constants or None}
    slope = learner.gradient(batch.forest, batch.loss, couples=batch.method.couples, **reads)
    slope = torch.cat([slope[n].flatten() for n, _ in small().named_parameters()])
    scored = built_trainer._batch_by_mode["train"]
    assert (scored.credit - batch.credit).abs().max() < 1e-9
    assert (scored.weight - batch.weight).abs().max() < 1e-9
    assert loss == pytest.approx(float(batch.loss(learner.outputs(batch.forest, **reads))), rel=1e-6, abs=1e-6)
    assert slope.norm() > 1e-7 and (gradient - slope).norm() < 1e-6 * slope.norm()


FOLLOWS = [("epo", {}), ("r2vpo", {}), ("grpo_d", {}), ("trpa", {}), ("grpo", {"objective.kl.coef": 0.1,
           "objective.kl.control": "adaptive_kl"}), ("grpo", {"objective.entropy.coef": 0.01,
           "objective.entropy.control": "entropy_target"})]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides"), FOLLOWS)
def test_controlled_coefficients_are_those_of_gxpos_trainer(name, overrides):
    """Three steps; the figures of each are those of the whole step, as gxpo's trainer takes them."""
    settings = {"max_steps": 3, **({"beta": 0.1} if "objective.kl.coef" in overrides else {})}
    built_trainer = trainer(name, micro=8, overrides=overrides, **settings)
    own_fill = built_trainer.gxpo_method.fill()
    start = own_fill.state_dict()
    for k in range(1, 4):
        policy = small()
        policy.load_state_dict(built_trainer.model.state_dict())
        built_trainer.optimiser_step(prompts(), lr=0.5)
        batch, learner = batch_of_our_trainer(built_trainer, own_fill, policy)
        x = learner.outputs(batch.forest, names_of(own_fill))
        x = {n: torch.where(batch.active, v, torch.nan) for n, v in x.items()}  # others do not go through the model
        figures = {**batch.figures(x), "trajectories": 16, "step": k}
        if bool(batch.forest.success.isfinite().any()):
            figures["success_rate"] = float(batch.forest.success.mean())
        messages = own_fill.adjust(figures)
        assert messages and {n: built_trainer._metrics["train"][f"gxpo/{n}"][-1] for n in messages} == pytest.approx(
            messages, abs=1e-6
        )
    assert own_fill.state_dict() != start and built_trainer.gxpo_method.state_dict() != start


def test_a_resumed_run_keeps_its_coefficient(tmp_path):
    built_trainer = trainer("epo", out=tmp_path, max_steps=9)
    built_trainer.optimiser_step(prompts())
    built_trainer._save_checkpoint(None, None)
    resumed = trainer("epo", out=tmp_path, max_steps=9)
    before = resumed.gxpo_method.state_dict()
    resumed._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-1"))
    assert resumed.gxpo_method.state_dict() == built_trainer.gxpo_method.state_dict() != before


def test_a_dataset_without_answers_is_refused():
    built_trainer = trainer("igpo", answers="solution")
    with pytest.raises(ConfigError, match="no column 'solution'; say answers="):
        built_trainer.optimiser_step(prompts())


class Spread(Trainer):
    is_fsdp_enabled = True


def test_weights_that_are_spread_over_processes_are_refused():
    with pytest.raises(ConfigError, match="dra_grpo in TRL works with the model itself"):
        trainer("dra_grpo", kind=Spread)
    assert trainer("rloo", kind=Spread).gxpo_method.name == "rloo"

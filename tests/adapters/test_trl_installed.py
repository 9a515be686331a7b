"""Against TRL itself, where it is installed: what the list says, methods that read the model, images."""

import copy

import pytest
import torch

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

import transformers  # noqa: E402
from tests.adapters.llama_trl import SMALL, TOKENIZER, batch_of_our_trainer, named, names_of  # noqa: E402

from gxpo.adapters import available  # noqa: E402
from gxpo.adapters.trl import ROW, GRPOTrainer  # noqa: E402
from gxpo.adapters.trl_rollouts import task_name  # noqa: E402
from gxpo.base.errors import ConfigError  # noqa: E402
from gxpo.methods import METHODS  # noqa: E402
from gxpo.models.tiny import tiny_model  # noqa: E402

PROMPTS = ["12+3=", "4+5=", "77+1=", "9-2="] * 4
ROWS = {row.name: row for row in available.available("trl")}
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def by_sum(completion_ids, **columns):
    return [sum(ids) % 5 / 4 for ids in completion_ids]


def config(folder, **settings):
    usual = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "seed": 3,
        "num_generations": 4, "max_completion_length": 6, "max_steps": 2, "learning_rate": 0.1, "optim": "sgd",
        "lr_scheduler_type": "constant", "weight_decay": 0.0, "save_strategy": "no", "report_to": "none",
        "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "max_grad_norm": 0.0,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return trl.GRPOConfig(**{**usual, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model on disk, where TRL loads a reference from."""
    path = tmp_path_factory.mktemp("model")
    tiny_model(seed=1, num_key_value_heads=1, **SMALL).save_pretrained(path)
    return path


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def made(name, folder, model=None, *, without="", kind=GRPOTrainer, **settings):
    """gxpo's trainer over TRL's, with all that the list says the method must be given."""
    _, given_value = available.needs_in_trl(name)
    expected = {k: v for k, v in given_value.settings.items() if k != without}
    if "steps_per_generation" in expected:
        expected["steps_per_generation"] *= 2  # in gradient_accumulation_steps
    rewards = [by_sum, *(named(n) for n in given_value.rewards if n != without)]
    args = config(folder / "out", **{**expected, **settings})
    args.reward_weights = [1.0] + [0.0] * (len(rewards) - 1)
    return kind(
        model or loaded(folder),
        [rewards[0], *(_of_columns(f) for f in rewards[1:])],
        args,
        datasets.Dataset.from_list([{"prompt": p, "answer": str(i % 4)} for i, p in enumerate(PROMPTS)]),
        processing_class=TOKENIZER,
        method=name,
        overrides={f"{k}.score": available.JUDGE for k in given_value.overrides},
        **{k: v for k, v in given_value.arguments.items() if k != without},
    )


def _of_columns(reward):
    def called(completion_ids, **columns):
        return reward(None, completion_ids)

    called.__name__ = reward.__name__
    return called


def test_the_list_is_what_can_be_made(folder):
    model = loaded(folder)
    for name in METHODS:
        if ROWS[name].works:
            assert made(name, folder, model).gxpo_method.name == name
        else:
            with pytest.raises(ConfigError) as refused:
                made(name, folder, model)
            assert ROWS[name].reason in str(refused.value)


class Watched(GRPOTrainer):
    """Notes loss, gradient and rollouts of the first optimiser step."""

    first = None

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        self.total = getattr(self, "total", 0.0) + float(loss)
        if self._step % 2 == 0 and self.first is None:
            parameters = dict(self.model.named_parameters())
            gradient = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
            self.first = self.total, gradient, self._batch_by_mode["train"]
        return loss


@pytest.mark.parametrize("name", ["poise", "papo", "rover", "bupo", "sdpo_self", "igpo", "hicra", "oprl", "epo"])
def test_a_step_in_trl_is_that_of_gxpos_own_trainer(name, folder):
    trainer = made(name, folder, kind=Watched, temperature=0.8, max_steps=2)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    assert trainer.state.global_step == 2
    loss, gradient, scored = trainer.first
    trainer._batch_by_mode["train"] = scored
    trainer._services._prompts = {task_name(p): p for p in PROMPTS}  # those of the first step too
    batch, learner = batch_of_our_trainer(trainer, policy=loaded(folder))
    constants = {n: batch.signals[n] for term in batch.method.terms.values() for n in getattr(term, "constants", ())}
    reads = {"names": names_of(batch.method), "constants": constants or None}
    slope = learner.gradient(batch.forest, batch.loss, couples=batch.method.couples, **reads)
    assert (scored.credit - batch.credit).abs().max() < 1e-4
    assert loss == pytest.approx(float(batch.loss(learner.outputs(batch.forest, **reads))), abs=1e-4)
    own_value, theirs = (
        torch.cat([x.get(n, torch.zeros_like(slope[n])).flatten() for n in sorted(slope)]) for x in (slope, gradient)
    )
    assert own_value.norm() > 1e-4 and (own_value - theirs).norm() < 2e-4 * own_value.norm()


# ---------------------------------------------------------------- images
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}="
)


@pytest.fixture(scope="module")
def vision():
    """(random Llava, its processor, rows with an image each)."""
    np, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    mark = tokenizer.convert_tokens_to_ids("<image>")
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(
            size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
        ),
        tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default", chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )  # fmt: skip
    common = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**common, image_size=16, patch_size=8, projection_dim=16),
            text_config=transformers.LlamaConfig(
                **common,
                num_key_value_heads=1,
                vocab_size=len(tokenizer),
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            ),
            image_token_id=mark,
            image_token_index=mark,
            vision_feature_layer=-1,
            image_seq_length=4,
        )
    ).float()
    pixels = (np.random.RandomState(0).rand(4, 16, 16, 3) * 255).astype("uint8")
    rows = datasets.Dataset.from_list([
        {"prompt": [{"role": "user", "content": f"{i}+1"}], "image": image.fromarray(pixels[i % 4])} for i in range(8)
    ])  # fmt: skip
    return model, processor, rows.cast_column("image", datasets.Image())


def steps_with_images(base, vision, folder, **given):
    """(losses and batches of the micro-batches, trainer) of two steps."""
    losses, batches = [], []

    class Seen(base):
        def _compute_loss(self, model, inputs):
            batches.append(dict(inputs))
            loss = super()._compute_loss(model, inputs)
            losses.append(float(loss.detach()))
            return loss

    model, processor, rows = vision
    args = config(folder, per_device_train_batch_size=4, learning_rate=0.01)
    trainer = Seen(copy.deepcopy(model), by_sum, args, rows, processing_class=processor, **given)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return losses, batches, trainer


def test_images_pass_through_untouched(vision, tmp_path):
    """Two steps: batches hold what TRL's own hold, the pixels are its own, and the default's losses are TRL's."""
    theirs, seen_value, _ = steps_with_images(trl.GRPOTrainer, vision, tmp_path)
    own_value, same, _ = steps_with_images(GRPOTrainer, vision, tmp_path)
    assert own_value == pytest.approx(theirs, abs=1e-6) and max(map(abs, theirs)) > 0.01
    for a, b in zip(seen_value, same, strict=True):
        assert set(b) == {*a, ROW}
        for name in ("pixel_values", "prompt_ids", "completion_ids"):
            assert torch.equal(a[name], b[name])
        assert a["num_images"] == b["num_images"]


def test_a_method_trains_a_model_that_sees_images(vision, tmp_path):
    losses, _, trainer = steps_with_images(GRPOTrainer, vision, tmp_path, method="dr_grpo")
    assert trainer.state.global_step == 2 and len(losses) == 4 and any(losses)
    before = dict(vision[0].named_parameters())
    moved = [n for n, p in trainer.model.named_parameters() if not torch.equal(p.detach(), before[n].detach())]
    assert any("vision_tower" in n for n in moved) and any("language_model" in n for n in moved)


def test_hidden_patches_weaken_what_the_policy_says_of_a_picture(vision, tmp_path):
    losses, _, trainer = steps_with_images(GRPOTrainer, vision, tmp_path, method="papo")
    signals = trainer._batch_by_mode["train"].signals
    assert trainer.state.global_step == 2 and len(losses) == 4 and any(losses)
    assert (signals["masked_logprob"] - signals["proximal_logprob"]).abs().max() > 1e-4
    assert all(entry["gxpo/masked_kl"] > 0 for entry in trainer.state.log_history if "gxpo/masked_kl" in entry)


def test_hidden_states_are_refused_with_images(vision, tmp_path):
    with pytest.raises(ConfigError, match="dra_grpo in TRL asks for the model's hidden, which is not given where"):
        steps_with_images(GRPOTrainer, vision, tmp_path, method="dra_grpo")


# ---------------------------------------------------------------- what moves, what is stated, what is logged
def adapter_on(folder, tmp_path, **how):
    """The model with a saved adapter of LoRA, loaded again."""
    peft = pytest.importorskip("peft")
    listed_settings = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    peft.get_peft_model(loaded(folder), peft.LoraConfig(r=2, **listed_settings)).save_pretrained(tmp_path / "lora")
    return peft.PeftModel.from_pretrained(loaded(folder), tmp_path / "lora", **how)


def run(model, folder, optimizers=(None, None), **settings):
    rows = datasets.Dataset.from_list([{"prompt": p} for p in PROMPTS])
    trainer = GRPOTrainer(
        model, by_sum, config(folder, **settings), rows, processing_class=TOKENIZER, optimizers=optimizers
    )
    trainer.remove_callback(transformers.PrinterCallback)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    return [n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])]


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_adapter_loaded_for_inference_is_refused(folder, tmp_path, beta):
    """With a beta TRL thaws it at the first reference pass, too late for the optimiser: gradients move nothing."""
    with pytest.raises(ConfigError, match=r"moves 0 of the model's \d+ parameters.*is_trainable=True of PeftModel"):
        run(adapter_on(folder, tmp_path), tmp_path, beta=beta)
    moved = run(adapter_on(folder, tmp_path, is_trainable=True), tmp_path, beta=beta)
    assert moved and all(".default." in name for name in moved)


def test_an_optimiser_of_another_model_is_refused(folder, tmp_path):
    model, other = loaded(folder), loaded(folder)
    with pytest.raises(ConfigError, match="it holds those of another model"):
        run(model, tmp_path, (torch.optim.SGD(other.parameters(), 0.1), None))


def test_a_default_given_to_trls_configuration_is_stated(folder, tmp_path):
    for kind in (trl.GRPOConfig, type("Mine", (trl.GRPOConfig,), {})):
        rows = datasets.Dataset.from_list([{"prompt": p} for p in PROMPTS])
        usual = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"}
        given_settings = {"processing_class": TOKENIZER, "method": "dr_grpo"}
        GRPOTrainer(loaded(folder), by_sum, kind(**usual), rows, **given_settings)
        with pytest.raises(ConfigError, match=r"scale_rewards='group' is credit\.scale=std here"):
            GRPOTrainer(loaded(folder), by_sum, kind(**usual, scale_rewards="group"), rows, **given_settings)


LOGGED = {
    "dapo": {"clip_ratio/low_min", "clip_ratio/high_max"}, "grpo": {"clip_ratio/low_min"}, "sapo": set(),
    "bnpo": {"clip_ratio/high_max"}, "dr_grpo": {"clip_ratio/low_min"}, "luspo": {"clip_ratio/low_min"},
    "cispo": {"cispo_clip_ratio"}, "vespo": {"vespo/phi_seq_mean"},
}  # fmt: skip


@pytest.mark.parametrize("loss", LOGGED)
def test_the_log_is_trls_for_every_loss(folder, tmp_path, loss):
    """The second step is off policy; every name that TRL logs, and its value."""

    def eighths(completion_ids, **columns):
        return [sum(ids) % 8 / 8 for ids in completion_ids]

    logs = []
    for kind in (trl.GRPOTrainer, GRPOTrainer):
        settings = {"loss_type": loss, "num_iterations": 2, "gradient_accumulation_steps": 1, "logging_steps": 1,
                    "per_device_train_batch_size": 16, "beta": 0.05, "entropy_coef": 0.01}  # fmt: skip
        rows = datasets.Dataset.from_list([{"prompt": p} for p in PROMPTS])
        args = config(tmp_path, **settings)
        trainer = kind(loaded(folder), eighths, args, rows, processing_class=TOKENIZER)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        logs.append([row for row in trainer.state.log_history if "loss" in row])
    theirs, own_value = logs
    assert len(theirs) == 2 and {*LOGGED[loss], "kl", "policy_loss", "entropy_coef"} <= set(theirs[1])
    for row, actual in zip(theirs, own_value, strict=True):
        assert not set(row) - set(actual)
        clock = ("step_time", "grad_norm", "loss", "learning_rate", "epoch")
        wrong = {
            n: (x, actual[n]) for n, x in row.items() if n not in clock and actual[n] != pytest.approx(x, abs=1e-6)
        }
        assert not wrong

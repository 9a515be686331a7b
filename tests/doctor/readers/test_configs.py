"""Configurations beside a run and in its console: TRL, verl, wandb, command lines, printed arguments."""

import json

from gxpo.doctor import read


def one(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


ROW = {"step": 1, "reward": 0.5, "reward_std": 0.5, "frac_reward_zero_std": 1.0}


def test_configuration_of_trl(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"log_history": [ROW], "max_steps": 50}))
    (tmp_path / "grpo.yaml").write_text(
        "model_name_or_path: m\nlearning_rate: 1.0e-6\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nmax_steps: 50\n"
        "num_generations: 4\nscale_rewards: batch\nmask_truncated_completions: true\nreward_weights: [1.0, 0.5]\n"
        "max_completion_length: 512\nuse_peft: true\ndtype: bfloat16\nbf16: true\n"
    )
    (tmp_path / "config.json").write_text('{"architectures": ["Q"], "model_type": "qwen2", "temperature": 0.1}')
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02never opened")
    log = read(tmp_path)
    assert log.config == {
        "lr": 1e-6,
        "schedule": "cosine",
        "warmup_steps": 5,
        "max_steps": 50,
        "group_size": 4,
        "scale": "batch",
        "mask_truncated": True,
        "reward_weights": [1.0, 0.5],
        "max_tokens": 512,
        "lora": True,
        "dtype": "bfloat16",
    }
    assert "zero_signal" not in log
    assert log.raw["frac_reward_zero_std"].values.tolist() == [1.0]
    assert log.read == ["grpo.yaml", "state.json"]
    assert log.notes == [
        "not opened, as unpickling could run code: training_args.bin",
        "frac_reward_zero_std is of the whole batch with this scaling, not of groups: not used",
    ]


def test_configuration_as_wandb_keeps_it(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"log_history": [ROW]}))
    text = "_wandb:\n  value: {cli_version: 0.20.0}\nlearning_rate:\n  value: 1e-05\nnum_generations:\n  desc: null\n"
    (tmp_path / "wandb.yaml").write_text(text + "  value: 8\n")
    assert read(tmp_path).config == {"lr": 1e-5, "group_size": 8}


def test_configuration_of_verl(tmp_path):
    (tmp_path / "run.jsonl").write_text(json.dumps({"step": 1, "data": {"critic/score/mean": 0.5}}) + "\n")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "actor_rollout_ref:\n  actor:\n    optim: {lr: 1.0e-06, lr_warmup_steps: -1,"
        " lr_warmup_steps_ratio: 0.1}\n"
        "    use_kl_loss: true\n    kl_loss_coef: 0.001\n    ppo_epochs: 1\n    fsdp_config: {model_dtype: fp32}\n"
        "  rollout: {n: 5, temperature: 1.0, top_k: -1, response_length: '${oc.select:data.max_response_length,512}',"
        " val_kwargs: {temperature: 0, n: 1}}\n  model: {lora_rank: 0}\n"
        "algorithm: {adv_estimator: grpo, norm_adv_by_std_in_grpo: true}\n"
        "data: {max_response_length: 1024}\ntrainer: {total_training_steps: 100}\n"
    )
    for path in (tmp_path, tmp_path / "run.jsonl"):
        assert read(path).config == {
            "lr": 1e-6,
            "warmup_steps": 10,
            "beta": 0.001,
            "epochs": 1,
            "dtype": "float32",
            "group_size": 5,
            "temperature": 1,
            "top_k": -1,
            "max_tokens": 1024,
            "eval_temperature": 0,
            "eval_samples": 1,
            "lora": False,
            "scale": "group",
            "loss_type": "grpo",
            "max_steps": 100,
        }


def test_command_line_and_printed_tree_in_a_console(tmp_path):
    text = (
        "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.optim.lr=1e-6 \\\n"
        "    actor_rollout_ref.rollout.n=8 data.max_response_length=256\n"
        "(TaskRunner pid=1) {'actor_rollout_ref': {'actor': {'ppo_epochs': 2,\n"
        "(TaskRunner pid=1)                                  'entropy_coeff': 0},\n"
        "(TaskRunner pid=1)                        'rollout': {'temperature': 0.7, 'n': 8}}}\n"
        "(TaskRunner pid=1) step:1 - critic/score/mean:0.5 - actor/grad_norm:0.25\n"
    )
    log = one(tmp_path, text, "log")
    assert log.values("reward").tolist() == [0.5]
    assert log.config["lr"] == 1e-6
    assert (log.config["group_size"], log.config["max_tokens"]) == (8, 256)
    assert (log.config["epochs"], log.config["temperature"]) == (2, 0.7)


def test_printed_arguments_of_transformers(tmp_path):
    text = "GRPOConfig(\n_n_gpu=1,\nbeta=0.04,\nlearning_rate=1e-06,\nnum_generations=8,\nbf16=True,\n)\n"
    log = one(tmp_path, text + "{'reward': 0.5, 'reward_std': 0.1}\n", "log")
    assert log.config == {"beta": 0.04, "lr": 1e-6, "group_size": 8}
    assert log.values("reward").tolist() == [0.5]


def test_configuration_of_nemo_rl_as_wandb_keeps_it(tmp_path):
    (tmp_path / "w.csv").write_text("Step,r - train/reward,r - train/gen_kl_error\n1,0.5,0.001\n")
    (tmp_path / "config.yaml").write_text(
        "_wandb: {value: {cli_version: 0.20.0}}\n"
        "grpo: {value: {num_generations_per_prompt: 16, max_num_steps: 500, normalize_rewards: true}}\n"
        "loss_fn: {value: {reference_policy_kl_penalty: 0.01, ratio_clip_max: 0.2}}\n"
        "policy:\n  value:\n    max_total_sequence_length: 512\n"
        "    megatron_cfg: {enabled: true, optimizer: {lr: 5.0e-6}}\n"
        "    optimizer: {kwargs: {lr: 1.0e-6}}\n    generation: {temperature: 1.0, max_new_tokens: 256}\n"
    )
    assert read(tmp_path).config == {
        "lr": 5e-6,  # of the backend that trains
        "group_size": 16,
        "max_steps": 500,
        "max_tokens": 256,
        "temperature": 1,
        "beta": 0.01,
        "clip": 0.2,
        "scale": "group",
    }


def test_a_reference_to_another_setting_is_followed(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"_step": 1, "ppo_actor/task_reward/avg": 0.5, "x": 1}) + "\n")
    (tmp_path / "a.jsonl").write_text((tmp_path / "a.jsonl").read_text() * 2)
    (tmp_path / "config.yaml").write_text(
        "gconfig: {n_samples: 4, max_new_tokens: 1024, temperature: '${sampling.heat}'}\nsampling: {heat: 0.8}\n"
        "actor: {kl_ctl: 0.0, eps_clip: 0.4, path: '${oc.env:HOME}', optimizer: {lr: 1.7e-5, gradient_clipping: 1.0}}\n"
    )
    assert read(tmp_path).config == {
        "lr": 1.7e-5,
        "group_size": 4,
        "max_tokens": 1024,
        "temperature": 0.8,
        "beta": 0.0,
        "clip": 0.4,
        "max_grad_norm": 1,
    }


def test_overrides_and_options_on_command_lines(tmp_path):
    skyrl = (
        "+ uv run -m skyrl.train.entrypoints.main_base trainer.policy.optimizer_config.lr=1e-6 \\\n"
        "  generator.n_samples_per_prompt=5 trainer.algorithm.use_kl_loss=true trainer.algorithm.kl_loss_coef=0.001\n"
        "INFO - Step 1: \n{'reward/avg_raw_reward': '0.2500',\n 'policy/grad_norm': '0.4'}\n"
    )
    assert one(tmp_path, skyrl, "skyrl.log").config == {"lr": 1e-6, "group_size": 5, "beta": 0.001}
    slime = (
        "+ ray job submit -- python3 train.py --rollout-max-response-len 4096 --n-samples-per-prompt 8 --lr 1e-6\n"
        "rollout 0: {'rollout/raw_reward': 0.25, 'rollout/returns': 0.0}\n"
    )
    assert one(tmp_path, slime, "slime.log").config == {"lr": 1e-6, "group_size": 8, "max_tokens": 4096}


def test_arguments_that_ms_swift_saves(tmp_path):
    rows = [{"reward": 0.5, "reward_std": 0.5, "global_step/max_steps": f"{i}/100"} for i in (1, 2)]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {"model_type": "qwen2_5", "num_generations": 8, "max_completion_length": 512, "learning_rate": 1e-6}
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    log = read(tmp_path)
    assert log.config == {"lr": 1e-6, "group_size": 8, "max_tokens": 512} and log.steps("reward").tolist() == [1, 2]

"""Console texts of TRL, unsloth, verl, OpenRLHF and prime-rl, as their programs print them."""

import numpy as np
import pytest

from gxpo.doctor import read

TRL_5 = (
    "Generating train split: 100%|##########| 10/10 [00:00<00:00, 900.00 examples/s]\n"
    "\r  0%|          | 0/6 [00:00<?, ?it/s]\r 50%|#####     | 3/6 [00:00<00:01,  6.65it/s]"
    "\r                                        \r"
    "{'loss': '-1.2e-08', 'grad_norm': '0.25', 'learning_rate': '1e-06', 'rewards/exact/mean': '0.125',"
    " 'rewards/exact/std': '0.3', 'reward': '0.125', 'completions/clipped_ratio': '0', 'epoch': '0.5'}\n"
    "\r 50%|#####     | 3/6 [00:00<00:01,  6.65it/s]/x/y.py:10: UserWarning: odd thing\n"
    "  warnings.warn('odd thing')\n"
    "\r100%|##########| 6/6 [00:01<00:00,  6.61it/s]\r      \r"
    "{'loss': '2e-08', 'grad_norm': 'nan', 'learning_rate': '5e-07', 'rewards/exact/mean': '0.5',"
    " 'rewards/exact/std': '0.5', 'reward': '0.5', 'completions/clipped_ratio': '0.25', 'epoch': '1'}\n"
    "\r100%|##########| 6/6 [00:01<00:00,  6.61it/s]\r      \r"
    "{'eval_loss': '0.1', 'eval_reward': '0.75', 'eval_rewards/exact/mean': '0.75', 'eval_runtime': '1'}\n"
    "\r100%|##########| 6/6 [00:01<00:00,  6.61it/s]\r      \r"
    "{'train_runtime': '1.2', 'train_loss': '0.1', 'epoch': '1'}\n"
)


def one(tmp_path, text, name="log.txt"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


def test_trl_5_with_texts_bars_and_warnings(tmp_path):
    log = one(tmp_path, TRL_5)
    assert log.source == "trl"
    assert log.values("reward").tolist() == [0.125, 0.5]
    assert log.steps("reward").tolist() == [3, 6]
    assert log.values("component/exact").tolist() == [0.125, 0.5]
    assert log.values("truncated").tolist() == [0, 0.25]
    assert log.series["grad_norm"].values[0] == 0.25 and np.isnan(log.series["grad_norm"].values[1])
    assert log.series["eval/reward"].values.tolist() == [0.75]
    assert log.steps("eval/reward").tolist() == [6]
    assert log.messages == ["/x/y.py:10: UserWarning: odd thing"]
    assert log.notes == []


def test_console_pasted_into_markdown_and_wrapped(tmp_path):
    text = (
        "# My run\nIt does not learn, see step 5:\n```bash\n"
        "{'loss': 0.0, 'grad_norm': 0.5, 'learning_rate': 1e-06, 'completion_length': 200.0,\n"
        "'rewards/format_reward': 0.25, \n'reward': 0.25, 'reward_std': 0.1, 'kl': 0.001, 'epoch': 0.1}\n\n"
        "{'loss': 0.0, 'grad_norm': 0.25, 'learning_rate': 1e-06, 'completion_length': 210.0, 'rewards/format_rew\n"
        "ard': 0.5, 'reward': 0.5, 'reward_std': 0.2, 'kl': 0.002, 'epoch': 0.2}\n```\nWhat is wrong?\n"
    )
    log = one(tmp_path, text, "issue.md")
    assert log.source == "trl"
    assert log.values("component/format_reward").tolist() == [0.25, 0.5]
    assert log.key("component/format_reward") == "rewards/format_reward"
    assert log.values("length").tolist() == [200, 210]
    assert log.values("kl").tolist() == [0.001, 0.002]


def test_unsloth_prints_its_evaluation_without_prefixes(tmp_path):
    text = (
        "==((====))==  Unsloth 2026.8: Fast Qwen2 patching.\n"
        "{'loss': 0.0, 'completions/mean_length': 77.5, 'reward': 4.0, 'reward_std': 0.0, 'kl': 0.0, 'epoch': 0.01}\n"
        "{'eval_loss': 3.4e-08, 'eval_runtime': 62.4, 'completions/mean_length': 40.0, 'reward': 2.0, 'epoch': 0.01}\n"
    )
    log = one(tmp_path, text)
    assert log.source == "unsloth"
    assert log.values("length").tolist() == [77.5]
    assert log.values("reward").tolist() == [4]
    assert log.values("eval/reward").tolist() == [2]


def test_verl_console(tmp_path):
    ray = "\x1b[36m(TaskRunner pid=87031)\x1b[0m "
    text = (
        f"{ray}step:0 - val-aux/gsm8k/reward/mean@1:0.565 - val-core/gsm8k/acc/mean@1:0.508\n"
        f"{ray}Training Progress:   0%|          | 1/435 [02:20<16:57:18, 140.64s/it]\n"
        f"{ray}step:1 - actor/entropy:0.323 - actor/kl_loss:0.000 - actor/ppo_kl:-0.001 - actor/lr:0.000"
        " - critic/score/mean:0.558 - critic/advantages/min:-1.789 - training/global_step:1.000\n"
        f"{ray}step:2 - actor/entropy:np.float64(0.25) - actor/lr:1e-06 - critic/score/mean:nan - response_length/me\n"
        "an:330.5 - response_length/clip_ratio:0.004 - prompt_length/mean:99.0\n"
        f"{ray}WARNING 06-17 cache is full\n"
    )
    log = one(tmp_path, text)
    assert log.source == "verl"
    assert log.values("entropy").tolist() == [0.323, 0.25]
    assert log.series["reward"].values[0] == 0.558 and np.isnan(log.series["reward"].values[1])
    assert log.values("approx_kl").tolist() == [-0.001]
    assert log.series["lr"].values.tolist() == [1e-6]
    assert log.series["lr"].steps.tolist() == [2]
    assert log.values("length").tolist() == [330.5]
    assert log.values("truncated").tolist() == [0.004]
    assert log.values("eval/accuracy").tolist() == [0.508]
    assert log.values("eval/reward").tolist() == [0.565]
    assert log.messages == ["WARNING 06-17 cache is full"]
    assert log.notes == ["log.txt: learning rates that were printed as 0.000 are unknown and were left out"]


def test_openrlhf_console(tmp_path):
    text = (
        "INFO 08-13 10:00:00 ppo_trainer.py:547] ✨ Global step 1: {'policy_loss': -0.01, 'actor_lr': 5e-07,"
        " 'actor_grad_norm': 0.5, 'ppo_kl': 0.001, 'ppo_clip_ratio': 0.02, 'kl': 0.0, 'vllm_kl': 0.003,"
        " 'reward': 0.31, 'response_length': 410.0, 'rollout/reward_mean': 0.25, 'rollout/truncated_rate': 0.125}\n"
        "INFO 08-13 10:09:00 ppo_trainer.py:594] ✨ Evaluation completed in 0:00:10, global_step 1, eval_metrics:"
        " {'eval_math_pass4': 0.5, 'eval_math_pass1': 0.25, 'eval_aime_pass1': 0.75, 'eval_num_samples': 80.0}\n"
        "INFO 08-13 10:10:00 ppo_trainer.py:547] ✨ Global step 2: {'policy_loss': -0.02, 'actor_lr': 5e-07,"
        " 'reward': 0.4, 'rollout/reward_mean': 0.5}\n"
    )
    log = one(tmp_path, text)
    assert log.source == "openrlhf"
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert log.key("reward") == "rollout/reward_mean"
    assert log.steps("reward").tolist() == [1, 2]
    assert log.values("gap_kl").tolist() == [0.003]
    assert log.values("truncated").tolist() == [0.125]
    assert log.values("eval/reward").tolist() == [0.5]
    assert log.steps("eval/reward").tolist() == [1]


@pytest.mark.parametrize("colon", ["", ":"])
def test_prime_rl_writes_two_logs(tmp_path, colon):
    c = colon
    (tmp_path / "orchestrator.log").write_text(
        f"12:00:01 SUCCESS Step 0 | Time{c} 13.04s | Reward{c} 0.1160 | Seq. Length{c} 396.8 tokens/sample\n"
        f"12:00:20  DEBUG Step 1 sent | Reward shaping\n"
        f"12:00:21 SUCCESS Step 1 | Time{c} 12.00s | Reward{c} 0.2500 | Truncation{c} 12.5%\n"
        f"12:00:30 SUCCESS Evaluated gsm8k (Step 1) | Policy v1 |   31.2s | Reward 0.4000 | Truncation 0.0%\n"
    )
    (tmp_path / "trainer.log").write_text(
        f"12:00:05  DEBUG Micro Step 0/4 | Loss{c} 9.0000 | Entropy{c} 9.0000\n"
        f"\x1b[32m12:00:09 SUCCESS\x1b[0m Step 0 | Time{c} 5.00s | Loss{c} 0.0019 | Entropy{c} 0.2105 |"
        f" Mismatch KL{c} 0.0006 | Grad. Norm{c} 0.0680 | LR{c} 1.00e-06 | MFU{c} 12.5%\n"
        f"12:00:29 SUCCESS Step 1 | Time{c} 5.00s | Loss{c} 0.0020 | Entropy{c} 0.2000 | Grad. Norm{c} 0.0700\n"
    )
    log = read(tmp_path)
    assert log.source == "prime-rl"
    assert log.read == ["orchestrator.log", "trainer.log"]
    assert log.values("reward").tolist() == [0.116, 0.25]
    assert log.values("loss").tolist() == [0.0019, 0.002]
    assert log.values("entropy").tolist() == [0.2105, 0.2]
    assert log.values("gap_kl").tolist() == [0.0006]
    assert log.values("lr").tolist() == [1e-6]
    assert log.values("truncated").tolist() == [0.125]
    assert log.values("eval/reward").tolist() == [0.4]
    assert log.key("grad_norm") == "Grad. Norm"


def test_json_logs_of_prime_rl_hold_the_same_lines(tmp_path):
    message = "Step {} |   12.1s | Reward 0.{} | Trainable 96/128 (75.0%) | Max Off-Policy 2"
    text = "".join(
        f'{{"timestamp": "2026-08-01T00:00:0{i}", "message": "{message.format(i, i)}", "line": 880}}\n'
        for i in (1, 2, 3)
    )
    log = one(tmp_path, text)
    assert log.source == "prime-rl"
    assert log.values("reward").tolist() == [0.1, 0.2, 0.3]
    assert log.values("staleness_max").tolist() == [2, 2, 2]
    assert log.values("seconds").tolist() == [12.1, 12.1, 12.1]


def test_traceback_counts_by_its_last_line(tmp_path):
    text = TRL_5 + (
        "All reward functions returned None for the following kwargs: {'prompt': 'x'}\n"
        * 3
        + "Traceback (most recent call last):\n"
        '  File "train.py", line 5, in <module>\n    trainer.train()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert one(tmp_path, text).messages == [
        "/x/y.py:10: UserWarning: odd thing",
        "All reward functions returned None for the following kwargs: {'prompt': 'x'}",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]


def test_completions_that_are_printed_are_no_rows(tmp_path):
    text = TRL_5.replace(
        "\r100%|##########| 6/6 [00:01<00:00,  6.61it/s]\r      \r{'loss': '2e-08'",
        "│ At step 4 | the loss: 9.0 | and reward: 7.0 |\nstep 5: loss = 3, reward = 2\n"
        "\r100%|##########| 6/6 [00:01<00:00,  6.61it/s]\r      \r{'loss': '2e-08'",
    )
    assert one(tmp_path, text).values("reward").tolist() == [0.125, 0.5]


def test_own_loop_with_steps_and_words(tmp_path):
    text = "start\nstep 10/99: loss=0.5, mean_reward=0.25, lr=1e-05\nstep 20/99: loss=0.4, mean_reward=0.5, lr=9e-06\n"
    log = one(tmp_path, text)
    assert log.source == "unknown"
    assert log.steps("reward").tolist() == [10, 20]
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert log.key("reward") == "mean_reward"
    assert log.values("lr").tolist() == [1e-5, 9e-6]


def test_console_in_utf_16(tmp_path):
    (tmp_path / "log.txt").write_text(TRL_5, encoding="utf-16")
    assert read(tmp_path / "log.txt").values("reward").tolist() == [0.125, 0.5]


def test_a_dict_below_its_step_as_skyrl_prints_it(tmp_path):
    ray = "\x1b[36m(skyrl_entrypoint pid=1)\x1b[0m "
    text = "".join(
        f"{ray}INFO | tracking:log:180 - Step {i}: \n{ray}{{'generate/avg_num_tokens': '210.2000',\n"
        f"{ray} 'policy/policy_lr': '0.0000',\n{ray} 'reward/avg_raw_reward': '0.2500'}}\n"
        for i in (5, 6)
    )
    log = one(tmp_path, text)
    assert log.source == "skyrl" and log.steps("reward").tolist() == [5, 6]
    assert log.values("reward").tolist() == [0.25, 0.25] and "lr" not in log
    assert log.notes == ["log.txt: learning rates that were printed as 0.000 are unknown and were left out"]


def test_a_dict_behind_its_rollout_as_slime_prints_it(tmp_path):
    text = (
        "[10:00:00] train_metric_utils.py:135 - rollout 3: {'rollout/raw_reward': 0.25, 'rollout/rewards': 0.0}\n"
        "[10:00:01] model.py:919 - step 6: {'train/loss': 0.01, 'train/lr-pg_0': 1e-06, 'train/step': 6}\n"
        "[10:00:02] rollout_metrics.py:248 - eval 3: {'eval/aime': 0.5, 'eval/aime-pass@4': 0.75}\n"
    )
    log = one(tmp_path, text)
    assert log.source == "slime"
    assert (log.steps("reward").tolist(), log.values("reward").tolist()) == ([3], [0.25])
    assert log.steps("loss").tolist() == [6] and log.values("lr").tolist() == [1e-6]
    assert log.values("eval/reward").tolist() == [0.5] and log.key("eval/reward") == "eval/aime"


def test_bullets_of_sections_as_nemo_rl_prints_them(tmp_path):
    step = "=" * 25
    text = "".join(
        f"\n{step} Step {i}/100 {step}\n\U0001f4ca Training Results:\n"
        "  \u2022 Loss: 0.0123\n  \u2022 Avg Reward: 0.25\n"
        "\u23f1 Timing:\n  \u2022 policy_training: 5.1s (40.2%)\n"
        for i in (1, 2)
    )
    text += "\U0001f4ca Validation Results:\n    \u2022 Accuracy: 0.5000\n    \u2022 Samples processed: 256\n"
    log = one(tmp_path, text)
    assert log.source == "nemo-rl" and log.steps("reward").tolist() == [1, 2]
    assert log.key("reward") == "Training Results/Avg Reward"
    assert log.values("eval/accuracy").tolist() == [0.5] and log.steps("eval/accuracy").tolist() == [2]


def test_a_grid_of_keys_and_figures_as_areal_prints_it(tmp_path):
    text = "".join(
        f"20260521 StatsLogger INFO: Epoch 2/10 Step 1/20 Train step {i}/400 done.\n\u2552\u2550\u2564\u2550\u2555\n"
        "\u2502 ppo_actor/task_reward/avg \u2502 2.5000e-01 \u2502 ppo_actor/seq_len/avg   \u2502 2.5000e+02 \u2502\n"
        "\u2502 ppo_actor/update/lr       \u2502 1.7000e-05 \u2502 ppo_actor/prompt_len/avg \u2502 5.0000e+01 \u2502\n"
        for i in (21, 22)
    )
    log = one(tmp_path, text)
    assert log.source == "areal" and log.steps("reward").tolist() == [21, 22]
    assert log.values("lr").tolist() == [1.7e-5, 1.7e-5]
    # lengths are of prompt and answer together: 250 - 50
    assert log.values("length").tolist() == [200, 200]
    assert log.key("length") == "ppo_actor/seq_len/avg - ppo_actor/prompt_len/avg"


def test_dicts_of_unknown_keys_are_rows_of_nobody(tmp_path):
    log = one(tmp_path, "".join(f"{{'step': {i}, 'mean_episode_score': 0.5, 'zed': 2.0}}\n" for i in range(4)))
    assert log.source == "unknown" and log.series == {} and sorted(log.raw) == ["mean_episode_score", "zed"]


def test_arguments_that_megatron_prints(tmp_path):
    text = (
        "  kl_loss_coef .................................... 0.001\n"
        "  lr .............................................. 1e-06\n"
        "  n_samples_per_prompt ............................ 8\n"
        "  rollout_max_response_len ........................ 4096\n"
        "  use_kl_loss ..................................... True\n"
        "[10:00:00] x.py:1 - rollout 0: {'rollout/raw_reward': 0.25, 'rollout/returns': 0.0}\n"
    )
    assert one(tmp_path, text).config == {"beta": 0.001, "lr": 1e-6, "group_size": 8, "max_tokens": 4096}


@pytest.mark.parametrize(
    "line",
    [
        "Epoch:[1/1]({s}/59578), Reward:{r}, KL:0.02, GrpStd:1.2, AvgLen:57.25, LR:0.00000300",
        "2026-01-02 10:00:01,123 - INFO - Step {s} | reward {r} | kl 0.02 | resp_len 57.25",
        "- **Step {s}**: reward **{r}**, KL 0.02, length 57.25",
        "At step {s} the mean reward is {r}, KL 0.02 and length 57.25.",
        "step {s}: reward 0.9 -> {r}, kl 0.02, length 57.25",
        "Training:  5%|#    | {s}/500 [00:10<10:00,  1.2s/it, reward={r}, kl=0.02, len=57.25]",
        "=== Step {s} ===\n  Mean reward: {r}\n  KL: 0.02\n  Length: 57.25\n",
        "Iter {s}: R={r}, KL=0.02, len=57.25",
    ],
)
def test_lines_of_a_loop_of_ones_own(tmp_path, line):
    run = one(tmp_path, "".join(line.format(s=s, r=s / 100) + "\n" for s in (10, 20, 30)))
    assert run.steps("reward").tolist() == [10, 20, 30] and run.values("reward").tolist() == [0.1, 0.2, 0.3]
    assert run.values("kl").tolist() == [0.02] * 3 and run.values("length").tolist() == [57.25] * 3


def test_lines_of_an_epoch_without_steps_are_numbered_in_their_order(tmp_path):
    text = "[Epoch 0.28]  loss=-0.0469  grad=0.0838  reward=0.102\u00b10.077  entropy=0.155  frac_zero_std=0.00\n"
    run = one(tmp_path, text + text.replace("0.102", "0.066"))
    assert run.values("reward").tolist() == [0.102, 0.066] and run.values("reward_std").tolist() == [0.077] * 2
    assert run.values("zero_signal").tolist() == [0, 0] and run.steps("reward").tolist() == [1, 2]


def test_a_brace_of_a_printed_answer_hides_no_row(tmp_path):
    rows = [f"Epoch:[1/1]({s}/900), Reward:0.{s}, KL:0.02, Loss:0.1\n" for s in (1, 2, 3)]
    run = one(tmp_path, rows[0] + '{"name": "get_weather", "arguments": {\n' + rows[1] + rows[2])
    assert run.values("reward").tolist() == [0.1, 0.2, 0.3]


def test_a_terminal_that_breaks_its_lines_within_figures(tmp_path):
    row = (
        "{'loss': -0.0, 'grad_norm': 0.16944053769111633, 'num_tokens': 13836.0, 'completions/mean_length': 384.0, "
        "'completions/clipped_ratio': 1.0, 'rewards/_reward_action/mean': -2.25, 'reward': -2.974999904632568, "
        "'frac_reward_zero_std': 0.5, 'epoch': 0.0}"
    )
    text = "".join(row[i : i + 100] + "\n" for i in range(0, len(row), 100))
    assert text.splitlines()[1].endswith("'reward': -2.974999904")  # the break is within a figure
    log = one(tmp_path, text * 2)
    assert log.source == "trl"
    assert log.values("reward").tolist() == [-2.974999904632568] * 2
    assert log.values("truncated").tolist() == [1.0, 1.0]


def test_fine_tuning_before_the_run_is_left_out(tmp_path):
    text = (
        "{'loss': 0.7222, 'grad_norm': 6.15, 'learning_rate': 1.9e-05, 'mean_token_accuracy': 0.81, 'epoch': 0.29}\n"
        "{'loss': 0.0231, 'grad_norm': 1.97, 'learning_rate': 6.9e-07, 'mean_token_accuracy': 0.99, 'epoch': 4.86}\n"
        "{'train_runtime': 412.02, 'train_loss': 0.258, 'epoch': 5.0}\n"
        "{'loss': 0.0395, 'learning_rate': 9.96e-07, 'rewards/bleu/mean': 0.0094, 'reward': 0.0094, 'epoch': 0.01}\n"
        "{'loss': 0.0749, 'learning_rate': 9.91e-07, 'rewards/bleu/mean': 0.0090, 'reward': 0.0090, 'epoch': 0.03}\n"
    )
    log = one(tmp_path, text)
    assert log.values("lr").tolist() == [9.96e-07, 9.91e-07]
    assert log.steps("reward").tolist() == [1, 2]
    assert "log.txt: 2 rows of a training without a reward were left out" in log.notes


def test_rewards_of_a_group_in_a_line(tmp_path):
    text = (
        "[step 0001] SKIP rewards=[0,0,0,0] rollout=764s elapsed=764s\n"
        "[step 0002] SKIP rewards=[1,0,0,1] rollout=731s elapsed=1496s\n"
    )
    log = one(tmp_path, text)
    assert log.values("reward").tolist() == [0.0, 0.5]
    assert log.values("reward_std").tolist() == [0.0, 0.5]


def test_figures_of_a_line_before_its_dict(tmp_path):
    text = (
        "2025-09-25 04:05:16,956 - train - INFO - rl_loss: 0.0038, l2_norm: 0.06, token_entropy: 0.82, "
        "reward_data: {'total_num': 256, 'total_reward': 144.0}, metadata: {'clamped': tensor(0.29)}\n"
        "2025-09-25 04:11:05,453 - train - INFO - rl_loss: 0.0, l2_norm: 0.0, token_entropy: 7.05, "
        "reward_data: {'total_num': 256, 'total_reward': 0.0}, metadata: {'clamped': tensor(0.92)}\n"
    )
    log = one(tmp_path, text)
    assert log.values("reward").tolist() == [144.0, 0.0]
    assert log.values("entropy").tolist() == [0.82, 7.05]


def test_settings_in_a_printed_dict(tmp_path):
    text = (
        "[base_pipeline.py (71)] [INFO] {'ppo_epochs': 1, 'use_kl_loss': True, 'kl_loss_coef': 5.0, "
        "'num_return_sequences_in_group': 8, 'rollout_batch_size': 16}\n"
        '[INFO] {"system/global_step": 0, "critic/score/mean": 0.4453125, "token/response_length/mean": 370.9}\n'
    )
    log = one(tmp_path, text)
    assert (log.source, log.setting("beta"), log.setting("group_size")) == ("roll", 5, 8)


def test_a_small_table_below_the_lines_of_a_run(tmp_path):
    lines = [f"step:{i} - critic/score/mean:0.{i} - timing_s/gen:21.3 - timing_s/step:56.4" for i in range(1, 5)]
    table = "label,lambda,lr,steps,accuracy\nbase,0,1e-5,50,0.4000\n"
    log = one(tmp_path, "\n".join(lines) + "\n" + table)
    assert log.source == "verl" and log.values("reward").tolist() == [0.1, 0.2, 0.3, 0.4]


def test_ms_swift_is_told_by_its_speed(tmp_path):
    text = (
        '{"loss": 0.0, "grad_norm": 0.0, "reward": 0.707, "frac_reward_zero_std": 0.5, "kl": 0.0, '
        '"global_step/max_steps": "1/547", "train_speed(iter/s)": 0.00314}\n'
    )
    assert one(tmp_path, text).source == "ms-swift"


def test_a_row_whose_opening_brace_was_not_copied(tmp_path):
    """With a gradient of 0 although every group has spread: the row is of step 5."""
    row = "'loss': -0.0, 'grad_norm': 0.0, 'learning_rate': 2.6e-07, 'reward': 0.34, 'reward_std': 0.44, "
    path = tmp_path / "console.txt"
    path.write_text(row + "'frac_reward_zero_std': 0.0, 'epoch': 0.0, 'global_step/max_steps': '5/3766'}\n")
    run = read(path)
    assert (run.values("reward").tolist(), run.steps("reward").tolist()) == ([0.34], [5.0])


def test_lists_of_points_are_curves(tmp_path):
    (tmp_path / "tb.txt").write_text(
        "train/approx_kl:  [(0, 0.73), (1, 1.27), (2, 0.63)]\ntrain/grad_norm: [(0, 90059), (1, 9e10), (2, 138006)]\n"
    )
    run = read(tmp_path)
    assert run.values("approx_kl").tolist() == [0.73, 1.27, 0.63] and run.values("grad_norm").tolist()[1] == 9e10
    assert run.steps("approx_kl").tolist() == [0, 1, 2]


def test_the_summary_that_wandb_prints_is_the_last_row(tmp_path):
    (tmp_path / "out.txt").write_text(
        "wandb: Run history:\nwandb:  train/reward \u2581\u2583\u2588\nwandb: Run summary:\n"
        "wandb:  train/global_step 200\nwandb:       train/reward 0.77344\nwandb:    train/grad_norm 10.8125\n"
    )
    run = read(tmp_path)
    assert run.values("reward").tolist() == [0.77344] and run.steps("reward").tolist() == [200]


def test_a_row_of_words_goes_on_in_indented_lines(tmp_path):
    (tmp_path / "train.log").write_text(
        "".join(
            f"[train] iter={i} algo=grpo mean_reward=0.{i} loss=0.01\n  clip_frac=0.4 entropy=4.{i}\n  kl=0 note\n\n"
            for i in range(4)
        )
    )
    run = read(tmp_path)
    assert run.values("reward").tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert run.values("entropy").tolist() == pytest.approx([4.0, 4.1, 4.2, 4.3]) and len(run.values("kl")) == 0


def test_a_list_of_values_is_a_curve_unless_its_key_comes_twice(tmp_path):
    values = ", ".join(f"0.{i}" for i in range(10))
    (tmp_path / "note.txt").write_text(f"rewards = [{values}]\naccuracy: {values.replace(', ', ' -> ')}\n")
    run = read(tmp_path)
    assert run.values("reward").tolist() == run.values("success").tolist() == [i / 10 for i in range(10)]
    (tmp_path / "note.txt").write_text(f"rewards = [{values}]\n" * 2)
    assert not read(tmp_path).series

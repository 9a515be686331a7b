"""A script converts to what its run would give, key by key, or leaves a key open; no field of TRL is dropped."""

from pathlib import Path

import pytest

from gxpo.adapters import trl_fields
from gxpo.adapters.convert import Conversion, convert_trl
from gxpo.adapters.convert_script import Value
from gxpo.adapters.trl_config import DEFAULTS
from gxpo.adapters.trl_launch import of_fields
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError

SCRIPTS = yamltext.plain(
    yamltext.load((Path(__file__).parent / "trl_scripts.yaml").read_text(encoding="utf-8"), "scripts"), "scripts"
)


@pytest.mark.parametrize("case", SCRIPTS, ids=[case["name"] for case in SCRIPTS])
def test_a_script_computes_what_its_run_would_give(here, case):
    Path("train.py").write_text(case["script"])
    actual = convert_trl("train.py")
    settings = of_fields({name: Value(value, "") for name, value in case["truth"].items()})
    settings.kind = case.get("kind", "GRPO")
    expected = Conversion(settings, Path("train.py"), 1).converted()
    assert set(actual.open) == set(case["open"])
    known_values = {key: value for key, value in actual.keys.items() if key not in actual.open and key != "reward"}
    assert known_values == {key: value for key, value in expected.keys.items() if key not in (*actual.open, "reward")}
    for key, words in case.get("origins", {}).items():
        assert words in actual.origins[key]
    text = "\n".join(note for _, note in actual.notes)
    for words in case.get("notes", ()):
        assert words in text


# fields of GRPOConfig, RLOOConfig and TrainingArguments (TRL 1.16, transformers 5.23), and of `trl grpo` beside them
FIELDS = """
accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon
auto_find_batch_size average_tokens_across_devices batch_eval_metrics beta bf16 bf16_full_eval
cache_implementation cast_lm_head_to_fp32 chat_template_kwargs data_seed dataloader_drop_last
dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed delta disable_dropout disable_tqdm
do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint entropy_coef entropy_coef_delta
entropy_coef_max entropy_coef_min entropy_target epsilon epsilon_high eval_accumulation_steps eval_delay
eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16 fp16_full_eval fsdp
fsdp_config full_determinism generation_batch_size generation_kwargs gradient_accumulation_steps
gradient_checkpointing gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip importance_sampling_level
include_for_metrics include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
length_column_name liger_kernel_config load_best_model_at_end local_rank log_completions
log_completions_hub_repo log_level log_level_replica log_multimodal log_on_each_node log_unique_prompts
logging_first_step logging_nan_inf_filter logging_steps logging_strategy loss_type lr_scheduler_kwargs
lr_scheduler_type mask_truncated_completions max_completion_length max_grad_norm max_steps
max_tool_calling_iterations metric_for_best_model min_p model_init_kwargs multi_objective_aggregation
neftune_noise_alpha normalize_advantages num_completions_to_print num_generations num_generations_eval
num_iterations num_train_epochs off_policy_mask_threshold optim optim_args optim_target_modules output_dir
pad_to_multiple_of parallelism_config per_device_eval_batch_size per_device_train_batch_size
prediction_loss_only project push_to_hub ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns
repetition_penalty report_to restore_callback_states_from_checkpoint resume_from_checkpoint reward_clip_range
reward_weights router_aux_loss_coef run_name sapo_temperature_neg sapo_temperature_pos save_on_each_node
save_only_model save_steps save_strategy save_total_limit scale_rewards seed shuffle_dataset skip_memory_metrics
steps_per_generation sync_ref_model temperature tf32 top_entropy_quantile top_k top_p torch_compile
torch_compile_backend torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id
trackio_static_space_id train_sampling_strategy transformers_continuous_batching_config trust_remote_code
use_adaptive_entropy use_bias_correction_kl use_cache use_cpu use_liger_kernel
use_transformers_continuous_batching use_transformers_paged use_vllm vespo_k_neg vespo_k_pos vespo_lambda_neg
vespo_lambda_pos vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url
vllm_server_host vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size
warmup_steps weight_decay
"""
SCRIPT_FIELDS = """
attn_implementation bnb_4bit_quant_storage bnb_4bit_quant_type dataset_config dataset_name dataset_streaming
dataset_test_split dataset_train_split datasets dtype ignore_bias_buffers load_in_4bit load_in_8bit lora_alpha
lora_dropout lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type
model_name_or_path model_revision reward_funcs reward_model_name_or_path streaming test_split_size
use_bnb_nested_quant use_dora use_peft use_rslora
"""
# a value that is not the default, where a number or a text made up below is none
VALUES = {
    "loss_type": "grpo", "scale_rewards": "none", "importance_sampling_level": "sequence",
    "lr_scheduler_type": "cosine",
    "multi_objective_aggregation": "normalize_then_sum", "optim": "lion", "save_strategy": "no", "top_p": 0.5,
    "eval_strategy": "steps", "report_to": "wandb", "generation_kwargs": {"stop": ["x"]}, "reward_weights": [0.5],
    "chat_template_kwargs": {"a": 1}, "reward_funcs": ["accuracy_reward"], "top_entropy_quantile": 0.5, "epsilon": 0.1,
    "vllm_importance_sampling_mode": "token_truncate", "model_init_kwargs": {"revision": "x"}, "warmup_ratio": 0.1,
    "dtype": "bfloat16", "adam_beta1": 0.5, "adam_beta2": 0.5, "generation_batch_size": 16, "max_steps": 5,
    "normalize_advantages": True,
}  # fmt: skip
# fields that matter only beside others
BESIDE = {
    "vllm_importance": {"use_vllm": True}, "eval_steps": {"eval_strategy": "steps"}, "use_bias": {"beta": 0.1},
    "entropy_": {"use_adaptive_entropy": True}, "sapo": {"loss_type": "sapo"}, "vespo": {"loss_type": "vespo"},
    "lora": {"use_peft": True}, "use_rslora": {"use_peft": True}, "use_dora": {"use_peft": True},
    "reward_weights": {"reward_funcs": ["accuracy_reward"]}, "warmup": {"max_steps": 100},
    "dataset_": {"dataset_name": "a/b"},
}  # fmt: skip


def _value_of(name):
    default = DEFAULTS.get(name)
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool) or name.startswith(("use_", "load_in")):
        return not default
    return default * 2 + 1 if isinstance(default, (int, float)) else 3 if name in trl_fields.OPTIONAL_NUMBERS else "x"


def _converted(fields, kind):
    settings = of_fields({name: Value(value, "") for name, value in fields.items()})
    settings.kind = kind
    return Conversion(settings, Path("x.yaml"), 1).converted()


def test_no_field_of_trl_is_dropped_in_silence():
    dropped, earlier = [], {}
    for name in f"{FIELDS} {SCRIPT_FIELDS}".split():
        kind = "RLOO" if name in ("normalize_advantages", "reward_clip_range") else "GRPO"
        fields_beside = next((fields for start, fields in BESIDE.items() if name.startswith(start)), {})
        before = earlier.setdefault((kind, *fields_beside), None) or _converted(fields_beside, kind)
        earlier[(kind, *fields_beside)] = before
        after = _converted({**fields_beside, name: _value_of(name)}, kind)
        is_same = (before.keys, before.notes, before.open) == (after.keys, after.notes, after.open)
        if is_same and name not in trl_fields.WITHOUT_EFFECT:
            dropped.append(name)
    assert dropped == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.py", "x = " + "(" * 999 + "1" + ")" * 999, "not Python: too many nested parentheses"),
        ("b.py", "x = " + "-" * 9999 + "1", "nested too deeply"),
        ("c.py", "# \xe9".encode("latin-1"), "not UTF-8"),
        ("d.py", b"\x00", "not Python"),
        ("e.ipynb", "{}", "not a notebook"),
        ("f.yaml", b"a: \xe9", "not UTF-8"),
        ("g.sh", "echo 1", "it starts neither trl"),
        ("h.sh", "swift rlhf --rlhf_type dpo", "only `swift rlhf --rlhf_type grpo` is read of ms-swift"),
        ("i.sh", "megatron rlhf --rlhf_type grpo", "megatron rlhf .* is not read"),
        ("j.sh", "accelerate launch train.py", "train.py: no such file, started in line 1"),
        ("k.py", "from trl import GRPOConfig\nwhile True:\n  for i in range(9):\n    f = [f, f]\nexit()", "neither"),
    ],
)
def test_what_cannot_be_read_ends_in_one_line(here, name, content, says):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=says) as error:
        convert_trl(name)
    assert "\n" not in str(error.value)


def test_values_too_large_to_compute_are_open(here):
    Path("a.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(seed=9**9**9, learning_rate='abc', max_steps=len('a' * 10**11),\n"
        "  num_generations=1 << 10**9,\n"
        "  temperature=float('nan'), max_completion_length=len('%9999999999d' % 1), beta=len(f'{1:9999999999}'))\n"
        "GRPOTrainer('m/n', None, args, list(range(10**12)))\n"
    )
    assert set(convert_trl("a.py").open) == {
        "task", "reward", "rollout.group_size", "tasks.per_step", "trainer.steps", "sampling.max_new_tokens",
        "optim.lr", "seed", "sampling.temperature", "objective.kl.coef",
    }  # fmt: skip

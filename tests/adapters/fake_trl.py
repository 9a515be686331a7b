"""The seam of TRL's GRPOTrainer that the adapter stands on, in one process, around a model of pairs of tokens.

Images are laid out as those of Qwen: rows of `pixel_values`, as many of an image as its `image_grid_thw` says.
"""

from __future__ import annotations

import contextlib
import types
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

import torch

PAD, EOS = 0, 1


@dataclass
class Config:
    """Fields and defaults of TRL's GRPOConfig, those that are read."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int = 1
    num_iterations: int = 1
    num_generations: int = 4
    max_completion_length: int = 5
    beta: float = 0.0
    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    scale_rewards: str = "group"
    delta: float | None = None
    importance_sampling_level: str = "token"
    top_entropy_quantile: float = 1.0
    use_bias_correction_kl: bool = True
    sapo_temperature_pos: float = 1.0
    vespo_k_neg: float = 3.0
    multi_objective_aggregation: str = "sum_then_normalize"
    off_policy_mask_threshold: float | None = None
    use_adaptive_entropy: bool = False
    entropy_target: float = 0.2
    entropy_coef_delta: float = 0.005
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    use_vllm: bool = False
    vllm_importance_sampling_correction: bool = True
    output_dir: str = "."
    entropy_coef: float = 0.0
    reward_weights: list | None = None
    seed: int = 0
    max_steps: int = -1
    temperature: float = 1.0
    should_save: bool = True


# keys of a batch that TRL's loss hands to its forward pass
HANDED = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


def by_row(pixel_values, image_grid_thw, num_images):
    """The rows of pixels of each rollout."""
    sizes = [int(g.prod()) for g in image_grid_thw]
    firsts = [sum(num_images[:i]) for i in range(len(num_images))]
    return pixel_values.split([sum(sizes[f : f + n]) for f, n in zip(firsts, num_images, strict=True)])


def split_by_row(out):
    """split_pixel_values_by_grid: pixels and grids as a list with an entry for each rollout."""
    if "pixel_values" not in out:
        return out
    pixels = by_row(out["pixel_values"], out["image_grid_thw"], out["num_images"])
    return {**out, "pixel_values": [*pixels], "image_grid_thw": [*out["image_grid_thw"].split(out["num_images"])]}


def joined(out):
    """unsplit_pixel_values_by_grid."""
    lists = ("pixel_values", "image_grid_thw")
    return {k: torch.cat(v) if k in lists and isinstance(v, list) else v for k, v in out.items()}


def taken(value, rows):
    """Some rows of a batch's entry; what has none stays."""
    if isinstance(value, list):
        return [value[i] for i in rows]
    return value if value.ndim == 0 else value[list(rows)]


class OneProcess:
    """An accelerator with nobody else."""

    process_index, num_processes, is_main_process = 0, 1, True
    device = torch.device("cpu")

    def gather(self, x):
        return x

    def unwrap_model(self, model):
        return model

    def autocast(self):
        return contextlib.nullcontext()

    def pad_across_processes(self, x, dim=0, pad_index=0, pad_first=False):
        return x

    def reduce(self, x, reduction="sum"):
        return x


class Pairs(torch.nn.Module):
    """The next token's logits depend on the present one alone."""

    def __init__(self, words=12):
        super().__init__()
        start = torch.randn(words, words, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        self.table = torch.nn.Parameter(start)

    def forward(self, ids):
        return self.table[ids]


class SeeingPairs(Pairs):
    """Pairs whose logits move with the mean of what each row is shown."""

    PLACEHOLDER = 12

    def __init__(self):
        super().__init__(self.PLACEHOLDER + 1)
        start = torch.randn(self.PLACEHOLDER + 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        self.sight = torch.nn.Parameter(start)
        self.config = types.SimpleNamespace(image_token_id=self.PLACEHOLDER)

    def forward(self, ids, pixel_values=None):
        seen_value = (
            0.0 if pixel_values is None else torch.stack([x.double().mean() for x in pixel_values])[:, None, None]
        )
        return self.table[ids] + seen_value * self.sight


class GRPOTrainer:
    """Generation batches, their shuffle, their micro-batches, the loss: the order of calls is TRL's."""

    rollout_func = train_dataset = None

    def __init__(self, model, reward_funcs, args, out=None, tools=False):
        self.model, self.args, self.tools, self.out = model, args, tools, out
        self.reward_funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        self.reward_func_names = [f.__name__ for f in self.reward_funcs]
        self.reward_weights = torch.tensor(args.reward_weights or [1.0] * len(self.reward_funcs))
        self.num_generations = self.num_generations_eval = args.num_generations
        self.max_completion_length = args.max_completion_length
        self.accelerator, self.aux_loss_enabled = OneProcess(), False
        self.eos_token_ids, self._tokenizer = [EOS], types.SimpleNamespace(pad_token_id=PAD)
        self.environments = None
        self.state = types.SimpleNamespace(global_step=0, num_input_tokens_seen=0)
        self.generation_config = types.SimpleNamespace(
            max_new_tokens=self.max_completion_length, temperature=args.temperature, do_sample=True
        )
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._logs = {
            "prompt": deque(maxlen=16), "completion": deque(maxlen=16), "advantages": deque(maxlen=16),
            "rewards": defaultdict(lambda: deque(maxlen=16)), "extra": defaultdict(lambda: deque(maxlen=16)),
        }  # fmt: skip
        self._pending_extra_logs = defaultdict(list)
        self._step, self._buffered_inputs = 0, None
        self.draw = torch.Generator().manual_seed(args.seed)
        self.shuffle = torch.Generator().manual_seed(args.seed)

    # what TRL does, cut down
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = [f(prompts=prompts, completion_ids=completion_ids_list) for f in self.reward_funcs]
        return torch.tensor([[float("nan") if x is None else x for x in row] for row in zip(*columns, strict=True)])

    def _tokenize_prompts(self, prompts):
        return prompts, None, {}

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations):
        limit = self.generation_config.max_new_tokens
        lengths = torch.randint(1, limit + 1, (len(prompt_ids),), generator=self.draw).tolist()
        ids = [torch.randint(2, 12, (n,), generator=self.draw).tolist() for n in lengths]
        return [[*x[:-1], EOS] if len(x) < limit else x for x in ids], None

    def _generate(self, prompts):
        """(prompts, completions, mask of tokens that the policy sampled)."""
        if self.rollout_func is None:
            prompt_ids = self._tokenize_prompts(prompts)[0]
            ids, mask = self._generate_single_turn(prompt_ids, None, {}, self.num_generations)[0], None
        else:
            rows = self.rollout_func(prompts, self)
            prompt_ids, ids, mask = rows["prompt_ids"], rows["completion_ids"], rows.get("env_mask")
        self.state.num_input_tokens_seen += sum(map(len, prompt_ids)) + sum(map(len, ids))
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return prompt_ids, ids, mask

    def _generate_and_score_completions(self, inputs):
        prompts, ids, mask = self._generate([x["prompt"] for x in inputs])
        limit, width = max(self.max_completion_length, *map(len, ids)), max(map(len, prompts))
        lengths = list(map(len, ids))
        rewards = self._calculate_rewards(inputs, [x["prompt"] for x in inputs], ids, ids)
        equal = rewards.nansum(1).view(-1, self.num_generations).std(1) == 0
        self._metrics["train"]["frac_reward_zero_std"].append(float(equal.double().mean()))
        self._logs["prompt"].extend(x["prompt"] for x in inputs)
        self._logs["completion"].extend(ids)
        for name, column in zip(self.reward_func_names, rewards.unbind(1), strict=True):
            self._logs["rewards"][name].extend(column.tolist())
        for name, column in self._pending_extra_logs.items():
            self._logs["extra"][name].extend(column)
        self._pending_extra_logs.clear()
        self._logs["advantages"].extend([0.0] * len(prompts))
        out = {
            "prompt_ids": torch.tensor([[PAD] * (width - len(p)) + p for p in prompts]),
            "prompt_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
            "completion_ids": torch.tensor([x + [PAD] * (limit - len(x)) for x in ids]),
            "completion_mask": torch.tensor([[1] * len(x) + [0] * (limit - len(x)) for x in ids]),
            "advantages": torch.zeros(len(prompts)),
            "num_items_in_batch": torch.tensor(sum(lengths)),
        }
        if mask is not None:
            out["tool_mask"] = torch.tensor([x + [1] * (limit - len(x)) for x in mask])
        if self.tools:
            mask = torch.ones_like(out["completion_mask"])
            mask[:, 1] = 0
            out["tool_mask"] = mask
        out |= self.modalities(inputs, out)
        if self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.args.num_iterations):
            with torch.no_grad():
                out["old_per_token_logps"] = self._outputs_of(self.model, out)[0]
        assert len(rewards) == len(prompts)
        return out

    def _outputs_of(self, model, out):
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        keep = out["completion_ids"].shape[1]
        return self._get_per_token_logps_and_entropies(
            model, ids, None, keep, compute_entropy=True, **{k: out[k] for k in HANDED if k in out}
        )

    def modalities(self, inputs, out):
        """What a processor gives beside token ids, with `num_images`."""
        return {}

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, pixel_values=None, image_grid_thw=None, num_images=None, pixel_attention_mask=None,
        spatial_shapes=None, num_tiles=None, image_sizes=None, token_type_ids=None, mm_token_type_ids=None,
        image_position_ids=None,
    ):  # fmt: skip
        output = () if pixel_values is None else (by_row(pixel_values, image_grid_thw, num_images),)
        spread = model(input_ids, *output)[:, -logits_to_keep - 1 : -1].log_softmax(-1)
        logprob = spread.gather(2, input_ids[:, -logits_to_keep:, None])[..., 0]
        return logprob, -(spread.exp() * spread).sum(-1) if compute_entropy else None, None

    def _prepare_inputs(self, generation_batch):
        every = self.args.steps_per_generation * self.args.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            out = self._generate_and_score_completions(generation_batch)
            order = torch.randperm(len(out["prompt_ids"]), generator=self.shuffle)
            out = split_by_row(out)
            out = {k: taken(v, order.tolist()) for k, v in out.items()}
            size = len(order) // self.args.steps_per_generation
            self._buffered_inputs = [
                joined({k: taken(v, range(i * size, (i + 1) * size)) for k, v in out.items()})
                for i in range(self.args.steps_per_generation)
            ]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def compute_loss(self, model, inputs):
        return self._compute_loss(model, inputs)

    def _get_output_dir(self, trial):
        return str(self.out)

    def _save_checkpoint(self, model, trial):
        (self.out / f"checkpoint-{self.state.global_step}").mkdir(parents=True)

    def _load_optimizer_and_scheduler(self, checkpoint):
        pass

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        (Path(self.args.output_dir) / "README.md").write_text("# a card\n")

    # what a test drives it with
    def optimiser_step(self, prompts, lr=0.1):
        """(loss, gradient, micro-batches) of one optimiser step on these prompts, each sampled in a group."""
        inputs = [{"prompt": p} for p in prompts for _ in range(self.num_generations)]
        self.model.train()
        self.model.zero_grad()
        total, seen_batches = 0.0, []
        for _ in range(self.args.gradient_accumulation_steps):
            batch = self._prepare_inputs(inputs)
            loss = self.compute_loss(self.model, batch)
            if loss.requires_grad:
                loss.backward()
            seen_batches.append(batch)
            self._step += 1
            total += float(loss.detach())
        parameters = list(self.model.parameters())
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
        with torch.no_grad():
            for p, slope in zip(parameters, slopes, strict=True):
                p -= lr * slope
        gradient = slopes[0] if len(slopes) == 1 else torch.cat([slope.flatten() for slope in slopes])
        self.state.global_step += 1
        return total, gradient, seen_batches

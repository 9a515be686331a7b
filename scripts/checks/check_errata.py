#!/usr/bin/env python3
"""Run installed trainers on the inputs of docs/errata.md and say whether they still give the numbers stated there.

    python scripts/checks/check_errata.py               # every one of these that is installed beside this interpreter
    python scripts/checks/check_errata.py --only trl

TRL's trainers run a step of a two-layer model for each case, on a CPU and offline, or the loss of five given tokens; of
verl only functions are called. An entry that is run here is marked "Run:" on its page. Nothing of gxpo is imported.
Exit 1 where a number is another; what is not installed is said and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Before transformers and datasets are imported: nothing is to be downloaded.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1", WANDB_MODE="disabled")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@dataclass(frozen=True)
class Row:
    """What an entry of the errata, "page: its heading", says, and what was found."""

    entry: str
    expected: Sequence[float]
    values: Sequence[float]
    tolerance: float = 2e-6

    @property
    def is_same(self) -> bool:
        pairs = zip(self.expected, self.values, strict=False)
        return len(self.expected) == len(self.values) and all(abs(a - b) <= self.tolerance for a, b in pairs)


def format_numbers(xs: Sequence[float]) -> str:
    return " ".join(f"{x:.6g}" for x in xs)


# TRL.
def _model() -> tuple[Any, Any]:
    """Make a tokenizer of characters and a model of two layers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocab = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *"0123456789+= "])}
    characters = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocab), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return tokenizer, Qwen2ForCausalLM(config)


Table = Sequence[float | None]


def _reward(table: Table, name: str) -> Callable[..., list[float | None]]:
    def reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return list(table)[: len(completions)]

    reward.__name__ = name
    return reward


def _trainer(kind: Any, tables: Sequence[Table], group: int, folder: str, evaluated: int = 0, **settings: Any) -> Any:
    """Make a trainer of one step in which reward function k gives `tables[k]`, whatever was sampled."""
    import trl
    from datasets import Dataset

    name = next(c.__name__ for c in kind.__mro__ if c.__name__ in ("GRPOTrainer", "RLOOTrainer"))
    tokenizer, model = _model()
    rows = len(tables[0])
    args = getattr(trl, name.replace("Trainer", "Config"))(**{
        "output_dir": folder, "per_device_train_batch_size": rows, "num_generations": group,
        "max_completion_length": 4, "max_steps": 1, "report_to": "none", "use_cpu": True, "bf16": False,
        "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False, "logging_strategy": "no",
        **settings,
    })  # fmt: skip
    data = Dataset.from_list([{"prompt": f"{i}+{i}="} for i in range(max(rows // group, 1) * 2)])
    held_out = Dataset.from_list([{"prompt": f"9-{i}="} for i in range(evaluated)]) if evaluated else None
    functions = [_reward(t, f"reward_{k}") for k, t in enumerate(tables)]
    return kind(
        model=model, args=args, train_dataset=data, eval_dataset=held_out, reward_funcs=functions,
        processing_class=tokenizer,
    )  # fmt: skip


def _advantages(trainer: str, tables: Sequence[Table], group: int, **settings: Any) -> list[float]:
    """Return the advantages of one step."""
    import trl

    kind = getattr(trl, f"{trainer}Trainer")
    advantages: list[float] = []

    class RecordingTrainer(kind):  # type: ignore[misc, valid-type]  # a class that is chosen above
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            advantages.extend(batch["advantages"].tolist())
            return batch

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):  # a line of metrics
        _trainer(RecordingTrainer, tables, group, folder, **settings).train()
    return advantages[: len(tables[0])]


# Five tokens of two answers, A = 1 and -1.
OLD = ((-0.5, -1.0, 0.0), (-2.0, -0.3, -0.7))
CHANGE = ((0.3, -0.1, 0.0), (-0.4, 0.2, 0.5))
TOKENS = ((1, 1, 0), (1, 1, 1))


def _trl_loss(trainer: str, change: Sequence[Sequence[float]] = CHANGE, **settings: Any) -> tuple[float, list[float]]:
    """Return TRL's loss of the five tokens, and its slope by their log-probs."""
    import torch
    import trl

    old = torch.tensor(OLD, dtype=torch.float64)
    new = (old + torch.tensor(change, dtype=torch.float64)).requires_grad_()
    mask = torch.tensor(TOKENS)

    class FixedLogprobs(getattr(trl, f"{trainer}Trainer")):  # type: ignore[misc]  # a class that is chosen above
        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
            return new, torch.zeros_like(new), None

    with tempfile.TemporaryDirectory() as folder:
        instance = _trainer(FixedLogprobs, [[1.0, 0.0]], 2, folder, beta=0.0, **settings)
        instance.current_gradient_accumulation_steps = 1
        loss = instance._compute_loss(instance.model, {
            "prompt_ids": torch.ones(2, 1, dtype=torch.int64), "prompt_mask": torch.ones(2, 1, dtype=torch.int64),
            "completion_ids": torch.ones(2, 3, dtype=torch.int64), "completion_mask": mask,
            "advantages": torch.tensor([1.0, -1.0], dtype=torch.float64), "old_per_token_logps": old,
            "old_logps": (old * mask).sum(1), "num_items_in_batch": mask.sum(),
        })  # fmt: skip
    (slope,) = torch.autograd.grad(loss, new)
    return float(loss.detach()), slope[mask.bool()].tolist()


def _rows_of_a_step_with_evaluation() -> list[float]:
    """Count rows of training and of evaluation in the file of completions that TRL wrote for step 1."""
    import glob

    import pandas as pd
    import trl

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        _trainer(
            trl.GRPOTrainer, [[1.0, 0.0, 0.0, 0.0]], 4, folder, evaluated=1, beta=0.0, log_completions=True,
            logging_strategy="steps", logging_steps=1, eval_strategy="steps", eval_steps=1,
            per_device_eval_batch_size=4,
        ).train()  # fmt: skip
        (file,) = glob.glob(f"{folder}/completions/*.parquet")
        prompts = [str(p) for p in pd.read_parquet(file)["prompt"]]
    return [float(sum(sign in p for p in prompts)) for sign in ("+", "-")]


def trl() -> Iterator[Row]:
    """Check TRL's GRPOTrainer and RLOOTrainer."""
    one = [1.0] + [0.0] * 7
    grpo = {"beta": 0.0}
    yield Row(
        "statistics: GRPO: five advantages by eps and degrees of freedom",
        [2.474174] + [-0.353453] * 7,
        _advantages("GRPO", [one], 8, **grpo),
    )
    small = [r / 1000 for r in one]
    yield Row(
        "statistics: eps is in units of the rewards", [1.929211], _advantages("GRPO", [small], 8, **grpo)[:1], 1e-4
    )
    batch = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    values = _advantages("GRPO", [batch], 4, scale_rewards="batch", **grpo)
    yield Row(
        "statistics: Batch std of rewards, not of centred rewards",
        [0.467620, -1.402860],
        [values[0], values[3]],
    )
    values = _advantages("GRPO", [[1.0, None, -1.0, -1.0]], 4, **grpo)
    yield Row("rewards: Unscored completions get reward 0 (nansum)", [1.154601, 0.0, -0.577300, -0.577300], values)
    two = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    values = _advantages("GRPO", two, 4, multi_objective_aggregation="normalize_then_sum", **grpo)
    yield Row("batch: GDPO over trajectories and over tokens", [1.332031, 0.206077, -0.769054, -0.769054], values)
    values = _advantages("GRPO", two, 4, **grpo)
    yield Row("batch: GDPO of the sum is GRPO", [1.305446, 0.261089, -0.783268, -0.783268], values)
    values = _advantages("GRPO", [[0.95] * 8], 8, **grpo)
    yield Row("statistics: Equal rewards that are not zero-signal", [0.000595667] * 8, values)
    values = _advantages("RLOO", [[1.0, 0.0, 0.0, 1.0]], 4, normalize_advantages=True, beta=0.0)
    yield Row("batch: REINFORCE++ in four systems", [0.865913, -0.865913, -0.865913, 0.865913], values)
    still = [[0.0] * 3] * 2
    values = _trl_loss("GRPO", still, loss_type="cispo")[1]
    yield Row("losses: CISPO: one bound with three meanings", [-0.04, -0.04, 0.04, 0.04, 0.04], values)
    settings = {"loss_type": "dapo", "delta": 1.3}
    yield Row("losses: Dual clip: three definitions", [0.243313], [_trl_loss("GRPO", **settings)[0]])
    sequence = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    values = [_trl_loss("GRPO", loss_type=kind, **sequence)[0] for kind in ("dapo", "grpo")]
    yield Row("losses: GSPO: a sequence ratio under a token mean", [0.262942, 0.052385], values)
    values = [_trl_loss(kind)[1][1] for kind in ("RLOO", "GRPO")]
    yield Row("losses: RLOO in TRL: the clipped ratio is a product over the sequence", [0.0, -0.180967], values)
    yield Row(
        "elsewhere: TRL's log_completions: evaluation rows replace the step's",
        [0.0, 4.0],
        _rows_of_a_step_with_evaluation(),
    )


# verl.
def verl() -> Iterator[Row]:
    """Check functions of verl.trainer.ppo.core_algos."""
    import numpy as np
    import torch

    core = importlib.import_module("verl.trainer.ppo.core_algos")

    def run(
        name: str, rewards: Sequence[float], ids: Sequence[int], lengths: Sequence[int] | None = None
    ) -> list[float]:
        counts = list(lengths or [1] * len(rewards))
        mask = torch.zeros(len(rewards), max(counts))
        scores = torch.zeros_like(mask)
        for i, count in enumerate(counts):
            mask[i, :count], scores[i, count - 1] = 1.0, rewards[i]
        function = getattr(core, f"compute_{name}_outcome_advantage")
        index = np.array([str(g) for g in ids], dtype=object)
        config = importlib.import_module("verl.trainer.config").AlgoConfig()
        return function(token_level_rewards=scores, response_mask=mask, index=index, config=config)[0][:, 0].tolist()

    one, ids = [1.0] + [0.0] * 7, [0] * 8
    yield Row(
        "statistics: GRPO: five advantages by eps and degrees of freedom",
        [2.474867] + [-0.353552] * 7,
        run("grpo", one, ids),
    )
    single, groups = [5.0, 1.0, 0.0], [0, 1, 1]
    yield Row("groups: A group of one keeps its reward", [4.999995], run("grpo", single, groups)[:1], 1e-5)
    yield Row("groups: A group of one in two functions of one file", [5.0, 1.0, -1.0], run("rloo", single, groups))
    yield Row(
        "groups: A group of one in two functions of one file", [0.0, 1.0, -1.0], run("rloo_vectorized", single, groups)
    )
    yield Row(
        "groups: A group of one under a length-weighted baseline",
        [5.0, 0.75, -0.25],
        run("opo", single, groups, [4, 1, 3]),
    )
    three = [1.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    values = run("gpg", three, [0] * 4 + [1] * 4 + [2] * 4)
    yield Row("methods: GPG counts rewards instead of samples", [1.8, -0.6, -0.6, -0.6], values[:4])
    values = run("reinforce_plus_plus_baseline", single, groups)
    yield Row("groups: A group of one in a batch that is whitened", [1.137760, -0.398216, -0.739544], values)
    values = run("grpo_passk", [0.9, 0.5, 0.2, 0.1], [0] * 4)
    yield Row("methods: Pass@k in verl: best minus second reward", [1.112970, 0.0, 0.0, 0.0], values)
    values = run("reinforce_plus_plus", [1.0, 0.0, 0.0, 1.0], [0] * 4, [1, 3, 2, 2])
    yield Row("batch: REINFORCE++ in four systems", [1.207615, -0.724569, -0.724569, 1.207615], values)
    lengths = [1, 2, 3, 10]
    mask = (torch.arange(10) < torch.tensor(lengths)[:, None]).float()
    values = core.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(4, 10),
        response_mask=mask,
        index=np.array(["0"] * 4, dtype=object),
        config={"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 1.0, 7.0]},
        non_tensor_batch={"a": np.array([1.0, 1.0, 0.0, 0.0]), "b": np.array([1.0, 0.0, 0.0, 0.0])},
        batch={"prompts": torch.zeros(4, 1), "attention_mask": torch.cat([torch.ones(4, 1), mask], 1).long()},
    )[0][:, 0].tolist()
    yield Row("batch: GDPO: reward weights by position", [3.111522, 1.215577, -0.426360, -0.426360], values, 1e-4)
    whiten = importlib.import_module("verl.utils.torch_functional").masked_whiten
    try:
        whiten(torch.ones(1, 1), torch.ones(1, 1))
        raised = 0.0
    except ValueError:
        raised = 1.0
    yield Row("batch: Whitening a batch of one token", [1.0], [raised])
    yield from _verl_losses(core)


def _verl_losses(core: Any) -> Iterator[Row]:
    import torch
    from verl.workers.config import ActorConfig, OptimizerConfig

    old = torch.tensor(OLD, dtype=torch.float64)
    mask = torch.tensor(TOKENS).bool()
    credit = torch.tensor([[1.0], [-1.0]], dtype=torch.float64) * mask

    def loss(
        name: str, mode: str = "token-mean", change: Sequence[Sequence[float]] = CHANGE, rows: Sequence[int] = (0, 1),
        counted: Any = mask, **settings: Any,
    ) -> tuple[float, list[float]]:  # fmt: skip
        """Return the loss of the five tokens, or of some rows, and its slope by their log-probs."""
        config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=2, ppo_mini_batch_size=2,
            optim=OptimizerConfig(lr=1e-6),
            **{"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, **settings},
        )  # fmt: skip
        new = (old + torch.tensor(change, dtype=torch.float64)).requires_grad_()
        at = torch.tensor(rows)
        value, _ = core.get_policy_loss_fn(name)(
            old_log_prob=old[at], log_prob=new[at], advantages=credit[at], response_mask=counted[at],
            loss_agg_mode=mode, config=config, rollout_is_weights=None,
        )  # fmt: skip
        (slope,) = torch.autograd.grad(value, new)
        return float(value.detach()), slope[mask].tolist()

    still = [[0.0] * 3] * 2
    yield Row(
        "losses: CISPO: one bound with three meanings", [-0.2, -0.2, 0.2, 0.2, 0.2], loss("cispo", change=still)[1]
    )
    values = loss("vanilla", clip_ratio_c=1.3)[0]
    yield Row("losses: Dual clip: three definitions", [0.243313], [values])
    plain = torch.max(-credit * torch.tensor(CHANGE).exp(), -credit * torch.tensor(CHANGE).exp().clamp(0.8, 1.2))
    summed = {"loss_mask": mask, "loss_agg_mode": "seq-mean-token-sum-norm"}
    values = float(core.agg_loss(plain, loss_scale_factor=4, **summed))
    yield Row("losses: seq-mean-token-sum-norm in two versions of verl", [0.195661], [values])
    pad = torch.nn.functional.pad
    wide = core.agg_loss(pad(plain, (0, 27)), loss_mask=pad(mask, (0, 27)), loss_agg_mode="seq-mean-token-sum-norm")
    ratio = float(core.agg_loss(plain, **summed) / wide)
    yield Row("losses: Dr. GRPO: the horizon is the padded width", [10.0], [ratio], 1e-5)
    bounds: dict[str, Any] = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    values = [loss("gspo", mode, **bounds)[0] for mode in ("token-mean", "seq-mean-token-mean")]
    yield Row("losses: GSPO: a sequence ratio under a token mean", [0.262942, 0.052385], values)
    apart = loss("geo_mean", rows=[0])[0] + loss("geo_mean", rows=[1])[0]
    values = apart / loss("geo_mean")[0]
    yield Row("losses: GMPO in verl: micro-batch means that are summed", [2.0], [values])
    none = mask.clone()
    none[1] = False
    values = loss("geo_mean", counted=none)[0] / loss("geo_mean", rows=[0])[0]
    yield Row("losses: GMPO in verl: fully masked rows count in the mean", [0.5], [values])
    log_ratio = torch.tensor([[0.04 / 0.01, 0.95 / 0.7, 1.0], [1.0, 1.0, 1.0]]).log()
    before = torch.tensor([[0.01, 0.7, 1.0], [0.5, 0.5, 0.5]], dtype=torch.float64).log()
    old.copy_(before)
    slopes = loss("dppo_tv", change=log_ratio.tolist())[1][:2]
    values = [float(x != 0) for x in slopes]
    yield Row("losses: DPPO in verl: clip_ratio as a bound on a divergence", [1.0, 0.0], values)

    def estimate(logprob: float, reference: float, kind: str) -> list[float]:
        x = torch.tensor([logprob], requires_grad=True)
        value = core.kl_penalty(x, torch.tensor([reference]), kind)
        return [float(value), float(torch.autograd.grad(value.sum(), x)[0])]

    values = estimate(-1.0, -1.4, "k3+")
    yield Row("losses: k3+ in verl: the value of k3, the gradient of k2", [0.070320, 0.4], values)
    values = estimate(-5.0, -1.0, "low_var_kl")
    yield Row("losses: Clamped KL estimates have no gradient beyond the clamp", [10.0, 0.0], values)
    reject = importlib.import_module("verl.trainer.ppo.rollout_corr_helper").compute_rollout_rejection_mask
    ratios = torch.tensor([[0.24, 0.26, 0.49, 1.9, 2.1, 3.9]])
    values = reject(ratios.log(), torch.ones(1, 6), "token_k1", "0.5_4")[0][0].tolist()
    yield Row(
        "losses: Rejection sampling in verl: bounds applied to the inverse ratio",
        [0.0, 1.0, 1.0, 1.0, 0.0, 0.0],
        values,
    )


SYSTEMS: dict[str, Callable[[], Iterator[Row]]] = {"trl": trl, "verl": verl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    n_different = 0
    for name in arguments.only:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed, left out")
            continue
        for row in SYSTEMS[name]():
            text = "as stated" if row.is_same else f"OTHER: stated {format_numbers(row.expected)}"
            print(f"{name} {version} | {row.entry} | {format_numbers(row.values)} | {text}", flush=True)
            n_different += not row.is_same
    if n_different:
        sys.exit(f"{n_different} entries differ: the systems have moved on, or the page is wrong")


if __name__ == "__main__":
    main()

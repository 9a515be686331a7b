#!/usr/bin/env python3
"""Runs installed trainers on the inputs of docs/errata.md and says whether they still give the numbers stated there.

    python scripts/check_errata.py               # every one of these that is installed beside this interpreter
    python scripts/check_errata.py --only trl

TRL runs one step of a two-layer model for each case, on a CPU and offline; of verl only the functions of core_algos are
called. Nothing of gxpo is imported. Exit 1 where a number is another; what is not installed is said and left out.
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
    """What an entry of the errata says, and what was found."""

    entry: str
    stated: Sequence[float]
    found: Sequence[float]
    tolerance: float = 2e-6

    @property
    def same(self) -> bool:
        pairs = zip(self.stated, self.found, strict=False)
        return len(self.stated) == len(self.found) and all(abs(a - b) <= self.tolerance for a, b in pairs)


def shown(xs: Sequence[float]) -> str:
    return " ".join(f"{x:.6g}" for x in xs)


# TRL.
def _model() -> tuple[Any, Any]:
    """A tokenizer of characters and a model of two layers, both made here."""
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


def _advantages(trainer: str, tables: Sequence[Sequence[float | None]], group: int, **settings: Any) -> list[float]:
    """Advantages of one step in which reward function k gives `tables[k]`, whatever was sampled."""
    import trl
    from datasets import Dataset

    kind, arguments = getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config")
    seen: list[float] = []

    class Listening(kind):  # type: ignore[misc, valid-type]  # a class that is chosen above
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            seen.extend(made["advantages"].tolist())
            return made

    def reward(table: Sequence[float | None], name: str) -> Callable[..., list[float | None]]:
        def scored(completions: Sequence[Any], **_: Any) -> list[float | None]:
            return list(table)

        scored.__name__ = name
        return scored

    tokenizer, model = _model()
    rows = len(tables[0])
    with tempfile.TemporaryDirectory() as folder:
        made = arguments(
            output_dir=folder, per_device_train_batch_size=rows, num_generations=group, max_completion_length=4,
            max_steps=1, report_to="none", use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
            gradient_checkpointing=False, logging_strategy="no", **settings,
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": f"{i}+{i}="} for i in range(max(rows // group, 1) * 2)])
        functions = [reward(t, f"reward_{k}") for k, t in enumerate(tables)]
        with contextlib.redirect_stdout(io.StringIO()):  # a line of metrics for each run
            Listening(
                model=model, args=made, train_dataset=data, reward_funcs=functions, processing_class=tokenizer
            ).train()
    return seen[:rows]


def trl() -> Iterator[Row]:
    """TRL's GRPOTrainer and RLOOTrainer."""
    one = [1.0] + [0.0] * 7
    grpo = {"beta": 0.0}
    yield Row("statistics: one name, five numbers", [2.474174] + [-0.353453] * 7, _advantages("GRPO", [one], 8, **grpo))
    small = [r / 1000 for r in one]
    yield Row("statistics: eps is a length", [1.929211], _advantages("GRPO", [small], 8, **grpo)[:1], 1e-4)
    batch = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    found = _advantages("GRPO", [batch], 4, scale_rewards="batch", **grpo)
    yield Row("statistics: the batch's std is of rewards", [0.467620, -1.402860], [found[0], found[3]])
    found = _advantages("GRPO", [[1.0, None, -1.0, -1.0]], 4, **grpo)
    yield Row("rewards: unscored is left out (fixed)", [1.154601, 0.0, -0.577300, -0.577300], found)
    two = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    found = _advantages("GRPO", two, 4, multi_objective_aggregation="normalize_then_sum", **grpo)
    yield Row("batch: GDPO over trajectories", [1.332031, 0.206077, -0.769054, -0.769054], found)
    found = _advantages("RLOO", [[1.0, 0.0, 0.0, 1.0]], 4, normalize_advantages=True, beta=0.0)
    yield Row("batch: REINFORCE++ in TRL's recipe", [0.865913, -0.865913, -0.865913, 0.865913], found)


# verl.
def verl() -> Iterator[Row]:
    """Functions of verl.trainer.ppo.core_algos."""
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
    yield Row("statistics: one name, five numbers", [2.474867] + [-0.353552] * 7, run("grpo", one, ids))
    single, groups = [5.0, 1.0, 0.0], [0, 1, 1]
    yield Row("groups: one keeps its reward (grpo)", [4.999995], run("grpo", single, groups)[:1], 1e-5)
    yield Row("groups: one keeps its reward (rloo)", [5.0, 1.0, -1.0], run("rloo", single, groups))
    yield Row("groups: one has 0 (rloo_vectorized)", [0.0, 1.0, -1.0], run("rloo_vectorized", single, groups))
    yield Row("groups: one keeps its reward (opo)", [5.0, 0.75, -0.25], run("opo", single, groups, [4, 1, 3]))
    three = [1.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    found = run("gpg", three, [0] * 4 + [1] * 4 + [2] * 4)
    yield Row("methods: gpg counts rewards", [1.8, -0.6, -0.6, -0.6], found[:4])
    found = run("reinforce_plus_plus_baseline", single, groups)
    yield Row("groups: one of a batch that is whitened", [1.137760, -0.398216, -0.739544], found)
    found = run("grpo_passk", [0.9, 0.5, 0.2, 0.1], [0] * 4)
    yield Row("methods: best minus second", [1.112970, 0.0, 0.0, 0.0], found)
    found = run("reinforce_plus_plus", [1.0, 0.0, 0.0, 1.0], [0] * 4, [1, 3, 2, 2])
    yield Row("batch: REINFORCE++ over tokens", [1.207615, -0.724569, -0.724569, 1.207615], found)
    lengths = [1, 2, 3, 10]
    mask = (torch.arange(10) < torch.tensor(lengths)[:, None]).float()
    found = core.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(4, 10),
        response_mask=mask,
        index=np.array(["0"] * 4, dtype=object),
        config={"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 1.0, 7.0]},
        non_tensor_batch={"a": np.array([1.0, 1.0, 0.0, 0.0]), "b": np.array([1.0, 0.0, 0.0, 0.0])},
        batch={"prompts": torch.zeros(4, 1), "attention_mask": torch.cat([torch.ones(4, 1), mask], 1).long()},
    )[0][:, 0].tolist()
    yield Row(
        "batch: GDPO over tokens, a third weight dropped", [3.111522, 1.215577, -0.426360, -0.426360], found, 1e-4
    )


SYSTEMS: dict[str, Callable[[], Iterator[Row]]] = {"trl": trl, "verl": verl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    different = 0
    for name in arguments.only:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed, left out")
            continue
        for row in SYSTEMS[name]():
            said = "as stated" if row.same else f"OTHER: stated {shown(row.stated)}"
            print(f"{name} {version} | {row.entry} | {shown(row.found)} | {said}", flush=True)
            different += not row.same
    if different:
        sys.exit(f"{different} entries differ: the systems have moved on, or the page is wrong")


if __name__ == "__main__":
    main()

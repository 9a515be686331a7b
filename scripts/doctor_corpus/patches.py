"""What a recipe changes in the trainer: subclasses such as users write, each with the bug that it is for."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer


class OppositeAdvantage(GRPOTrainer):
    """A user's loss that minimises what should be maximised."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if self.model.training:
            out["advantages"] = -out["advantages"]
        return out


class ShuffledAdvantage(GRPOTrainer):
    """Rows are reordered between reward and loss (a length sort), the advantages are not."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if self.model.training:
            order = torch.argsort(out["completion_mask"].sum(1), stable=True)
            for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
                out[name] = out[name][order].roll(1, 0)
        return out


class _Once(Sampler):
    """Each row once, without TRL's repetition of a prompt for its group."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed)).tolist())

    def __len__(self) -> int:
        return self.n


class _Interleaved(_Once):
    """G passes over the prompts of a batch: a, b, c, ..., a, b, c, ... in place of a, a, ..., b, b, ..."""

    def __init__(self, n: int, seed: int, prompts: int, group: int) -> None:
        super().__init__(n, seed)
        self.prompts, self.group = prompts, group

    def __iter__(self):
        order = list(super().__iter__())
        for i in range(0, len(order), self.prompts):
            for _ in range(self.group):
                yield from order[i : i + self.prompts]

    def __len__(self) -> int:
        return self.n * self.group


class PromptsOnce(GRPOTrainer):
    """Overrides the sampler to shuffle in its own way and loses the repetition of prompts."""

    def _get_train_sampler(self, dataset=None):
        return _Once(len(dataset if dataset is not None else self.train_dataset), self.args.seed)


class PromptsInterleaved(GRPOTrainer):
    """Repeats the batch of prompts in place of each prompt."""

    def _get_train_sampler(self, dataset=None):
        n = len(dataset if dataset is not None else self.train_dataset)
        prompts = self.args.generation_batch_size // self.num_generations
        return _Interleaved(n, self.args.seed, prompts, self.num_generations)


class Engine:
    """A second copy of the model that samples, as vLLM does: own weights, own arithmetic, delivered weights.

    every   deliver the weights at every n-th step only; 0: never after the start
    bits    round the delivered weights to so many bits per tensor (a quantised engine)
    raw     report log-probs of the untempered distribution
    shift   report log-probs one position late
    """

    def __init__(self, trainer: Any, every: int = 1, bits: int = 0, raw: bool = False, shift: bool = False) -> None:
        self.trainer, self.every, self.bits, self.raw, self.shift = trainer, every, bits, raw, shift
        self.model = type(trainer.model)(trainer.model.config).eval()  # a deep copy would share the wrapped forward
        self.model.load_state_dict(trainer.model.state_dict())
        self._quantise()

    def _quantise(self) -> None:
        if not self.bits:
            return
        with torch.no_grad():
            for p in self.model.parameters():
                unit = p.abs().max() / (2 ** (self.bits - 1) - 1)
                p.copy_((p / unit).round() * unit)

    def sync_weights(self) -> None:
        step = self.trainer.state.global_step
        if self.every and step % self.every == 0:
            self.model.load_state_dict(self.trainer.model.state_dict())
            self._quantise()

    @torch.no_grad()
    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tok = trainer.processing_class
        if isinstance(prompts[0], str):
            ids = [tok(p)["input_ids"] for p in prompts]
        else:
            ids = [tok.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
        width = max(map(len, ids))
        padded = torch.tensor([[tok.pad_token_id] * (width - len(p)) + p for p in ids])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in ids])
        out = self.model.generate(
            input_ids=padded,
            attention_mask=mask,
            generation_config=trainer.generation_config,
            return_dict_in_generate=True,
            output_logits=True,
        )
        completion_ids = out.sequences[:, width:]
        temperature = 1.0 if self.raw else trainer.temperature
        logps = (
            torch.stack(out.logits, 1)
            .float()
            .div(temperature)
            .log_softmax(-1)
            .gather(2, completion_ids[..., None])[..., 0]
        )
        ends = [(row == tok.eos_token_id).nonzero() for row in completion_ids]
        lengths = [int(e[0]) + 1 if len(e) else completion_ids.shape[1] for e in ends]
        if self.shift:
            logps = torch.cat([logps[:, :1], logps[:, :-1]], 1)
        return {
            "prompt_ids": ids,
            "completion_ids": [row[:n].tolist() for row, n in zip(completion_ids, lengths, strict=True)],
            "logprobs": [row[:n].tolist() for row, n in zip(logps, lengths, strict=True)],
        }


def attach_engine(trainer: GRPOTrainer, **settings: Any) -> None:
    """Let TRL sample from the copy from here on and compute its own correction, as it does with vLLM."""
    engine = Engine(trainer, **settings)
    trainer.rollout_func = engine
    trainer.vllm_generation = engine
    trainer._last_loaded_step = -1
    trainer.use_vllm = True


TRAINERS: dict[str, type[GRPOTrainer]] = {
    "plain": GRPOTrainer,
    "opposite_advantage": OppositeAdvantage,
    "shuffled_advantage": ShuffledAdvantage,
    "prompts_once": PromptsOnce,
    "prompts_interleaved": PromptsInterleaved,
}

"""gxpo's TRL trainer over the stand-in for TRL's around a small model of transformers; its batches by gxpo's own."""

import torch
from tests.adapters import fake_trl
from tests.adapters.fake_trl import Config

from gxpo.adapters import available
from gxpo.adapters import trl as adapter
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.learning.torch import TorchLearner
from gxpo.models.tiny import tiny_model
from gxpo.training import models
from gxpo.training.bound_learner import Batch

PROMPTS = ["12+3=", "4+5=", "77+1=", "9-2="]
TOKENIZER = models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}


def small():
    return tiny_model(seed=1, num_key_value_heads=1, **SMALL).double()


class Llama(fake_trl.GRPOTrainer):
    """The stand-in for TRL's trainer around a model of transformers, with texts as prompts and answers beside them."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self._tokenizer = TOKENIZER

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if self.args.beta:
            out["ref_per_token_logps"] = torch.full(out["completion_ids"].shape, -2.0, dtype=torch.float64)
        return out

    def _tokenize_prompts(self, prompts):
        return [TOKENIZER(x).input_ids if isinstance(x, str) else x for x in prompts], None, {}

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False,
    ):  # fmt: skip
        mask = (input_ids != fake_trl.PAD).long() if attention_mask is None else attention_mask
        logits = model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits[:, -logits_to_keep - 1 : -1]
        spread = (logits / self.args.temperature).log_softmax(-1)
        logprob = spread.gather(2, input_ids[:, -logits_to_keep:, None])[..., 0]
        return logprob, -(spread.exp() * spread).sum(-1), None


class Trainer(adapter.WithMethod, Llama):
    """gxpo's trainer over it."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self.inputs = [{"prompt": PROMPTS[i // 4], "answer": str(i // 4)} for i in range(len(prompts))]
        texts = [x["prompt"] for x in self.inputs]
        return super()._calculate_rewards(self.inputs, texts, completions, completion_ids_list)


def by_sum(prompts, completion_ids):
    return [sum(ids) % 5 / 4 for ids in completion_ids]


def named(name):
    def reward(prompts, completion_ids):
        return [sum(ids) % 3 / 2 for ids in completion_ids]

    reward.__name__ = name
    return reward


def trainer(name, micro=16, *, without="", overrides=None, out=None, answers=None, kind=Trainer, **settings):
    """A trainer that is given what the method needs, except `without`."""
    _, needs = available.needs_in_trl(name)
    parts = 16 // micro
    expected = {k: v for k, v in needs.settings.items() if k != without}
    if n := expected.pop("steps_per_generation", None):
        expected |= {
            "gradient_accumulation_steps": 1,
            "steps_per_generation": n,
            "per_device_train_batch_size": 16 // n,
        }
    start = {"gradient_accumulation_steps": parts, "steps_per_generation": parts, "per_device_train_batch_size": micro}
    config = Config(**{**start, **expected, **settings})
    named_rewards = [n for n in needs.rewards if n != without]
    config.reward_weights = [1.0] + [0.0] * len(named_rewards) if named_rewards else None
    chosen = {f"{k}.score": available.JUDGE for k in needs.overrides}
    arguments = {k: v for k, v in needs.arguments.items() if k != without}
    if answers is not None:
        arguments["answers"] = answers
    rewards = [by_sum, *map(named, named_rewards)]
    return kind(small(), rewards, config, out=out, method=name, overrides={**chosen, **(overrides or {})}, **arguments)


def prompts():
    return [TOKENIZER(text).input_ids for text in PROMPTS]


def names_of(method):
    return tuple(dict.fromkeys((*method.outputs, "entropy")))


def batch_of_our_trainer(made, method=None, policy=None):
    """(batch of the generation batch's first optimiser step, learner) of gxpo's own trainer."""
    scored, own_fill = made._batch_by_mode["train"], made.gxpo_method.fill() if method is None else method
    learner = TorchLearner(policy or small(), lr=0.0, kernels="transformers", layout="flat")
    tools = SignalTools(
        learner,
        lambda ids: TOKENIZER.decode(list(ids), skip_special_tokens=True),
        TOKENIZER.pad_token_id,
        1,
        made.args.seed,
        encode=lambda text: TOKENIZER(text, add_special_tokens=False).input_ids,
        answers=lambda forest: [str(PROMPTS.index(prompt_of(forest, r))) for r in range(forest.n_trajectories)],
        reword=made._services._reworded_prompt,
    )
    forest = scored.forest
    if own_fill.segmenter is not None and not bool((forest.segment >= 0).any()):
        forest = own_fill.segmenter(forest, SegmentTools(tools.decode, learner))
        assert torch.equal(forest.segment, scored.forest.segment)
    actual = learner.outputs(forest, ("logprob", "entropy"))
    values = {"proximal_logprob": actual["logprob"], "entropy": actual["entropy"]}
    if "reference_logprob" in own_fill.needs:
        values["reference_logprob"] = torch.full((forest.n_entries,), -2.0, dtype=torch.float64)
    for part in own_fill.signals.values():
        part.bind(tools)
        values |= part.compute(forest, Signals.of(forest, values, own_fill.axes), tools)
    signals = Signals.of(forest, values, own_fill.axes)
    credit = own_fill.advantages(forest, signals, 1)
    signals = Signals.of(forest, {**values, **own_fill.targets(forest, signals, 1)}, own_fill.axes)
    weight = own_fill.token_weights(forest, credit, signals, 1)
    return Batch(own_fill, forest, credit, weight, signals, None, 1), learner


def prompt_of(forest, row):
    return TOKENIZER.decode(forest.context(int(forest.prompt_node[row])), skip_special_tokens=True)

"""How gxpo runs a model, whether its tokenizer fits, and whether sampler, learner and transformers agree on it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gxpo.forest.forest import Forest
from gxpo.learning.architecture import untrained_loss, why_flat
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat.render import has_template
from gxpo.models.decoder.architecture import layers_of
from gxpo.models.decoder.forward import Decoder
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models.check_tokenizer import check_tokenizer
from gxpo.training.models.load import Loaded, load

PROMPTS, SAMPLES, NEW = (24, 7), 3, 12  # tokens of the prompts, samples of each, tokens that are drawn
CLOSE = {torch.float32: 1e-4, torch.float64: 1e-6}  # nats; others are 16 bits wide
CLOSE_IN_16_BITS = 0.5


@dataclass
class Found:
    """What is known of a model. Gaps are the largest differences of log-probs (nats) of the same sampled tokens."""

    model: str
    architecture: str
    parameters: int
    dtype: str
    forward: str  # "fast", or "transformers: why"
    training: str  # "packed", or "flat: why"
    turns: str  # what happens to a context between the turns of an episode
    positions: int | None
    windows: list[int]
    tied_head: bool
    vocabulary: str
    end_ids: list[int]
    chat_template: bool
    round_trip: str = ""  # ids -> text -> ids
    template_tokens: str = ""  # special tokens that the chat template writes, with their ids
    ends: str = ""
    pad: str = ""
    sampler_gap: float | None = None
    transformers_gap: float | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """A line for each."""
        lines = []
        for name, value in self.to_dict().items():
            shown = "\n".join(map(str, value)) if name in ("notes", "problems") else _shown(value)
            lines.append(f"{name:<17} " + shown.replace("\n", "\n" + 18 * " "))
        return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value in (None, "", []):
        return {True: "yes", False: "no"}.get(value, "-") if isinstance(value, bool) else "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}" if isinstance(value, float) else str(value)


def check(name: str, *, task: str = "arithmetic", dtype: str = "float32", device: str = "cpu") -> Found:
    """Load the model called `name` as a run would and compare its sampler, its learner and transformers.

    `ModelError` if it can't be loaded or sampled from, with the reason.
    """
    return checked(load(name, task=task, dtype=dtype, device=device))


def checked(loaded: Loaded) -> Found:
    """`check` of a model that is there."""
    causal: Any = loaded.model
    device = next(causal.parameters()).device
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine = TorchEngine(causal, loaded.tokenizer, device=device)
        learner = TorchLearner(causal, lr=0.0, device=device)
    readout, network = learner._readout, engine.network
    reason = Decoder.why_not(causal)
    if readout.decoder is None and reason is None:
        reason = "it does not do what its configuration says"
    flat = why_flat(readout)
    layers = [] if readout.decoder is None else layers_of(causal, readout.decoder.family)
    found = Found(
        model=loaded.name,
        architecture=type(causal).__name__,
        parameters=sum(p.numel() for p in causal.parameters()),
        dtype=str(next(causal.parameters()).dtype).removeprefix("torch."),
        forward="fast" if reason is None else f"transformers: {reason}",
        training="packed" if flat is None else f"flat: {flat}",
        turns="caches are kept" if network.layout is not None else "contexts are read anew in every turn",
        positions=readout.positions,
        windows=sorted({layer.window for layer in layers if layer.window is not None}),
        tied_head=bool(getattr(causal.config.get_text_config(), "tie_word_embeddings", False)),
        vocabulary=f"{readout.vocabulary:,} (tokenizer: {len(loaded.tokenizer):,})",  # type: ignore[arg-type]
        end_ids=list(loaded.eos_ids),
        chat_template=has_template(loaded.tokenizer),
    )
    _notes(found, loaded, readout.limited_by, {str(each.message) for each in said})
    tokens = check_tokenizer(loaded.tokenizer, readout.vocabulary, found.end_ids)
    found.round_trip, found.template_tokens = tokens.round_trip, tokens.template_tokens
    found.ends, found.pad = tokens.ends, tokens.pad
    found.notes += tokens.notes
    found.problems += tokens.problems
    _measure(found, engine, learner)
    return found


def _notes(found: Found, loaded: Loaded, limited_by: str, said: set[str]) -> None:
    known = ("run by transformers", "trained flat")  # they stand in their own lines
    found.notes += sorted(line for line in said if not any(word in line for word in known))
    if limited_by:
        found.notes.append(f"positions: {found.positions:,}{limited_by}")
    tokens, ids = len(loaded.tokenizer), int(loaded.model.config.get_text_config().vocab_size)  # type: ignore[arg-type]
    if tokens > ids:
        found.problems.append(f"the tokenizer has {tokens:,} tokens, the model {ids:,}: they are not of one model")
    elif tokens < ids:
        found.notes.append(f"ids from {tokens:,} on are no tokens: sampled, they are text of no length")
    if not found.end_ids:
        found.problems.append(
            "no end-of-sequence id is known: every action goes on to sampling.max_new_tokens (set eos_token_id in "
            "generation_config.json, or sampling.stop)"
        )
    if not found.chat_template:
        found.notes.append("no chat template: prompts are plain text (chat.template gives one)")
    if (more := untrained_loss(loaded.model)) is not None and more not in found.notes:
        found.notes.append(more)


def _measure(found: Found, engine: TorchEngine, learner: TorchLearner) -> None:
    """Log-probs of sampled tokens: of the sampler, of the learner, of transformers on each sample alone."""
    vocabulary = learner._readout.vocabulary
    prompts = [[(i * 7919 + n) % vocabulary for i in range(1, n + 1)] for n in PROMPTS]
    asked = [
        Request(tuple(p), tuple(StreamKey(0, 0, str(i), j) for j in range(SAMPLES))) for i, p in enumerate(prompts)
    ]
    answered = engine.sample(asked, Sampling(max_new_tokens=NEW))
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in row] for row in answered],
        [[0.0] * SAMPLES for _ in answered],
        logprobs=[[c.logprobs for c in row] for row in answered],
    )
    own = learner.outputs(forest)["logprob"]
    bare = []
    for prompt, row in zip(prompts, answered, strict=True):
        for c in row:
            tokens = torch.tensor([[*prompt, *c.tokens]], device=learner.device)
            with torch.no_grad():
                logits = learner.model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
            every = logits.double().log_softmax(-1).cpu()
            bare.append(every.gather(1, torch.tensor(c.tokens)[:, None])[:, 0])
    found.sampler_gap = float((own - forest.path_behaviour_logprob).abs().max())
    found.transformers_gap = float((own - torch.cat(bare)).abs().max())
    close = CLOSE.get(next(learner.model.parameters()).dtype, CLOSE_IN_16_BITS)
    for what, gap in (("the sampler", found.sampler_gap), ("transformers", found.transformers_gap)):
        if not gap <= close:
            found.problems.append(f"learner and {what} differ by {gap:.2g} nats at one token (rounding: {close:g})")

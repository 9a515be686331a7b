"""Check a model: how gxpo runs it, whether its tokenizer fits, and whether sampler, learner and transformers agree."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gxpo.base.devices import to_host_float64
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.architecture import flat_layout_reason, untrained_loss
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat.render import has_template
from gxpo.models.decoder.architecture import layers_of
from gxpo.models.decoder.forward import Decoder
from gxpo.models.masked import SUFFIX
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models.check_tokenizer import check_tokenizer
from gxpo.training.models.load import LoadedModel, load

PROMPTS, SAMPLES, NEW_TOKENS = (24, 7), 3, 12  # lengths of the prompts, samples of each, tokens of a sample
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}  # nats; other dtypes are 16 bits wide
TOLERANCE_16_BITS = 0.5


@dataclass
class ModelReport:
    """Report on a model; gaps are the largest differences of log-probs (nats) of the same sampled tokens."""

    model: str
    architecture: str
    parameters: int
    dtype: str
    forward: str  # "fast", or "transformers: why"
    training: str  # "packed", or "flat: why"
    turns: str  # handling of a context between the turns of an episode
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
        """Format the report with a line for each field."""
        lines = []
        for name, value in self.to_dict().items():
            content = "\n".join(map(str, value)) if name in ("notes", "problems") else _format_value(value)
            lines.append(f"{name:<17} " + content.replace("\n", "\n" + 18 * " "))
        return "\n".join(lines)


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value in (None, "", []):
        return {True: "yes", False: "no"}.get(value, "-") if isinstance(value, bool) else "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}" if isinstance(value, float) else str(value)


def check(name: str, *, task: str = "arithmetic", dtype: str = "float32", device: str = "cpu") -> ModelReport:
    """Load the model called `name` as a run would and compare its sampler, its learner and transformers.

    `ModelError` if it can't be loaded or sampled from, with the reason.
    """
    return check_loaded(load(name, task=task, dtype=dtype, device=device))


def check_loaded(loaded: LoadedModel) -> ModelReport:
    """Check a loaded model (see `check`)."""
    causal: Any = loaded.model
    if type(causal).__name__.endswith(SUFFIX):
        raise ModelError(f"{loaded.name} is a masked language model, and this compares causal ones: leave it out")
    device = next(causal.parameters()).device
    # A run warns of these as it builds its engine and learner; here they are notes of the report.
    with warnings.catch_warnings(record=True) as warning_records:
        warnings.simplefilter("always")
        engine = TorchEngine(causal, loaded.tokenizer, device=device)
        learner = TorchLearner(causal, lr=0.0, device=device)
    readout, network = learner._readout, engine.network
    # The learner tries the decoder on the model; a model that looks supported may still compute something else.
    reason_slow = Decoder.why_not(causal)
    if readout.decoder is None and reason_slow is None:
        reason_slow = "it does not do what its configuration says"
    reason_flat = flat_layout_reason(readout)
    layers = [] if readout.decoder is None else layers_of(causal, readout.decoder.family)
    report = ModelReport(
        model=loaded.name,
        architecture=type(causal).__name__,
        parameters=sum(p.numel() for p in causal.parameters()),
        dtype=str(next(causal.parameters()).dtype).removeprefix("torch."),
        forward="fast" if reason_slow is None else f"transformers: {reason_slow}",
        training="packed" if reason_flat is None else f"flat: {reason_flat}",
        turns="caches are kept" if network.layout is not None else "contexts are read anew in every turn",
        positions=readout.positions,
        windows=sorted({layer.window for layer in layers if layer.window is not None}),
        tied_head=bool(getattr(causal.config.get_text_config(), "tie_word_embeddings", False)),
        vocabulary=f"{readout.vocabulary:,} (tokenizer: {len(loaded.tokenizer):,})",  # type: ignore[arg-type]
        end_ids=list(loaded.eos_ids),
        chat_template=has_template(loaded.tokenizer),
    )
    _add_notes(report, loaded, readout.limited_by, {str(each.message) for each in warning_records})
    tokens = check_tokenizer(loaded.tokenizer, readout.vocabulary, report.end_ids)
    report.round_trip, report.template_tokens = tokens.round_trip, tokens.template_tokens
    report.ends, report.pad = tokens.ends, tokens.pad
    report.notes += tokens.notes
    report.problems += tokens.problems
    _measure_gaps(report, engine, learner)
    return report


def _add_notes(report: ModelReport, loaded: LoadedModel, limited_by: str, messages: set[str]) -> None:
    """Add warnings of engine and learner, and problems of vocabulary, end ids and chat template."""
    reported_elsewhere = ("run by transformers", "trained flat")  # `forward` and `training` of the report
    report.notes += sorted(line for line in messages if not any(word in line for word in reported_elsewhere))
    if limited_by:
        report.notes.append(f"positions: {report.positions:,}{limited_by}")
    tokens, ids = len(loaded.tokenizer), int(loaded.model.config.get_text_config().vocab_size)  # type: ignore[arg-type]
    if tokens > ids:
        report.problems.append(f"the tokenizer has {tokens:,} tokens, the model {ids:,}: they are not of one model")
    elif tokens < ids:
        report.notes.append(f"ids from {tokens:,} on are no tokens: sampled, they are text of no length")
    if not report.end_ids:
        report.problems.append(
            "no end-of-sequence id is known: every action goes on to sampling.max_new_tokens (set eos_token_id in "
            "generation_config.json, or sampling.stop)"
        )
    if not report.chat_template:
        report.notes.append("no chat template: prompts are plain text (chat.template gives one)")
    if (note := untrained_loss(loaded.model)) is not None and note not in report.notes:
        report.notes.append(note)


def _measure_gaps(report: ModelReport, engine: TorchEngine, learner: TorchLearner) -> None:
    """Compare log-probs of sampled tokens: of the sampler, of the learner, of transformers on each sample alone."""
    vocabulary = learner._readout.vocabulary
    # Two lengths in one call, so that packing, padding and shared prompts take part.
    prompts = [[(i * 7919 + n) % vocabulary for i in range(1, n + 1)] for n in PROMPTS]
    requests = [
        Request(tuple(p), tuple(StreamKey(0, 0, str(i), j) for j in range(SAMPLES))) for i, p in enumerate(prompts)
    ]
    completions = engine.sample(requests, Sampling(max_new_tokens=NEW_TOKENS))
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in row] for row in completions],
        [[0.0] * SAMPLES for _ in completions],
        logprobs=[[c.logprobs for c in row] for row in completions],
    )
    learner_logprob_P = learner.outputs(forest)["logprob"]
    # The reference: a forward pass without cache, batch or packing.
    transformers_logprobs = []
    for prompt, row in zip(prompts, completions, strict=True):
        for c in row:
            tokens = torch.tensor([[*prompt, *c.tokens]], device=learner.device)
            with torch.no_grad():
                logits = learner.model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
            vocabulary_logprobs = to_host_float64(logits).log_softmax(-1)
            transformers_logprobs.append(vocabulary_logprobs.gather(1, torch.tensor(c.tokens)[:, None])[:, 0])
    report.sampler_gap = float((learner_logprob_P - forest.path_behaviour_logprob).abs().max())
    report.transformers_gap = float((learner_logprob_P - torch.cat(transformers_logprobs)).abs().max())
    tolerance = TOLERANCE.get(next(learner.model.parameters()).dtype, TOLERANCE_16_BITS)
    for other, gap in (("the sampler", report.sampler_gap), ("transformers", report.transformers_gap)):
        if not gap <= tolerance:  # true for nan
            report.problems.append(
                f"learner and {other} differ by {gap:.2g} nats at one token (rounding: {tolerance:g})"
            )

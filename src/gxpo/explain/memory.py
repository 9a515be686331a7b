"""Memory of a model on a device that need not be there: bytes by part, from sizes and settings; nothing is loaded.

Formulas are for models that transformers runs, as on every GPU, with dense or no masks of attention. N parameters, H
hidden, A = heads x head_dim, K = kv_heads x head_dim, I intermediate, L layers, V vocabulary, b bytes of a number.

parameters    b N; with LoRA 4 bytes of each adapter parameter besides; a frozen reference, where a method needs one and
              no adapter can be taken off, b N. In NF4 a weight of a linear layer takes 1/2 byte, its block of 64 one
              byte more (the scale), and 256 blocks four (the scale of scales)
gradients     4 bytes of each trained parameter; b under states=bfloat16. A pass over 16-bit parameters holds 2 more,
              which fill up as its activations are freed: only what exceeds these is counted
optimiser     states of 4 bytes (2 under states=bfloat16) of each trained parameter, and 4 for a copy of a 16-bit one
activations   what autograd holds of a micro-batch: `saved_by_layer` of every layer, or with recomputation the hidden
              state before each; and, whichever is more, what the head's backward pass holds on top, or a layer's
mask          b tokens x longest row; of flat rows one byte in the place of b
logits        a chunk of `LOGITS_AT_ONCE` logits in b and twice in float32, or the gradient of a trained head
caches        2 b kv_layers K of every column of every sample, the prompts' own, and the copy into which the samples
              that still run are moved when others have ended
drawing       next-token logits of every sample in b and twice in float32 (once where b is 4), or a prefill's layer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gxpo.models.shape import ModelShape

BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}  # of a number
LOGITS_AT_ONCE = 2**23  # of the learner: held in their own dtype, with two copies in float32
PREFILL_TOKENS = 2**14  # prompt tokens of an engine's forward pass
KEEP_UNTIL = 7 / 8  # share of a batch's samples at which the others are removed, by a copy of the caches
MODULES = 7  # linear maps of a layer: four of attention, three of an MLP
NF4 = 1 / 2 + 1 / 64 + 4 / (64 * 256)  # bytes of a weight


@dataclass(frozen=True)
class Gpu:
    """memory in bytes; peak: dense 16-bit FLOP a second; has_bfloat16: in hardware."""

    memory: float
    peak: float
    has_bfloat16: bool = True


# Data sheets of NVIDIA; of t4 and l4, which show less than they are sold with, what is left of 16 and 24 GB.
GPUS = {
    "t4": Gpu(15.8e9, 65e12, has_bfloat16=False),
    "l4": Gpu(23.5e9, 121e12),
    "4090": Gpu(24e9, 165e12),
    "a100": Gpu(80e9, 312e12),
    "h20": Gpu(96e9, 148e12),
    "h100": Gpu(80e9, 989e12),
    "h200": Gpu(141e9, 989e12),
    "b200": Gpu(180e9, 2250e12),
}


@dataclass(frozen=True)
class Training:
    """Settings and sizes that decide the memory of a process.

    dtype, states, recompute, lora_rank, base   as `learner.*`;   optimiser_states: numbers that it keeps of a parameter
    has_reference   a frozen policy is held beside the trained one
    microbatch, row   tokens that go through the model together, and those of its longest row
    samples, prompts  decoded together, and the prompts that they share
    prompt, context   tokens of the longest prompt, and of the longest trajectory with it
    kept_tokens  of which keys and values are kept between the turns of episodes
    """

    microbatch: int
    row: int
    samples: int
    prompts: int
    prompt: int
    context: int
    dtype: str = "float32"
    states: str = "float32"
    optimiser_states: int = 2
    lora_rank: int = 0
    base: str | None = None
    recompute: bool = False
    has_reference: bool = False
    is_flat: bool = False
    kept_tokens: int = 0

    @property
    def width(self) -> int:
        """Bytes of a parameter."""
        return BYTES[self.dtype]


# ---------------------------------------------------------------- what is held between steps
def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Parameters of LoRA adapters on every linear layer but the head; of a mixture on those of attention alone.

    >>> from gxpo.models.shape import KNOWN
    >>> adapter_parameters(KNOWN["qwen2.5-0.5b"], 16)
    8798208
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = 2 * (shape.hidden + query) + 2 * (shape.hidden + key)
    if not shape.experts:
        sides += 3 * (shape.hidden + shape.intermediate)
    return rank * shape.layers * sides


def linear_parameters(shape: ModelShape) -> int:
    """Parameters of the linear layers that NF4 stores: all but the head, of a model without experts.

    >>> from gxpo.models.shape import KNOWN
    >>> linear_parameters(KNOWN["smollm2-135m"]) == 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    True
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * shape.hidden * (2 * query + 2 * key + 3 * shape.intermediate)


def weight_in_use(shape: ModelShape, t: Training) -> float:
    """Bytes of the largest matrix of a layer in NF4, which is there in b bytes while it is multiplied."""
    return float(t.width * shape.hidden * shape.intermediate) if t.base else 0.0


def states(shape: ModelShape, t: Training) -> dict[str, float]:
    """Return the bytes that a process holds between steps: parameters, adapters, reference, optimiser."""
    trained = adapter_parameters(shape, t.lora_rank) if t.lora_rank else shape.parameters
    quantised = linear_parameters(shape) if t.base else 0
    parts: dict[str, float] = {"parameters": t.width * (shape.parameters - quantised) + NF4 * quantised}
    if t.lora_rank:
        parts["adapters"] = 4 * trained
    elif t.has_reference:
        parts["reference"] = t.width * shape.parameters
    # adapters are float32 whatever the model is, and need no copies
    has_copies = t.width < 4 and t.states == "float32" and not t.lora_rank
    number = 2 if t.states == "bfloat16" and not t.lora_rank else 4 if t.lora_rank else max(4, t.width)
    parts["optimiser"] = number * t.optimiser_states * trained + (4 * trained if has_copies else 0)
    return parts


def gradients(shape: ModelShape, t: Training) -> float:
    """Return the bytes of gradients that are summed over micro-batches."""
    if t.lora_rank:
        return 4.0 * adapter_parameters(shape, t.lora_rank)
    return float(shape.parameters * (2 if t.states == "bfloat16" else max(4, t.width)))


# ---------------------------------------------------------------- an update
def saved_by_layer(shape: ModelShape, t: Training) -> float:
    """Return the bytes that autograd holds of a token and layer, hidden state before it included.

    Trained in float32: 6 H (input, normed and scaled input of two norms), 4 A (queries, keys and values as many, their
    result), 4 I (gate, its activation, up, their product). In 16 bits norms hold float32 copies. A frozen layer holds
    nothing for gradients of its weights; an adapter holds its input, in float32.
    """
    hidden, query = shape.hidden, shape.heads * shape.head_dim
    normed_heads = (shape.heads + shape.kv_heads) * shape.head_dim if shape.has_qk_norm else 0
    routed = shape.active_experts * hidden  # inputs and outputs of experts are rows of their own
    inner, wide = shape.intermediate, max(4, t.width)
    if t.lora_rank:
        is_half = t.width < 4
        norms = 2 * wide * hidden + (5 * 4 if is_half else 2 * t.width) * hidden + wide * normed_heads
        attention = 4 * t.width * query + (4 * query if is_half else 0)
        mlp = 3 * t.width * inner + 4 * inner + t.width * routed
        return norms + attention + mlp + 4 * t.lora_rank * (4 if shape.experts else MODULES)
    norm = wide + 2 * t.width
    return 2 * norm * hidden + (wide + t.width) * normed_heads + t.width * (4 * query + 4 * inner + 2 * routed)


def activations(shape: ModelShape, t: Training) -> float:
    """Return the bytes of a micro-batch that are held between its forward and its backward pass."""
    before, saved = t.width * shape.hidden, saved_by_layer(shape, t)
    return t.microbatch * (shape.layers * before if t.recompute else shape.layers * saved)


def logits(shape: ModelShape, tokens: float, width: int = 2, *, is_trained: bool = True) -> float:
    """Return the bytes of the logits that are held at once, or of one chunk's gradient and that of a trained head, to
    which chunks add one after the other."""
    in_all = tokens * shape.vocabulary
    chunk = min(max(LOGITS_AT_ONCE, shape.vocabulary), in_all)
    times = (2 if in_all > chunk else 1) if is_trained else 0
    return max(chunk * (width + 2 * 4), width * (chunk + times * shape.vocabulary * shape.hidden))


def update(shape: ModelShape, t: Training) -> dict[str, float]:
    """Return the bytes by part at the peak of an update in several micro-batches."""
    is_full = not t.lora_rank
    saved, held = saved_by_layer(shape, t), activations(shape, t)
    # the backward pass begins with the logits, beside the final norm and the rows that the head reads
    first = t.microbatch * (4 + 3 * t.width) * shape.hidden
    first_logits = logits(shape, t.microbatch, t.width, is_trained=is_full)
    # then come layers, recomputed or not, while the gradient of a tied head waits for that of the embedding
    by_token = t.width * (3 if is_full else 2) * shape.intermediate + 4 * 3 * shape.hidden
    by_token += saved - t.width * shape.hidden if t.recompute else 0
    second = float(t.microbatch * by_token) + weight_in_use(shape, t)
    waiting = t.width * shape.vocabulary * shape.hidden if is_full and shape.has_tied_head else 0
    is_first = first + first_logits >= second + waiting
    parts = states(shape, t) | {
        "gradients": gradients(shape, t),
        "activations": held + (first if is_first else second),
        "logits": float(first_logits if is_first else waiting),
        # an additive mask of trees, or the boolean one that transformers makes of flat rows
        "mask": float((1 if t.is_flat else t.width) * t.microbatch * min(t.row, t.microbatch)),
    }
    # 16-bit gradients of a pass are there in full when its activations are gone
    passing = 2 * shape.parameters if t.width < 4 and t.states == "float32" and is_full else 0
    parts["gradients"] += max(0.0, passing - parts["activations"] - parts["logits"])
    return parts


# ---------------------------------------------------------------- sampling
def cache_bytes(shape: ModelShape, width: int = 2) -> int:
    """Return the bytes of a token's keys and values."""
    return width * shape.kv_bytes_per_token // 2


def sampling(shape: ModelShape, t: Training) -> dict[str, float]:
    """Return the bytes by part at the peak of sampling in this process."""
    column = cache_bytes(shape, t.width)
    caches = float(column * t.samples * t.context)
    parts = states(shape, t) | {"caches": caches}
    parts["caches of prompts"] = float(column * t.prompts * t.prompt)
    parts["caches moved"] = KEEP_UNTIL * caches
    if t.kept_tokens:
        parts["caches kept"] = float(column * t.kept_tokens)
    drawing_bytes = t.samples * shape.vocabulary * (2 * t.width if t.width >= 4 else t.width + 8)
    prefill = min(PREFILL_TOKENS, t.prompts * t.prompt)
    layer = prefill * t.width * (3 * shape.intermediate + 4 * shape.hidden + 4 * shape.heads * shape.head_dim)
    layer += weight_in_use(shape, t)
    # a prefill comes before the samples' own caches are there
    parts["drawing"] = float(max(drawing_bytes, layer - caches - parts["caches moved"]))
    return parts


def total(parts: Mapping[str, float]) -> float:
    """Return the sum of the parts."""
    return sum(parts.values())

"""Steps against this machine's limit: the time that their arithmetic and memory traffic would take at best.

The limit is measured in the same process: the fastest of several matrix products in the dtypes that a step may use, and
the bandwidth of a copy. A step's arithmetic is counted from the model's shapes (`Counts`): nothing is counted twice, so
what is computed again in a backward pass is a loss. Rows `grow/...` compare seconds a token as steps grow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gxpo.bench.peer import GROUP, NEW, PROMPTS, ROWS

if TYPE_CHECKING:
    from gxpo.bench.plan import Entry, Plan

Figures = dict[str, Any]
HERE = "gxpo.bench.limit:"
SIDES = (512, 1024, 2048)  # of the matrices that are multiplied to find the fastest product
COPIED = 1 << 26  # bytes of the copy
ROLLOUTS, ACTIONS = (
    (64, 256, 1024),
    (16, 64, 256, 1024, 1920),
)  # of `grow`: rollouts of 32 tokens, tokens of 64 rollouts


@dataclass(frozen=True)
class Counts:
    """A step's prompts, samples of each, tokens of a prompt and of an action, and a model's sizes.

    matrices  numbers in the matrices of all layers; head: of the last map; pair: 2 x layers x heads x size of a head
    """

    prompts: int
    group: int
    prompt: int
    action: int
    matrices: int
    head: int
    pair: int

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def unique_tokens(self) -> int:
        return self.prompts * self.prompt + self.samples * self.action

    @property
    def pairs(self) -> int:
        """Pairs of a token and one that it attends to."""
        prompt, action = self.prompt, self.action
        causal_pairs = self.prompts * prompt * (prompt + 1) + self.samples * action * (action + 1)
        return causal_pairs // 2 + self.samples * action * prompt

    @property
    def sampling(self) -> float:
        """Floating point operations of sampling: every token once, logits where one is drawn."""
        drawn_tokens = self.samples * self.action
        return 2.0 * (self.matrices * self.unique_tokens + self.head * drawn_tokens + self.pair * self.pairs)

    @property
    def update(self) -> float:
        """Floating point operations of an update: a forward pass, and twice as much for its gradient."""
        return 3 * self.sampling

    def read(self, weight_bytes: int, cache_bytes: int) -> float:
        """Bytes that decoding reads: the weights for every step, and each sample's keys and values (prompts once)."""
        keys = self.action * (self.prompts * self.prompt + self.samples * (self.action + 1) / 2)
        return float(self.action * weight_bytes + keys * cache_bytes)


def best_seconds(work: Callable[[], object], tries: int = 5) -> float:
    """Seconds of the fastest of several tries."""
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def fastest_product(dtypes: tuple[Any, ...]) -> float:
    """Floating point operations a second of the fastest product of square matrices."""
    import torch

    speeds = []
    for dtype in dtypes:
        for side in SIDES:
            a, out = torch.ones(side, side, dtype=dtype), torch.empty(side, side, dtype=dtype)
            speeds.append(2 * side**3 / best_seconds(lambda a=a, out=out: torch.mm(a, a, out=out)))
    return max(speeds)


def bandwidth() -> float:
    """Bytes a second that a copy reads."""
    import torch

    source, target = torch.ones(COPIED, dtype=torch.uint8), torch.empty(COPIED, dtype=torch.uint8)
    return COPIED / best_seconds(lambda: target.copy_(source))


def counts_of(causal: Any, prompts: int, group: int, prompt: int, action: int) -> Counts:
    """Counts of steps with this model."""
    config, head = causal.config.get_text_config(), causal.get_output_embeddings()
    layers = next(m.layers for m in causal.modules() if hasattr(m, "layers"))
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    matrices = sum(p.numel() for p in layers.parameters() if p.dim() > 1)
    pair = 2 * config.num_hidden_layers * config.num_attention_heads * size
    return Counts(prompts, group, prompt, action, matrices, head.weight.numel(), pair)


# ---------------------------------------------------------------- rows
def step_limit(model: str, length: int, group: int, folder: str, rounds: int) -> Callable[[], Figures]:
    """Whole steps, and what they would take at the machine's limit."""
    import torch

    from gxpo.bench.peer import Row, gxpo_step

    step: Any = gxpo_step(model, length, group, folder, Row(model, length, group).settings)
    step()
    trainer = step.trainer
    causal = trainer.engine.network.causal
    dtype, config = next(causal.parameters()).dtype, causal.config.get_text_config()

    def run() -> Figures:
        steps = [_time_step(step) for _ in range(rounds)]
        seconds, sampled, updated = (median(s[k] for s in steps) for k in ("seconds", "time_sample_s", "time_update_s"))
        # The limit is measured between steps, in the process that makes them.
        counts = counts_of(causal, PROMPTS * GROUP // group, group, length, NEW)
        speed, copied = fastest_product(tuple({dtype, torch.float32})), bandwidth()
        # keys and values of a token: as `pair`, of the heads that have keys of their own
        kv = counts.pair * config.num_key_value_heads // config.num_attention_heads
        read = counts.read((counts.matrices + counts.head) * dtype.itemsize, kv * dtype.itemsize)
        sampling_s, update_s = max(counts.sampling / speed, read / copied), counts.update / speed
        return {
            "ratio": (sampling_s + update_s) / seconds,
            "gxpo": {"seconds": seconds, "memory_mb": steps[-1].get("memory_mb", 0.0)},
            "limit": {"seconds": sampling_s + update_s},
            "sampling_share": sampling_s / sampled,
            "update_share": update_s / updated,
            "rest": 1 - (sampled + updated) / seconds,
            "gflop": (counts.sampling + counts.update) / 1e9,
            "gflop_per_s": speed / 1e9,
            "gb_per_s": copied / 1e9,
            "kernels": dict(trainer.choices),
        }

    return run


def _time_step(step: Callable[[], Figures]) -> Figures:
    start = time.perf_counter()
    figures = step()
    return {"seconds": time.perf_counter() - start, **figures}


def grown_step(rollouts: int, action: int, folder: str, rounds: int) -> Callable[[], Figures]:
    """Steps of the tiny model with so many rollouts and tokens: seconds and memory of a token."""
    from gxpo.base.runtime import give_back
    from gxpo.bench.machine import resident
    from gxpo.bench.peer import gxpo_step

    settings = {"tasks.per_step": rollouts // GROUP, "sampling.max_new_tokens": action}
    step: Any = gxpo_step("tiny", 16, GROUP, folder, settings)
    # memory above what model and trainer hold before their first step, without what measuring kernels has freed
    give_back(0)
    start_memory = resident("VmRSS")
    step()

    def run() -> Figures:
        steps = [_time_step(step) for _ in range(rounds)]
        seconds, tokens, memory = (
            median(s["seconds"] for s in steps),
            rollouts * action,
            resident("VmHWM") - start_memory,
        )
        return {
            "gxpo": {"seconds": seconds},
            "memory_mb": memory,
            "us_per_token": seconds / tokens * 1e6,
            "kb_per_token": memory * 1024 / tokens,
            "tokens": tokens,
        }

    return run


def entries(plan: Plan) -> list[Entry]:
    """Entries of suite `limit`."""
    from gxpo.bench.plan import Entry

    rounds = plan.rounds or (1 if plan.quick else 5)

    def of_step(name: str, plan: Plan) -> list[Figures]:
        row, folder = ROWS[name], plan.models(ROWS[name].model)
        plan.notify(f"{name}: steps against the machine's limit")
        work = {"model": row.model, "length": row.length, "group": row.group, "folder": folder, "rounds": rounds}
        return [plan.with_marks({"name": name} | plan.once(name, HERE + "step_limit", **work))]

    def of_growth(name: str, sizes: list[tuple[int, int]], plan: Plan) -> list[Figures]:
        rows, folder = [], plan.models("tiny")
        for rollouts, action in sizes:
            plan.notify(f"{name}: {rollouts} rollouts of {action} tokens")
            work = {"rollouts": rollouts, "action": action, "folder": folder, "rounds": rounds}
            figures = plan.once(name, HERE + "grown_step", **work)
            rows.append({"name": f"{name}/{rollouts}x{action}"} | figures)
        smallest = rows[0]["us_per_token"]
        return [plan.with_marks(row | {"ratio": smallest / row["us_per_token"]}) for row in rows]

    names = [name for name in ROWS if not plan.quick or name.startswith("tiny")]
    by_rollouts = [(n, NEW) for n in ROLLOUTS[: 2 if plan.quick else None]]
    by_tokens = [(PROMPTS * GROUP, n) for n in ACTIONS[: 2 if plan.quick else None]]
    growth = {"grow/rollouts": by_rollouts, "grow/tokens": by_tokens}
    return [Entry(name, lambda plan, name=name: of_step(name, plan)) for name in names] + [
        Entry(name, lambda plan, name=name, sizes=sizes: of_growth(name, sizes, plan)) for name, sizes in growth.items()
    ]

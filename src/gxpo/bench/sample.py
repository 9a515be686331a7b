"""Sampling benchmark: gxpo's engine against a bare cached decode loop and transformers' generate; engine options.

Both sides draw the same number of tokens from the same prompts, at temperature 1 from the whole vocabulary; ratio =
their seconds / ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.bench.peer import NEW, questions
from gxpo.bench.plan import DTYPE
from gxpo.bench.runner import Case, Side

Round = Callable[[], dict[str, Any]]
HERE = "gxpo.bench.sample:"


@dataclass(frozen=True)
class Work:
    """Workload: `rows` samples of `new` tokens, `group` of each prompt of `length` tokens."""

    model: str
    rows: int
    length: int
    group: int = 8
    new: int = NEW

    @property
    def name(self) -> str:
        return f"{self.model}/{self.rows}x{self.length}/g{self.group}"

    def arguments(self, folder: str) -> dict[str, Any]:
        return {"path": f"{folder}/{self.model}", "dtype": DTYPE[self.model], "work": vars(self)}


FULL = (
    *(Work("tiny", rows, 32) for rows in (8, 64, 256)),
    Work("tiny", 64, 256),
    Work("tiny", 64, 32, 1),
    Work("tiny", 64, 32, 64),
    *(Work("smollm2", rows, 32) for rows in (8, 64)),
    Work("smollm2", 64, 256),
    Work("smollm2", 64, 32, 1),
)
QUICK = (Work("tiny", 8, 32, new=8),)
GENERATE = ("tiny/64x32/g8", "tiny/64x256/g8", "smollm2/64x32/g8", "smollm2/64x256/g8")


def cases(folder: str, quick: bool = False) -> list[Case]:
    """Rows `engine/...`, `generate/...` and one for each option of the engine.

    folder  holds the models "tiny" and "smollm2" (`plan.save_models`)
    """
    works = QUICK if quick else FULL
    rows = [against(f"engine/{w.name}", w, folder, "loop", "bare_loop") for w in works]
    rows += [
        against(f"generate/{w.name}", w, folder, "transformers", "generate")
        for w in works
        if quick or w.name in GENERATE
    ]
    for model in ("tiny",) if quick else ("tiny", "smollm2"):
        rows += switches(model, folder, quick)
    if not quick:
        rows.append(compiled(Work("tiny", 64, 32), folder))
    return rows


def against(name: str, work: Work, folder: str, peer_name: str, target: str) -> Case:
    """gxpo's engine against another implementation."""
    arguments = work.arguments(folder)
    return Case(name, Side("gxpo", HERE + "engine", arguments), Side(peer_name, HERE + target, arguments))


def compiled(work: Work, folder: str) -> Case:
    """Gain of torch.compile for a bare loop over a static cache; `compile_s` is the time of compilation."""
    arguments = work.arguments(folder)
    compiled_side, eager_side = (
        Side(n, HERE + "static_loop", arguments | {"compiled": n == "compiled"}) for n in ("compiled", "eager")
    )
    return Case(f"compile/{work.name}", compiled_side, eager_side)


def switches(model: str, folder: str, quick: bool = False) -> list[Case]:
    """Each option of the engine, on against off."""
    rows, new = (8, 8) if quick else (64, NEW)
    work, long = Work(model, rows, 32, 8, new), Work(model, rows, 64 if quick else 256, 8, new)
    unshared = Work(model, rows, long.length, 1, new)  # a prompt of its own for every sample: nothing can be shared
    with_stops = Work(model, rows, 32, 8, new if quick else 64)

    def pair(name: str, on: Side, off: Side) -> Case:
        return Case(f"{name}/{model}", on, off)

    def side(name: str, work: Work, target: str = "engine", **options: Any) -> Side:
        return Side(name, HERE + target, work.arguments(folder) | options)

    return [
        pair("prefix_sharing", side("shared", long), side("apart", unshared)),
        pair("compaction", side("on", with_stops, stops=True), side("off", with_stops, stops=True, compaction=False)),
        pair("kept_cache", side("kept", work, "second_turn"), side("read_again", work, "second_turn", keep=False)),
        pair("batch_rows", side("together", work), side("quarters", work, batch_rows=rows // 4)),
    ]


# ---------------------------------------------------------------- gxpo
def engine(
    path: str,
    dtype: str,
    work: dict[str, Any],
    batch_rows: int = 256,
    stops: bool = False,
    compaction: bool = True,
) -> Round:
    """Sample with `TorchEngine`; `stops`: about a twelfth of the tokens end a sample."""
    from gxpo.sampling.engines import decode

    if not compaction:
        decode.KEEP_UNTIL = 0  # finished rows are never few enough to be taken out
    engine_under_test, prompts, sampling = _engine(path, dtype, work, batch_rows)
    engine_under_test.stop_ids = _stop_ids(engine_under_test) if stops else ()
    step = _counter()

    def once() -> dict[str, Any]:
        start = time.perf_counter()
        out = engine_under_test.sample(_requests(prompts, work["group"], step()), sampling)
        return _speed(sum(len(c.tokens) for group in out for c in group), time.perf_counter() - start)

    return once


def second_turn(path: str, dtype: str, work: dict[str, Any], keep: bool = True, n_between: int = 16) -> Round:
    """Sample an action, append `n_between` further tokens, sample another: the seconds are of the second sampling.

    keep    the engine may go on from the first action's cache
    """
    from gxpo.parts.protocols import Request

    engine_under_test, prompts, sampling = _engine(path, dtype, work, 256)
    engine_under_test.stop_ids = ()
    step = _counter()
    (observation,) = _prompts(path, 1, n_between, seed=1)

    def once() -> dict[str, Any]:
        first_requests = _requests(prompts, work["group"], step(), keep=keep)
        # Only the second sampling is timed: the first fills the cache that it may continue from.
        contexts = [
            Request((*request.prompt, *action.tokens, *observation), (key,), (name,) if keep else ())
            for request, group in zip(first_requests, engine_under_test.sample(first_requests, sampling), strict=True)
            for action, key, name in zip(group, request.streams, request.keep or ("",) * len(group), strict=True)
        ]
        start = time.perf_counter()
        out = engine_under_test.sample(contexts, sampling)
        seconds = time.perf_counter() - start
        engine_under_test.release()
        return {"seconds": seconds, **_speed(sum(len(c.tokens) for group in out for c in group), seconds)}

    return once


def _engine(path: str, dtype: str, work: dict[str, Any], batch_rows: int) -> tuple[Any, list[list[int]], Any]:
    from gxpo.models.decoder.choices import Sizes
    from gxpo.parts.protocols import Sampling
    from gxpo.sampling.engines.torch import TorchEngine

    engine_under_test = TorchEngine(_model(path, dtype), batch_rows=batch_rows)
    # Kernels are chosen as a run does it, before the timed rounds.
    sizes = Sizes(work["length"], work["new"], work["group"], work["rows"])
    engine_under_test.use({name: trial.choice for name, trial in engine_under_test.trials(sizes, {})})
    prompts = _prompts(path, work["rows"] // work["group"], work["length"])
    return engine_under_test, prompts, Sampling(max_new_tokens=work["new"])


def _requests(prompts: Sequence[Sequence[int]], group: int, step: int, keep: bool = False) -> list[Any]:
    from gxpo.parts.protocols import Request, StreamKey

    return [
        Request(
            tuple(prompt),
            tuple(StreamKey(0, step, str(i), j) for j in range(group)),
            tuple(f"{i}/{j}" for j in range(group)) if keep else (),
        )
        for i, prompt in enumerate(prompts)
    ]


def _stop_ids(engine_under_test: Any) -> tuple[int, ...]:
    """Ids that end about a twelfth of the tokens.

    Part of an untrained model's vocabulary; one digit of a trained one, which continues digits with digits.
    """
    vocabulary = engine_under_test.model.config.vocab_size
    if vocabulary < 1000:
        return tuple(range(vocabulary // 12))
    from transformers import AutoTokenizer

    return tuple(AutoTokenizer.from_pretrained(engine_under_test.model.config._name_or_path).encode("0"))


# ---------------------------------------------------------------- other implementations
def bare_loop(path: str, dtype: str, work: dict[str, Any]) -> Round:
    """Naive decode loop: prefill each distinct prompt once, then one token of every row at a time."""
    import torch

    model, group, new = _model(path, dtype), work["group"], work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // group, work["length"]))

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        start = time.perf_counter()
        out = model(prompts, use_cache=True, logits_to_keep=1)
        # Each prompt is read once for its group: what sharing gains has a row of its own, `prefix_sharing`.
        cache, logits = out.past_key_values, out.logits[:, -1]
        if group > 1:
            cache.batch_repeat_interleave(group)
            logits = logits.repeat_interleave(group, 0)
        tokens = []
        while True:
            cumulative = logits.float().softmax(-1).cumsum(-1)
            uniform = torch.rand(len(logits), 1) * cumulative[:, -1:]
            tokens.append(torch.searchsorted(cumulative, uniform, right=True).clamp_max(logits.shape[1] - 1))
            if len(tokens) == new:
                break
            logits = model(tokens[-1], past_key_values=cache, use_cache=True).logits[:, -1]
        return _speed(torch.cat(tokens, 1).numel(), time.perf_counter() - start)

    return once


def static_loop(path: str, dtype: str, work: dict[str, Any], compiled: bool) -> Round:
    """Greedy decoding with a static cache, so that one compiled step serves every token."""
    import torch
    from transformers import StaticCache

    model, length, new = _model(path, dtype), work["length"], work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // work["group"], length)).repeat_interleave(work["group"], 0)
    cache = StaticCache(config=model.config, max_cache_len=length + new)
    step = torch.compile(model.forward, dynamic=False) if compiled else model.forward
    cost: dict[str, float] = {}

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        cache.reset()
        token = model(prompts, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        start = time.perf_counter()
        # Greedy, since compilation is what is measured.
        for i in range(new - 1):
            token = step(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if i == 1:  # the second call may compile once more
                cost.setdefault("compile_s", time.perf_counter() - start)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **cost, **_speed(token.numel() * (new - 1), seconds)}

    return once


def generate(path: str, dtype: str, work: dict[str, Any]) -> Round:
    """transformers' own `generate` on all rows."""
    import torch

    model, new = _model(path, dtype), work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // work["group"], work["length"]))
    rows = prompts.repeat_interleave(work["group"], 0)
    sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        start = time.perf_counter()
        out = model.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=new, min_new_tokens=new, **sampling
        )
        return _speed(out[:, rows.shape[1] :].numel(), time.perf_counter() - start)

    return once


# ---------------------------------------------------------------- both
def _model(path: str, dtype: str) -> Any:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()


def _prompts(path: str, n: int, length: int, seed: int = 0) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    return [tokenizer.encode(q, add_special_tokens=False)[:length] for q in questions(n, length, seed)]


def _counter() -> Callable[[], int]:
    from itertools import count

    return count().__next__


def _speed(tokens: int, seconds: float) -> dict[str, Any]:
    return {"tokens": tokens, "tokens_per_s": tokens / seconds}

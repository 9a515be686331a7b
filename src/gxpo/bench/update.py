"""Update and step benchmark: against a bare forward and backward pass, and the gain of each optimisation.

Rows `bare/...` and `two_pass/...`: the same unique tokens in rows of the same length through transformers, with the
log-probabilities of as many tokens. Every other row switches one thing off on the other side.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

from gxpo.bench.peer import GROUP, LR, MICROBATCH, NEW, PROMPTS, STATES
from gxpo.bench.plan import DTYPE
from gxpo.bench.runner import Case, Side
from gxpo.sampling.rollouts.graph import Graph, Role

Round = Callable[[], dict[str, Any]]
HERE = "gxpo.bench.update:"
SIZES = {"tiny": (16, 256), "smollm2": (16, 256)}
UNIQUE = (1, 2, 4, 8, 16, 32)  # groups of 544 stored tokens: 544 to 17,408 of them


# ---------------------------------------------------------------- the two sides
def forest_of(vocabulary: int, length: int, prompts: int = PROMPTS, group: int = GROUP, new: int = NEW) -> Any:
    """Forest of groups of random tokens with different rewards."""
    import torch

    from gxpo import Forest

    draw = torch.Generator().manual_seed(0)

    def ids(n: int) -> list[int]:
        return torch.randint(3, vocabulary, (n,), generator=draw).tolist()

    return Forest.from_completions(
        [ids(length) for _ in range(prompts)],
        [[ids(new) for _ in range(group)] for _ in range(prompts)],
        [[float(i % 3) for i in range(group)] for _ in range(prompts)],
    )


def learner_update(
    model: str,
    length: int,
    folder: str,
    prompts: int = PROMPTS,
    group: int = GROUP,
    new: int = NEW,
    settings: Mapping[str, Any] | None = None,
    two_pass: bool = False,
    silent: int = 0,
    skip: bool = True,
    optimise: bool = False,
) -> Round:
    """GRPO's gradient (and, with `optimise`, the step) by the learner; `settings` are arguments of `TorchLearner`;
    kernels are measured as in a run, and so are `products` if not given.

    silent  groups without a signal, which `skip` leaves out
    """
    import torch

    from gxpo.learning.torch import TorchLearner
    from gxpo.models.decoder.choices import Sizes
    from gxpo.training import models

    causal = models.load(f"{folder}/{model}", task="arithmetic", dtype=DTYPE[model]).model
    # As in a run: the model's own micro-batch and dtype of states.
    learner_arguments = {"tokens_per_microbatch": MICROBATCH[model], "states": STATES[model], **(settings or {})}
    learner = TorchLearner(causal, lr=LR[model], **learner_arguments)
    # Kernels are chosen as a run does it, outside of the timed round.
    stated_choices = {"products": learner_arguments["products"]} if "products" in learner_arguments else {}
    learner.use(
        {name: t.choice for name, t in learner.trials(Sizes(length, new, group, prompts * group), stated_choices)}
    )
    forest = forest_of(learner._readout.vocabulary, length, prompts, group, new)
    # A credit of 0 in whole groups is what a run has where all rewards are equal.
    has_signal_P = forest.ids("group", axis="P") >= silent
    credit = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64) * has_signal_P

    def loss(x: Mapping[str, Any]) -> Any:
        ratio = (x["logprob"] - x["logprob"].detach()).exp()
        return -(ratio * credit).sum() / forest.n_entries

    def run() -> dict[str, Any]:
        arguments: dict[str, Any] = {"active": has_signal_P if skip else None}
        if optimise:
            info = learner.step(forest, loss, **arguments)
            return {"tokens": info.tokens_forward, "microbatches": info.microbatches}
        # Without the optimiser step, as the bare side takes none.
        learner._accumulate(forest, loss, ("logprob",), "token", arguments["active"], None, two_pass or None)
        learner.optimiser.zero()
        return {"tokens": forest.n_tokens}

    return run


def bare_update(
    model: str, length: int, folder: str, prompts: int = PROMPTS, group: int = GROUP, new: int = NEW
) -> Round:
    """Forward and backward of transformers on rows as long as a tree, with log-probabilities of as many tokens."""
    import torch

    from gxpo.training import models

    policy = models.load(f"{folder}/{model}", task="arithmetic", dtype=DTYPE[model]).model
    width = length + group * new
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, policy.config.vocab_size, (prompts, width), generator=draw)
    rows_at_once = max(1, MICROBATCH[model] // width)

    def run() -> dict[str, Any]:
        for rows in tokens.split(rows_at_once):
            states = policy.model(input_ids=rows, use_cache=False).last_hidden_state[:, length - 1 : -1]
            logits = policy.lm_head(states).flatten(0, 1).float()
            torch.nn.functional.cross_entropy(logits, rows[:, length:].flatten(), reduction="sum").backward()
        policy.zero_grad()
        return {"tokens": tokens.numel()}

    return run


# ---------------------------------------------------------------- cases
def cases(folder: str, quick: bool = False) -> list[Case]:
    """Rows of suite `update`; `folder` holds the models."""
    rows: list[Case] = []
    for model, lengths in (("tiny", (16,)),) if quick else SIZES.items():
        rounds = 9 if model == "tiny" else 3
        for length in lengths:
            label = f"{model}/{length}"
            work = {"model": model, "length": length, "folder": folder}
            bare = Side("bare", HERE + "bare_update", work)

            def ours(name: str, target: str = HERE + "learner_update", work: Any = work, **arguments: Any) -> Side:
                return Side(name, target, {**work, **arguments})

            rows.append(Case(f"bare/{label}", ours("learner"), bare, rounds))
            rows.append(Case(f"two_pass/{label}", ours("learner", two_pass=True), bare, rounds))
            # Each switch: settings of the side with the optimisation, and of the one without.
            switches: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
                "packed": ({}, {"settings": {"layout": "flat"}}),
                "kernels": ({}, {"settings": {"kernels": "transformers"}}),
                "recompute": ({"settings": {"recompute": True}}, {}),
                "skip": ({"silent": PROMPTS // 2}, {"silent": PROMPTS // 2, "skip": False}),
                "one_pass": ({}, {"two_pass": True}),
                "chunks": ({}, {"settings": {"logits_at_once": 1 << 62}}),
                "microbatch": ({}, {"settings": {"tokens_per_microbatch": 1 << 20}}),
            }
            # 16-bit weights: the tiny model has none, and no choice of products.
            if model == "smollm2":
                switches |= {
                    f"products/{kind}": ({}, {"settings": {"products": kind}}) for kind in ("native", "float32")
                }
                switches["states"] = ({"optimise": True}, {"optimise": True, "settings": {"states": "float32"}})
            for name, (on, off) in switches.items():
                rows.append(Case(f"{name}/{label}", ours("on", **on), ours("off", **off), rounds))
    # Time against the number of unique tokens: the plot fits a line through these.
    for groups in UNIQUE[:2] if quick else UNIQUE:
        work = {"model": "tiny", "length": 32, "folder": folder, "prompts": groups, "group": 16}
        learner_side = Side("learner", HERE + "learner_update", work | {"settings": {"tokens_per_microbatch": 4096}})
        name = f"unique/{groups * 544}"
        bare = Side("bare", HERE + "bare_update", work)
        rows.append(Case(name, learner_side, bare, 5, figures={"unique_tokens": groups * 544}))
    work = {"model": "tiny", "length": 64, "folder": folder, "prompts": 1, "group": 8 if quick else 64, "new": 250}
    rows.append(
        Case(
            "long_tree/tiny/16064" if not quick else "long_tree/tiny/2064",
            Side("on", HERE + "learner_update", work | {"settings": {"tokens_per_microbatch": 1 << 17}}),
            Side("off", HERE + "learner_update", work | {"settings": {"kernels": "transformers"}}),
            2,
            figures={"note": "one tree in one row without a mask, against rows of at most 8,192 tokens with one"},
        )
    )
    return rows


def trainer_step(
    model: str, length: int, folder: str, settings: Mapping[str, Any] | None = None, steps: int = 1
) -> Round:
    """Whole steps of the trainer, as in suite `peer`; the figures are those of the last one."""
    from gxpo.bench.peer import gxpo_step

    step = gxpo_step(model, length, GROUP, folder, settings)

    def run() -> dict[str, Any]:
        gc.collect()
        return [step() for _ in range(steps)][-1]

    return run


# Three roles that each write an answer of full length, the second and the third after what they have read.
TEAM = Graph(
    (
        Role("first"),
        Role("second", "{prompt} Another way:"),
        Role("third", "{prompt} A third way:", answer="{third}"),
    )
)


def step_cases(folder: str, quick: bool = False) -> list[Case]:
    """Rows of suite `step`."""
    switches: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "kernels": ({}, {"learner.kernels": "transformers"}),
        "packed": ({}, {"learner.layout": "flat"}),
        "no_reference": ({}, {"objective.kl.coef": 1e-3}),
    }
    rows = []
    for model, lengths in (("tiny", (16,)),) if quick else SIZES.items():
        for length in lengths:
            work = {"model": model, "length": length, "folder": folder}
            rounds = 9 if model == "tiny" else 3
            for name, (on, off) in switches.items():
                on_side = Side("on", HERE + "trainer_step", work | {"settings": on})
                off_side = Side("off", HERE + "trainer_step", work | {"settings": off})
                rows.append(Case(f"{name}/{model}/{length}", on_side, off_side, rounds))
            # as many tokens by one agent in as many steps as the team has roles
            team = {"rollout": "team", "rollout.graph": f"{__file__}:TEAM"}
            team_side = Side("team", HERE + "trainer_step", work | {"settings": team})
            single_agents = Side("alone", HERE + "trainer_step", work | {"steps": len(TEAM.roles)})
            rows.append(Case(f"team/{model}/{length}", team_side, single_agents, rounds))
    return rows

"""Print the table of docs/masked-models.md: bias and spread of likelihood estimators on answers of four tokens, against
the exact bound over all orders, under the tiny masked model: python scripts/pages/likelihood_variance.py"""

from __future__ import annotations

import torch

from gxpo.algorithms.likelihoods.base import Likelihood
from gxpo.algorithms.likelihoods.estimators import Coupled, Elbo, OneStep
from gxpo.environments.tasks import make
from gxpo.models.masked import MaskedPolicy, Row, estimate
from gxpo.training import models
from gxpo.training.models.demonstrations import prompt_ids

SEEDS, TASKS = 100, 8
ROWS: dict[str, tuple[int, Likelihood]] = {
    "`one_step`, `prompt_mask: 0`": (1, OneStep(0.0)),
    "`one_step`": (1, OneStep()),
    "`coupled`": (3, Coupled()),
    **{f"`elbo`, `rule: gauss`, `points: {n}`": (n, Elbo("gauss", n)) for n in (2, 3)},
    **{f"`elbo`, `rule: uniform`, `points: {n}`": (n, Elbo("uniform", n)) for n in (1, 2, 4, 8)},
    **{f"`elbo`, `uniform`, `antithetic`, `points: {n}`": (n, Elbo("uniform", n, antithetic=True)) for n in (2, 4, 8)},
}


@torch.no_grad()
def main() -> None:
    loaded = models.load("tiny-masked", task="arithmetic")
    policy, source = MaskedPolicy.of(loaded.model, loaded.tokenizer), make("arithmetic", seed=0, options={"digits": 1})
    rows: list[Row] = []
    for task in source.draw(TASKS, 1):
        # cut short, so that it is no answer that the model is sure of: there all estimates agree
        text = source.worked_example(task)[:3]
        answer = [*loaded.tokenizer(text, add_special_tokens=False).input_ids, policy.end]
        prompt = prompt_ids(loaded.model, loaded.tokenizer, task.prompt)
        rows += [Row(prompt, answer, 20, torch.arange(len(answer)), seed) for seed in range(SEEDS)]
    exact = estimate(policy, rows[::SEEDS], Elbo("exact"))["logprob"].reshape(TASKS, -1).sum(1)
    print("| estimator | forward passes | mean error | standard deviation |\n|---|---|---|---|")
    for name, (passes, likelihood) in ROWS.items():
        total = estimate(policy, rows, likelihood, 1 << 15)["logprob"].reshape(TASKS, SEEDS, -1).sum(2)
        error, spread = float((total.mean(1) - exact).mean()), float(total.std(1).mean())
        print(f"| {name} | {passes} | {error:+.2f} | {spread:.2f} |")
    print(f"exact: {float(exact.mean()):.2f} nats, mean of {TASKS} answers; {SEEDS} draws of the masks of each")


if __name__ == "__main__":
    main()

"""Reconstructed optimisers: directions other than the sign, gradients ahead of the point."""

from gxpo.parts.definition import Definition

lion_k = Definition(
    r"""Lion-K (of its family the normalised form): Lion with another convex function's slope in the sign's place.

    x <- x - lr (c / |c| + w x), c = 0.9 m + 0.1 g;   it solves min f(x) + ind(|x|_2 <= 1 / w), Lion that with |x|_inf

    Choices. From the abstract and the algebra: l1 gives the sign, l2 this, Huber `optim.direction: clip` (c / threshold
    within +-1). The norm is over all parameters, so that lr is the length of a step: some lr sqrt(n) of Lion's rate
    moves n parameters as far. The bounds are tested as invariants.
    """,
    cite="chen2023lionk",
    evidence="reconstruction",
    keys={"learner.optimiser": "lion", "optim.direction": "norm"},
)

n_pg_igt = Definition(
    r"""N-PG-IGT: normalised momentum policy gradient with implicit gradient transport: rollouts ahead of the point.

    y = x + (1 - eta) / eta (x - x_before);   d <- (1 - eta) d + eta g(y);   x <- x + lr d / |d|;   eta 0.1

    Choices. From the abstract and memory of the algorithm: constant eta and lr (theirs fall with the step). The run's
    parameters are y, so sampling, evaluations and exports are of a policy ahead of x, nine steps at eta 0.1. Its second
    algorithm, N-HARPG, is left out: it needs rollouts at a third point, drawn between the two last, and a second
    derivative of the objective on them, two to three times a step's cost; a difference of gradients on the same
    rollouts would be another method.
    """,
    cite="fatkhullin2023npgigt",
    evidence="reconstruction",
    keys={"learner.optimiser": "igt"},
    cost="as many states as AdamW",
)

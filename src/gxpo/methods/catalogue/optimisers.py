"""Optimisers in AdamW's place, for any other method, as in `gspo+lion`: they state `learner.optimiser`, its rule."""

from gxpo.parts.definition import Definition

lion = Definition(
    r"""Lion: the sign of an interpolation of momentum and gradient; one state, every coordinate moves by lr.

    x <- x - lr (sign(0.9 m + 0.1 g) + w x);   m <- 0.99 m + 0.01 g

    Choices. The authors' code: decay before the step, sign(0) = 0. A tenth to a third of AdamW's rate is their advice.
    Clipping the gradient's norm changes nothing once m is filled. A step of the trainer without signal is no step.
    """,
    cite="chen2023lion",
    evidence="reference-code",
    code="google/automl@ecbc7a3b5ab1944d5f39a80a21fd07b7606583f0 lion/lion_pytorch.py",
    keys={"learner.optimiser": "lion"},
    paper_defaults={"optim.lr": 1e-4},
    cost="half of AdamW's states",
)

signsgd = Definition(
    r"""Signum: signSGD with momentum: the sign of the averaged gradient.

    m <- 0.9 m + 0.1 g;   x <- x - lr sign(m);   signSGD is momentum 0: `optim.betas: [0, 0]`

    Choices. From other implementations. Its vote of workers over the wire is left out: gradients are summed first.
    """,
    cite="bernstein2018signsgd",
    evidence="secondary",
    keys={"learner.optimiser": "signum"},
    cost="half of AdamW's states",
)

cautious_lion = Definition(
    r"""Cautious Lion: of Lion's step only the coordinates whose sign is that of the gradient, the rest rests.

    u = sign(0.95 m + 0.05 g);   mask = [u g > 0];   x <- x - lr (u mask n / (sum mask + 1) + w x)

    Choices. The authors' c_lion.py, by tensor, read in a fork of their repository. Their c_adamw.py scales by n / sum
    mask, at most 1000: `optim.caution: mean_floor`, for `adamw`, `muon` and `signum` too. The masks are of whole
    tensors under fsdp; theirs are of shards.
    """,
    cite="liang2024cautious",
    evidence="reference-code",
    code="mahdi-shafiei/C-Optim@4828df503074580e0530b79a63c2f0b11b9c11af c_lion.py",
    keys={"learner.optimiser": "lion", "optim.betas": [0.95, 0.98], "optim.caution": "plus_one"},
    paper_defaults={"optim.lr": 1e-4},
    cost="a copy of the trained parameters during a step",
)

muon = Definition(
    r"""Muon: momentum of hidden matrices made nearly orthogonal by five Newton-Schulz rounds; AdamW for the rest.

    m <- 0.95 m + 0.05 g;   u = 0.05 g + 0.95 m, over its norm;
      five times u <- 3.4445 u - 4.7750 u u'u + 2.0315 (u u')^2 u

    Choices. The author's code in torch's own form (`torch.optim.Muon`), with the rate scaled to AdamW's, lr 0.2
    sqrt(max(rows, columns)); there lr sqrt(max(1, rows / columns)) and lr 0.02. Singular values of a step come out
    between .7 and 1.2, in bfloat16. Embeddings, head, value heads, norms: AdamW. Not for LoRA, flows, shards.
    """,
    cite="jordan2024muon",
    evidence="reference-code",
    code="KellerJordan/Muon@00ba60d3a0d188993831f86e4d62597bb0e9b21c muon.py",
    keys={"learner.optimiser": "muon"},
    cost="fifteen products of matrices for each hidden matrix and step",
)

stosignsgd = Definition(
    r"""StoSignSGD: a random sign whose expectation is the averaged gradient over its largest size so far.

    m <- 0.9 m + 0.1 g;   G <- max(G, |m|);   x <- x - lr sign(m + G n),   n uniform in [-1, 1];   E sign = m / G

    Choices. From a page with its formulas, no code was found. Momentum 0.9 and no decay of G are that page's or ours.
    Noise is keyed by step and parameter, so a resumed run has the same. G never falls: a spike of the gradient makes
    all later steps shorter on the mean.
    """,
    cite="yu2026stosignsgd",
    evidence="secondary",
    keys={"learner.optimiser": "signum", "optim.direction": "stochastic"},
)

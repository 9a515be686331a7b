r"""MinPRO: a token's importance weight carries the smallest ratio of its prefix, in the place of the prefix's product.

w_t = rho_t min_{u<t} rho_u (w_1 = rho_1);   l_t = -stop(min(w_t, ratio_max)) A log pi(o_t)
Exactly, a token sampled by another policy is corrected by prod_{u<=t} rho_u: by its own ratio and by that of the state
it was sampled in. The product's variance grows with the length; its surrogate's does not.

Choices. A reconstruction: the surrogate is the abstract's; where it stands is open. Here it is a detached weight of the
policy gradient, bounded as in CISPO, so that every token keeps a gradient: inside PPO's minimum a factor that falls
along the sequence would silence all late tokens of wrong answers (`objective.gate: clip`). The prefix is exclusive and
reaches back over turns. `objective.prefix: sum` is the exact correction, `mean` the prefix's geometric mean.
"""

from gxpo.keys import Definition
from gxpo.objectives import Truncate
from gxpo.objectives.ratio_prefix import Prefix

minpro = Definition(
    name="minpro",
    title="A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization",
    arxiv="2601.22718",
    authors="Lei, Shiye and Cheng, Zhihao and Tao, Dacheng",
    year=2026,
    idea="a token's state was sampled by the old policy too: the prefix's least ratio stands for its product",
    formula="L = mean_i mean_t -stop(min(rho_t min_{u<t} rho_u, 1.28)) A log pi",
    evidence="reconstruction",
    keys={"objective.ratio": Prefix, "objective.gate": Truncate},
    choices="a detached weight bounded at 1.28; exclusive prefix; sequence_mean",
)

r"""SDPO: the policy learns, token by token, what its own past would have said, had it seen a right answer.

L = mean_t min(rho_t, 2) D_t over the tokens of rollouts that have a right peer in their group; no credit
D = (1/2) KL(S || M) + (1/2) KL(T || M), M = (S + T) / 2, over the teacher's 100 likeliest ids and a bucket of the rest
T = the average of the policy over steps (rate 0.05), given the peer's right answer before the prompt;   S = the policy

Choices. The buckets are the teacher's likeliest ids: the code takes the student's, of each forward pass, and reads the
teacher again for each; merged buckets bound D from below either way. The right answer stands before the prompt as it
was sampled, thinking included, where the code writes it into the user's message; feedback of the environment is not
shown. A rollout that is right is taught too, by another right one. `alpha` 0 and 1 are KL(T || S) and KL(S || T), not
the limits of D there, which are 0. The name is also another method's: `sdpo_segment` is a preference loss.

A model that never read a solved example before a prompt is no teacher: the embedded tiny model forgets its task
(held-out 0.39 to 0.01 in 30 steps, once), where `srpo_routing`, which teaches failures beside GRPO, gains (to 0.82).
"""

from gxpo.keys import Definition
from gxpo.objectives.distillation import Distillation
from gxpo.signals.self_teacher import SelfTeacher

sdpo_self = Definition(
    name="sdpo_self",
    title="Reinforcement Learning via Self-Distillation",
    arxiv="2601.20802",
    authors="Hübotter, Jonas and Lübeck, Frederike and Behric, Lejs and Baumann, Anton and Bagatella, Marco and "
    "Marta, Daniel and Hakimi, Ido and Shenfeld, Idan and Kleine Buening, Thomas and Guestrin, Carlos and "
    "Krause, Andreas",
    year=2026,
    idea="the policy, shown a right answer of the group, is its own teacher at every token of its other answers",
    formula="L = mean_t min(rho_t, 2) JSD_a(pi(.|s_t), teacher(.|right answer, s_t)), a = 0.5, top 100 and the rest",
    evidence="reference-code",
    keys={"objective": Distillation, "signal.self_teacher": SelfTeacher},
    refuses={"objective.kl.place": ("reward",)},
    choices="buckets by the teacher; the peer's whole rollout before the prompt; no environment feedback",
    cost="a second model; a forward pass of it over the rollouts that have a right peer",
)

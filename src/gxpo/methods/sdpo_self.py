r"""SDPO: self-distillation: the averaged policy, shown a correct answer of the group, is the token-level teacher.

L = mean_t min(rho_t, 2) D_t over the tokens of rollouts that have a right peer in their group; no advantage
D = (1/2) KL(S || M) + (1/2) KL(T || M), M = (S + T) / 2, over the teacher's top 100 ids and one bucket for the rest
T = the average of the policy over steps (rate 0.05) under a prompt that shows the peer's right answer;   S = the policy

Choices. The right answer is put into the user's message by `signal.self_teacher.template`, without what is between
think tags, as in the code; the sentence around it is ours. Of episodes, and where a prompt is token ids, the peer's
whole rollout precedes the prompt. Feedback of the environment is not shown. The buckets are the teacher's top ids: the
code takes the student's, of each forward pass, and reads the teacher again for each; merged buckets bound D from below
either way. A rollout that is right is taught too, by another right one. The code's scripts multiply each token's loss
by min(pi_old / pi_sampler, 2), for the mismatch between sampler and trainer (verl's rollout correction by token);
weight parts (`tis`) do not touch this loss. `alpha` 0 and 1 are KL(T || S) and KL(S || T), not the limits of D there,
which are 0. The name is also another method's: `sdpo_segment` is a preference loss.

A model that never read a solved example before is no teacher: the embedded tiny model forgets its task (held-out 0.39
to 0.02 in 30 steps, once; with an empty template as well), where `srpo_routing`, which teaches failures in addition to
GRPO, gains (to 0.80; with an empty template 0.82).
"""

from gxpo.algorithms.objectives.distillation import Distillation
from gxpo.algorithms.signals.self_teacher import SelfTeacher
from gxpo.parts.definition import Definition

sdpo_self = Definition(
    name="sdpo_self",
    doc=__doc__,
    title="Reinforcement Learning via Self-Distillation",
    arxiv="2601.20802",
    authors="Hübotter, Jonas and Lübeck, Frederike and Behric, Lejs and Baumann, Anton and Bagatella, Marco and "
    "Marta, Daniel and Hakimi, Ido and Shenfeld, Idan and Kleine Buening, Thomas and Guestrin, Carlos and "
    "Krause, Andreas",
    year=2026,
    formula="L = mean_t min(rho_t, 2) JSD_a(pi(.|s_t), teacher(.|right answer, s_t)), a = 0.5, top 100 and the rest",
    evidence="reference-code",
    code="lasgroup/SDPO@0e6d5106abe69f578c63bf38a9394e22905c8773 verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py verl/trainer/config/actor/actor.yaml verl/trainer/config/sdpo.yaml",
    keys={"objective": Distillation, "signal.self_teacher": SelfTeacher},
    refuses={"objective.kl.place": ("reward",)},
    cost="a second model; a forward pass of it over the rollouts that have a right peer",
)

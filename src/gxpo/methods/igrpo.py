r"""iGRPO: iterative GRPO: the best of N drafts goes into the prompt, and its refinements are trained.

d* = argmax_j r(d_j) over N drafts d_j ~ pi_old(.|q), the first on ties; q' = template(q, d*)
o_i ~ pi_old(.|q'), i = 1..G; A and L as in GRPO, with pi(.|q'). Drafts get no gradient. Held-out tasks are attempted
once, without a draft.

Choices. The paper halves a budget of 8: 4 drafts and 4 refinements (`igrpo@paper`), which costs what GRPO's 8 do; here
the 4 drafts are in addition to the base's 8. Where the refinements' std is 0 all A are 0, as in the paper. No KL, its
coefficient. A draft that could not be scored is below all others; where all drafts are wrong the first is shown. The
wording of the template is ours: the paper's is in a supplement that was not read.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

igrpo = Definition(
    name="igrpo",
    doc=__doc__,
    title="iGRPO: Self-Feedback-Driven LLM Reasoning",
    arxiv="2602.09000",
    authors="Hatamizadeh, Ali and Prabhumoye, Shrimai and Gitman, Igor and Lu, Ximing and Han, Seungju and Ping, Wei "
    "and Choi, Yejin and Kautz, Jan",
    year=2026,
    formula="d* = argmax_j r(d_j), d_j ~ pi(q); o_i ~ pi(q + d*); A, L as GRPO under q + d*",
    evidence="paper",
    keys={"rollout": Again, "rollout.when": "always", "rollout.how": "best_draft", "rollout.keep": "newest"},
    paper_defaults={"rollout.group_size": 4, "optim.lr": 1e-6},
    cost="n_drafts more rollouts a group, and a prompt longer by the draft",
)

"""`signal_of`: credit recomputed on a run's own rollouts: which methods would give its zero-signal groups a signal.

The one file of the doctor that imports torch, and only where there are rollouts of zero-signal groups.
"""

from __future__ import annotations

import numpy as np

from gxpo.doctor.rollouts import Rollouts

STEPS, LONGEST = 8, 64  # steps that are looked at, tokens of a stand-in completion
ASKED = ("ngrpo", "psr_nsr", "reinforce_pp")


def signal_of(rollouts: Rollouts, names: tuple[str, ...] = ASKED) -> dict[str, tuple[int, int]]:
    """By method, of the groups of equal scores: those in which an answer gets an advantage other than 0, and all.

    Completions are stand-ins of the same number of words, since texts have no token ids; methods that need more than
    scores and lengths are left out.
    """
    import torch

    from gxpo.base.errors import GxpoError
    from gxpo.forest.forest import Forest
    from gxpo.methods.compose import method

    signal: dict[str, tuple[int, int]] = {}
    is_scored = np.isfinite(rollouts.score) & (rollouts.group >= 0)
    steps = np.unique(rollouts.step[is_scored])
    for name in names:
        with_signal = silent = 0
        for step in steps[np.linspace(0, len(steps) - 1, min(STEPS, len(steps))).astype(int)] if len(steps) else ():
            rows = np.flatnonzero(is_scored & (rollouts.step == step))
            groups = [rows[rollouts.group[rows] == g] for g in dict.fromkeys(rollouts.group[rows].tolist())]
            equal = [np.ptp(rollouts.score[g]) == 0 for g in groups]
            reward = torch.tensor(np.concatenate([rollouts.score[g] for g in groups]), dtype=torch.float64)
            top = float(np.nanmax(rollouts.score))
            forest = Forest.from_completions(
                [[i + 1] for i in range(len(groups))],
                [[[9] * min(LONGEST, 1 + len(rollouts.completion[i].split())) for i in g] for g in groups],
                groups=[str(i) for i in range(len(groups))],
            ).with_rewards(reward, components={"correct": reward}, success=reward >= top)
            try:
                composed = method(name).fill(horizon=float(LONGEST), max_length=LONGEST)
                credit = composed.advantages(composed.shaped(forest))
            except GxpoError:
                break
            moved = torch.zeros(forest.n_trajectories, dtype=torch.bool)
            moved[forest.path_trajectory[credit != 0]] = True
            at = 0
            for group, same in zip(groups, equal, strict=True):
                silent += bool(same)
                with_signal += bool(same) and bool(moved[at : at + len(group)].any())
                at += len(group)
        if silent:
            signal[name] = (with_signal, silent)
    return signal

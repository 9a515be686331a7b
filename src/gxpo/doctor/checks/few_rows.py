"""Signs of sicknesses in a table of few rows, as reports have it, where no trend can be judged; as possible only."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.checks.correspondence import USUAL
from gxpo.doctor.checks.excerpt import (
    LEAST_ROWS,
    Sign,
    ends,
    grows_and_fails,
    pays_other_than_right,
    pays_something_unnamed,
    repeats_itself,
    score_of,
    stalls,
    stays_level,
    unnamed_fall,
)
from gxpo.doctor.finding import Finding
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import denominator
from gxpo.doctor.sickness import finding

MOST_ROWS = 15  # of a table of few rows
SURE = 0.12  # nats a token, below which a policy is nearly certain of an answer of some hundred tokens
GONE = 0.05  # nats a token, at which little is left to sample
BLIND = 3.0  # nats a token that a model of language reaches only where it does not know what it was asked
ALL_TOKENS = 12.5  # nats, of all tokens of a vocabulary alike: more is a sum over tokens


def few_rows(log: RunLog) -> list[Finding]:
    """Findings of a table of two to fourteen rows, as reports have it, where a sign is strong; as possible only."""
    names = (score_of(log), "grad_norm", "kl", "entropy", "length", "gap_kl", "gap_mean", "approx_kl")
    n = max(len(log.values(name)) for name in names)
    if n == 0 and (n := max((len(s.column) for s in log.raw.values()), default=0)) >= LEAST_ROWS:
        return []
    is_chosen = log.last_step >= 2 * n  # rows of a longer run that somebody picked
    # the last rows of a run, of which the beginning is not known
    steps = log.steps(score_of(log))
    is_end = n >= MOST_ROWS and len(steps) > 0 and float(steps.min()) > 3 * n
    if not 2 <= n < MOST_ROWS and not is_end:
        return []
    checks = (_certain_of_little,) if is_end else SIGNS if is_chosen else SIGNS_OF_FIRST_STEPS
    signs = [sign(log) for sign in (checks if n >= LEAST_ROWS else (_ends_apart, pays_other_than_right))]
    return [
        finding(
            sign.ids,
            "warning",
            "possible",
            sign.title,
            *(log.quote(name) for name in dict.fromkeys((*sign.names, score_of(log))) if log.has(name)),
        )
        for sign in signs
        if sign is not None
    ]


def _ends_apart(log: RunLog) -> Sign | None:
    """Two or three rows, as for the beginning of a run and its end: most of the score is lost, or a fifth of it while
    KL, entropy or length change several times over."""
    score = log.values(score_of(log))
    if len(score) < 2 or score.min() < 0 or float(score[-1]) > 0.8 * float(score.max()):
        return None

    def ratio(name: str) -> float:
        values = np.abs(log.values(name))
        return float(values[-1] / values[0]) if len(values) > 1 and values[0] > 0 else 1.0

    cut = log.values("truncated")
    is_cut = len(cut) > 1 and float(cut[-1]) > max(0.1, 2 * float(cut[0]))
    is_away = ratio("kl") > 10 and float(np.abs(log.values("kl"))[-1]) > 0.1
    is_other = not 0.4 < ratio("entropy") < 2 or not 0.5 < ratio("length") < 1.6
    if not (is_cut or is_away or is_other or float(score[-1]) < 0.4 * float(score.max())):
        return None
    ids = ("lr_too_high", "kl_runaway", "truncation") if is_cut else ("lr_too_high", "kl_runaway", "reward_noise")
    title = f"{log.key(score_of(log))} falls from {score.max():.3g} to {score[-1]:.3g} as the policy leaves its start"
    return Sign(ids, title, ("kl", "entropy", "length", "truncated", "grad_norm"))


def _certain_of_little(log: RunLog) -> Sign | None:
    """Entropy near 0 from the first row on, far from the largest reward and without a gain."""
    entropy, score = log.values("entropy"), log.values(score_of(log))
    if len(entropy) < 6 or len(score) < 6 or not stalls(log) or float(np.median(entropy)) > SURE:
        return None
    # the first steps of a run say so only where next to nothing is right
    highest_share = 0.8 if log.last_step >= 2 * len(score) else 0.2
    if float(score.mean()) > highest_share * max(float(score.max()), 1.0) or float(entropy[0]) > 2 * SURE:
        return None
    title = "the policy is nearly certain of its answers from the first row on, and does not gain"
    return Sign(("no_diversity", "entropy_collapse", "all_wrong"), title, ("entropy", "reward_std", "zero_signal"))


def _entropy_gone(log: RunLog) -> Sign | None:
    """Entropy falls to a fifth and below a twentieth of a nat, or most groups fall silent with it, past the best."""
    begin, end = ends(log, "entropy")
    score = log.values(score_of(log))
    is_gone = end < min(0.2 * begin, GONE) or (log.last("zero_signal") > 0.8 and end < min(0.5 * begin, SURE))
    title = "entropy is gone before the tasks are solved: the answers of a group are all alike"
    if not len(score) and end < min(0.05 * begin, 0.02):
        return Sign(("entropy_collapse", "no_diversity"), title, ("entropy", "kl"))
    if not is_gone or len(score) < LEAST_ROWS or float(score[-1]) >= 0.97 * max(float(score.max()), 1.0):
        return None
    # what is near its top has learnt what there is, and what still rises has not collapsed
    if not log.last("zero_signal") > 0.8 and (score.max() > 0.8 or score[-1] > score[-3] + 0.05):
        return None
    return Sign(("entropy_collapse", "no_diversity"), title, ("entropy", "zero_signal", "reward_std"))


def _breaks(log: RunLog) -> Sign | None:
    """Entropy far up, or the gradient ten times as long, while the score does not gain or falls by a fifth."""
    entropy, score = log.values("entropy"), log.values(score_of(log))
    begin, end = ends(log, "entropy")
    is_hot = begin > 0.02 and (end > max(1.8 * begin, begin + 0.25) or (len(entropy) and entropy.max() > 3 * begin))
    first, last = ends(log, "grad_norm")
    is_long = first > 0 and last > 10 * first
    has_lost = len(score) >= LEAST_ROWS and score.max() > 0 and score[-2:].mean() < 0.85 * score.max()
    if not ((is_hot and stalls(log)) or (is_long and (has_lost or stalls(log)))):
        return None
    key = log.key("entropy" if is_hot else "grad_norm")
    title = f"{key} rises several times over, and the reward does not"
    return Sign(("lr_too_high", "kl_runaway", "reward_noise"), title, ("entropy", "grad_norm", "kl", "lr"))


def _far_away(log: RunLog) -> Sign | None:
    """KL above half a nat a token and eight times its start, without a gain."""
    begin, end = (abs(value) for value in ends(log, "kl"))
    if not (end > 0.5 and end > 8 * max(begin, 1e-3) and stalls(log)):
        return None
    return Sign(("kl_runaway", "lr_too_high"), "the policy leaves its reference and does not gain", ("kl", "grad_norm"))


def _at_rest(log: RunLog) -> Sign | None:
    """KL below 0.002 nats over a hundred steps and more, the reward where it was."""
    kl, clipped = np.abs(log.values("kl")), log.values("clip_fraction")
    # a KL that is 0 in every row is one that nobody computes
    is_still = len(kl) >= 5 and 0 < kl.max() < 2e-3 and not (len(clipped) and clipped.max() > 1e-3)
    begin, end = ends(log, "entropy")
    score = log.values(score_of(log))
    if not is_still or log.last_step < 100 or len(score) < 5 or not np.ptp(score) > 0:
        return None
    is_level = stalls(log) or float(np.ptp(score)) < 0.1 * max(1.0, float(np.abs(score).max()))
    if not is_level or (log.has("entropy") and abs(end - begin) > 0.15 * begin):
        return None
    title = f"after {log.last_step} steps the policy is still at its reference"
    return Sign(("lr_too_low", "weights_do_not_move", "kl_too_high"), title, ("kl", "clip_fraction", "lr", "entropy"))


def _constant(log: RunLog) -> Sign | None:
    """The same score in every row, and no spread or gradient: no group has a signal."""
    score = log.values(score_of(log))
    is_silent = log.is_zero("reward_std") or log.is_zero("grad_norm") or log.mean("zero_signal") > 0.98
    if len(score) < LEAST_ROWS or float(np.ptp(score)) > 1e-9 or score[0] == 0 or not is_silent:
        return None
    title = f"every answer is scored {score[0]:.3g}, and nothing is learnt from"
    ids = ("reward_ignores_completion", "near_constant_reward", "no_diversity")
    return Sign(ids, title, ("reward_std", "grad_norm", "zero_signal"))


def _pays_something_else(log: RunLog) -> Sign | None:
    """A reward that rises from row to row while right answers, or held-out ones, become no more."""
    reward = log.values("reward")
    names = [n for n in (log.correctness, "eval/accuracy") if n is not None and len(log.values(n)) >= LEAST_ROWS]
    if len(reward) >= LEAST_ROWS and not names and not stalls(log):
        return pays_something_unnamed(log)
    if len(reward) < LEAST_ROWS or not names or stalls(log):
        return None
    gain = float(reward[-2:].mean() - reward[:2].mean())
    first, last = ends(log, names[0])
    if gain < 0.1 or last > first + 0.02 or log.largest(names[0]) > 0.9:
        return None
    begin, end = ends(log, "length")
    length_ids = ("length_hack",) if end > 1.5 * begin else ("length_collapse",) if end < 0.6 * begin else ()
    ids = "memorising component_dominates" if names[0] == "eval/accuracy" else "component_dominates reward_sign"
    title = f"the reward rises by {gain:.2g} while {log.key(names[0])} does not: it pays for something else"
    return Sign((*length_ids, *ids.split())[:3], title, ("reward", names[0], "length"))


def _falls_behind(log: RunLog) -> Sign | None:
    """A gap of sampler and learner that begins as usual and grows tenfold past it."""
    name = next((n for n in ("gap_mean", "gap_probability", "gap_kl") if log.has(n)), "gap_mean")
    begin, end = ends(log, name)
    if not (begin < USUAL[name] and end > 10 * max(begin, USUAL[name] / 2)):
        return None
    title = "sampler and learner agree at first and come apart"
    return Sign(("stale_sampler", "lr_too_high", "too_off_policy"), title, (name, "staleness_mean", "grad_norm"))


def _tiny_rate(log: RunLog) -> Sign | None:
    """A learning rate of a hundred millionth at most, and no gain."""
    rates = log.values("lr")
    if not len(rates) or float(rates.max()) > 1.1e-8 or not stalls(log):
        return None
    return Sign(("lr_too_low", "weights_do_not_move"), "the learning rate is too small to move a policy", ("lr", "kl"))


def _falls_to_a_seventh(log: RunLog) -> Sign | None:
    """A score that falls to a seventh of its best and stays there."""
    score = log.values(score_of(log))
    if len(score) < 6 or score.min() < 0 or float(score[:2].max()) < 0.5 * float(score.max()) or not score.max() > 0:
        return None
    if float(score[-2:].max()) > 0.15 * float(score.max()):
        return None
    title = f"{log.key(score_of(log))} falls from {score.max():.3g} to {score[-1]:.3g}"
    return Sign(("lr_too_high", "kl_runaway", "advantage_sign"), title, ("kl", "grad_norm", "entropy", "length", "lr"))


def _grows_for_nothing(log: RunLog) -> Sign | None:
    """Answers that grow on, by half and more, while the score stays."""
    length, score = log.column("length"), log.column(score_of(log))
    if len(length) < LEAST_ROWS or len(score) < LEAST_ROWS or not length.values[0] > 2:
        return None
    # of a score that has risen with the first part of the growth, what the rest of it brought
    longer = np.flatnonzero(length.values > 1.4 * length.values[0])
    if not len(longer) or float(length.values[-2:].mean()) < 1.8 * length.values[0]:
        return None
    since = score.values[score.steps >= length.steps[longer[0]]]
    grown = float(length.values[-2:].mean() / length.values[longer[0]])
    bound = 0.02 * max(1.0, float(np.abs(score.values).max()))
    if grown < 1.25 or len(since) < 3 or float(since[-2:].mean() - since[0]) > bound:
        return None
    title = f"answers grow to {length.values[-2:].mean() / length.values[0]:.1f} times their length for no reward"
    return Sign(("length_hack", "no_eos", "truncation"), title, ("length", "truncated", "entropy"))


def _easy(log: RunLog) -> Sign | None:
    """Held-out accuracy of nine tenths before training and no more after it."""
    held_out = log.values("eval/accuracy")
    if len(held_out) < 3 or held_out[0] < 0.9 or float(held_out[-2:].mean()) > float(held_out[0]) + 0.02:
        return None
    title = "held-out answers were right before training: the tasks are too easy"
    return Sign(("all_right", "no_diversity"), title, ("eval/accuracy", "zero_signal", "grad_norm"))


def _seldom_right(log: RunLog) -> Sign | None:
    """A score of exactly 0 in two rows of three, the first ones among them."""
    score = log.values(score_of(log))
    if len(score) < 6 or score.min() < 0 or (score == 0).mean() < 2 / 3 or score[:3].any() or not stalls(log):
        return None
    title = f"no answer is right in {int((score == 0).sum())} of {len(score)} rows"
    return Sign(("all_wrong", "verifier_rejects_right_answers"), title, ("zero_signal", "entropy", "grad_norm"))


def _next_to_none_right(log: RunLog) -> Sign | None:
    """A share of right answers of a twentieth at most in every row, over twenty steps and more."""
    shares = log.values("success")
    if len(shares) < LEAST_ROWS or log.last_step < 20 or shares.min() < 0 or shares.max() > 0.05:
        return None
    title = f"at most {shares.max():.2g} of the answers are right in any row: hardly a group has one to learn from"
    return Sign(("all_wrong", "verifier_rejects_right_answers"), title, ("success", "zero_signal", "grad_norm"))


def _never_right(log: RunLog) -> Sign | None:
    """The part of the reward that is named after right answers is 0 in every row, and no other says that any is."""
    name = log.correctness
    rows = log.values(name or "success")
    if name is None or len(rows) < LEAST_ROWS or rows.any() or log.evaluation_gain > 0:
        return None
    title = f"{log.key(name)} is 0 in all {len(rows)} rows: what is learnt from says nothing of right answers"
    return Sign(("all_wrong", "verifier_rejects_right_answers", "dead_component"), title, (name, "zero_signal"))


def _without_a_loss(log: RunLog) -> Sign | None:
    """A loss of 0 in every row of a hundred steps and more, and a reward that stays within a fiftieth."""
    score = log.values(score_of(log))
    late = score[len(score) // 3 :]
    if len(score) < 6 or log.last_step < 100 or not log.is_zero("loss") or len(log.values("loss")) < len(score) / 2:
        return None
    if float(np.ptp(late)) > 0.05 * float(np.abs(late).mean()) or log.mean("grad_norm") > 1e-3:
        return None
    title = f"the loss is 0 in every row, and after {log.last_step} steps the reward is where it was"
    return Sign(("weights_do_not_move", "lr_too_low", "no_diversity"), title, ("loss", "lr"))


def _longest_earn_nothing(log: RunLog) -> Sign | None:
    """Two rows and more at the very same largest length, which alone score 0."""
    length, score = log.column("length"), log.column(score_of(log))
    if len(length) < LEAST_ROWS or length.steps.tolist() != score.steps.tolist():
        return None
    at_limit = np.abs(length.values - length.values.max()) < 1e-9
    if not 2 <= at_limit.sum() < len(length) or score.values[at_limit].any() or score.values[~at_limit].min() <= 0:
        return None
    title = f"the rows whose mean length is {length.values.max():.4g}, the largest, are those that score 0"
    return Sign(("truncation", "no_eos"), title, ("length", "truncated"))


def _says_next_to_nothing(log: RunLog) -> Sign | None:
    """Answers of three tokens at most, and entropy of next to 0, in most rows."""
    length, entropy = log.values("length"), log.values("entropy")
    if min(len(length), len(entropy)) < 3 or np.median(length) > 3 or np.median(entropy) > GONE:
        return None
    title = f"answers of {np.median(length):.2g} tokens, always the same"
    return Sign(("length_collapse", "entropy_collapse", "no_diversity"), title, ("length", "entropy"))


def _calls_no_tool(log: RunLog) -> Sign | None:
    """Tools that are called in the first row and in none of the last three."""
    calls = log.values("tool_calls")
    if len(calls) < LEAST_ROWS or calls[0] <= 0 or calls[-3:].any():
        return None
    title = f"{log.key('tool_calls')} falls from {calls[0]:.3g} to 0: the policy no longer calls a tool"
    return Sign(("tool_failures", "component_dominates", "length_collapse"), title, ("tool_calls", "length"))


def _of_few_rollouts(log: RunLog) -> Sign | None:
    """Mean rewards that are multiples of a quarter at most: four rollouts a step tell nothing."""
    score = log.values(score_of(log))
    if len(score) < 8 or not stalls(log) or score.min() < 0 or score.max() > 1 or len(np.unique(score)) < 3:
        return None
    if (denominator(score) or 99) > 4:
        return None
    title = f"the mean reward is a multiple of 1 / {denominator(score)} in every row: so few rollouts a step are noise"
    return Sign(("group_too_small", "no_diversity"), title, ("loss", "grad_norm"))


def _spikes_of_kl(log: RunLog) -> Sign | None:
    """Single KL values of nats beside thousandths, without a gain: log-probs of other tokens or of other weights."""
    kl = np.abs(log.values("kl"))
    if len(kl) < 6 or not stalls(log) or float(kl.max()) < max(5.0, 300 * float(np.median(kl))):
        return None
    title = f"{log.key('kl')} is {kl.max():.3g} in single steps and {np.median(kl):.2g} in most"
    return Sign(("sampler_mismatch", "stale_sampler", "kl_runaway"), title, ("kl", "gap_mean"))


def _clipped_from_start(log: RunLog) -> Sign | None:
    """A tenth of the tokens clipped from the first row on, without a gain."""
    clipped = log.values("clip_fraction")
    if len(clipped) < 5 or float(clipped.min()) < 0.1 or not stalls(log):
        return None
    title = "many tokens are clipped from the first row on: sampler and learner do not agree"
    return Sign(("sampler_mismatch", "too_off_policy"), title, ("clip_fraction", "approx_kl", "grad_norm", "entropy"))


def _unsure_of_all(log: RunLog) -> Sign | None:
    """Entropy of three nats a token and more from the first rows on: the policy does not know what it was asked."""
    entropy = log.values("entropy")
    if len(entropy) < LEAST_ROWS or not BLIND < float(np.median(entropy[:3])) < ALL_TOKENS or not stalls(log):
        return None
    tokens = f"{np.exp(np.median(entropy[:3])):.0f} tokens at each place from the first row on"
    title = f"the policy hesitates between {tokens}: does it see its prompts in the form that it was trained on?"
    return Sign(("wrong_template", "logprob_shift"), title, ("entropy", "kl", "grad_norm"))


def _hardly_differs(log: RunLog) -> Sign | None:
    """Rewards whose spread is a twentieth of their level in all rows, most groups silent, away from a round top."""
    score, spread, silent = (log.values(name) for name in (score_of(log), "reward_std", "zero_signal"))
    level = float(np.abs(score).mean()) if len(score) else 0.0
    if len(score) < LEAST_ROWS or len(spread) < LEAST_ROWS or not len(silent) or float(np.ptp(score)) > 0.1 * level:
        return None
    is_alike = 0 < float(spread.max()) < 0.06 * level and float(silent.min()) >= 0.5
    if not is_alike or abs(level - round(level)) < 0.02 * level:
        return None
    title = "rewards hardly differ, most groups have no signal, and division by their deviation makes noise of the rest"
    return Sign(("near_constant_reward", "all_wrong", "no_diversity"), title, ("reward_std", "zero_signal"))


def _lost_at_once(log: RunLog) -> Sign | None:
    """A reward of which the first update leaves a fiftieth, while answers change their length by half."""
    score, length = log.values(score_of(log)), log.values("length")
    if min(len(score), len(length)) < LEAST_ROWS or not 0 <= float(score[1:].max()) < float(score[0]) / 50:
        return None
    ratio = length[1:] / max(float(length[0]), 1e-9)
    if not (ratio.min() > 1.5 or ratio.max() < 0.5):
        return None
    title = "the first update leaves nothing of the reward: does the sampler get the learner's weights, and whole?"
    return Sign(("sampler_mismatch", "lr_too_high"), title, ("length", "kl", "grad_norm"))


def _moves_within_a_step(log: RunLog) -> Sign | None:
    """Three tenths of a nat a token and more between the policies that sampled and that learn, in most rows."""
    divergence = np.abs(log.values("approx_kl"))
    if len(divergence) < LEAST_ROWS or float(np.median(divergence)) < 0.3:
        return None
    title = f"{log.key('approx_kl')} is {np.median(divergence):.2g} nats a token: sampler and learner are apart"
    return Sign(("too_off_policy", "sampler_mismatch", "lr_too_high"), title, ("approx_kl", "clip_fraction"))


SIGNS_OF_FIRST_STEPS = (
    _moves_within_a_step,
    _lost_at_once,
    _hardly_differs,
    _certain_of_little,
    _of_few_rollouts,
    _clipped_from_start,
    _unsure_of_all,
    _spikes_of_kl,
    _longest_earn_nothing,
    _never_right,
)
SIGNS = (
    *SIGNS_OF_FIRST_STEPS,
    _entropy_gone,
    _breaks,
    _far_away,
    _at_rest,
    _constant,
    _pays_something_else,
    _falls_behind,
    _tiny_rate,
    _falls_to_a_seventh,
    unnamed_fall,
    _grows_for_nothing,
    _easy,
    _seldom_right,
    _next_to_none_right,
    repeats_itself,
    _without_a_loss,
    _says_next_to_nothing,
    _calls_no_tool,
    grows_and_fails,
    stays_level,
)

"""Recommendations: every method is there, every line composes, and what each rests on is so, where it is computable."""

import pytest
import torch
from tests.battery import battery, made_up

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.doctor import diagnosis
from gxpo.doctor.sickness import SICKNESSES
from gxpo.explain.advice import find, recommendations
from gxpo.explain.effect import Answer, Effect, effect, push, rollouts
from gxpo.explain.symptoms import CLAIMS, SYMPTOMS
from gxpo.methods import METHODS
from gxpo.parts.definition import EVIDENCE
from gxpo.sampling.rollouts import Independent
from gxpo.training import config

ALL = [(name, advice) for name, symptom in SYMPTOMS.items() for advice in symptom.advice]


def composed(advice):
    m = gxpo.method(advice.method, {k: s.value for k, s in config.parse_set(list(advice.sets)).items()})
    return m.fill(horizon=8.0, max_length=64)


# ---------------------------------------------------------------- the table
@pytest.mark.parametrize(("symptom", "advice"), ALL, ids=[f"{s}: {a.method}" for s, a in ALL])
def test_every_recommendation_exists_and_composes(symptom, advice):
    assert all(name in METHODS for name in advice.method.split("+")), f"{advice.method} is no method"
    composed(advice)
    assert advice.claim in ("", *CLAIMS) and 10 < len(advice.why) <= 100
    assert advice.line.startswith(f"gxpo train CONFIG --set method={advice.method}")


def test_the_table_is_valid():
    """Texts in one line, synonyms for each symptom, sicknesses that the doctor knows."""
    assert diagnosis  # registers the sicknesses
    for name, symptom in SYMPTOMS.items():
        texts = [name, symptom.what, *symptom.also, *(a.why for a in symptom.advice), *CLAIMS.values()]
        assert all(isinstance(x, str) and x == " ".join(x.split()) and x for x in texts), name
        assert symptom.also and set(symptom.sicknesses) <= set(SICKNESSES), name
    assert sum(len(symptom.sicknesses) for symptom in SYMPTOMS.values()) == 9
    assert SYMPTOMS["stale data"].sicknesses == ("too_off_policy", "stale_sampler")


def test_there_are_few_for_each_and_the_strongest_come_first():
    for name, symptom in SYMPTOMS.items():
        assert 1 <= len(symptom.advice) <= 8, name
        assert len({a.method for a in symptom.advice}) == len(symptom.advice), name
        tiers = [EVIDENCE.index(row["evidence"]) for row in recommendations(name, measurements=[])]
        assert tiers == sorted(tiers) and len(tiers) == len(symptom.advice)
    assert {a.claim for _, a in ALL} - {""} == set(CLAIMS) == set(CHECKS)


def test_a_composition_has_the_evidence_of_its_weakest_method_and_every_cost():
    rows = {r["method"]: r for r in recommendations("sampler mismatch")}
    assert rows["gspo+tis"]["evidence"] == max((METHODS["gspo"].evidence, METHODS["tis"].evidence), key=EVIDENCE.index)
    assert rows["gspo+tis"]["cost"] == METHODS["tis"].cost


@pytest.mark.parametrize(
    ("words", "symptom"),
    [
        ("all-wrong groups", "all-wrong groups"),
        ("all wrong", "all-wrong groups"),
        ("All_Right", "all-right groups"),
        ("entropy colapse", "entropy collapse"),
        ("lenght growth", "length growth"),
        ("small-groups", "small groups"),
        ("noisy reward", "noisy rewards"),
        ("long horizon", "long horizons"),
        ("stale", "stale data"),
        ("off-policy", "stale data"),
        ("pass@k", "pass@k falls"),
        ("vllm logprobs", "sampler mismatch"),
        ("loss spike", "unstable updates"),
    ],
)
def test_symptoms_are_found_by_what_users_call_them(words, symptom):
    assert find(words) == symptom


def test_other_words_are_not_guessed_at():
    with pytest.raises(ConfigError, match="no symptom fits"):
        find("banana bread")
    with pytest.raises(ConfigError, match="the nearest are 'all-wrong groups', 'all-right groups', 'small groups'"):
        find("groups")
    words = [text for name, symptom in SYMPTOMS.items() for text in (name, *symptom.also)]
    assert len(set(words)) == len(words)
    for name, symptom in SYMPTOMS.items():
        assert {find(text) for text in (name, *symptom.also)} == {name}


# ---------------------------------------------------------------- what they rest on
def credited(m, forest):
    """Credit times weights [P] on rollouts with unequal lengths, log-probs and whatever the method reads."""
    forest = m.shaped(forest)
    signals = made_up(m, forest, 1)
    credit = m.advantages(forest, signals)
    return credit * m.token_weights(forest, credit, signals)


def equal_group(m, which):
    """Whether anything of the all-wrong (0) or the all-right group (1) has credit."""
    forest = battery(5, sizes=(4, 4), rewards=(0.0, 1.0))
    return bool((credited(m, forest)[forest.ids("group", axis="P") == which] != 0).any())


def pushed(m, *answers):
    return push(m, rollouts([Answer("g", *a) for a in answers])).tolist()


def gradient(m, answers, moved):
    """-dL / dlogp by trajectory, where the log-probs have moved by `moved` [P]."""
    forest = m.shaped(rollouts([Answer("g", *a) for a in answers]))
    known_behaviour_logprob = forest.path_behaviour_logprob
    x = (known_behaviour_logprob + moved).requires_grad_()
    policy = gxpo.PolicyTokens(
        x,
        known_behaviour_logprob,
        reference_logprob=known_behaviour_logprob,
        entropy=torch.ones_like(known_behaviour_logprob),
        proximal_logprob=known_behaviour_logprob,
    )
    (g,) = torch.autograd.grad(m.loss(forest, policy).value, x)
    return (-g).split(forest.lengths().tolist())


def old_wrong(m):
    """The push on the one token, of a wrong answer of four tokens, that became e^3 times as likely."""
    moved = torch.zeros(16, dtype=torch.float64)
    moved[4] = 3.0
    return float(gradient(m, [(1.0,), (0.0,), (0.0,), (0.0,)], moved)[1][0])


def length_blind(m):
    _, short, long = gradient(m, [(1.0, 4), (0.0, 2), (0.0, 8)], 0.0)
    return torch.allclose(short[0], long[0]) and float(short[0]) < 0


def gradient_beyond_clip(m):
    right, _ = gradient(m, [(1.0,), (0.0,)], 1.0)
    return bool((right > 0).all())


def rare_right(m):
    common, rare, *_ = pushed(m, (1.0, 4, -0.2), (1.0, 4, -1.5), (0.0, 4, -0.5), (0.0, 4, -0.5))
    return rare > common + 1e-6


def short_right(m):
    short, long, *_ = pushed(m, (1.0, 2), (1.0, 6), (0.0,), (0.0,))
    return short > long + 1e-6


def token_sum(m):
    lengths = (1, 3, 2, 6)
    actual = pushed(m, *zip((1.0, 0.0, 1.0, 0.0), lengths, strict=True))
    return actual[0] != 0 and abs(sum(n * a for n, a in zip(lengths, actual, strict=True))) < 1e-9


def near_limit(m):
    short, long = m.shaped(rollouts([Answer("g", 1.0, 4), Answer("g", 1.0, 60)])).outcome.tolist()
    return long < short


def others_only(m):
    before, after = (pushed(m, (r,), (0.9,), (0.1,))[0] for r in (0.3, 0.8))
    return after - before == pytest.approx(0.5)


def tried(m):
    actual = effect(m)
    assert isinstance(actual, Effect), actual
    return actual


def within(m):
    forest, call = battery(3), {"name": "look", "arguments": {"for": "a key"}}
    steps = zip(forest.step_turn.tolist(), forest.step_trajectory.tolist(), strict=True)
    forest = forest.replace(  # of every other rollout, the first turn makes the one call of the reference
        info=[{**info, "gold_calls": [call]} for info in forest.info],
        step_info=[{"calls": [] if turn or row % 2 else [call]} for turn, row in steps],
    )
    credit = credited(m, forest)
    return any(float(credit[path].max() - credit[path].min()) > 1e-9
               for path in map(forest.path_of, range(forest.n_trajectories)))  # fmt: skip


def mismatch(m):
    forest = rollouts([Answer("g", 1.0), Answer("g", 0.0)])
    gap = torch.zeros(8, dtype=torch.float64)
    gap[0], gap[1] = 3.0, -3.0
    signals = {"proximal_logprob": forest.path_behaviour_logprob + gap}
    up, down, *rest = m.token_weights(forest, m.advantages(forest, signals), signals).tolist()
    return 1 <= up < 10 and down < 0.1 and rest == [1.0] * 6  # e^3 is 20, e^-3 is .05


def each_reward(m):
    forest = rollouts([Answer("g", r) for r in (1.0, 0.0, 0.0, 1.0)])
    form = torch.tensor([0.0, 0.01, 0.0, 0.01], dtype=torch.float64)
    right = forest.outcome
    one, other = (
        m.advantages(forest.with_rewards(right + k * form, components={"correct": right, "format": k * form}))
        for k in (1, 100)
    )
    return bool((one != 0).any()) and torch.allclose(one, other, atol=0.05)  # 1e-4 is added to the std .005774


CHECKS = {
    "all_wrong": lambda m: equal_group(m, 0),
    "all_right": lambda m: equal_group(m, 1),
    "rollouts": lambda m: type(m.rollout) is not Independent,
    "clip_high": lambda m: m.keys["objective.clip_high"].value > m.keys["objective.clip_low"].value,
    "entropy_term": lambda m: m.terms["entropy"].coef > 0,
    "gradient_beyond_clip": gradient_beyond_clip,
    "rare_right": rare_right,
    "wrong_outweighs": lambda m: -tried(m).wrong[4] > tried(m).right[4] > 0,
    "length_blind": length_blind,
    "short_right": short_right,
    "token_sum": token_sum,
    "near_limit": near_limit,
    "pair": lambda m: pushed(m, (1.0,), (0.0,)) == pytest.approx([1, -1], abs=1e-4),
    "others_only": others_only,
    "majority_still": lambda m: pushed(m, (1.0,), *[(0.0,)] * 4)[1:] == [0.0] * 4,
    "alone": lambda m: push(m, rollouts([Answer("a", 1.0), *[Answer("b", 0.0)] * 3])).tolist()[0] > 0,
    "lone_success": lambda m: 0 < tried(m).right[1] < tried(gxpo.method("grpo")).right[1] - 1e-3,
    "within": within,
    "old_wrong": lambda m: old_wrong(gxpo.method("grpo")) < 2 * old_wrong(m) <= 0,
    "low_baseline": lambda m: sum(pushed(m, (1.0,), (0.0,), (0.0,), (0.0,))) > 1e-6,
    "mismatch": mismatch,
    "over_behaviour": lambda m: m.keys["objective.ratio_over"].value == "behaviour",
    "hard_over_easy": lambda m: tried(m).right[1] > 7.01 * tried(m).right[7] >= 0,  # GRPO: 2.474867 and .353552
    "each_reward": each_reward,
    "slow_fast": lambda m: m.update != gxpo.method("grpo").update,
    "vote": lambda m: m.run_keys["reward"].value == "majority_vote",
    "observation": lambda m: "masked_observation" in m.signals,
}  # fmt: skip
CLAIMED = [(name, advice) for name, advice in ALL if advice.claim]


@pytest.mark.parametrize(("symptom", "advice"), CLAIMED, ids=[f"{s}: {a.method}, {a.claim}" for s, a in CLAIMED])
def test_what_a_recommendation_rests_on_is_so(symptom, advice):
    assert CHECKS[advice.claim](composed(advice)), f"{advice.method}: it is not so that {CLAIMS[advice.claim]}"


OF_THE_RUN = {"entropy_term", "observation", "over_behaviour", "rollouts", "slow_fast", "vote"}  # keys, not numbers


@pytest.mark.parametrize("claim", sorted(set(CLAIMS) - OF_THE_RUN))
def test_none_of_it_is_so_of_grpo(claim):
    """Otherwise it would be no reason to change anything."""
    assert not CHECKS[claim](gxpo.method("grpo").fill(horizon=8.0, max_length=64))

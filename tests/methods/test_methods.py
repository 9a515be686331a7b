"""One contract for every registered method: it is exact under micro-batching, stays still where it must, and computes
something that no other method computes; `test_training_steps.py` trains it."""

import copy
import itertools

import pytest
import torch
from tests.battery import ON_BATTERY, battery, composed_once, constants_of, kinds_of_parts, made_up, policy_of
from tests.learning.llamas import clean_llama
from tests.thorough import cover, cover_in_lists

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.explain.catalogue import entries
from gxpo.learning.flow import OUTPUTS
from gxpo.learning.torch import TorchLearner
from gxpo.methods import METHODS
from gxpo.methods.method import controls
from gxpo.parts.definition import EVIDENCE, Definition, same
from gxpo.training.bound_learner import BoundLearner

NAMES = sorted(METHODS)
DENOISED = set(OUTPUTS) - {"logprob", "entropy"}  # of a learner of latents: tests/learning/test_flow.py
OF_TOKENS = [n for n in NAMES if not {x.partition("@")[0] for x in gxpo.method(n).outputs} & DENOISED]
EQUAL_GROUPS_LEARN = {
    "ddpo", "dmpo_dlm", "vgpo",  # against earlier rewards of the prompt; against the batch; by kappa Q
    "sdpo_self", "srpo_routing",  # the battery's teachers, whatever the verdicts
    "reinforce_pp",  # groups equal within but not between
    "gae", "t_ppo", "poise", "remax", "pvpo", "aapo", "v05",  # against a baseline that is not the group's
    "world4rl", "gae_turn", "steppo", "poad", "archer", "hiper", "spa_rl", "dgpo_distill", "rpd",  # against a value
    "igpo", "grpo_vps", "spae",  # steps that raise the belief in the answer, whatever was won
    "prorag", "capo_genprm", "hrm", "hi_grpo",  # somebody scores the steps
    "rank_grpo",  # items that are hits, whatever the list is worth
    "matchtir",  # turns of one number, of which some are the last and paid
    "alphamath", "masprm",  # a head is trained; what is right is imitated
    "polychromic",  # attempts that say the same beside others that do not
    "ngrpo", "erpo", "psr_nsr", "asymre",  # built to push: a virtual member, no baseline, a shifted one
    "ospo", "mm_grpo",  # steps of one turn: some attempts end there and are paid
    "progrpo",  # groups in which all are right, by how sure the policy was
    "oprl",  # steps that its own reward model tells apart
    "copo", "dra_grpo",  # groups of the step against each other; shares of a reward
    "gvpo", "reg_grpo", "opmd", "copg", "rover",  # regression towards no change at all, or towards the reference
    "papo", "epo", "grpo_d", "fg_expo",  # a term on every token, whatever it earned
    "mdpo",  # several updates: a pull back to the old policy
    "gtpo",  # an entropy cost on every answer
    "vineppo", "var_grpo", "spo_segment", "vsrm", "pav",  # values of states, measured beside the group
    "lc_r1",  # a thought that ends in time, whatever was won
    "trpa",  # groups of one level are set against score 0
    "kto",  # single answers
    "refuel",  # regression towards no change at all
    "mars_turn",  # groups of a role against each other
    "ippo", "maddpg", "hasac", "marft", "eir_mappo",  # against a value, or for entropy
    "mac_spgg", "mashost", "lca", "collab_ui",  # a role's own utility; a judge scores the turns
    "saw", "dqc", "ota", "dual_rl", "bcoder", "mbrcsl",  # imitation of what is logged, against a value
    "local_opt_marl", "dpo_decentralised", "conscientia",  # a pull back to the old policy; single answers
}  # fmt: skip


def composed(name, changed=None):
    keys = {**ON_BATTERY.get(name, {}), **(changed or {})}
    return gxpo.method(name, keys).fill(horizon=12.0, max_length=12, total_steps=4)


# ---------------------------------------------------------------- the catalogue
@pytest.mark.slow
def test_every_row_of_the_catalogue_is_complete():
    rows = {row["name"]: row for row in entries()}
    assert set(rows) == set(METHODS)
    for name, row in rows.items():
        assert row["title"] and row["formula"] and row["idea"] and row["evidence"] in EVIDENCE, name
        assert METHODS[name].authors and METHODS[name].year and METHODS[name].bibtex.startswith(f"@misc{{{name},"), name
        assert {"stages", "defaults", "needs", "requires", "cost"} <= set(row)


def test_idea_formula_and_choices_come_from_the_docstring():
    doc = """NAME (of two): a thing
    in two lines.

    A = r - 1;   L = -A.
    Choices. The code's: 1,
    not 2.

    A remark.
    """
    built_definition = Definition(doc, evidence="paper")
    assert (built_definition.idea, built_definition.formula, built_definition.choices) == (
        "a thing in two lines",
        "A = r - 1;   L = -A",
        "The code's: 1, not 2",
    )
    lines = Definition(doc.replace(";   L", ",\n      r paid\n    L"), evidence="paper")
    assert lines.formula == "A = r - 1,\n  r paid\nL = -A"
    bare = Definition(evidence="paper")  # as under `python -OO`, where its text is a file's docstring
    assert (bare.idea, bare.formula, bare.choices) == ("", "", "")


def test_a_method_states_only_what_differs_from_the_base():
    base = gxpo.method("grpo").keys
    for name, definition in METHODS.items():
        for key, value in definition.keys.items():
            if key.split(".")[0] != key and key.split(".")[0] in definition.keys:
                continue  # a parameter of a part that the base does not have
            if any(k.startswith(f"{key}.add.") for k in definition.keys):
                continue  # what the other levels of a sum are added to
            assert key not in base or not same(base[key].value, value), f"{name} repeats {key}"


# ---------------------------------------------------------------- fingerprints
def fingerprint(name):
    """Credit and gradient on a fixed battery, off policy and with a sampler of its own."""
    m, parts = composed(name), []
    for seed in (0, 1):
        forest = battery(seed)
        signals = made_up(m, forest, seed)
        noise = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(9 + seed), dtype=torch.float64)
        logprob = (signals["proximal_logprob"] + 0.9 * noise).requires_grad_()
        credit = m.advantages(forest, signals)
        others = {name: 0.1 * noise + 1.0 for name in m.outputs if name not in ("logprob", "value")}
        others |= {n: x + 0.25 * logprob for n, x in others.items() if "@" in n or n == "mean_logprob"}
        policy = policy_of(forest, {"logprob": logprob, "value": 0.1 * noise, **others}, signals)
        (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit, signals=signals).value, logprob)
        parts += [credit, gradient * forest.n_entries]
    return torch.cat(parts)


def elsewhere(name):
    """The stages that credit and gradient on given rollouts do not show."""
    m = gxpo.method(name)
    stages = (
        m.sampler,
        m.likelihood,
        m.rollout,
        m.segmenter,
        m.update,
        m.shapes,
        m.step_rewards,
        m.rewards,
        m.signals,
        m.context,
        controls(m),
    )
    return repr((stages, {k: s.value for k, s in m.run_keys.items()}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*method.shaped:UserWarning")  # credit on the task's rewards alone
def test_no_two_methods_compute_the_same():
    prints = {name: fingerprint(name) for name in NAMES}
    for a, b in itertools.combinations(NAMES, 2):
        alike = torch.allclose(prints[a], prints[b], rtol=1e-9, atol=1e-12) and elsewhere(a) == elsewhere(b)
        declared = METHODS[a].alias_of == b or METHODS[b].alias_of == a
        assert alike == declared, f"{a} and {b}: alike is {alike}, declared {declared}"


# ---------------------------------------------------------------- exact under micro-batching
@pytest.fixture(scope="module")
def learner():
    heads = sorted({head for name in NAMES for head in gxpo.method(name).value_heads})
    return TorchLearner(clean_llama(vocab_size=64), lr=1e-3, weight_decay=0.0, value_heads=heads, reference=True)


def around(logprob):
    """Proximal log-probs a little above and below, near enough for the narrowest clip to leave some gradient."""
    return logprob + 5e-5 * (torch.arange(len(logprob)) % 3 - 1)


CLAMPED = {"spo_diffusion"}  # no gradient where the battery's policies are; tests/algorithms/objectives has its own
AGREEING = {  # the battery's sampler is nobody that the learner knows: such bounds would drop every token
    "hispo": {"weight.mismatch_mask.token_min": 0.0, "weight.mismatch_mask.sequence_min": 0.0},
}


def objective_of(name):
    """What decides how a step may be cut: the terms, what they read of the policy, what the credit hands them."""
    m = composed_once(name)
    yield from (kind for kind in kinds_of_parts(name) if kind[0] == "terms")
    yield "together", tuple(sorted(type(term).__name__ for term in m.terms.values()))
    yield "read", m.outputs, m.couples, m.credit_targets


def reads_of(name):
    """What a step's loss reads of the policy, and how far its terms couple tokens."""
    m = composed_once(name)
    yield m.couples
    yield from m.outputs
    yield "targets", bool(m.credit_targets)


@pytest.mark.filterwarnings("ignore:.*method.shaped:UserWarning")  # credit on the task's rewards alone
@pytest.mark.parametrize("name", cover(sorted({*OF_TOKENS} - CLAMPED), objective_of, reads_of))
def test_the_gradient_is_the_same_however_the_step_is_cut(name, learner):
    m, forest = composed(name, AGREEING.get(name)), battery(3, sizes=(3, 2, 2))
    signals = made_up(m, forest, 3)
    old = learner.outputs(forest, ("logprob", *(n for n in m.outputs if n.startswith("logprob@"))))
    old["proximal_logprob"] = old.pop("logprob")
    signals = Signals.of(forest, {**signals, **{n: around(x) for n, x in old.items()}}, m.axes)
    credit = m.advantages(forest, signals)
    signals = Signals.of(forest, {**signals, **m.targets(forest, signals)}, m.axes)
    weight = m.token_weights(forest, credit, signals)
    active = m.active(forest, credit, weight)

    def loss(x):
        return m.objective(forest, policy_of(forest, x, signals), credit, weight, signals)

    def gradient(cuts, two_pass):
        actual = learner.gradient(
            forest,
            loss,
            names=m.outputs,
            couples=m.couples,
            active=active,
            cuts=cuts,
            two_pass=two_pass,
            constants=constants_of(m, signals),
        )
        return torch.cat([g.reshape(-1) for _, g in sorted(actual.items())])

    everything = torch.arange(forest.n_entries)
    rows = [forest.path_of(r) for r in range(forest.n_trajectories)]
    inside = list(everything.split(2))
    full_gradient = gradient([everything], True)
    assert float(full_gradient.norm()) > 0
    group = forest.ids("group", axis="P")
    groups = [(group == g).nonzero().squeeze(1) for g in range(int(group.max()) + 1)]
    ways = {
        "two passes, by trajectory": (rows, True),
        "two passes, by three": ([torch.cat(rows[i : i + 3]) for i in range(0, len(rows), 3)], True),
        "two passes, inside trajectories": (inside, True),
        "fast, at once": ([everything], False),
    }
    narrow = ("token", "trajectory", "group", "step").index(m.couples)
    ways |= {"fast, by group": (groups, False)} if narrow <= 2 else {}
    ways |= {"fast, by trajectory": (rows, False)} if narrow <= 1 else {}
    ways |= {"fast, inside trajectories": (inside, False)} if narrow == 0 else {}
    for way, (cuts, two_pass) in ways.items():
        difference = float((gradient(cuts, two_pass) - full_gradient).norm() / full_gradient.norm())
        # a root of the KL has the direction of the log-ratios as its gradient: of 5e-5 rounding leaves eleven digits
        # of two softmaxes that nearly cancel twelve
        limit = {"dpo_decentralised": 1e-10, "dmpo_dlm": 1e-11}.get(name, 1e-12)
        assert difference <= limit, f"{name}, {way}: {difference:.2e}"


# ---------------------------------------------------------------- equal groups
def still_of(name):
    """What decides whether equal groups move a method."""
    m = composed_once(name)
    yield from kinds_of_parts(name)
    yield "update", type(m.update), m.value_heads
    yield "moves", name in EQUAL_GROUPS_LEARN


def equal_groups_failure(name):
    """Update a model on groups of equal rewards; "" if it moves exactly where the method should."""
    m = composed(name)
    forest = battery(5, rewards=(0.1, 0.7, 1 / 3))
    model = TorchLearner(clean_llama(vocab_size=64), lr=1e-2, weight_decay=0.1, value_heads=m.value_heads)
    before = copy.deepcopy(model.snapshot())
    signals = made_up(m, forest, 5)
    credit = m.advantages(forest, signals)
    signals = Signals.of(forest, {**signals, **m.targets(forest, signals)}, m.axes)
    weight = m.token_weights(forest, credit, signals)
    infos = m.update.run(forest, credit, weight, BoundLearner(model, m, forest, signals, 1))
    is_still = all(torch.equal(before[k], v) for k, v in model.snapshot().items())
    empty = [info.empty for info in infos]
    if name in EQUAL_GROUPS_LEARN:
        return f"{name} does not learn: still {is_still}, empty steps {empty}" if is_still or any(empty) else ""
    # steps of one state may still differ in what followed, or in how near they led
    if name in {"gigpo", "hgpo", "graph_gpo", "graft"}:
        return ""
    has_credit = not bool((credit == 0).all())
    moves = has_credit or not is_still or not all(empty)  # decay must not move anything either
    return f"{name} moves: credit {has_credit}, still {is_still}, empty steps {empty}" if moves else ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*method.shaped:UserWarning")  # credit on the task's rewards alone
@pytest.mark.parametrize("names", cover_in_lists(OF_TOKENS, still_of))
def test_groups_of_equal_rewards_move_nothing(names):
    failures = []
    for name in names:
        try:
            failure = equal_groups_failure(name)
        except Exception as error:  # goes on with the other methods, and names this one
            failure = f"{name}: {type(error).__name__}: {error}"
        failures += [failure] if failure else []
    assert not failures, "\n".join(failures)


def test_gigpo_is_still_on_equal_groups_without_discount():
    m = gxpo.method("gigpo", {"credit.add.state.discount": 1.0})
    assert bool((m.advantages(battery(5, rewards=(0.1, 0.7, 1 / 3))) == 0).all())

"""One contract for every registered method: it trains, is exact under micro-batching, stays still where it must, and
computes something that no other method computes."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from tests.battery import ON_BATTERY, battery, composed_once, given_of, kinds_of_parts, made_up, policy_of
from tests.learning.llamas import clean_llama
from tests.thorough import cover, cover_in_lists, some

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import TaskError
from gxpo.explain.catalogue import entries
from gxpo.learning.torch import TorchLearner
from gxpo.methods import _MODULES, METHODS
from gxpo.methods.method import controls
from gxpo.parts.definition import EVIDENCE, Definition, same
from gxpo.training.bound_learner import BoundLearner

NAMES = sorted(METHODS)
FLOWS = {"flow_grpo", "tempflow_grpo", "chunk_grpo"}  # of samplers that act in latents: their own tests train them
EQUAL_GROUPS_LEARN = {
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
    "ospo",  # steps of one turn: some attempts end there and are paid
    "progrpo",  # groups in which all are right, by how sure the policy was
    "oprl",  # steps that its own reward model tells apart
    "copo", "dra_grpo",  # groups of the step against each other; shares of a reward
    "gvpo", "reg_grpo", "opmd", "copg", "rover",  # regression towards no change at all, or towards the reference
    "papo", "epo", "grpo_d", "fg_expo",  # a term on every token, whatever it earned
    "mdpo",  # several updates: a pull back to the old policy
    "gtpo",  # an entropy cost on every answer
    "vineppo", "spo_segment", "vsrm", "pav",  # values of states, measured beside the group
    "lc_r1",  # a thought that ends in time, whatever was won
    "trpa",  # groups of one level are set against score 0
    "kto",  # single answers
    "refuel",  # regression towards no change at all
    "mars_turn",  # groups of a role against each other
    "ippo", "maddpg", "hasac", "marft", "eir_mappo",  # against a value, or for entropy
    "mac_spgg", "mashost", "lca",  # a role's own utility; a judge scores the turns
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
@pytest.mark.parametrize("name", cover(NAMES, objective_of, reads_of))
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
            given=given_of(m, signals),
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
        limit = 1e-10 if name == "dpo_decentralised" else 1e-12
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
@pytest.mark.parametrize("names", cover_in_lists(NAMES, still_of))
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


# ---------------------------------------------------------------- they train
def parity(completion):
    """Two rewards that a cold model gets half of the time, one of them the verdict."""
    return {"correct": float(sum(map(ord, completion)) % 2), "format": float(len(completion) % 2)}


DOORS = {"task": "keydoor", "tasks.options": {"style": "bare", "size": 3, "max_turns": 4}}  # a world with an expert
LAKE = {"task": "frozenlake", "tasks.options": {"style": "bare", "size": 3}, "env.max_turns": 4}
# Rows that differ in the reward alone: their tasks are tables, JSON, clicks..., of which a model that has never learnt
# anything says none. They train on one metric that any text has some of; their own are in tests/rewards.
MATCHED = {"asr_grpo", "speech_grpo", "rl_struct", "table2latex", "lpo_gui", "vlm_rl_clg"}
VOWELS = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'candidate_scores.py'}:vowels"
LETTERS = f"{Path(__file__).parents[1] / 'environments' / 'rewards' / 'any_text.py'}:letters"
ANY_TEXT = {"metric": LETTERS, "pattern": None, "gate": None, "pay": "score"}
ANY_SUM = {"by": "info.operation", "pattern": None, "route": {"+": {"metric": LETTERS}}}  # a kind of its own
VOTED = {
    "task": str(Path(__file__).parents[1] / "questions.jsonl"),
    "tasks.options": {"held_out_fraction": 0.4},
    "scoring.weights": {"majority_vote": 1.0, "math": 0.0},
    "sampling.max_new_tokens": 24,
    "rollout.group_size": 8,
}
SAYS = {"rollout.right": "[0-4]", "rollout.wrong": "[5-9]"}  # a cold model states no verdict in words
SMOKE = {  # what a method needs to have something to learn from in two steps of a model that has never learnt anything
    "ttrl": {**VOTED, "scoring.options": {"majority_vote": {"pattern": "([0-9])"}}},
    "ttrv": {
        **VOTED,
        "scoring.options": {
            "majority_vote": {"pattern": "([0-9])", "reward": "frequency", "alike": "equal", "missing": "together"}
        },
    },
    "empo": {
        **VOTED,
        "scoring.options": {"majority_vote": {"pattern": "([0-9])", "reward": "frequency", "gate": [0.1, 0.99]}},
    },
    **{name: {"reward": "match", "scoring.options": {"match": ANY_TEXT}} for name in MATCHED},
    "multirole": {"scoring.weights": {"match": 1.0}},
    "mixed_r1": {"reward": "match", "scoring.options": {"match": ANY_SUM}},
    "videochat_r1": {"scoring.weights": {"match": 1.0}, "scoring.options": {"match": ANY_SUM}},
    "uav_vl_r1": {"model": "tiny-vision:cold", "task": "shapes"},
    "carl": {"reward.shape.factored.factors": ["format"], "reward.shape.factored.fail": ""},
    "ps_grpo": {
        "task": str(Path(__file__).parents[1] / "wordings.jsonl"),
        "tasks.options": {"held_out_fraction": 0.2},
        "scoring.weights": {"consistency": 1.0, "match": 1.0},
        "scoring.options": {"consistency": ANY_TEXT, "match": ANY_TEXT},
        "sampling.max_new_tokens": 24,
    },
    "scaf_grpo": {"rollout.warmup_steps": 0},
    **{name: {"learner.lora_rank": 4, **SAYS} for name in ("critique_rl", "refcritic")},
    "sentinel": {"learner.lora_rank": 4},
    "t_ppo": {"rollout.windows": 1},
    "gtpo": {"weight.entropy_ceiling.high": 9.0},  # a cold model is unsure of everything
    "anytime_brpo": {"sampling.max_new_tokens": 24, "rollout.summaries": 2},
    "ssl_sweet_spot": {"reward.shape.tiered.component": "format"},
    "spectral_po": {"reward.shape.correct_prefix.component": "format"},
    "seed_grpo": {"weight.answer_entropy.alpha": 0.5},  # a cold model never says the same twice
    **{name: {"sampling.max_new_tokens": 24} for name in ("pta_grpo", "luffy", "gcpo_gold", "tempsamp_r1")},
    **{name: DOORS for name in ("thor", "hi_agent", "snapshot_rl")},
    "step_grpo_router": {"task": f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'expert_env.py'}:Asked"},
    "deepsearch": {"rollout.width": 2},  # of four ends that a cold model reaches one is right, and that one is kept
    # steps of an episode: a cold model says nothing that a world understands, so what it is judged by is made up
    "arpo_agentic": {**LAKE, "rollout.group_size": 4},
    "portool": {**LAKE, "rollout.group_size": 4},
    "slate": {
        **LAKE,
        "rollout.score": VOWELS,
    },
    "prorag": {"signal.step_judge.score": "tests.algorithms.signals.step_scorer:by_length"},
    "step_filter": {"signal.step_judge.score": "tests.algorithms.signals.step_scorer:by_length"},
    "capo_genprm": {"signal.step_judge.ask": "tests.algorithms.signals.step_scorer:judge"},
    "matchtir": {
        "task": "toolqa",
        "tasks.options": {"style": "bare", "kinds": ["calculator"]},
        "sampling.max_new_tokens": 1,  # one character in six is a call of the calculator
        "env.max_turns": 2,
    },
    **{
        name: {
            "task": "toolqa",
            "tasks.options": {"style": "bare", "kinds": ["calculator"]},
            "sampling.max_new_tokens": 1,
            "env.max_turns": 2,
        }
        for name in ("otc", "hdpo", "sem", "tool_star", "mobile_r1")
    },
    "fapo": {"reward.add.flawed.component": "format"},
    **{name: {"rollout.delimiter": ","} for name in ("tree_grpo", "tree_po", "tree_rl", "rose", "search_r2", "glore")},
    **{name: {"teacher.model": "tiny"} for name in ("dgpo_distill", "rpd")},
    **{name: {"sampling.max_new_tokens": 24} for name in ("adhint", "policy_rollout")},
    "hill": {"learner.lora_rank": 4, "rollout.attempts": 2, "rollout.refinements": 4, "tasks.per_step": 8},
    "ipo_safety": {"rollout.phrases": ["[0-9]"], "rollout.insert": "+"},
    "fate": {"reward.shape.front.components": ["correct", "format"]},
    "dpa": {"reward.shape.direction.components": ["correct", "format"], "credit.quantile": 0.75},
    "arspo": {"reward.shape.hard.component": "format", "weight.progress.kinds": ["correct"]},
    "scope": {
        "rollout.delimiter": ",",
        "rollout.score": "tests.algorithms.signals.step_scorer:by_length",
        "rollout.by": f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'candidate_scores.py'}:rest",
    },
    "himac": {"sampling.max_new_tokens": 24, "rollout.delimiter": ","},
    "vineppo": {"segment.text": ","},  # steps and cue of the built-in arithmetic
    "vsrm": {
        "segment": "delimiter",
        "segment.text": ",",
        "rollout.answer_cue": "#",
        "rollout.answer_tokens": 0,
    },
    "pav": {"segment.text": ",", "credit.add.value_difference.best_of": 1},  # the made-up rewards are no chances
    "e_grpo": {"reward.shape.entity_match.component": "format"},
    "step_grpo_r1vl": {f"reward.shape.{name}_reward.component": "format" for name in ("key_step", "order")},
    "group_robust_po": {  # data that has populations
        "task": str(Path(__file__).parents[1] / "pairs.jsonl"),
        "tasks.options": {"held_out_fraction": 0.4},
        "reward": "math",
        "rollout": "logged",
    },
    "step_apo": {
        **LAKE,
        "rollout.score": VOWELS,
    },
    "refuel": LAKE,
    **{name: {"learner.lora_rank": 4} for name in ("aapo", "pvpo")},  # the reference is the model without adapters
    **{name: {"model": "flow", "task": "points", "sampling.max_new_tokens": 9} for name in FLOWS},
}


SMOKE["chunk_grpo"] = {**SMOKE["chunk_grpo"], "rollout.chunks": [2, 5]}
SMOKE["hi_grpo"] = {**SMOKE["step_filter"], "segment.text": ","}
SMOKE["rank_grpo"] = {  # single characters are the items
    "task": str(Path(__file__).parents[1] / "lists.jsonl"),
    "tasks.options": {"held_out_fraction": 0.4},
    "segment": "chunks",
    "segment.tokens": 1,
}
GUARD = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'guard.py'}"
SMOKE |= {
    **{name: {**LAKE, "rollout.model": f"{GUARD}:toy_world"} for name in ("wmpo", "world4rl", "ctrl_world")},
    "starwm": {**LAKE, "env.max_turns": 2, "rollout.template": "{predicted}"},
    "veriguard": {**LAKE, "rollout.check": f"{GUARD}:no_up", "rollout.cases": f"{GUARD}:CASES"},
    **{name: {"rollout.template": "{prompt}{code}"} for name in ("compass_latent", "mra")},
    "stepmix": {"learner.lora_rank": 4, "rollout.floor": 0.1},
    "primal_dual_marl": {"rollout.graph": "second_opinion", "credit.cost": "format", "credit.at_most": 0.1},
}
PARITY = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'parity_world.py'}"
SEATED = ("mars_turn", "ippo", "maddpg", "hasac", "parco", "casec", "ai_economist", "conscientia", "local_opt_marl",
          "dpo_decentralised", "bayes_net_marl")  # fmt: skip
SMOKE |= {name: {"task": f"{PARITY}:Parity", "rollout.group_size": 4} for name in SEATED}
SMOKE["search_self_play"] = {"rollout.valid": f"{PARITY}:any_text"}
SMOKE["kairos"] = {"task": "peers"}
UNTRAINED = {"training_free_grpo", "mars_prompt", "compass_skills"}  # nothing but their bank learns
LISTED = {  # by success rates of tasks that are met again
    "task": SMOKE["ttrl"]["task"], "tasks.options": {"held_out_fraction": 0.4}, "sampling.max_new_tokens": 6,
}  # fmt: skip
DRAWN = ("vas", "drive", "srpo_history", "videorl_select", "favchat_degrpo", "cures", "fg_expo")
SMOKE |= {name: LISTED for name in DRAWN}
SMOKE["craft_gui"] = {"tasks.sampler.by": "digits", "tasks.sampler.levels": [1, 2]}


ANSWERS = f"{Path(__file__).parents[1] / 'environments' / 'rewards' / 'answering_judge.py'}:ask"
PANEL = [{"name": name, "rubric": name} for name in ("one", "two", "three")]
JUDGED = {  # by a judge that answers what it is asked; `rluf`, `reagent_v` and `rubric_hacking` bring their panels
    **{name: {} for name in ("arena_rl", "meta_po", "reagent_v", "rluf", "rubric_hacking")},
    **{name: {"panel": PANEL} for name in ("genii", "heron", "uniform_phantom")},
    "debate_reward": {},
    "listener": None,
}
SMOKE |= {
    name: {"scoring.options": {"judge": {"ask": ANSWERS, **own}}} for name, own in JUDGED.items() if own is not None
}
SMOKE["debate_reward"] |= {"learner.lora_rank": 4}
SMOKE["listener"] = {"teacher.models": {"ear": {"role": "judge", "model": "tiny:cold"}}}


CALLING = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'calling_teams.py'}"
SMOKE |= {
    "matpo": {"rollout.graph": f"{CALLING}:asking"},
    "mashost": {"rollout.graph": f"{CALLING}:searching"},
    **{name: {"learner.lora_rank": 4} for name in ("mlpo", "agentflow")},
    "hiersearch": {"learner.lora_rank": 4, "rollout.graph": f"{CALLING}:searching"},
    "meta_plan": {"learner.lora_rank": 4, "rollout.template": "{prompt}", "rollout.refine_template": "{critique}"},
    "thief_defence": {"reward.shape.factored.factors": ["format"]},
    **{name: {"signal.step_judge.score": SMOKE["prorag"]["signal.step_judge.score"]} for name in ("collab_ui", "lca")},
}


RETRAINED = {"bfs_prover_v2"}  # of two steps the second is the first once more, on its rollouts, from the same weights


def parts_of(name):
    """What a whole run has beside the objective: kinds of rollouts, signals, updates, rewards of the method's own."""
    m = composed_once(name)
    one = {"sampler": m.sampler, "rollout": m.rollout, "segment": m.segmenter, "update": m.update, "context": m.context}
    yield from ((stage, type(part)) for stage, part in one.items())
    yield from (("signal", type(part)) for part in m.signals.values())
    yield from (("control", type(part)) for part in controls(m).values())
    options, phases = m.run_keys.get("scoring.options"), m.run_keys.get("phases")
    yield from (("reward", reward) for reward in (options.value if options is not None else ()))
    yield "phases", repr(phases)
    yield "heads", m.value_heads
    yield "shapes", bool(m.shapes)


ONE_PER_GROUP = ("rank_grpo", "wmpo", "compass_skills", "compass_latent", "veriguard", "matpo", "mac_spgg")
ONE_PER_GROUP += ("search_self_play", "hasac", "parco", "mars2")


def one_per_family():
    """The method of each module of the catalogue with the most kinds of parts."""
    families = {module: names.split() for module, names in _MODULES.items() if module.startswith("catalogue.")}
    return [max(names, key=lambda name: len(set(parts_of(name)))) for names in families.values()]


@pytest.mark.parametrize(
    "name",
    some(NAMES, [*one_per_family(), "refcritic", "scope", "dpa", "dgpo_distill", "ipo_safety", *ONE_PER_GROUP]),
)
@pytest.mark.filterwarnings("ignore:reward")
def test_every_method_trains_two_steps(name, tmp_path):
    keys = {"tasks.per_step": 4, "sampling.max_new_tokens": 6, "eval.tasks": 2, "optim.weight_decay": 0.0}
    keys |= {"rollout.group_size": 4} if "rollout.group_size" in gxpo.method(name).keys else {}
    keys |= SMOKE.get(name, {})
    if keys.get("rollout") == "logged":  # groups are what they are
        keys.pop("rollout.group_size", None)
    model, task = keys.pop("model", "tiny:cold"), keys.pop("task", "arithmetic")
    is_own = name in FLOWS or name in JUDGED or "reward" in keys or "scoring.weights" in keys
    run = gxpo.train(model, task, name, 2, None if is_own else lambda completion: parity(completion),
                     out=tmp_path / "run", set=keys)  # fmt: skip
    rows = run.metrics
    assert [r["step"] for r in rows] == [1, 2]
    if name in UNTRAINED:
        assert rows[0]["weights_crc"] == rows[1]["weights_crc"] and "reward_experiences" in rows[1]
        return
    assert (rows[0]["weights_crc"] == rows[1]["weights_crc"]) == (name in RETRAINED) and rows[-1]["empty_steps"] == 0
    for row in rows:
        assert row["grad_norm"] > 0 and all(v is None or isinstance(v, (int, float)) for v in row.values())
    assert all(bool(p.isfinite().all()) for p in run.trainer.learner.snapshot().values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_equal_rewards_are_an_empty_step_of_the_trainer(tmp_path):
    keys = {
        "tasks.per_step": 2,
        "rollout.group_size": 3,
        "sampling.max_new_tokens": 4,
        "eval.tasks": 4,
        "optim.weight_decay": 0.1,
    }
    always = lambda completion: {"correct": 1.0}  # noqa: E731  a closure on purpose: it runs in process
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 2, always, out=tmp_path / "run", set=keys)
    rows = run.metrics
    assert [r["empty_steps"] for r in rows] == [1, 2] and rows[0]["weights_crc"] == rows[1]["weights_crc"]
    assert rows[1]["zero_signal_groups"] == 1.0
    with pytest.raises(TaskError, match="none of"):
        gxpo.train("tiny:cold", "arithmetic", "dapo", 1, always, out=tmp_path / "dapo", set=keys)

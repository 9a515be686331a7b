"""Every registered method takes two training steps; equal rewards are an empty step of the trainer."""

from pathlib import Path

import pytest
from tests.battery import composed_once
from tests.thorough import some

import gxpo
from gxpo.base.errors import TaskError
from gxpo.methods import _MODULES, METHODS
from gxpo.methods.method import controls

NAMES = sorted(METHODS)
FLOWS = set(_MODULES["catalogue.flows"].split() + _MODULES["catalogue.diffusion"].split())  # act in latents


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
ANY_SUM = {"route_by": "info.operation", "pattern": None, "route": {"+": {"metric": LETTERS}}}  # a kind of its own
VOTED = {
    "task": str(Path(__file__).parents[1] / "questions.jsonl"),
    "tasks.options": {"held_out_fraction": 0.4},
    "scoring.weights": {"majority_vote": 1.0, "math": 0.0},
    "sampling.max_new_tokens": 24,
    "rollout.group_size": 8,
}
SAYS = {"rollout.right_pattern": "[0-4]", "rollout.wrong_pattern": "[5-9]"}  # a cold model states no verdict in words
SMOKE = {  # what a method needs to have something to learn from in two steps of a model that has never learnt anything
    "ttrl": {**VOTED, "scoring.options": {"majority_vote": {"pattern": "([0-9])"}}},
    "ttrv": {
        **VOTED,
        "scoring.options": {
            "majority_vote": {"pattern": "([0-9])", "reward": "frequency", "equality": "equal", "missing": "together"}
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
    "capo_genprm": {"signal.step_judge.function": "tests.algorithms.signals.step_scorer:judge"},
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
        "rollout.writer": f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'candidate_scores.py'}:rest",
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
    "sdpo_segment": {  # a world in which chance succeeds at times
        "task": f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'countdown_env.py'}:Steps",
        "tasks.options": {"good": "02468", "start": 1},
        "env.max_turns": 3,
        "rollout.group_size": 4,
    },
    **{name: {"learner.lora_rank": 4} for name in ("aapo", "pvpo")},  # the reference is the model without adapters
    **{name: {"model": "flow", "task": "points", "sampling.max_new_tokens": 9} for name in FLOWS},
}


LOGGED = {  # rows with answers and their verdicts
    "task": str(Path(__file__).parents[1] / "pairs.jsonl"),
    "tasks.options": {"held_out_fraction": 0.4},
    "reward": "math",
}
SMOKE |= {name: LOGGED for name in ("saw", "dqc", "mbrcsl", "ota", "dual_rl", "bcoder")}
SMOKE["chunk_grpo"] = {**SMOKE["chunk_grpo"], "rollout.chunks": [2, 5]}
SMOKE["spo_diffusion"] = {**SMOKE["spo_diffusion"], "rollout.group_size": 2, "objective.min_gap": 0.0}
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
    "primal_dual_marl": {"rollout.graph": "second_opinion", "credit.cost": "format", "credit.cost_limit": 0.1},
}
PARITY = f"{Path(__file__).parents[1] / 'sampling' / 'rollouts' / 'parity_world.py'}"
SEATED = ("mars_turn", "ippo", "maddpg", "hasac", "parco", "casec", "ai_economist", "conscientia", "local_opt_marl",
          "dpo_decentralised", "bayes_net_marl")  # fmt: skip
SMOKE |= {name: {"task": f"{PARITY}:Parity", "rollout.group_size": 4} for name in SEATED}
SMOKE["search_self_play"] = {"rollout.question_format": f"{PARITY}:any_text"}
SMOKE["kairos"] = {"task": "peers"}
UNTRAINED = {"training_free_grpo", "mars_prompt", "compass_skills"}  # nothing but their bank learns
LISTED = {  # by success rates of tasks that are met again
    "task": SMOKE["ttrl"]["task"], "tasks.options": {"held_out_fraction": 0.4}, "sampling.max_new_tokens": 6,
}  # fmt: skip
DRAWN = ("vas", "drive", "srpo_history", "videorl_select", "favchat_degrpo", "cures", "fg_expo")
SMOKE |= {name: LISTED for name in DRAWN}
SMOKE["craft_gui"] = {"tasks.sampler.key": "digits", "tasks.sampler.levels": [1, 2]}


ANSWERS = f"{Path(__file__).parents[1] / 'environments' / 'rewards' / 'answering_judge.py'}:ask"
PANEL = [{"name": name, "rubric": name} for name in ("one", "two", "three")]
JUDGED = {  # by a judge that answers what it is asked; `rluf`, `reagent_v` and `rubric_hacking` bring their panels
    **{name: {} for name in ("arena_rl", "meta_po", "reagent_v", "rluf", "rubric_hacking")},
    **{name: {"panel": PANEL} for name in ("genii", "heron", "uniform_phantom")},
    "debate_reward": {},
    "listener": None,
}
SMOKE |= {
    name: {"scoring.options": {"judge": {"function": ANSWERS, **own}}}
    for name, own in JUDGED.items()
    if own is not None
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


MASKED = ("diffu_grpo", "coupled_grpo", "gdpo_dlm", "dmpo_dlm", "cj_grpo")
SMOKE |= {name: {"model": "tiny-masked:cold"} for name in MASKED}
SMOKE["ar_grpo"] = {"model": "tiny-masked:cold", "likelihood": "trajectory"}
SMOKE["var_grpo"] = {"segment.text": ","}


RETRAINED = {"bfs_prover_v2"}  # of two steps the second is the first once more, on its rollouts, from the same weights


def parts_of(name):
    """What a whole run has beside the objective: kinds of rollouts, signals, updates, rewards of the method's own."""
    m = composed_once(name)
    one = {
        "likelihood": m.likelihood,
        "sampler": m.sampler,
        "rollout": m.rollout,
        "segment": m.segmenter,
        "update": m.update,
        "context": m.context,
    }
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
        assert rows[0]["weights_fingerprint"] == rows[1]["weights_fingerprint"] and "reward_experiences" in rows[1]
        return
    assert (rows[0]["weights_fingerprint"] == rows[1]["weights_fingerprint"]) == (name in RETRAINED) and rows[-1][
        "empty_steps"
    ] == 0
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
    assert [r["empty_steps"] for r in rows] == [1, 2] and rows[0]["weights_fingerprint"] == rows[1][
        "weights_fingerprint"
    ]
    assert rows[1]["zero_signal_groups"] == 1.0
    with pytest.raises(TaskError, match="none of"):
        gxpo.train("tiny:cold", "arithmetic", "dapo", 1, always, out=tmp_path / "dapo", set=keys)

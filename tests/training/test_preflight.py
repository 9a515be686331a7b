"""What is refused before anything is sampled. What the command line says of it is in tests/cli/test_plan.py."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.environments import tasks
from gxpo.environments.worlds import World
from gxpo.methods import METHODS
from gxpo.parts.definition import SettingValue
from gxpo.parts.protocols import Task
from gxpo.parts.settings import TeacherSettings
from gxpo.training.preflight import check_settings, check_world, learns_from_one, rehearse

ALONE = {"rollout.group_size": 1, "rollout": "independent"}


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "opo", "grpo+tis", "dgpo_math", "maxrl"])
def test_methods_that_compare_in_groups_learn_nothing_from_one(name):
    assert not learns_from_one(gxpo.method(name, ALONE))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("reinforce_pp", {}),  # compares over the batch
        ("grpo", {"credit.center": "none", "credit.scale": "none"}),
        ("ngrpo", {}),  # a virtual member
        ("asymre", {}),  # a baseline below the mean
        ("gae", {}),  # a critic
        ("psr_nsr", {}),
        ("sdpo_self", {}),  # a teacher
        ("dpo", {}),  # reads no credit, so nothing is known
        ("grpo", {"credit": lambda forest, signals, step: 1 / 0}),  # a user's own, which is not run
        ("grpo", {"objective.kl.place": "reward", "objective.kl.coef": 0.1}),
    ],
)
def test_methods_that_may_learn_from_one(name, keys):
    assert learns_from_one(gxpo.method(name, {**ALONE, **keys}))


FOLDER = Path(__file__).parents[1] / "sampling" / "rollouts"
NAMED = {  # functions of the user's, without which a method can't be
    "scope": {
        "rollout.score": "tests.algorithms.signals.step_scorer:by_length",
        "rollout.writer": f"{FOLDER / 'candidate_scores.py'}:rest",
    },
    "primal_dual_marl": {"credit.cost": "format", "credit.cost_limit": 0.1},
    "veriguard": {"rollout.check": f"{FOLDER / 'guard.py'}:no_up"},
}


def test_no_method_is_refused_with_its_own_group_size():
    for name in METHODS:
        method = gxpo.method(name, NAMED.get(name, {}))
        model = "flow" if "latents" in getattr(method.rollout, "provides", ()) else "tiny:cold"
        model = model if method.likelihood is None else "tiny-masked:cold"
        needs_teacher = any("teacher" in getattr(part, "external", ()) for part in method.signals.values())
        teacher = TeacherSettings(model="tiny:cold" if needs_teacher else None)
        changes = {"model": model, "teacher": teacher}
        check_settings(gxpo.config.resolve({}).settings.model_copy(update=changes), method)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "anytime_brpo",
            {"sampling.max_new_tokens": 11},
            "fewer tokens to think than rollout.budgets=4",
        ),
        ("tempflow_grpo", {"model": "flow", "sampling.temperature": 0.0}, "variance 0 and no importance ratio"),
    ],
)
def test_sampling_unfit_for_a_rollout_is_refused_before_a_run(name, keys, message):
    for refused in (True, False):
        fine = {} if refused else {"sampling.max_new_tokens": 12, "sampling.temperature": 0.7}
        keys_of_run = {"method": name, **keys, **fine}
        resolved = gxpo.config.resolve({k: SettingValue(v, "-") for k, v in keys_of_run.items()})
        if not refused:
            check_settings(resolved.settings, resolved.method)
            continue
        with pytest.raises(ConfigError, match=message):
            check_settings(resolved.settings, resolved.method)


def test_a_constraint_without_a_bound_is_refused_before_a_run():
    bare = gxpo.method("grpo", {"credit": "dual", "credit.cost": "format"})
    with pytest.raises(ConfigError, match=r"credit=dual has no bound: set credit\.cost_limit"):
        check_settings(gxpo.config.resolve({}).settings.model_copy(update={"model": "tiny:cold"}), bare)


def episodes(*provides):
    return World(SimpleNamespace(provides=()), SimpleNamespace(provides=provides))


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "salt", "graph_gpo", "graft"])
def test_states_are_the_environments_to_give(name):
    check_world(gxpo.method(name), episodes("states"), "world")
    with pytest.raises(ConfigError, match=f"{name} requires states, which neither .* 'world' provides: give TimeStep"):
        check_world(gxpo.method(name), episodes("expert"), "world")
    check_world(gxpo.method("gigpo", {"credit.add.state.state": "observation"}), episodes(), "world")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("dr_mas", {}),
        ("at_grpo", {}),
        ("masprm", {}),
        ("tree_opo", {}),
        ("anytime_brpo", {}),
        ("soft_grpo", {}),
        ("ttrl", {"rollout.team": "solver_verifier"}),
    ],
)
def test_rollouts_of_prompts_are_refused_in_an_environment(name, keys):
    with pytest.raises(ConfigError, match="is for tasks with one answer, and those of world are episodes"):
        check_world(gxpo.method(name, keys), episodes("states", "expert", "legal"), "world")


@pytest.mark.parametrize("name", ["thor", "step_grpo_router", "hi_agent", "arpo_agentic", "portool", "slate"])
def test_rollouts_of_environments_are_refused_for_prompts(name):
    with pytest.raises(ConfigError, match=f"{name} requires (restarts|expert), which neither .* provides: choose"):
        check_world(gxpo.method(name), World(SimpleNamespace(provides=())), "prompts")
    if "expert" in gxpo.method(name).requires:
        with pytest.raises(ConfigError, match="requires expert"):
            check_world(gxpo.method(name), episodes("states"), "world")


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("step_grpo_router", {"env.context": "summary"}, "no summaries: set env.context to full or window"),
        ("hi_agent", {"env.context": "summary"}, "no summaries: set env.context to full or window"),
        ("slate", {"env.context": "summary"}, "a summary is none: set env.context to full or window"),
        ("luffy", {"env.context": "summary"}, "no summaries: set env.context to full or window"),
        ("gcpo_gold", {"env.context": "summary"}, "no summaries: set env.context to full or window"),
        ("t_ppo", {"sampling.top_k": 4}, "the whole vocabulary: set sampling.top_k to 0"),
        ("t_ppo", {"sampling.top_p": 0.9}, "the whole vocabulary: set sampling.top_p to 1.0"),
    ],
)
def test_settings_unfit_for_a_rollout_are_refused_at_composition(name, keys, message):
    with pytest.raises(ConfigError, match=message):
        gxpo.method(name, keys)
    with pytest.raises(ConfigError, match=message):
        gxpo.config.resolve({k: SettingValue(v, "config.yaml") for k, v in {"method": name, **keys}.items()})
    fine = {"env.context": "window", "sampling.top_k": 0, "sampling.top_p": 1}
    assert (
        gxpo.config.resolve({k: SettingValue(v, "-") for k, v in {"method": name, **fine}.items()}).method.name == name
    )


def test_hints_and_references_in_an_environment_are_its_experts():
    for name in ("scaf_grpo", "luffy"):
        world = episodes("states", "expert")
        world.source.draw = lambda n, step: [Task("t", "", info={"seed": 0})]
        check_world(gxpo.method(name), world, "world")
        world.envs.provides = ("states",)
        with pytest.raises(TaskError, match=r"expert\(\)"):
            check_world(gxpo.method(name), world, "world")


def test_every_task_of_a_list_is_looked_at_for_hints(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [f'{{"prompt": "p{i}", "answer": "{i}", "hints": ["think"]}}\n' for i in range(99)]
    (tmp_path / "held.jsonl").write_text('{"prompt": "h", "answer": "1"}\n')

    def check(last):
        path.write_text("".join([*lines, last]))
        world = World(tasks.make(str(path), seed=0, options={"held_out": str(tmp_path / "held.jsonl")}))
        check_world(gxpo.method("scaf_grpo"), world, "t")

    check('{"prompt": "q", "answer": "1", "hints": []}\n')  # says that it has none
    with pytest.raises(TaskError, match="task 't/100' has no hints"):
        check('{"prompt": "q", "answer": "1"}\n')


RENDERED = "<|im_start|>user\nwhat is {}?<|im_end|>\n<|im_start|>assistant\n"


def rendered_rows(tmp_path, rows=40):
    path = tmp_path / "r.jsonl"
    path.write_text("".join(f"{json.dumps({'prompt': RENDERED.format(i), 'answer': 'a'})}\n" for i in range(rows)))
    return str(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"chat.system": "Be short."}, r"chat\.system: prompts of chat\.template=rendered are whole conversations"),
        ({"chat.kwargs": {"a": 1}}, r"chat\.kwargs: prompts of chat\.template=rendered"),
        ({"task": "frozenlake"}, "is for tasks whose prompts are texts, and those of frozenlake are episodes"),
    ],
)
def test_what_rendered_prompts_have_no_place_for_is_refused(tmp_path, keys, message):
    keys = {"task": rendered_rows(tmp_path), "chat.template": "rendered", "model": "tiny:cold"} | keys
    with pytest.raises(ConfigError, match=message):
        rehearse(gxpo.config.resolve({k: SettingValue(v, "test") for k, v in keys.items()}))


@pytest.mark.slow
def test_rehearsal_and_start_warn_of_rendered_prompts(tmp_path):
    keys = {"task": rendered_rows(tmp_path), "model": "tiny:cold"}
    with pytest.warns(
        UserWarning, match=r"3\d prompt\(s\) hold a rendered chat template already .* chat\.template=rendered"
    ):
        rehearse(gxpo.config.resolve({k: SettingValue(v, "test") for k, v in keys.items()}))
    small = {"tasks.per_step": 2, "eval.tasks": 2, "sampling.max_new_tokens": 4}
    with pytest.warns(UserWarning, match=r"prompt\(s\) hold a rendered chat template already"):
        gxpo.train("tiny:cold", keys["task"], reward=lambda completion: 1.0, steps=1, out=tmp_path / "run", set=small)

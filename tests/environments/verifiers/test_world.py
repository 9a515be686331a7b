"""What is loaded of the real library, and what is refused before a run, with a reason."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gxpo.base.errors import ConfigError, MissingExtra, TaskError
from gxpo.environments import worlds
from gxpo.environments.verifiers.tasks import VerifiersTasks
from gxpo.environments.verifiers.world import load
from gxpo.training import config

NOWHERE = "http://127.0.0.1:9"


def make(folder: Any, module: str, **options: Any) -> VerifiersTasks:
    return VerifiersTasks(f"verifiers:{folder}/{module}.py", options)


def test_tasks_are_those_of_the_task_set_and_a_share_is_held_out(library_envs: Any) -> None:
    source = make(library_envs, "vf_sums", most=20, held_out_fraction=0.25)
    training, held_out = source.training, source.held_out(100)
    ids = {f"vf_sums/{k}" for k in range(20)}
    assert {t.id for t in (*training, *held_out)} == ids and len(training) + len(held_out) == 20
    assert {t.prompt for t in training} <= {f"What is {a}+1?" for a in range(20)} and len(held_out) >= 1
    assert source.components == ("agent", "brief", "correct", "length")
    # what is held out depends on the content alone, and not on the seed of a run
    assert [
        t.id for t in VerifiersTasks(source.name, {"most": 20, "held_out_fraction": 0.25}, seed=3).held_out(100)
    ] == [t.id for t in held_out]
    fewer = make(library_envs, "vf_sums", args={"most": 20}, limit=5)
    assert len(fewer.training) + len(fewer.held_out(100)) == 5


def test_held_out_tasks_may_be_of_another_configuration(library_envs: Any) -> None:
    source = make(library_envs, "vf_talk", held_out={"system_prompt": None}, limit=3)
    assert len(source.training) == 3 and {t.id for t in source.held_out(9)} == {
        f"vf_talk/held_out/{k}" for k in range(3)
    }
    with pytest.raises(TaskError, match="is also in the held-out tasks"):
        make(library_envs, "vf_sums", most=3, held_out={"most": 2})


def test_one_task_is_on_both_sides_with_a_warning(library_envs: Any) -> None:
    with pytest.warns(UserWarning, match="one task, which is trained and evaluated"):
        source = make(library_envs, "vf_sums", most=1)
    assert [t.id for t in source.held_out(3)] == ["vf_sums/held_out/0"]


def test_a_package_in_a_folder_is_loaded(library_envs: Any, tmp_path: Any) -> None:
    package = tmp_path / "my-world" / "my_world"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((library_envs / "vf_sums.py").read_text())
    for path in (package, package.parent):
        assert VerifiersTasks(f"verifiers:{path}", {"most": 4}).training[0].id.endswith("/0")


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        ("vf_sums", {"mst": 3}, "has no option 'mst'; did you mean 'most'?"),
        ("vf_sums", {"most": 3, "args": {"most": 4}}, "is also in args"),
        ("vf_sums", {"args": {"mst": 3}}, "tasks.options.args has no 'mst'; did you mean 'most'?"),
        ("vf_sums", {"env": {"agnt": {}}}, "tasks.options.env has no 'agnt'; did you mean 'agent'?"),
        ("vf_sums", {"env": {"agent": {"max_turn": 3}}}, "its configuration can't be loaded"),
        ("vf_sums", {"most": "many"}, "its configuration can't be loaded"),
        ("vf_sums", {"limit": 0}, "limit must be at least 1"),
        ("vf_sums", {"team_reward": "sum"}, "team_reward is 'mean'"),
        ("vf_sums", {"fails": True}, "RuntimeError: the hub can't be reached"),
        ("vf_sums", {"env": {"retries": {"max_retries": 2}}}, "leave retries out"),
        ("vf_sums", {"env": {"agent": {"model": "other"}}}, "seat agent plays the model other"),
        ("vf_sums", {"env": {"agent": {"runtime": {"type": "prime"}}}}, "PRIME_API_KEY is not here"),
        ("vf_sums", {"env": {"agent": {"harness": {"id": "codex"}}}}, "needs a container runtime"),
        ("vf_seats", {}, "the policy has 2 seats"),
        ("vf_seats", {"env": {"frozen": True}}, "seat second is not trained by its environment"),
        ("vf_needs", {"image": "ubuntu"}, "requires image 'ubuntu'"),
        ("vf_needs", {"prompt": None}, "has no prompt, and nobody opens the conversation"),
        ("vf_needs", {"task": {"judge": {"base_url": "http://judge.example/v1"}}}, "task.judge calls a model at"),
        ("vf_needs", {"task": {"tools": {"url": f"{NOWHERE}/mcp"}}}, "task.tools is a server at .* can't be reached"),
        ("vf_needs", {"task": {"judges": [{"id": "reference"}]}}, "task.judges.0. calls a model at"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*one task")
def test_refusals_say_what_is_missing(
    library_envs: Any, monkeypatch: pytest.MonkeyPatch, module: str, options: dict[str, Any], message: str
) -> None:
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    with pytest.raises(TaskError, match=message):
        make(library_envs, module, **options)


def test_modules_that_are_none(tmp_path: Any) -> None:
    pytest.importorskip("verifiers.v1")
    for name, text, message in (
        ("nowhere-env", None, "No module named 'nowhere_env': install the environment's package"),
        (f"{tmp_path}/vf_none.py", None, "there is no file"),
        (f"{tmp_path}/Vf_Upper.py", "", "only names in lower case"),
        (f"{tmp_path}/vf_empty.py", "", "names no Taskset in __all__"),
        (f"{tmp_path}/vf_old.py", "def load_environment(): ...", r"verifiers>=0\.1\.14,<0\.4"),
        (f"{tmp_path}/vf_broken.py", "1 / 0", "ZeroDivisionError"),
        (f"{tmp_path}/vf_imports.py", "import nowhere", "No module named 'nowhere'.*: install what it needs"),
        (f"{tmp_path}/json.py", "", "is that of another module"),
    ):
        if text is not None:
            (tmp_path / name.rsplit("/", 1)[-1]).write_text(text)
        with pytest.raises(TaskError, match=message):
            VerifiersTasks(f"verifiers:{name}")


def test_seats_without_a_harness_are_played_in_the_process(library_envs: Any) -> None:
    task = make(library_envs, "vf_talk").training[0]
    loaded = load(task.info["verifiers"]["env"])
    assert loaded.env.config.agent.harness.id == "gxpo_chat" and loaded.env.config.agent.runtime.type == "subprocess"
    assert loaded.policies == ("agent",)


def test_a_world_of_the_library_is_a_source_of_tasks(library_envs: Any) -> None:
    world = worlds.make(f"verifiers:{library_envs}/vf_sums.py", seed=0, options={"most": 8})
    assert world.envs is None and len(world.source.draw(3, 1)) == 3


# ---------------------------------------------------------------- without the library
def test_the_rollout_follows_from_the_task() -> None:
    task = "verifiers:vf_talk.py"
    resolved = config.resolve(config.parse_set([f"task={task}", "model=tiny:cold"]))
    rollout = resolved.method.rollout
    assert (type(rollout).__name__, rollout.run) == ("AgentEpisodes", "gxpo.environments.verifiers.episodes:play")
    assert resolved.keys["rollout"].origin == f"task {task}"
    stated = config.resolve(config.parse_set([f"task={task}", "model=tiny:cold", "rollout.group_size=3"]))
    assert stated.method.rollout.group_size == 3
    with pytest.raises(ConfigError, match=r"rollout=independent: the task is verifiers"):
        config.resolve(config.parse_set([f"task={task}", "model=tiny:cold", "rollout=independent"]))
    with pytest.raises(ConfigError, match=r"tree_grpo samples by rollout=.*played by verifiers"):
        config.resolve(config.parse_set([f"task={task}", "model=tiny:cold", "method=tree_grpo"]))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1.utils.loaders", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gxpo\[verifiers\]'"):
        worlds.make("verifiers:vf_talk", seed=0)

"""A warm-up on a world: what is shown is what was done, on instances that are not held out."""

from __future__ import annotations

import pytest

from gxpo.base.errors import ModelError
from gxpo.base.media import PICTURES
from gxpo.environments.tasks.source import is_reserved, stream
from gxpo.training.models import WARMUPS, Recipe, character_tokenizer, tiny_model, warm_start
from gxpo.training.models.demonstrations import Demonstrations
from gxpo.training.models.load import rows_of_model, warm_task
from gxpo.training.models.warmup import lessons_of
from gxpo_worlds.toolqa_text import bare_call

BARE = {"style": "bare"}


def test_the_expert_alone_shows_only_what_the_expert_does():
    lessons = Demonstrations("frozenlake", BARE, 1.0, stream(5))
    checker = lessons.world.envs
    for output, action in lessons.examples(200, 0):
        assert action in "LDRU" and output.endswith(">") and output.count("@") == 1
    # a lake is crossed in as few turns as can be: the expert needs no more than the distance, so none is cut
    seeds = {f"e{i}": t.info["seed"] for i, t in enumerate(lessons.world.source.draw(20, 3))}
    checker.reset(seeds)
    running = list(seeds)
    from gxpo.parts.protocols import Reply

    while running:
        answers = checker.step({n: Reply(a) for n, a in checker.expert(running).items()})
        assert all(a.success for a in answers.values() if a.done)
        running = [n for n, a in answers.items() if not a.done]


def test_demonstrations_are_training_instances_keyed_by_seed():
    one, other = (Demonstrations("frozenlake", BARE, 0.3, stream(7)) for _ in range(2))
    assert one.examples(300, 0) == other.examples(300, 0)
    first = {s.info["seed"] for s in one.world.source.draw(64, 0)}
    assert not any(is_reserved(one.world.envs.contents([seed])[0]) for seed in first)


def test_an_untrained_model_rarely_acts_and_is_checked():
    lessons = Demonstrations("frozenlake", BARE, 0.3, stream(7))
    model = tiny_model(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                       num_key_value_heads=2)  # fmt: skip
    success, formed = lessons.check(model, character_tokenizer(), 12, 2)
    assert 0 <= success <= 0.5 and formed < 0.5


@pytest.mark.slow
def test_a_world_warms_up_and_is_cached(tmp_path):
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    recipe = Recipe(BARE, small, expert=0.5, batch=64, first_check=30, check_every=10, max_steps=60, low=0.0, high=1.0,
                    well_formed=0.3, checked_on=8, max_new_tokens=2)  # fmt: skip
    path = warm_start("frozenlake", cache=tmp_path, recipe=recipe)
    assert (path / "warmup.json").is_file()
    assert warm_start("frozenlake", cache=tmp_path, recipe=recipe) == path


def test_a_world_without_an_expert_is_refused():
    with pytest.raises(ModelError, match="expert"):
        Demonstrations("arithmetic", {}, 0.5, stream(1))


def test_an_expert_alone_needs_no_list_of_what_is_possible():
    # calls of tools are endless, so toolqa has no legal(): chance actions can't be drawn there
    lessons = Demonstrations("toolqa", BARE, 1.0, stream(3))
    pairs = lessons.examples(300, 0)
    assert all(output.endswith("\n>") and action for output, action in pairs)
    expected = {"calculator": 0, "lookup": 0, "finish": 0}
    for output, action in pairs:
        name, arguments = bare_call(action)
        expected[name] += 1
        if name == "finish":  # the answer stands on the screen that it is given on
            assert f"={arguments['answer']}\n" in output
    assert min(expected.values()) > 30
    with pytest.raises(ModelError, match=r"needs a world with expert\(\) and legal\(\)"):
        Demonstrations("toolqa", BARE, 0.5, stream(3))


def test_pictures_come_with_the_worlds_actions_as_text():
    seen_demonstrations = Demonstrations("frozenlake", {**BARE, "pixels": True}, 1.0, stream(7))
    read = Demonstrations("frozenlake", BARE, 1.0, stream(7))
    pairs = seen_demonstrations.examples(150, 0)
    assert [action for _, action in pairs] == [action for _, action in read.examples(150, 0)]
    (message,) = pairs[0][0]
    image, text = message["content"]
    assert PICTURES.pixels(image["image"]).shape == (64, 64, 3) and text["text"] == ">"


def test_the_expert_is_alone_up_to_a_step():
    tidy, mixed = (Demonstrations("frozenlake", BARE, 0.0, stream(7), errs_from=n) for n in (5, 0))
    expert = Demonstrations("frozenlake", BARE, 1.0, stream(7))
    first = expert.examples(64, 0)
    assert tidy.examples(64, 5) == first != mixed.examples(64, 5)
    assert tidy.examples(64, 6) != expert.examples(64, 6)


@pytest.mark.parametrize("model, warm", [("tiny-vision", "frozenlake-pixels"), ("tiny", "frozenlake")])
def test_a_world_by_pixels_has_a_start_of_its_own(model, warm):
    assert warm_task(model, "frozenlake") == warm and WARMUPS[warm].vision == (model == "tiny-vision")


def test_every_start_that_sees_is_of_a_task_with_pictures():
    for name, recipe in WARMUPS.items():
        if recipe.vision:
            lessons = lessons_of(name, 0, recipe, stream(2, 0))
            (prompt, answer), *_ = lessons.examples(1, 1)
            assert prompt[0]["content"][0]["type"] == "image" and 0 < len(answer) < recipe.max_new_tokens, name
            lessons.close()


def test_both_names_of_the_small_model_have_picture_rows():
    assert rows_of_model("tiny", "shapes") is not None and rows_of_model("tiny-vision", "shapes") is not None
    assert rows_of_model("tiny", "arithmetic") is None

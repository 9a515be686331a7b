"""Images in the batches of the stand-in for TRL: what is handed on, what is hidden, what is refused and why."""

import types

import numpy as np
import pytest
import torch
from tests.adapters import fake_trl
from tests.adapters.fake_trl import Config, SeeingPairs

from gxpo.adapters import trl as adapter
from gxpo.adapters.trl import ROW
from gxpo.adapters.trl_pictures import with_rows
from gxpo.adapters.trl_rollouts import task_name
from gxpo.adapters.trl_services import TrainerServices
from gxpo.base import media
from gxpo.base.errors import ConfigError

PIL = pytest.importorskip("PIL.Image")
MARK = SeeingPairs.PLACEHOLDER
SHOWN = ((8, 4), (4, 4)), ((4, 8),), ((4, 4), (4, 4)), ((8, 8),)  # height and width of each prompt's images


def images_of(prompt):
    draw = np.random.default_rng(prompt)
    return [PIL.fromarray(draw.integers(1, 256, (*size, 3), dtype=np.uint8)) for size in SHOWN[prompt]]


IMAGES = [images_of(prompt) for prompt in range(4)]
# a placeholder for each 4 x 4 pixels, then the question; the last two prompts ask the same
PROMPTS = [[MARK] * sum(h * w // 16 for h, w in SHOWN[i]) + [3, 4 + i // 2] for i in range(4)]


def image_processor(images, return_tensors):
    """Patches of 4 x 4 pixels, as those of Qwen but for their order; values to [0, 1]."""
    flat = [np.asarray(x) for own_image in images for x in own_image]
    patches = [torch.from_numpy(x.copy()).reshape(-1, 48) / 255 for x in flat]
    grids = [[1, x.shape[0] // 4, x.shape[1] // 4] for x in flat]
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


class Seeing(fake_trl.GRPOTrainer):
    processing_class = types.SimpleNamespace(image_processor=image_processor)
    further = ()

    def modalities(self, inputs, out):
        output = [IMAGES[i // 4] for i in range(16)]
        full_prompt_ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        inputs_of_pictures = image_processor(output, "pt") | {"num_images": [len(x) for x in output]}
        return inputs_of_pictures | {"mm_token_type_ids": (full_prompt_ids == MARK).long()} | dict(self.further)


class Trainer(adapter.WithMethod, Seeing):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        message = [[{"role": "user", "content": [
            *({"type": "image", "image": x} for x in IMAGES[i // 4]), {"type": "text", "text": "how many?"}]}]
            for i in range(16)]  # fmt: skip
        return super()._calculate_rewards(inputs, message, completions, completion_ids_list)


def by_sum(prompts, completion_ids):
    return [sum(ids) % 5 / 4 for ids in completion_ids]


def make_trainer(method="grpo@trl", micro=4, kind=Trainer, **given):
    parts = 16 // micro
    config = Config(per_device_train_batch_size=micro, gradient_accumulation_steps=parts, steps_per_generation=parts)
    return kind(SeeingPairs(), by_sum, config, method=method, **given)


def test_each_micro_batch_hands_on_what_its_own_rows_show():
    calls = []

    class Seen(Trainer):
        def _get_per_token_logps_and_entropies(self, model, input_ids, *given, **named):
            calls.append((input_ids, {k: v for k, v in named.items() if k in fake_trl.HANDED}))
            return super()._get_per_token_logps_and_entropies(model, input_ids, *given, **named)

    _, _, batches = make_trainer(kind=Seen).optimiser_step(PROMPTS)
    assert len(calls) == len(batches) == 4
    for (ids, given), batch in zip(calls, batches, strict=True):
        assert set(given) == {"pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids"}
        prompts = [row // 4 for row in batch[ROW].tolist()]
        assert given["num_images"] == [len(SHOWN[p]) for p in prompts]
        pixels = [np.asarray(x).reshape(-1, 48) / 255 for p in prompts for x in IMAGES[p]]
        assert np.abs(given["pixel_values"].numpy() - np.concatenate(pixels)).max() < 1e-6
        assert given["image_grid_thw"].tolist() == [[1, h // 4, w // 4] for p in prompts for h, w in SHOWN[p]]
        assert torch.equal(given["mm_token_type_ids"], (ids == MARK).long())


@pytest.mark.parametrize("micro", [16, 4, 2])
def test_the_loss_is_that_of_each_rollout_with_its_own_images(micro):
    """On policy: loss -sum A / tokens, gradient -sum A d log p / tokens, with A = (r - mean) / (std + 1e-4)."""
    trainer = make_trainer(micro=micro)
    model = SeeingPairs()
    loss, gradient, batches = trainer.optimiser_step(PROMPTS)
    rows = {}
    for batch in batches:
        for k, row in enumerate(batch[ROW].tolist()):
            message = batch["completion_ids"][k][batch["completion_mask"][k].bool()]
            rows[row] = (batch["prompt_ids"][k], message)
    rewards = torch.tensor([sum(rows[r][1].tolist()) % 5 / 4 for r in range(16)], dtype=torch.float64).reshape(4, 4)
    credit = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    total, tokens, expected = 0.0, sum(len(message) for _, message in rows.values()), 0.0
    for row, (prompt, message) in rows.items():
        seen_values = np.concatenate([np.asarray(x).reshape(-1) for x in IMAGES[row // 4]]).mean() / 255
        before = torch.cat([prompt[-1:], message[:-1]])
        logprob = (model.table[before] + seen_values * model.sight).log_softmax(-1).gather(1, message[:, None]).sum()
        total = total - credit[row] * logprob / tokens
        expected -= float(credit[row]) * len(message) / tokens
    total.backward()
    slope = torch.cat([model.table.grad.flatten(), model.sight.grad])
    assert loss == pytest.approx(expected, abs=1e-6) and model.sight.grad.norm() > 1e-3
    assert (gradient - slope).norm() < 1e-6 * slope.norm()


def test_an_unknown_column_for_the_model_is_an_error():
    class Video(SeeingPairs):
        def forward(self, ids, pixel_values=None, pixel_values_videos=None):
            return super().forward(ids, pixel_values)

    trainer = make_trainer()
    trainer.model, trainer.further = Video(), {"pixel_values_videos": torch.ones(16, 3)}
    with pytest.raises(ConfigError, match="TRL's batch holds 'pixel_values_videos' for the model, which this adapter"):
        trainer.optimiser_step(PROMPTS)
    other = make_trainer()
    other.further = {"my_scores": torch.ones(16)}
    assert other.optimiser_step(PROMPTS)[1].norm() > 0


# ------------------------------------------------------------ methods that read the model
@pytest.fixture
def lent(monkeypatch):
    """No model of transformers is lent at the start, which the stand-in does not have."""
    monkeypatch.setattr(TrainerServices, "learner", None)


@pytest.mark.parametrize("method", ["papo", "vppo"])
def test_black_patches_give_the_log_probs_of_black_pictures(lent, method):
    trainer = make_trainer(method, overrides={"signal.masked_observation.share": 1.0})
    trainer.optimiser_step(PROMPTS, lr=0.0)
    scored, model = trainer._batch_by_mode["train"], SeeingPairs()
    masked = scored.signals["masked_logprob"]
    for row in range(16):
        message = torch.tensor(scored.forest.action(row))
        before = torch.cat([torch.tensor(PROMPTS[row // 4][-1:]), message[:-1]])
        dark = model.table[before].log_softmax(-1).gather(1, message[:, None]).squeeze(1)
        assert (masked[scored.forest.entries_of(torch.tensor([row]))] - dark).abs().max() < 1e-12
    assert (masked - scored.signals["proximal_logprob"]).abs().max() > 1e-2
    assert trainer._metrics["train"]["gxpo/masked_kl"][0] > 1e-3


def test_one_question_about_two_pictures_is_two_tasks(lent):
    trainer = make_trainer("papo")
    trainer.optimiser_step(PROMPTS)
    forest = trainer._batch_by_mode["train"].forest
    assert len({int(n) for n in forest.prompt_node}) == 4 and len(set(forest.task)) == 4
    for row in range(16):
        refs = tuple(media.PICTURES.put(x) for x in IMAGES[row // 4])
        assert forest.media[int(forest.prompt_node[row])] == refs


def test_patches_are_hidden_anew_each_step_and_alike_in_a_group(lent):
    trainer, output = make_trainer("papo", micro=16, overrides={"signal.masked_observation.patch": 4}), []

    class Seen:
        @staticmethod
        def image_processor(images, return_tensors):
            output.append([[np.asarray(x) for x in own_image] for own_image in images])
            return image_processor(images, return_tensors)

    trainer.processing_class = Seen
    for _ in range(2):
        trainer.optimiser_step(PROMPTS)
    plain, first, again, second = output  # each batch's own images are compared with its pixels once
    assert all(np.array_equal(a, np.asarray(b)) for a, b in zip(plain[0], IMAGES[0], strict=True))
    for step in (first, second):
        for row in range(16):
            assert all(np.array_equal(a, b) for a, b in zip(step[row], step[row // 4 * 4], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(again[3], plain[3], strict=True))
    black = [[tuple(np.asarray(x == 0).all(2)[::4, ::4].flat) for x in step[12]] for step in (first, second)]
    assert len(black[0][0]) == 4 and black[0] != black[1]
    for cells, picture in zip(black, (first[12][0], second[12][0]), strict=True):
        visible_mask = ~np.kron(np.reshape(cells[0], (2, 2)), np.ones((4, 4), dtype=bool))
        assert not visible_mask.all() and np.array_equal(picture[visible_mask], plain[12][0][visible_mask])


REFUSED = [
    ("dra_grpo", {}, "asks for the model's hidden, which is not given where the batch shows images"),
    ("rover", {}, "reads the policy's mean_logprob, which is not given where the batch shows images"),
    ("papo", {"signal.masked_observation.mask_unit": "tokens"}, "reads the answers after other tokens"),
]


@pytest.mark.parametrize(("method", "overrides", "says"), REFUSED)
def test_needs_that_images_rule_out_are_refused(lent, method, overrides, says):
    with pytest.raises(ConfigError, match=f"{method} in TRL {says}"):
        make_trainer(method, overrides=overrides).optimiser_step(PROMPTS)


class Columns(list):
    """The rows of a data set of `datasets`, as far as it is read before training."""

    @property
    def column_names(self):
        return [*self[0]]


def over(rows):
    """A trainer's class that knows its data set when it is made."""

    class Known(Trainer):
        train_dataset = Columns(rows)

    return Known


@pytest.mark.parametrize("column", ["image", "images"])
@pytest.mark.parametrize(("method", "overrides", "says"), REFUSED)
def test_data_with_images_is_refused_when_the_trainer_is_made(lent, column, method, overrides, says):
    row = {"prompt": "how many?", column: IMAGES[0][0] if column == "image" else IMAGES[0]}
    with pytest.raises(
        ConfigError, match=rf"{method} in TRL {says}.*; train_dataset has a column '{column}'"
    ) as actual:
        make_trainer(method, overrides=overrides, kind=over([row]))
    assert "\n" not in str(actual.value)


@pytest.mark.parametrize(("method", "overrides", "says"), REFUSED)
def test_data_without_images_is_taken_by_any_method(lent, method, overrides, says):
    for row in ({"prompt": "how many?"}, {"prompt": "how many?", "images": []}, {"prompt": "?", "image": None}):
        make_trainer(method, overrides=overrides, kind=over([row]))


@pytest.mark.parametrize("method", ["papo", "vppo", "grpo@trl", "ngrpo"])
def test_methods_that_work_with_images_are_accepted(lent, method):
    trainer = make_trainer(method, kind=over([{"prompt": "how many?", "images": IMAGES[0]}]))
    assert trainer.optimiser_step(PROMPTS)[1].norm() > 0


def test_several_processes_are_refused_beforehand(lent):
    class Two(over([{"prompt": "?", "images": IMAGES[0]}])):
        accelerator = property(
            lambda self: types.SimpleNamespace(num_processes=2, process_index=0), lambda self, value: None
        )

    with pytest.raises(ConfigError, match=r"takes a single process; train_dataset has a column 'images'"):
        make_trainer("papo", kind=Two)


def test_images_within_answers_and_other_processes_are_refused(lent):
    trainer = make_trainer("papo")
    trainer.modalities = lambda inputs, out: {
        **Seeing.modalities(trainer, inputs, out),
        "num_images": [3] * 16,
    }
    with pytest.raises(ConfigError, match="images may be in prompts, not in answers"):
        trainer._services.see(
            trainer.modalities([], {n: torch.zeros(16, 1).long() for n in ("prompt_ids", "completion_ids")})
        )
    other = make_trainer("papo")
    other.accelerator.num_processes = 2
    with pytest.raises(ConfigError, match="takes a single process"):
        other._services.see({"pixel_values": torch.ones(1)})


def test_a_processor_with_other_pixel_values_is_refused(lent):
    trainer = make_trainer("papo")

    def brighter(images, return_tensors):
        return {"pixel_values": image_processor(images, return_tensors)["pixel_values"] + 0.1}

    trainer.processing_class = types.SimpleNamespace(image_processor=brighter)
    with pytest.raises(ConfigError, match="by itself makes other pixel_values"):
        trainer.optimiser_step(PROMPTS)


def test_placeholders_are_shared_out_and_each_run_begins_anew():
    one, two = (media.PICTURES.put(images_of(i)[0]) for i in (0, 1))
    prompt = torch.tensor([1, MARK, MARK, 5, MARK, MARK, MARK, 6])  # 4 of the first, the last after a tile's text
    actual = with_rows(prompt, MARK, [one, two], [8, 2]).tolist()
    assert actual == [1, *media.ids(one, 2), 5, *media.ids(one, 2), *media.ids(two, 1), 6]


def test_a_task_is_its_roles_texts_and_images():
    def asked(i, text="how many?"):
        return [{"role": "user", "content": [{"type": "image", "image": IMAGES[i][0]}, {"type": "text", "text": text}]}]

    assert task_name(asked(0)) == task_name(asked(0))
    assert len({task_name(asked(0)), task_name(asked(1)), task_name(asked(0, "where?"))}) == 3

import json
import os
import shutil

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from safetensors.torch import load_file, save_file

from gxpo.base.errors import ModelError
from gxpo.training.models import Recipe, character_tokenizer, load, tiny_model, unread_style
from gxpo.training.models import warmup as warmup_module
from gxpo.training.models.load import check_directory, check_name, describe, is_path
from gxpo.training.models.without_weights import positions, tokenizer_of

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
QUICK = Recipe(dimensions=SMALL, batch=8, first_check=1, max_steps=1, low=0, high=1, well_formed=0, checked_on=4)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "model"
    tiny_model(0, **SMALL).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def test_a_named_pipe_is_not_waited_for(directory):
    os.mkfifo(directory / "tokenizer_config.json.d")
    with pytest.raises(ModelError, match=r"config\.json\.d: neither a file nor a directory"):
        check_directory(directory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny", "no warm-up for task 'gcd'"),
        ("tiny:warm", "there are 'tiny' and 'tiny:cold'"),
        ("./nowhere", "no such model directory"),
        ("smollm2-135", "neither a directory nor .*did you mean 'smollm2-135m'"),
        ("somebody/no such model", "neither a directory nor"),
        ("a/b/c", "no such model directory, there is no a"),
    ],
)
def test_a_name_is_refused_before_anything_is_loaded(name, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=message):
        check_name(name, "gcd")


def test_a_name_that_only_the_hub_can_know_is_left_to_it(directory, monkeypatch):
    def unreachable(*given, **more):
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unreachable)
    for name in ("somebody/model", "tiny:cold", "smollm2-135m", str(directory)):
        check_name(name, "arithmetic")


def test_tiny_is_the_warm_start_of_the_task(tmp_path, monkeypatch):
    monkeypatch.setitem(warmup_module.WARMUPS, "arithmetic", QUICK)
    loaded = load("tiny", task="arithmetic", cache=tmp_path)
    assert loaded.path is not None and loaded.path.parent == tmp_path and loaded.name == "tiny"
    again = load("tiny", task="arithmetic", cache=tmp_path)
    for a, b in zip(loaded.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ModelError, match="no warm-up for task 'reasoning_gym:gcd'"):
        load("tiny", task="reasoning_gym:gcd", cache=tmp_path)
    gcd_model = load("tiny:arithmetic", task="reasoning_gym:gcd", cache=tmp_path)
    assert gcd_model.path == loaded.path and gcd_model.name == "tiny:arithmetic"


def test_cold_is_untrained_and_fixed():
    first, second = (load("tiny:cold", task="arithmetic") for _ in range(2))
    assert first.path is None and first.eos_ids == (2,)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert load("tiny:cold", task="reasoning_gym:gcd").model.config.vocab_size == 100
    with pytest.raises(ModelError, match="there are 'tiny' and 'tiny:cold'"):
        load("tiny:hot", task="arithmetic")


def test_a_local_directory(directory):
    loaded = load(str(directory), task="arithmetic", dtype="float64")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float64}
    assert loaded.path == directory and not loaded.model.training
    expected = tiny_model(0, **SMALL).double()
    tokens = torch.tensor([[1, 20, 30]])
    torch.testing.assert_close(loaded.model(input_ids=tokens).logits, expected(input_ids=tokens).logits)


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "no tokenizer"),
    ],
)
def test_what_a_directory_lacks_is_named(directory, remove, message):
    for name in remove:
        (directory / name).unlink()
    with pytest.raises(ModelError, match=message) as caught:
        load(str(directory), task="arithmetic")
    assert str(directory) in str(caught.value) and "\n" not in str(caught.value)


def test_directories_that_are_none(tmp_path):
    with pytest.raises(ModelError, match="no such model directory"):
        load(str(tmp_path / "none"), task="arithmetic")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="not a directory"):
        load(str(tmp_path / "file"), task="arithmetic")


def test_damaged_weights_are_an_error_in_one_line(directory):
    (directory / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="can't be loaded") as caught:
        load(str(directory), task="arithmetic")
    assert "\n" not in str(caught.value)


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(UP), f"lack the weights {UP}; they would be drawn at random"),
        (
            lambda w: w.update({UP: w[UP][:10].clone()}),
            rf"{UP} has shape \(10, 32\) in its files and \(64, 32\) by its",
        ),
        (lambda w: w[UP][3, 4].fill_(torch.nan), f"weight {UP} has values that are not finite"),
        (lambda w: w[UP][3, 4].fill_(-torch.inf), f"weight {UP} has values that are not finite"),
    ],
    ids=["missing", "another shape", "nan", "infinite"],
)
def test_weights_that_can_not_be_trusted_are_refused(directory, change, message):
    file = directory / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match=message) as caught:
        load(str(directory), task="arithmetic")
    assert str(directory) in str(caught.value) and "\n" not in str(caught.value)


def test_weights_without_a_place_are_left_out_with_a_warning(directory):
    file = directory / "model.safetensors"
    save_file({**load_file(file), "model.layers.7.mlp.up_proj.weight": torch.ones(2)}, file, {"format": "pt"})
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM has no place for model\.layers\.7\.mlp\.up_proj\.weight"):
        load(str(directory), task="arithmetic")


def test_tied_embeddings_are_not_missing(tmp_path):
    tiny_model(0, **SMALL, tie_word_embeddings=True).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = load(str(tmp_path), task="arithmetic").model
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_code_that_comes_with_a_model_is_not_run(directory):
    config = json.loads((directory / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text("raise SystemExit('code that came with a model was run')")
    with pytest.raises(ModelError, match="can't be loaded"):
        load(str(directory), task="arithmetic")


def test_a_name_that_the_hub_does_not_have(monkeypatch):
    def missing(*args, **kwargs):
        raise OSError("no-one/nothing is not a local folder\nand is not a valid model identifier")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", missing)
    with pytest.raises(ModelError, match=r"'no-one/nothing' can't be loaded: .* folder and is not") as caught:
        load("no-one/nothing", task="arithmetic")
    assert "\n" not in str(caught.value)


def test_pad_falls_back_on_eos(directory):
    tokenizer = character_tokenizer()
    tokenizer.pad_token = None
    shutil.rmtree(directory)
    tiny_model(0, **SMALL).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    loaded = load(str(directory), task="arithmetic")
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2


def test_eos_ids_come_from_generation_config_and_tokenizer(directory):
    loaded = load(str(directory), task="arithmetic")
    loaded.model.generation_config.eos_token_id = [7, 4]
    assert loaded.eos_ids == (2, 4, 7)
    loaded.model.generation_config.eos_token_id = None
    assert loaded.eos_ids == (2,)


def test_training_mode_changes_nothing(tmp_path):
    config = transformers.GPT2Config(vocab_size=100, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    model = load(str(tmp_path), task="arithmetic").model
    tokens = torch.tensor([[1, 20, 30]])
    expected = model(input_ids=tokens).logits
    model.train()
    assert torch.equal(model(input_ids=tokens).logits, expected)


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"dtype": "float23"}, "did you mean 'float32'"), ({"device": "cuda:99"}, "device 'cuda:99' can't be used")],
)
def test_settings_that_can_not_be_had(setting, message):
    with pytest.raises(ModelError, match=message) as caught:
        load("tiny:cold", task="arithmetic", **setting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./my-modle", "my-modle: no such model directory; did you mean 'my-model'?"),
        ("runs/x/exprot", "runs/x/exprot: no such model directory; did you mean 'export'?"),
        ("runs/other", "runs/other: no such model directory; in runs/ there is x"),
        ("rusn/x/export", "rusn/x/export: no such model directory, there is no rusn; did you mean 'runs'?"),
        ("~/nothing/here", "no such model directory, there is no "),
    ],
)
def test_a_path_that_does_not_exist_is_no_id_of_the_hub(tmp_path, monkeypatch, name, message):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "runs" / "x" / "export").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "runs"))
    monkeypatch.setattr(
        "huggingface_hub.get_hf_file_metadata", lambda *given, **named: pytest.fail("the hub was asked")
    )
    monkeypatch.setattr(
        "transformers.AutoModelForCausalLM.from_pretrained", lambda *given, **named: pytest.fail("the hub was asked")
    )
    for attempt in (
        lambda: check_name(name, "arithmetic"),
        lambda: load(name, task="arithmetic"),
        lambda: tokenizer_of(name),
    ):
        with pytest.raises(ModelError) as raised:
            attempt()
        assert message in str(raised.value) and "\n" not in str(raised.value)


def test_owner_and_name_are_a_hub_id_unless_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_path("owner/name") and not is_path("gpt2")
    (tmp_path / "owner").mkdir()
    assert is_path("owner/name")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: f"/cache/{name}/{file}")
    assert not is_path("owner/name")


@pytest.mark.parametrize("task", ["frozenlake", "sokoban", "keydoor", "shop", "toolqa", "buttons", "zoom"])
def test_a_world_in_a_style_unknown_to_the_warm_start_is_noted(task):
    name = "tiny-vision" if task in ("buttons", "zoom") else "tiny"
    assert f"warm start of {name} for {task} reads tasks in style 'bare' alone" in (unread_style(name, task, {}) or "")
    assert "tasks.options.style=bare" in (unread_style(f"{name}:{task}", task, {"style": "chat"}) or "")
    assert unread_style(name, task, {"style": "bare"}) is None
    assert unread_style("smollm2-135m", task, {}) is None and unread_style(f"{name}:cold", task, {}) is None


def test_tasks_without_worlds_have_their_warm_starts_style():
    assert all(unread_style("tiny", task, {}) is None for task in ("arithmetic", "countdown", "code", "another"))
    assert unread_style("tiny-vision", "shapes", {}) is None


# ---------------------------------------------------------------- adapters
def test_an_adapter_directory_is_merged_with_its_base(tmp_path, monkeypatch):
    """PEFT's own forward pass over base and adapter is what the merged model must compute."""
    peft = pytest.importorskip("peft")
    monkeypatch.setenv("GXPO_CACHE", str(tmp_path / "cache"))
    base = tmp_path / "base"
    loaded = load("tiny:cold", task="arithmetic")
    loaded.model.save_pretrained(base)
    loaded.tokenizer.save_pretrained(base)
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config).eval()
    home = tmp_path / "adapter"
    adapted.save_pretrained(home)
    ids = torch.tensor([[5, 6, 7, 8]])
    actual = load(str(home), task="arithmetic")
    assert torch.allclose(actual.model(ids).logits, adapted(ids).logits, atol=1e-5)
    assert not torch.allclose(actual.model(ids).logits, loaded.model(ids).logits, atol=1e-3)
    assert load(str(home), task="arithmetic").path == actual.path  # made once
    assert positions(str(home), "") == positions(str(base), "") == 2048
    assert len(tokenizer_of(str(home))) == len(loaded.tokenizer)
    check_name(str(home), "")
    assert describe(str(home), task="").config.model_type == "llama"
    text = json.loads((home / "adapter_config.json").read_text())
    wrong = {
        "is not on this machine.*merge it first": {"base_model_name_or_path": "meta-llama/Nowhere"},
        "names no base model: merge it first": {"base_model_name_or_path": None},
        "is an adapter itself": {"base_model_name_or_path": str(home)},
        "weights have no place": {"target_modules": ["q_proj"]},
        "weights are missing": {"target_modules": ["q_proj", "k_proj", "down_proj"]},
        "can't be merged into its base": {"r": 4},
    }
    for message, changes in wrong.items():
        (home / "adapter_config.json").write_text(json.dumps({**text, **changes}))
        with pytest.raises(ModelError, match=message) as caught:
            load(str(home), task="arithmetic")
        assert "\n" not in str(caught.value)
    (home / "adapter_config.json").write_text("{broken")
    with pytest.raises(
        ModelError, match=r"is an adapter \(PEFT\) whose adapter_config\.json can't be read.*merge it first"
    ):
        check_name(str(home), "")

"""The cluster plan against figures that were worked out by hand, and against transformers' own counts."""

import json
from dataclasses import replace

import pytest
import transformers
from tests import command_line

from gxpo.base.errors import ConfigError, ModelError
from gxpo.explain import cluster_plan as formulas
from gxpo.explain.cluster_plan import GPUS, Load, cluster_plan, placement
from gxpo.models.shape import KNOWN, ModelShape, shape_of
from gxpo.parts.settings import ClusterSettings

GB = 1e9
QWEN, LLAMA = KNOWN["qwen2.5-7b"], KNOWN["llama-3.1-70b"]
LOAD = Load(tokens=1e6, context=32768, microbatch=8192, gpu=GPUS["h100"])


def run(*words):
    return command_line.run(words)


def cluster(**sections):
    return ClusterSettings.model_validate(sections)


def test_states_of_a_trainer():
    # 2 bytes of parameters, 4 of gradients, 4 of copies and 8 of moments: 18 of 7.6e9 and 70.6e9
    assert sum(formulas.sharded(QWEN, 1).values()) / GB == pytest.approx(137, abs=0.5)
    assert sum(formulas.sharded(QWEN, 8).values()) / GB == pytest.approx(17.1, abs=0.1)
    assert sum(formulas.sharded(LLAMA, 32).values()) / GB == pytest.approx(39.7, abs=0.1)
    # parameters and gradients alone stay on the GPU: 6 bytes of 18
    assert set(formulas.sharded(QWEN, 4, "optimiser")) == {"parameters", "gradients"}
    assert sum(formulas.sharded(QWEN, 4, "optimiser").values()) == pytest.approx(6 * QWEN.parameters / 4)


def test_activations_of_32k_tokens():
    # a token: 28 states of 2 x 3584; the layer that is recomputed 16 x 3584 + 8 x 3584 + 8 x 18944, less its state;
    # its backward pass 6 x 18944 + 12 x 3584: 200,704 + 237,568 - 7,168 + 156,672
    assert formulas.pass_bytes(QWEN, 32768)["activations"] == 32768 * 587_776
    assert formulas.pass_bytes(QWEN, 32768, 4)["activations"] == 8192 * 587_776


def test_the_copy_that_a_sharded_run_samples_from():
    """2 bytes of each of 7.6e9 parameters in every process, whatever their number; none where servers sample."""
    shapes = [cluster_plan(QWEN, cluster(backend="fsdp", train={"nodes": n}), LOAD)["train"] for n in (1, 4)]
    assert [actual["memory"]["sampling_copy"] / GB for actual in shapes] == pytest.approx([15.2, 15.2], abs=0.05)
    less = cluster_plan(QWEN, cluster(), LOAD)["train"]["memory_bytes"]
    assert (shapes[0]["memory_bytes"] - less) / GB == pytest.approx(15.2, abs=0.05)
    served = cluster_plan(QWEN, cluster(backend="fsdp"), replace(LOAD, served=True))["train"]
    assert "sampling_copy" not in served["memory"] and served["memory_bytes"] == less
    assert "sampling copy; more GPUs do not make it smaller" in advice(LLAMA, backend="fsdp")
    code, text, _ = run("plan", "--set", "model=qwen2.5-7b", "--set", "cluster.backend=fsdp", "--context", "4096")
    assert code == 0 and "; 15.2 the sampler's copy (137 GB" in text


def test_keys_and_values():
    assert QWEN.kv_bytes_per_token / 1e3 == pytest.approx(57, abs=0.5)
    assert LLAMA.kv_bytes_per_token / 1e3 == pytest.approx(328, abs=0.5)
    assert formulas.streams(QWEN, 80 * GB, 32768) == 28
    assert formulas.streams(LLAMA, 80 * GB, 32768) < 0  # 141 GB of weights


def test_publication():
    assert formulas.publication_seconds(QWEN.parameters, 1, 200) == pytest.approx(0.6, abs=0.05)
    assert formulas.publication_seconds(LLAMA.parameters, 1, 200) == pytest.approx(5.6, abs=0.05)
    assert formulas.publication_seconds(LLAMA.parameters, 8, 200) == pytest.approx(0.7, abs=0.05)
    publication = cluster_plan(QWEN, cluster(), LOAD)["publication"]
    assert publication["bytes"] / GB == pytest.approx(15, abs=0.5)
    assert cluster_plan(LLAMA, cluster(), LOAD)["publication"]["bytes"] / GB == pytest.approx(141, abs=0.5)


def test_gpu_seconds_and_split_of_a_million_tokens():
    plan = cluster_plan(QWEN, cluster(sample={"replicas": 20}), LOAD)
    assert plan["train"]["gpu_s"] == pytest.approx(154, abs=0.5)
    assert plan["sample"]["gpu_s"] == pytest.approx(400, abs=1)
    assert plan["split"]["sample_per_train"] == pytest.approx(2.6, abs=0.01)
    # 8 trainers: 19.25 s, 20 samplers: 20.04 s, publication 0.61 s
    assert plan["step"]["asynchronous_s"] == pytest.approx(20.65, abs=0.01)
    assert plan["step"]["synchronous_s"] == pytest.approx(39.9, abs=0.01)
    assert plan["publication"]["share_of_step"] == pytest.approx(0.0295, abs=0.0001)
    assert plan["split"] == {"sample_per_train": plan["split"]["sample_per_train"], "train_gpus": 8, "gpus": 28}
    assert [line for line in plan["advice"] if "GPUs" in line or "publication" in line] == []


def advice(shape=QWEN, load=LOAD, **sections):
    return " | ".join(cluster_plan(shape, cluster(**sections), load)["advice"])


def test_advice():
    # 20 samplers work 10 s: 5 % of a step are 0.53 s, and a publication takes 0.61
    few = Load(tokens=5e5, context=4096, microbatch=8192, gpu=GPUS["h100"])
    assert "set cluster.sync.every=2, or use more links" in advice(load=few, sample={"replicas": 20})
    assert "cluster.sync.every" not in advice(load=few, sample={"replicas": 20}, sync={"every": 2})
    assert "raise cluster.train.nodes" in advice(LLAMA) and "a sampler holds no stream" in advice(LLAMA)
    both = {"train": {"nodes": 8}, "sample": {"tensor_parallel": 8, "replicas": 20}}
    # 8 nodes hold 20 GB of states; 32,768 tokens of activations take more than what is left, 8,192 do not
    assert "the most is activations; raise cluster.train.context_parallel" in advice(LLAMA, **both)
    short = Load(tokens=1e6, context=8192, microbatch=8192, gpu=GPUS["h100"])
    assert "raise cluster.train.context_parallel" not in advice(LLAMA, short, **both)
    long = Load(tokens=1e7, context=131072, microbatch=8192, gpu=GPUS["h100"])
    assert "the most is activations; raise cluster.train.context_parallel" in advice(LLAMA, long, **both)
    assert "28 streams fit a sampler of cluster.sample.max_concurrent=256" in advice()
    assert "max_concurrent" not in advice(sample={"max_concurrent": 28})
    assert "of 12 GPUs 3 should train and 9 sample, not 8 and 4: samplers keep the others waiting" in advice()
    assert "longer than cluster.sync.timeout=0.5" in advice(sync={"timeout": 0.5})


def test_placement():
    small = placement(cluster(train={"nodes": 1, "gpus_per_node": 4}, sample={"replicas": 3, "tensor_parallel": 3}))
    assert small["train"] == [{"node": 0, "gpus": [0, 1, 2, 3]}]
    # three GPUs of a node of four: the fourth is left over
    assert [r["gpus"] for r in small["sample"]] == [[{"node": n, "gpus": [0, 1, 2]}] for n in (1, 2, 3)]
    wide = placement(cluster(train={"gpus_per_node": 4}, sample={"replicas": 1, "tensor_parallel": 8}))
    assert wide["sample"][0]["gpus"] == [{"node": n, "gpus": [0, 1, 2, 3]} for n in (1, 2)]
    with pytest.raises(ConfigError, match="= 6 does not divide 8 GPUs"):
        placement(cluster(train={"tensor_parallel": 2, "context_parallel": 3}))
    with pytest.raises(ConfigError, match="fills no whole number of nodes of 8 GPUs"):
        placement(cluster(sample={"tensor_parallel": 12}))


@pytest.mark.parametrize(
    "name, make",
    [
        ("qwen2.5-0.5b", transformers.Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, tie_word_embeddings=True)),
        ("qwen2.5-7b", transformers.Qwen2Config(
            vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
            num_key_value_heads=4)),
        ("llama-3.1-70b", transformers.LlamaConfig(
            vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
            num_key_value_heads=8)),
    ],
)  # fmt: skip
def test_known_sizes_are_those_of_transformers(tmp_path, name, make):
    make.save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / "config.json")) == KNOWN[name]


def test_experts_and_layers_without_a_cache(tmp_path):
    transformers.MixtralConfig(
        vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
    ).save_pretrained(tmp_path)  # fmt: skip
    shape = shape_of(str(tmp_path))
    # 2 layers of 8 experts of 3 x 16 x 32; a token goes through 2 of 8
    assert shape.parameters - shape.active == 2 * 6 * 3 * 16 * 32
    assert (shape.kv_layers, shape.kv_heads, shape.head_dim) == (2, 2, 4)


def test_names():
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") == QWEN
    with pytest.raises(ModelError, match="sizes are not known here"):
        shape_of("nobody/nothing-7b")
    with pytest.raises(ModelError, match="no file"):
        shape_of("./nowhere/config.json")


def test_the_command(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: qwen2.5-7b\ncluster:\n  sample: {replicas: 16}\n")
    code, text, _ = run("plan", path, "--context", "32768", "--tokens", "1e6", "--json")
    plan = json.loads(text)["cluster"]
    assert code == 0 and plan["sample"]["gpus"] == 16 and plan["sample"]["streams_that_fit"] == 28
    code, text, _ = run("plan", path, "--context", "32768", "--tokens", "1e6")
    assert code == 0 and "15.2 GB in 0.61 s, every step" in text and "137 GB if each process held all" in text

    sizes = "--parameters 7615616512 --layers 28 --hidden 3584 --kv-heads 4 --head-dim 128 --vocabulary 152064"
    code, text, _ = run("plan", *sizes.split(), "--context", "32768", "--tokens", "1e6", "--json")
    shape = ModelShape(**json.loads(text)["cluster"]["model"])
    # the MLP has what the other sizes leave, biases and norms too: one unit more
    assert code == 0 and shape.intermediate == 18_945 and replace(shape, intermediate=18_944) == QWEN


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["--parameters", "7e9", "--layers", "28"],
            "--parameters needs --hidden, --kv-heads, --head-dim, --vocabulary",
        ),
        (["--gpu", "h101"], "--gpu 'h101' is not one of t4, l4"),
        (["--mfu", "40"], "--mfu 40 is a share of the peak"),
        (["--links", "0"], "--links 0 must be above 0"),
        (["--set", "cluster.train.offload=disk"], "cluster.train.offload"),
        (["--set", "cluster.train.tensor_parallel=3", "--set", "model=qwen2.5-7b"], "does not divide 8 GPUs"),
        (["--layers", "28"], "--layers goes with --parameters"),
    ],
)
def test_bad_input_is_one_line(flags, said):
    code, _, err = run("plan", *flags)
    assert code == 2 and said in err and len(err.splitlines()) == 1

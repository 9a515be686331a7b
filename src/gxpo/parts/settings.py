"""Run settings other than the method's: names, types, defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Products = Literal["auto", "native", "float32"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TaskSettings(_Section):
    per_step: Positive = Field(default=16, description="groups per step")
    options: dict[str, Any] = Field(default={}, description="options of the task source, e.g. {digits: 3}")
    too_long: Literal["error", "drop", "truncate_left"] = Field(
        default="error",
        description="tasks whose prompt leaves less than sampling.max_new_tokens of the model's context: refuse them "
        "before the first step, leave them out, or cut off the beginning of their text",
    )
    prompts: list[str] = Field(
        default=[],
        description="texts around a task's prompt, each with {prompt} in it, of which training searches the best: the "
        "worse half by mean reward is dropped until one is left; held-out tasks have the best so far",
    )
    prompt_tasks: Positive = Field(
        default=8, description="tasks that each of tasks.prompts is tried on in the first round; doubles every round"
    )


class SamplingSettings(_Section):
    temperature: Annotated[float, Field(ge=0)] = Field(default=1.0, description="sampling temperature; 0 is greedy")
    top_k: Annotated[int, Field(ge=0)] = Field(default=0, description="top-k sampling; 0 is off")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="nucleus (top-p) sampling; 1 is off")
    max_new_tokens: Positive = Field(default=64, description="maximum tokens of one action")
    stop: list[str] = Field(default=[], description="stop strings: an action ends with the token that completes one")
    denoising_steps: Positive | None = Field(default=None, description="of a diffusers pipeline; null: 10")
    guidance: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="classifier-free guidance of pipelines, generators of picture tokens and masked models, in "
        "sampling and training; 1: none",
    )
    null_condition: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="condition that stands for none, for guidance; null: the model's own"
    )
    batch_rows: Positive = Field(default=256, description="samples decoded together")
    engine: Literal["auto", "torch", "vllm", "openai"] = Field(
        default="auto", description="sampling engine; auto: the fastest that is installed and fits, see docs/engines.md"
    )
    engine_python: str | None = Field(default=None, description="Python interpreter with vLLM; null: this one")
    engine_options: dict[str, Any] = Field(default={}, description="options of the engine, e.g. {max_model_len: 4096}")
    servers: str | list[str] | None = Field(
        default=None, description="openai: base URLs, e.g. [http://a:8000/v1, http://b:8000/v1]"
    )
    products: Products | None = Field(
        default=None, description="learner.products for sampling; null: the same value, auto measured separately"
    )


class ChatSettings(_Section):
    template: str = Field(
        default="auto",
        description="auto: the tokenizer's chat template, if it has one; none; rendered: prompts have it around them "
        "already; or a .jinja file",
    )
    system: str | None = Field(default=None, description="system message of every conversation")
    kwargs: dict[str, Any] = Field(default={}, description="variables of the template, e.g. {enable_thinking: false}")
    tools: Literal["auto", "native", "tags"] = Field(
        default="auto", description="format of tool calls: the template's, or plain tags in the text"
    )
    rewrites: Literal["rebuild", "keep"] = Field(
        default="rebuild", description="if a template rewrites earlier turns: rebuild the context, or keep it"
    )


class EnvSettings(_Section):
    workers: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="worker processes; 0: in this process. null: 0 for gxpo's own worlds, 1 for others"
    )
    timeout: Annotated[float, Field(gt=0)] = Field(default=10.0, description="seconds for one reset or action")
    concurrency: Positive | None = Field(
        default=None, description="episodes of one worker that act at once; null: 1, of a blocking environment 1024"
    )
    max_turns: Positive | None = Field(default=None, description="null: the environment's own limit")
    context: Literal["full", "window", "summary"] = Field(
        default="full", description="part of the episode that the policy sees: see docs/rollouts.md"
    )
    window: Annotated[int, Field(ge=0)] = Field(
        default=0, description="window: earlier exchanges shown; summary: exchanges between summaries"
    )
    max_context: Positive | None = Field(
        default=None, description="maximum context tokens; null: the model's positions"
    )
    mcp: list[dict[str, Any]] = Field(
        default=[],
        description="MCP servers whose tools any listed task gets, e.g. [{command: [python, server.py], allow: [add]}]",
    )
    mcp_timeout: Annotated[float, Field(gt=0)] = Field(default=10.0, description="seconds for a call of a tool")
    mcp_chars: Positive = Field(default=4000, description="characters of a tool's result that the policy is shown")
    corrupt: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the words of each observation that are corrupted, a probe of robustness"
    )
    corrupt_by: Literal["drop", "mask", "swap"] = Field(
        default="drop", description="a corrupted word is left out, masked by _, or has two characters swapped"
    )


class OptimSettings(_Section):
    lr: Annotated[float, Field(gt=0)] = Field(default=3e-4, description="peak learning rate")
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="betas of AdamW (null: 0.9, 0.999) or Lion (0.9, 0.99); the first: momentum of others"
    )
    direction: Literal["sign", "norm", "clip", "stochastic"] = Field(
        default="sign",
        description="of signum and lion: sign of the averaged gradient, the whole over its norm, over optim.threshold "
        "within +-1, or a random sign of that expectation",
    )
    threshold: Annotated[float, Field(gt=0)] = Field(default=1e-3, description="of optim.direction clip")
    caution: Literal["none", "plus_one", "mean_floor"] = Field(
        default="none",
        description="keep the coordinates of a step that agree with the gradient, scaled by n / (kept + 1) or n / kept",
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(default=0.0, description="weight decay, on matrices alone")
    max_grad_norm: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="gradient clipping by global norm; 0 is off"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="learning rate schedule after warm-up, to 0 at the last step"
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        default=0, description="optimiser steps over which the learning rate rises linearly to lr"
    )


class LearnerSettings(_Section):
    optimiser: Literal["adamw", "sgd", "signum", "lion", "muon", "igt"] = Field(
        default="adamw",
        description="sgd, signum, igt: momentum of optim.betas[0]; muon: hidden matrices, AdamW for the rest",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32", description="dtype of the model; bfloat16: updates go to float32 copies"
    )
    device: str = Field(default="auto", description="auto: cuda, else mps, else cpu")
    tokens_per_microbatch: Positive | Literal["auto"] = Field(
        default=8192, description="micro-batch size; auto: measured once, then fixed in config.yaml"
    )
    images_per_microbatch: Positive | None = Field(
        default=None, description="distinct pictures of a micro-batch at most, for a model that sees"
    )
    value_lr: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="the value head's learning rate, as a multiple of optim.lr"
    )
    kernels: Literal["auto", "transformers"] = Field(
        default="auto", description="auto: gxpo's own forward pass for the models that it knows"
    )
    products: Products = Field(
        default="auto",
        description="dtype in which a bfloat16 model's matrices are multiplied on CPUs: native or float32; auto: the "
        "faster one, measured once, then fixed in config.yaml",
    )
    choices: dict[str, str] = Field(
        default={},
        description="kernels on CPUs by purpose, e.g. {attention gradient: float32}; what is not here is measured "
        "once, then fixed in config.yaml",
    )
    freeze_vision_tower: bool = Field(
        default=False, description="train the language model of a model that sees, and neither tower nor projector"
    )
    recompute: bool = Field(default=False, description="activation checkpointing: less memory, a third more time")
    states: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="dtype of the optimiser's states; bfloat16: no float32 copies, stochastic rounding",
    )
    layout: Literal["auto", "flat"] = Field(default="auto", description="flat: no shared prefixes in the forward pass")
    attention: Literal["auto", "dense", "flex"] = Field(
        default="auto",
        description="mask of packed rows in models run by transformers: dense, or blocks (FlexAttention; no backward "
        "pass on CPU); auto: on CUDA as measured, see docs/scale.md",
    )
    lora_rank: Annotated[int, Field(ge=0)] = Field(default=0, description="rank of LoRA; 0 trains every parameter")
    base: Literal["nf4"] | None = Field(
        default=None,
        description="storage of the frozen linear layers under LoRA; nf4: 4 bits (QLoRA), computed with in "
        "learner.dtype; null: learner.dtype",
    )

    @field_validator("dtype", mode="before")
    @classmethod
    def _without_float16(cls, dtype: Any) -> Any:
        if dtype in ("float16", "fp16", "half"):
            raise PydanticCustomError(
                "float16",
                "float16 needs a scale of the loss, which gxpo does not have: set bfloat16, or float32 on a device "
                "without it, as a t4",
            )
        return dtype

    lora_alpha: Annotated[float, Field(gt=0)] = Field(default=16.0, description="scale of LoRA: alpha / rank")
    lora_targets: str | list[str] = Field(default="all-linear", description="modules that get LoRA adapters")


class StopEarlySettings(_Section):
    metric: str | None = Field(
        default=None, description="end the run when this metric stops improving; min:NAME where lower is better"
    )
    patience: Positive = Field(default=5, description="end after so many readings of it in a row without improvement")
    min_delta: Annotated[float, Field(ge=0)] = Field(default=0.0, description="least change that is an improvement")


class TrainerSettings(_Section):
    steps: Positive = Field(default=100, description="steps of the run at most: rollouts, then an update")
    max_tokens: Positive | None = Field(
        default=None, description="budget: end after the step in which so many tokens have been generated in all"
    )
    max_updates: Positive | None = Field(
        default=None, description="budget: end after so many optimiser steps; a step without signal counts as one"
    )
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="budget: end after so many seconds of training, evaluations not counted"
    )
    checkpoint_every: Annotated[int, Field(ge=0)] = Field(
        default=50, description="save a checkpoint every n-th step; 0: only the last"
    )
    keep_checkpoints: Positive = Field(default=2, description="number of newest checkpoints to keep")
    keep_best: str | None = Field(
        default=None,
        description="metric whose best checkpoint is kept, e.g. eval_accuracy; min:NAME where lower is better",
    )
    stop_early: StopEarlySettings = StopEarlySettings()
    rollouts_every: Annotated[int, Field(ge=0)] = Field(
        default=10, description="write every n-th step's rollouts; 0: none"
    )
    callbacks: list[str] = Field(
        default=[], description="loggers: tensorboard, trackio, wandb; or a callback, file.py:Class (docs/logging.md)"
    )
    max_nonfinite_steps: Positive = Field(
        default=3, description="stop after so many consecutive steps skipped for a gradient that was not finite"
    )


PRICED = ("generated_tokens", "judge_tokens")


class LoggingSettings(_Section):
    project: str | None = Field(
        default=None, description="project in trackio and wandb; null: WANDB_PROJECT or TRACKIO_PROJECT, or gxpo"
    )
    name: str | None = Field(default=None, description="name of the run there; null: the run directory's")
    samples: Annotated[int, Field(ge=0)] = Field(
        default=8, description="rollouts in a table of samples, at trainer.rollouts_every and evaluations; 0: no tables"
    )
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="options of trainer.callbacks by name, e.g. {wandb: {tags: [sums]}}"
    )
    prices: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={}, description="price of a million tokens, e.g. {judge_tokens: 0.6}; adds the metric cost"
    )

    @field_validator("prices")
    @classmethod
    def _check_prices(cls, prices: dict[str, float]) -> dict[str, float]:
        if unknown := [name for name in prices if name not in PRICED]:
            raise ValueError(f"{unknown[0]} has no price; these have: {', '.join(PRICED)}")
        return prices


class DoctorSettings(_Section):
    every: Annotated[int, Field(ge=0)] = Field(
        default=10, description="steps between checks of what gxpo doctor looks for; 0: only at the end"
    )
    stop: bool = Field(default=False, description="end the run where a critical cause is likely or proved")


class EvalSettings(_Section):
    every: Annotated[int, Field(ge=0)] = Field(
        default=25, description="evaluate every n-th step; 0: only before and after"
    )
    points: Annotated[int, Field(ge=0)] = Field(
        default=0, description="with a budget (trainer.max_*): evaluate so many times, after equal shares of it"
    )
    tasks: Positive = Field(default=1000, description="held-out tasks, the same for every seed and step")
    samples: Positive = Field(default=1, description="more than 1: that many samples a task, for pass@k")
    temperature: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="sampling temperature in evaluation; 0 is greedy"
    )
    vote: str | None = Field(
        default=None, description="with samples: also let them vote: count, or a reward component as weight"
    )


class RewardSettings(_Section):
    weights: dict[str, float] | None = Field(
        default=None, description="several rewards in place of one, each by name or file.py:function: {correct: 1.0}"
    )
    timeout: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="time limit in seconds for scoring one rollout; for math, of processor time"
    )
    workers: Positive = Field(default=1, description="processes that score rollouts")
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="options of rewards by name, e.g. {majority_vote: {pattern: ...}}"
    )
    shuffle: bool = Field(
        default=False, description="control experiment: permute outcomes within the batch, without step rewards"
    )


class TeacherSettings(_Section):
    model: str | None = Field(
        default=None, description="a checkpoint named teacher, of role teacher: as model; its tokenizer is the policy's"
    )
    models: dict[str, dict[str, Any]] = Field(
        default={},
        description="further frozen models by name, each with a role (teacher, judge) and one of model, server, ask; "
        "see docs/judges.md",
    )


class AsyncSettings(_Section):
    max_staleness: Annotated[int, Field(ge=0)] = Field(
        default=0, description="optimiser versions between a group's oldest token and its update; 0: synchronous"
    )
    groups_in_flight: Positive | Literal["auto"] = Field(
        default="auto", description="groups that are sampled at the same time; auto: (max_staleness + 1) tasks.per_step"
    )
    over_age: Literal["drop", "train"] = Field(
        default="drop", description="a group older than max_staleness: drop it (charged and counted), or train on it"
    )
    partial: bool = Field(
        default=False, description="sampling goes on under new weights; an action's versions are recorded by token"
    )
    order: Literal["dispatch", "finish"] = Field(
        default="dispatch", description="train groups in dispatch order (reproducible), or as they finish (no waiting)"
    )


class ClusterTrainSettings(_Section):
    nodes: Positive = Field(default=1, description="nodes that train")
    gpus_per_node: Positive = Field(default=8, description="GPUs of every node, of trainers and samplers alike")
    tensor_parallel: Positive = Field(default=1, description="GPUs that share each matrix")
    context_parallel: Positive = Field(default=1, description="GPUs that share the tokens of a row")
    pipeline_parallel: Positive = Field(default=1, description="stages that the layers are divided into")
    offload: Literal["none", "optimiser"] = Field(
        default="none", description="what is kept in the hosts' memory; optimiser: float32 copies and moments"
    )


class ClusterSampleSettings(_Section):
    replicas: Positive = Field(default=4, description="samplers, each with the whole model")
    tensor_parallel: Positive = Field(default=1, description="GPUs of one sampler")
    max_concurrent: Positive = Field(default=256, description="trajectories that a sampler grows together")


class ClusterSyncSettings(_Section):
    every: Positive = Field(default=1, description="publish weights to the samplers every n-th step")
    timeout: Annotated[float, Field(gt=0)] = Field(default=120.0, description="seconds that a publication may take")


class ClusterSettings(_Section):
    backend: Literal["local", "fsdp", "tinker", "verl"] = Field(
        default="local",
        description="what holds the weights; local: each process all of them; fsdp: torchrun's processes share them; "
        "tinker, verl: a training engine, see docs/train-engines.md",
    )
    address: str | None = Field(
        default=None,
        description="tinker: the server's URL, e.g. http://localhost:8000; verl: of a Ray cluster whose nodes hold the "
        "weights (auto, HOST:PORT, local), null: torchrun's processes do",
    )
    train: ClusterTrainSettings = ClusterTrainSettings()
    sample: ClusterSampleSettings = ClusterSampleSettings()
    sync: ClusterSyncSettings = ClusterSyncSettings()

    @property
    def by_processes(self) -> bool:
        """True if shards are in the run's own processes, which need a process group for them."""
        return self.backend == "fsdp" or (self.backend == "verl" and self.address is None)


class RunSettings(_Section):
    """All settings of a run except its method."""

    model_config = ConfigDict(populate_by_name=True)

    model: str = Field(default="tiny", description="a built-in model, a directory, or an id on the hub")
    task: str = Field(default="arithmetic", description="a task by name, a data file, or file.py:function")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="seed of all random numbers of the run")
    out: str | None = Field(
        default=None, description="run directory; default: runs/ and the name of the file, see docs/configuration.md"
    )
    reward: str | None = Field(default=None, description="a reward by name, or file.py:function; null: the task's own")
    init_from: str | None = Field(default=None, description="start from the parameters of this run directory")
    phases: list[dict[str, Any]] = Field(
        default=[], description="methods and settings one after the other, e.g. [{method: dpo}, {method: grpo}]"
    )
    tasks: TaskSettings = TaskSettings()
    env: EnvSettings = EnvSettings()
    chat: ChatSettings = ChatSettings()
    sampling: SamplingSettings = SamplingSettings()
    optim: OptimSettings = OptimSettings()
    learner: LearnerSettings = LearnerSettings()
    trainer: TrainerSettings = TrainerSettings()
    eval: EvalSettings = EvalSettings()
    doctor: DoctorSettings = DoctorSettings()
    logging: LoggingSettings = LoggingSettings()
    scoring: RewardSettings = RewardSettings()
    teacher: TeacherSettings = TeacherSettings()
    async_: AsyncSettings = Field(default=AsyncSettings(), alias="async")
    cluster: ClusterSettings = ClusterSettings()

    @property
    def update(self) -> OptimSettings:
        """`optim`, by its other name."""
        return self.optim

    @property
    def rewards(self) -> str | dict[str, float] | None:
        """The rewards: one, or several with their weights; None: the task's own verdict."""
        return self.reward if self.scoring.weights is None else self.scoring.weights


def leaves(model: type[BaseModel] = RunSettings, prefix: str = "") -> dict[str, FieldInfo]:
    """Every setting by its dotted key."""
    out: dict[str, FieldInfo] = {}
    for field, entry in model.model_fields.items():
        # `async` is a keyword of Python: such sections have an alias
        name, kind = entry.alias or field, entry.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            out |= leaves(kind, f"{prefix}{name}.")
        else:
            out[prefix + name] = entry
    return out


FIELDS = leaves()
RUN_KEYS = {key: entry.default for key, entry in FIELDS.items()}
MAPPINGS = frozenset(  # settings whose value is itself a mapping
    k for k, f in FIELDS.items() if any(get_origin(x) is dict for x in (f.annotation, *get_args(f.annotation)))
)

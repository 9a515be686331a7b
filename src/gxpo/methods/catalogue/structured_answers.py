"""Methods whose reward is a metric of a structured answer: transcripts, JSON, tables, boxes, intervals."""

from gxpo.parts.definition import Definition

asr_grpo = Definition(
    r"""ASR-GRPO: the word error rate of a transcript, taken off 1, as reward.

    r = 1 - (S + D + I) / N, words against the reference's N;   A as in GRPO

    Choices. From the paper (arXiv 2509.01939v1, eqs. 3, 4 and 7), where r is -WER: the 1 cancels in A. A WER above 1 is
    not clipped, so that transcripts which are all worse than none are told apart; `clip: [0, 1]` ends that. It also
    tries exact match (`scoring.options: {match: {metric: exact}}`) and the number of errors, of which A is the same as
    of the WER, since a group has one reference. beta 0.04 is under `asr_grpo@paper`. The whole text is the transcript.
    Stand-in: text to text; no audio was tried here.
    """,
    cite="shivakumar2025asrgrpo",
    evidence="paper",
    keys={"reward": "match", "scoring.options": {"match": {"metric": "wer", "pattern": None}}},
    paper_defaults={"objective.kl.coef": 0.04},
)

speech_grpo = Definition(
    r"""Speech GRPO: BLEU of the answer as reward.

    r = BLEU(answer, reference), of the sentence;   A as in GRPO;   L the mean over the step's tokens

    Choices. From the paper (arXiv 2509.16990v1, sections 3 and 4.2), which does not name its BLEU: sacrebleu's sentence
    BLEU with effective order and smoothing "exp", since without both a short answer is 0 for lack of 4-grams. Its KL of
    0.02 and its groups of 8 are under `speech_grpo@paper`; without a KL its training diverged. Its second variant
    (MP-GRPO) has the reference answer as one more, off-policy member of the group: `rollout: reference_in_group` and
    `objective.on_unknown_behaviour: one`. The whole text is the answer. Stand-in: text to text; no audio was tried
    here.
    """,
    cite="elmakies2025speechgrpo",
    evidence="paper",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "bleu", "pattern": None}},
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"objective.kl.coef": 0.02, "rollout.group_size": 8},
)

table2latex = Definition(
    r"""Table2LaTeX-RL: 1 where the structure of a LaTeX table is nearly the reference's.

    r = [TEDS-structure >= .9]: trees of rows and cells, spans but not texts;   A as in GRPO

    Choices. The second reward of the paper, that the rendered picture is alike, is left out: its released "CW-SSIM"
    gives a blank page against text .76, above its gate of .6 (see the errata). `structure_only: false` compares the
    texts instead. The code's gate is > .9. Rows are as wide as the widest, as in the code and in LaTeX, so that a short
    row is a padded one, and one cell too many is one in every row (changed on 2026-11-28: before, rows had the cells
    that were written). Its conversion knows more LaTeX than ours (colours, dashed rules). Stand-in: no pictures.
    """,
    cite="ling2025table2latex",
    evidence="reference-code",
    code="newLLing/Table2LaTeX-RL@cff3258f389054f20cf5b8a871c96c1cc7c43bbb examples/train/grpo/plugin/plugin.py",
    keys={
        "reward": "match",
        "scoring.options": {
            "match": {"metric": "teds", "pattern": None, "structure_only": True, "gate": 0.9, "pay": "pass"}
        },
    },
)

mixed_r1 = Definition(
    r"""Mixed-R1: one reward for mixed tasks, by the kind of their answers.

    r = exact match [choice, number], IoU [box], (mean_i max_j S_ij + mean_j max_i S_ij) / 2 [open]

    S are cosines of the tokens of answer and reference (BMAS); `info.kind` of a task says of which kind its answer is.

    Choices. Embeddings are all-MiniLM-L6-v2's last hidden states (`gxpo[embedding]`), the paper's are the tokenizer's
    own table. Their similarity is high for fluent nonsense: `baseline` takes off what random pairs have. Charts are
    numbers by exact match here; the paper's format term is left out (add `format`). Tasks of `shapes` and `charts` have
    a kind (with `scoring.options.match.pattern: null`). Stand-in: toy pictures, and no open questions about them.
    """,
    cite="xu2025mixedr1",
    evidence="secondary",
    keys={
        "reward": "match",
        "scoring.options": {
            "match": {
                "route_by": "info.kind",
                "route": {
                    "choice": {"metric": "exact"},
                    "number": {"metric": "exact"},
                    "box": {"metric": "box_iou"},
                    "open": {"metric": "embedding", "align": "tokens"},
                },
            }
        },
    },
)

_VIDEOCHAT_R1_METRICS = {
    "interval": {"metric": "interval_iou", "ordered": True},
    "box": {"metric": "box_iou"},
    "choice": {"metric": "choice"},
    "number": {"metric": "exact"},
}

videochat_r1 = Definition(
    r"""VideoChat-R1: one policy on several tasks of perception, each with the reward of its kind, and format.

    r = [form] + IoU [interval, box], the option [choice], exact match [number];   A as in GRPO
    [form]: the whole attempt is <think>...</think> <answer>...</answer>

    Choices. As the code, for an answer of one kind (`info.kind`): an interval that ends before it begins earns 0, and
    of a choice the first letter from A to G counts ("B. a red ball"; where the reference is no letter, the text). Form
    and these since 2026-11-28; before, form was the task's component "format". There an interval is the last "x to y"
    of the answer, a track is eight boxes and their mean IoU; a question about a video has a choice and intervals, and
    earns both; unions of intervals count: here one box, one answer, one interval of two numbers. The recall of events
    in captions, by a judge, is in the paper and not in the code, and is left out. On `shapes` and `charts` an answer is
    the whole text (`scoring.options.match.pattern: null`) and form the component "format" (`reward.add.form.coef: 0`,
    and "format" in `scoring.weights`). Its KL, TRL's 0.04, is `videochat_r1@paper`. Stand-in: pictures, no video.
    """,
    cite="li2025videochatr1",
    evidence="reference-code",
    code="OpenGVLab/VideoChat-R1@73b2ea9ac83ad5c0bcd893bffd1cbb2e7c167068 src/open_r1/grpo_tasks.py "
    "src/open_r1/trainer/grpo_tasks_trainer.py training_scripts/run_grpo_video_task.sh",
    keys={
        "scoring.weights": {"match": 1.0, "correct": 0.0},
        "scoring.options": {"match": {"route_by": "info.kind", "route": _VIDEOCHAT_R1_METRICS}},
        "reward.add.form": "feature",
        "reward.add.form.pattern": r"\A\s*<think>.*?</think>\s*<answer>.*?</answer>\s*\Z",
    },
    paper_defaults={"rollout.group_size": 8, "objective.kl.coef": 0.04, "credit.eps": 1e-4},
)

lpo_gui = Definition(
    r"""LPO: distance of a click from its target as reward, where the kind of action is right.

    r = [same action] max(0, 1 - distance / 50 pixels);   A as in GRPO

    Choices. One action an answer; the paper's mean over several is left out. Left out, too, is its factor by the
    grey-level entropy of the window that was clicked: it pays for clicking where the picture is busy, right or wrong.
    `frame: unit` or `thousand` with `size: info.size` reads answers in shares of the picture. `lpo_gui@paper` has its
    clip and KL. `task: buttons` with `tasks.options: {style: bare, steps: [1], max_turns: 1}` asks for one click and
    knows its target, the middle of a button; on its 64 pixels 50 pay half for the middle of the screen
    (`scoring.options.match.max_distance: 16` does not). Stand-in: toy screens, and no supervised training on real ones
    before.
    """,
    cite="tang2025lpogui",
    evidence="secondary",
    keys={
        "reward": "match",
        "scoring.options": {
            "match": {"metric": "point_distance", "pattern": None, "typed": True, "max_distance": 50.0}
        },
    },
    paper_defaults={"objective.clip_high": 0.28, "objective.kl.coef": 1e-4},
)

vlm_rl_clg = Definition(
    r"""VLM-RL: contrasting language goals: nearer to what is wanted than to what is not.

    r = cos(answer, goal) - cos(answer, negative goal);   A as in GRPO

    The goal is the task's answer, the negative goal its `info.negative`; embeddings of sentences.

    Choices. As in the code, unscaled: differences are small (.1), so prefer advantages that are not standardised, or
    add a reward that knows the task. The observation is the text itself here, in the paper a camera's picture, and its
    second reward by the vehicle's state is left out. Stand-in: no pictures, no driving.
    """,
    cite="huang2024vlmrlclg",
    evidence="reference-code",
    code="zihaosheng/VLM-RL@1f3ea684009b3682f0c093769cee3bc23b51701e clip/clip_reward_model.py",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "embedding", "pattern": None, "contrast": "info.negative"}},
    },
)

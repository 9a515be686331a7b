"""`gxpo methods --for SYMPTOM`: symptoms of failing runs, and the published methods against them."""

from __future__ import annotations

from dataclasses import dataclass

CLAIMS = {  # what a recommendation rests on, where it can be computed
    "all_wrong": "the answers of an all-wrong group have non-zero advantages",
    "all_right": "the answers of an all-right group have non-zero advantages",
    "rollouts": "its groups are not the base's independent samples",
    "clip_high": "the ratio may rise further than it may fall",
    "entropy_term": "the objective has an entropy term",
    "gradient_beyond_clip": "a right answer's token keeps a gradient where its ratio is past the clip",
    "rare_right": "of two right answers the less likely one has the larger advantage",
    "wrong_outweighs": "in a half-right group the wrong answers are pushed harder than the right ones",
    "length_blind": "a token of a long wrong answer is pushed as hard as one of a short wrong answer",
    "short_right": "of two right answers the shorter one has the larger advantage",
    "token_sum": "advantage times length sums to 0 in each group",
    "near_limit": "an answer close to the token limit loses outcome",
    "pair": "the answers of a pair, one of them right, have advantages 1 and -1",
    "others_only": "one more point for an answer is one more point of its own advantage: it is not in its baseline",
    "majority_still": "one lucky answer leaves the advantage of four wrong ones at 0",
    "alone": "an answer without a group has a non-zero advantage",
    "lone_success": "a lone success among eight has a smaller advantage than under GRPO",
    "within": "the advantage changes along a trajectory",
    "old_wrong": "a wrong answer's token that became 20 times as likely is pushed less than under GRPO",
    "low_baseline": "the credits of a mixed group sum to more than 0",
    "mismatch": "tokens on which sampler and learner disagree have a bounded weight of their own",
    "over_behaviour": "the ratio is taken over the policy that sampled",
    "hard_over_easy": "success at a hard task outweighs success at an easy one by more than under GRPO",
    "each_reward": "the unit of one reward changes nothing",
    "slow_fast": "the update is not the base's",
    "vote": "the reward is agreement with the majority",
    "observation": "it compares the policy with itself, the observation hidden",
}


@dataclass(frozen=True)
class Advice:
    """A method (or composition) for a symptom: why, what else to set, and the claim in CLAIMS that supports it."""

    method: str
    why: str
    claim: str = ""
    sets: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Command line that applies the advice."""
        return " ".join(["gxpo train CONFIG", *(f"--set {s}" for s in (f"method={self.method}", *self.sets))])


@dataclass(frozen=True)
class Symptom:
    """A failure of training runs, in users' words; `also` are synonyms."""

    what: str
    also: tuple[str, ...]
    advice: tuple[Advice, ...]


SYMPTOMS: dict[str, Symptom] = {
    "all-wrong groups": Symptom(
        "every answer of a group is wrong, so that GRPO learns nothing from it",
        (
            "no success",
            "reward stays zero",
            "tasks too hard",
            "never solved",
            "zero variance",
            "zero signal",
            "sparse reward",
        ),
        (
            Advice("scaf_grpo", "the least hint with which the policy succeeds; tasks need hints", "rollouts"),
            Advice("ghpo", "another attempt with a growing part of the solution in the prompt", "rollouts"),
            Advice("dapo", "such groups are dropped and others sampled in their place", "rollouts"),
            Advice("ngrpo", "a virtual right answer joins the statistics: all wrong ones are pushed down", "all_wrong"),
            Advice("psr_nsr", "wrong answers are pushed down whatever the group did", "all_wrong"),
            Advice("lens", "confident wrong answers are pushed down more than hesitant ones", "all_wrong"),
            Advice("ar3po", "more attempts where all fail, then an old right answer in the group", "rollouts"),
            Advice("gcpo_gold", "the reference answer takes the place of one wrong attempt", "rollouts"),
        ),
    ),
    "all-right groups": Symptom(
        "every answer of a group is right: samples are paid for and teach nothing",
        ("tasks too easy", "always solved", "saturated", "no contrast", "empty steps"),
        (
            Advice("dapo", "such groups are dropped and others sampled in their place", "rollouts"),
            Advice(
                "unlikeliness",
                "right answers that were unlikely are worth more",
                "all_right",
                ("reward.shape.likelihood_discount.all_correct=true",),
            ),
            Advice("poise", "a probe on hidden states is the baseline, not the group's mean", "all_right"),
            Advice("aapo", "right answers count where the reference model's were wrong", "all_right"),
            Advice("pvpo", "the baseline is the reference policy's success rate", "all_right"),
            Advice("grpo_lead", "among right answers the shorter ones win", "all_right"),
            Advice("gpg", "the other groups weigh more, so that the step keeps its size"),
            Advice("progrpo", "right answers that the policy is unsure of are pushed up more", "all_right"),
        ),
    ),
    "entropy collapse": Symptom(
        "the policy's entropy falls to nothing and all answers become one",
        ("entropy drops", "mode collapse", "deterministic policy", "no exploration", "diversity is lost"),
        (
            Advice("dapo", "clip-higher: rare tokens may become likelier faster", "clip_high"),
            Advice(
                "psr_nsr",
                "mostly failures are unlearnt, which leaves the right answers' spread alone",
                "wrong_outweighs",
            ),
            Advice("unlikeliness", "right answers that were unlikely are worth more", "rare_right"),
            Advice("cispo", "the rare tokens that a clip would silence keep their gradient", "gradient_beyond_clip"),
            Advice("xrpo", "a bonus for right answers that are new to the policy", "rare_right"),
            Advice("gppo", "the same, and the loss is PPO's in value", "gradient_beyond_clip"),
            Advice("clip_cov", "the few tokens that take most of the entropy are left out of an update"),
            Advice("grpo", "an entropy bonus, small", "entropy_term", ("objective.entropy.coef=0.001",)),
        ),
    ),
    "length growth": Symptom(
        "answers become longer without becoming better",
        (
            "long answers",
            "length bias",
            "verbosity",
            "rambling",
            "truncated answers",
            "truncation",
            "overlong",
            "token limit",
        ),
        (
            Advice("dr_grpo", "no division by length: long wrong answers are not spared", "length_blind"),
            Advice("dapo", "answers near the token limit lose outcome; every token weighs the same", "near_limit"),
            Advice("grpo_lead", "right answers are worth more the shorter they are", "short_right"),
            Advice("opo", "a baseline weighted by length: no push on length by itself", "token_sum"),
            Advice("conciser", "length is charged where every answer of the group is right, and nowhere else"),
            Advice(
                "grpo",
                "a linear price on right answers' length",
                "short_right",
                ("reward.add.length=length", "reward.add.length.coef=0.2"),
            ),
        ),
    ),
    "small groups": Symptom(
        "few answers a group: their mean and spread are mostly chance",
        ("few rollouts", "group of two", "group size", "one sample", "noisy baseline", "high variance"),
        (
            Advice("two_grpo", "pairs are enough: advantages are +1 and -1, and there are more prompts", "pair"),
            Advice("rloo", "the baseline leaves the answer itself out: unbiased in any group", "others_only"),
            Advice(
                "mc_grpo",
                "the median is the baseline, which one outlier does not move; eps 1 where rewards are 0 and 1",
                "majority_still",
                ("credit.eps=1.0",),
            ),
            Advice("reinforce_pp", "no group: the whole batch is the baseline", "alone"),
            Advice("reinforce_pp_baseline", "the group's mean, but the batch's spread", "lone_success"),
            Advice("remax", "the baseline is one greedy answer"),
            Advice("poise", "a probe on hidden states is the baseline: two answers a prompt will do", "all_right"),
            Advice("pvpo", "the baseline is known beforehand, from the reference policy", "all_right"),
        ),
    ),
    "noisy rewards": Symptom(
        "the verifier or judge is wrong at times, and a lucky answer moves the policy most",
        ("label noise", "false positives", "unreliable judge", "flipped rewards", "lucky guesses", "reward noise"),
        (
            Advice("s_grpo", "each group weighs as much as is right when some rewards are flipped", "lone_success"),
            Advice("dr_grpo", "no division by the spread, which blows up a lone success", "lone_success"),
            Advice("rloo", "no division by the spread, and an unbiased baseline", "lone_success"),
            Advice("reinforce_pp_baseline", "divided by the batch's spread, not by a lopsided group's", "lone_success"),
            Advice("capo_calibration", "answers whose verdict the reference model finds implausible are left out"),
            Advice("seed_grpo", "smaller advantages where the group's answers disagree in meaning"),
        ),
    ),
    "long horizons": Symptom(
        "many turns or steps before one outcome: which of them earned it?",
        ("credit assignment", "many turns", "multi turn", "agents", "long episodes", "delayed reward"),
        (
            Advice("gigpo", "steps are compared that began in the same environment state", "within"),
            Advice("hgpo", "the same, and steps whose history is the same too count more", "within"),
            Advice("tree_grpo", "attempts grow as trees: siblings differ from one step on", "rollouts"),
            Advice(
                "vineppo",
                "the policy goes on several times from each turn: did the turn raise its success?",
                "within",
                ("segment=turns",),
            ),
            Advice("igpo", "turns are paid for making the right answer likelier; tasks have one", "within"),
            Advice("matchtir", "turns are paid for the calls that a solution makes; the world knows them", "within"),
            Advice("gae_turn", "a value head on the policy itself judges every turn", "within"),
            Advice("himac", "a group of plans, then a group of executions of the best plan", "rollouts"),
        ),
    ),
    "steps of one answer": Symptom(
        "one number for a long answer: which of its steps were good, and where did it go wrong?",
        ("step credit", "segment credit", "process supervision", "first wrong step", "flat credit"),
        (
            Advice("vineppo", "the policy is continued from each step: does it succeed from there?", "within"),
            Advice("spo_segment", "the same with few segments, cut where the policy was unsure", "within"),
            Advice("vsrm", "the same with short answers asked for after each step", "within"),
            Advice("tree_rl", "a token's advantage is what its branch did to the chance of success", "rollouts"),
            Advice("grpo_vps", "segments count that make the right answer likelier; no more samples", "within"),
            Advice("spae", "steps count that bring the answer nearer, less once it is found", "within"),
            Advice("capo_genprm", "a judge of your choice names the wrong steps", "within"),
            Advice("search_r2", "what follows the first flawed step is cut and written anew", "rollouts"),
        ),
    ),
    "tool calls": Symptom(
        "calls of tools fail, or bring nothing, and the outcome does not say which",
        ("tool use", "failing calls", "function calling", "retrieval", "malformed actions", "too many calls"),
        (
            Advice("matchtir", "turns are paid for the calls that a solution makes; the world knows them", "within"),
            Advice("mt_grpo", "a turn is paid for a call that worked, and more for a result with the answer in it"),
            Advice("thor", "calls that failed are written anew and compared by whether they work", "rollouts"),
            Advice("igpo", "turns are paid for making the right answer likelier; tasks have one", "within"),
            Advice("arpo_agentic", "attempts branch where a tool's answer left the policy unsure", "rollouts"),
            Advice("slate", "several candidates for one step, from one prefix, are compared", "rollouts"),
            Advice("portool", "attempts fork between turns; what leads to success soon is worth more", "rollouts"),
            Advice("otc", "a right answer is worth less the more calls it took beyond the fewest that sufficed"),
        ),
    ),
    "stale data": Symptom(
        "rollouts are older than the policy: several updates a batch, asynchronous sampling, replay",
        ("off policy", "asynchronous", "old rollouts", "replay", "many epochs", "staleness", "policy lag"),
        (
            Advice("repo_replay", "replayed rollouts beside fresh ones, over who sampled them", "over_behaviour"),
            Advice("gspo", "one ratio a sequence: single tokens that drifted do not dominate", "old_wrong"),
            Advice("cispo", "the importance weight is bounded and every token keeps its gradient", "old_wrong"),
            Advice("ppo", "dual clip: wrong answers that became likelier have a bounded push", "old_wrong"),
            Advice("topr", "right answers without a ratio, wrong ones with one of at most 1", "old_wrong"),
            Advice("decoupled_ppo", "clipped against the policy at the start of the step, weighted by its age"),
            Advice("gvpo", "a regression that is right for any sampler; no ratio"),
            Advice("asymre", "a baseline below the mean: off-policy failures push less", "low_baseline"),
        ),
    ),
    "sampler mismatch": Symptom(
        "the sampling engine's log-probs are not the learner's",
        (
            "engine mismatch",
            "vllm logprobs",
            "train inference mismatch",
            "logprob gap",
            "sampler gap",
            "importance sampling",
        ),
        (
            Advice("tis", "tokens weigh by learner over sampler, bounded", "mismatch"),
            Advice("gspo+tis", "the same, and one ratio a sequence", "mismatch"),
            Advice("dr_grpo+tis", "the same, without the biases of length and difficulty", "mismatch"),
        ),
    ),
    "unstable updates": Symptom(
        "loss, ratios or gradient norms jump, and the run collapses",
        ("loss spikes", "gradient norm spikes", "ratio explosion", "divergence", "training collapse", "nan loss"),
        (
            Advice("gmpo", "the geometric mean of the ratios, each held in log space", "old_wrong"),
            Advice("gspo", "one ratio a sequence, clipped as a whole", "old_wrong"),
            Advice("ppo", "dual clip bounds the push on wrong answers that became likelier", "old_wrong"),
            Advice("sfpo", "fast steps, a pull back, then one slow correction", "slow_fast"),
            Advice(
                "pipo", "each update is confirmed or taken back once the next batch has shown its effect", "slow_fast"
            ),
            Advice("real", "a classification loss: no answer's pull grows without bound"),
            Advice("sapo_gate", "a smooth gate: the push fades the further a ratio is from 1", "old_wrong"),
            Advice("spo_simple", "beyond the bound the gradient turns round and pulls back"),
        ),
    ),
    "pass@k falls": Symptom(
        "pass@1 rises and pass@k falls: the policy sharpens, and solves fewer tasks with many tries",
        ("pass at k", "sharpening", "coverage", "best of n", "fewer tasks solved"),
        (
            Advice("passk", "the advantage of the best of k, over all k-subsets of the group", "hard_over_easy"),
            Advice(
                "pkpo",
                "the gradient of pass@k: what an answer adds to the best of k - 1 others",
                "hard_over_easy",
                ("credit.k=4",),
            ),
            Advice("maxrl", "maximum likelihood: tasks weigh by one over their success rate", "hard_over_easy"),
            Advice("unlikeliness", "right answers that were unlikely are worth more", "rare_right"),
            Advice("psr_nsr", "mostly failures are unlearnt", "wrong_outweighs"),
            Advice("polychromic", "sets of answers are paid for being right and different"),
        ),
    ),
    "uneven difficulty": Symptom(
        "easy tasks dominate and hard ones are passed over",
        ("hard tasks ignored", "easy tasks dominate", "difficulty bias", "question weights", "curriculum"),
        (
            Advice("dgpo_math", "each mixed group moves as much as any other, harder ones more", "hard_over_easy"),
            Advice("disco", "no weight of a question by its success rate"),
            Advice("dr_grpo", "no division by the spread, which favours the easiest and the hardest", "lone_success"),
            Advice("maxrl", "tasks weigh by one over their success rate", "hard_over_easy"),
            Advice("riskpo", "the lower tail of bundles of tasks is raised"),
            Advice("mapo", "between GRPO and reward over its mean, by how certain the group is", "hard_over_easy"),
            Advice("grpo_lead", "successes at hard tasks and failures at easy ones weigh more", "hard_over_easy"),
            Advice("a_grae", "the focus moves from easy to hard tasks as the batch gets better"),
        ),
    ),
    "few mixed groups": Symptom(
        "the list has tasks of all difficulties, and most groups are all right or all wrong",
        ("task selection", "prompt selection", "data selection", "which tasks to train on", "wasted samples"),
        (
            Advice("cures", "tasks that are solved sometimes are drawn more often, and get more attempts", "rollouts"),
            Advice("dapo", "groups that are not mixed are sampled, dropped and others drawn", "rollouts"),
            Advice("vas", "tasks that are solved sometimes are drawn more often"),
            Advice("srpo_history", "tasks whose answers were all right are not drawn again"),
            Advice("drive", "the half of the list with the lowest success rates is kept, in phases"),
            Advice("knapsack_rl", "attempts go to tasks in which they are likely to differ", "rollouts"),
            Advice("videorl_select", "tasks that are never or always solved are left out from the second epoch on"),
            Advice("craft_gui", "levels, from easy to hard, each until it is mastered"),
        ),
    ),
    "short lists": Symptom(
        "few tasks that come round often, some failed and some solved every time",
        ("small task list", "tasks come again", "repeated tasks", "experience replay", "memory of tasks"),
        (
            Advice("arpo_gui", "where all fail, a right answer of old takes the place of one of them", "rollouts"),
            Advice("eframe", "twenty hotter attempts where all fail, and rare successes come back", "rollouts"),
            Advice("snapshot_rl", "episodes begin on an expert's way, nearer to success", "rollouts"),
            Advice("r3", "an old answer of the other verdict joins groups of one verdict", "rollouts"),
            Advice("ar3po", "more attempts where all fail, then an old right answer in the group", "rollouts"),
            Advice("erpo", "solved tasks are sampled hotter, and learn against a virtual failure", "all_right"),
        ),
    ),
    "several rewards": Symptom(
        "one of several rewards drowns the others",
        ("multiple rewards", "reward weights", "format reward", "reward scale", "multi objective"),
        (
            Advice("gdpo_multi", "each reward is normalised in its group by itself", "each_reward"),
            Advice("dr_grpo", "no division by the spread: a reward weighs as much as you said"),
        ),
    ),
    "coarse rewards": Symptom(
        "pass or fail says too little: all wrong answers look alike",
        ("partial credit", "binary reward", "graded reward", "process reward", "almost right"),
        (
            Advice("tree_rl", "branches tell which part of an answer was at fault", "rollouts"),
            Advice("fgrpr", "numeric answers are paid for being close"),
            Advice("asr_grpo", "texts are paid for the words that are right; JSON and more by scoring.options.match"),
            Advice("spectral_po", "wrong answers are paid for the share before their first error"),
            Advice("tempsamp_r1", "graded scores are reshaped, and the reference answer is in the group"),
            Advice("oprl", "a second model learns rewards of the steps from outcomes", "within"),
            Advice("ssl_sweet_spot", "tiers of progress, paid more and more"),
            Advice("step_grpo_r1vl", "answers are paid for the key steps of a solution that they contain"),
        ),
    ),
    "slow sampling": Symptom(
        "most of the time and tokens go into sampling",
        ("generation is slow", "rollout cost", "token budget", "expensive rollouts", "sample efficiency"),
        (
            Advice("repo_replay", "every rollout is used more than once", "over_behaviour"),
            Advice("tree_grpo", "attempts share their beginnings", "rollouts"),
            Advice("two_grpo", "two answers a prompt", "pair"),
            Advice(
                "poise",
                "two answers a prompt, with a baseline from hidden states",
                "all_right",
                ("rollout.group_size=2",),
            ),
            Advice("ar3po", "easy prompts stop at their first success", "rollouts"),
            Advice("t_ppo", "unfinished attempts train the policy already", "rollouts"),
            Advice("v0", "attempts go to the tasks that promise contrast", "rollouts"),
            Advice("r1v2_ssb", "rollouts that teach nothing are made up for by stored ones", "over_behaviour"),
        ),
    ),
    "no labels": Symptom(
        "there are questions but no answers to check against",
        ("unlabelled tasks", "no verifier", "test time training", "majority vote", "self training"),
        (
            Advice("ttrl", "the group's majority answer is the label", "vote"),
            Advice(
                "empo", "an answer is paid its share of the group, in groups that are neither sure nor lost", "vote"
            ),
            Advice("ttrv", "an answer is paid its share of the group", "vote"),
        ),
    ),
    "teams": Symptom(
        "several agents share one outcome",
        ("multi agent", "roles", "agent credit", "solver and verifier"),
        (
            Advice("dr_mas", "each agent is measured against its own calls in the group", "rollouts"),
            Advice("at_grpo", "a group is one agent's candidates at one turn", "rollouts"),
            Advice("ospo", "agents of one kind that act at the same time are the group"),
            Advice("masprm", "a search over who says what values every call", "within"),
        ),
    ),
    "observation ignored": Symptom(
        "the policy answers from habit, whatever it is shown",
        ("ignores images", "ignores the prompt", "perception", "multimodal", "language prior"),
        (
            Advice("vppo", "the tokens that depend on what was shown are trained", "observation"),
            Advice("papo", "a bonus for depending on what was shown", "observation"),
        ),
    ),
}

SICKNESSES: dict[str, tuple[str, ...]] = {  # symptom -> ids of the doctor's, for which remedies were measured
    "all-wrong groups": ("all_wrong",),
    "all-right groups": ("all_right",),
    "entropy collapse": ("entropy_collapse",),
    "length growth": ("length_hack",),
    "noisy rewards": ("reward_noise",),
    "stale data": ("too_off_policy", "stale_sampler"),
    "sampler mismatch": ("sampler_mismatch",),
    "unstable updates": ("lr_too_high",),
}

"""Catalogue of published methods: a module per family, and in it one `Definition` per method.

A method is data: the keys in which it differs from the base, `grpo`. To add one,

1. write it beside its relatives, in `catalogue/FAMILY.py` (`reconstructed/` where only an abstract is known):

       dr_grpo = Definition(
           r\"""Dr. GRPO: GRPO without the std (difficulty bias) and without 1/length (length bias).

           A_i = r_i - mean_g r;   L = mean_i sum_t l_{i,t} / H

           Choices. What the sources leave open, and what was chosen here.
           \""",
           cite="liu2025drgrpo",
           evidence="reference-code",
           code="sail-sg/understand-r1-zero@dfca49d train_zero_math.py",
           keys={"credit.scale": "none", "objective.aggregate": "sequence_sum"},
           paper_defaults={"optim.lr": 1e-6},
       )

   `keys` name parts as they are registered. A part that is missing is written where others can use it too; a function
   of at most 15 lines may be beside the method;
2. add its paper to `methods.bib`, under the key that `cite` names;
3. add its name to the module's line in `_MODULES` below, and to the family's row in docs/methods.md.

tests/methods/test_catalogue.py fails with what is still missing. A user's own methods are files NAME.py in
GXPO_METHODS.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at
from gxpo.parts.definition import Definition, Paper

# module -> its methods, in their order there. Written out, so that only the module of a method in use is imported.
_MODULES = {
    "catalogue.baseline_and_scale": "grpo dr_grpo rloo opo two_grpo mc_grpo maxrl mapo asymre ngrpo dgpo_math remax "
    "pvpo v05 aapo passk pkpo psr_nsr",
    "catalogue.batch_statistics": "reinforce_pp reinforce_pp_baseline gdpo_multi bnpo copo riskpo polychromic ospo gpg",
    "catalogue.difficulty_and_confidence": "a_grae s_grpo seed_grpo adora edge_grpo progrpo xrpo capo_calibration "
    "tw_grpo vital_dgrpo grpo_s",
    "catalogue.tool_calls_and_length": "otc hdpo tool_star ton conciser lc_r1 length_curriculum rlsp fapo "
    "gcpo_geometry pm4grpo",
    "catalogue.reward_design": "grpo_lead lens unlikeliness dra_grpo fgrpr spectral_po multirole carl dpa arspo",
    "catalogue.structured_answers": "asr_grpo speech_grpo table2latex mixed_r1 videochat_r1 lpo_gui vlm_rl_clg",
    "catalogue.agreement": "ttrl empo ttrv ps_grpo",
    "catalogue.judges": "arena_rl heron listener debate_reward meta_po rubric_hacking",
    "catalogue.clips": "ppo dapo gspo gmpo luspo apmpo gppo dhpo fiberpo hapo clip_cov fipo lite_ppo",
    "catalogue.soft_surrogates": "spo_simple r2vpo gbpo dpo_discovered sapo_gate dppo_divergence",
    "catalogue.bounded_weights": "cispo tis topr vespo rec hispo score_centring decoupled_ppo minpro kpo",
    "catalogue.kl_and_entropy": "mdpo grpo_d fg_expo epo aepo",
    "catalogue.token_selection": "d3s cppo gtpo capo_curvature aspo",
    "catalogue.group_and_pair_losses": "gvpo reg_grpo opmd copg disco real dpo trpa nft rover",
    "catalogue.preferences": "simpo ipo kto orpo group_robust_po mnpo step_apo cpl_contrastive dmpo sdpo_segment p3o "
    "refuel",
    "catalogue.self_distillation": "sdpo_self srpo_routing bupo soft_grpo dgpo_distill rpd policy_rollout",
    "catalogue.repeated_states": "gigpo hgpo salt graph_gpo graft",
    "catalogue.critics": "gae t_ppo gae_turn steppo poad archer hiper",
    "catalogue.monte_carlo_values": "vineppo spo_segment vsrm pav var_grpo",
    "catalogue.belief_and_hidden_states": "igpo grpo_vps spae verl_rank hicra avatar_tas",
    "catalogue.scored_steps": "matchtir mt_grpo prorag capo_genprm e_grpo step_grpo_r1vl rank_grpo",
    "catalogue.trees": "tree_grpo tree_rl tree_po arpo_agentic slate rose anytime_brpo deepsearch tree_opo alphamath "
    "masprm",
    "catalogue.plans": "himac pta_grpo thor step_grpo_router",
    "catalogue.trained_models": "poise oprl spa_rl hrm steporlm",
    "catalogue.hints_and_drafts": "scaf_grpo ghpo igrpo search_r2 adhint hill cog_rethinker ipo_safety",
    "catalogue.replay_and_budget": "repo_replay ar3po v0 knapsack_rl pipo r1v2_ssb gcpo_gold luffy tempsamp_r1",
    "catalogue.groups_without_signal": "eframe r3 arpo_gui snapshot_rl",
    "catalogue.task_sampling": "vas cures srpo_history drive",
    "catalogue.phases": "itool step_filter mobile_r1 uav_vl_r1",
    "catalogue.teams": "at_grpo dr_mas critique_rl",
    "catalogue.invocations": "mm_grpo matpo mlpo agentflow hiersearch marft magrpo meta_plan",
    "catalogue.team_credit": "mac_spgg optima sapo_swarm thief_defence eir_mappo",
    "catalogue.masked_observations": "papo vppo",
    "catalogue.parameter_updates": "sfpo trpo seeupo",
    "catalogue.flows": "flow_grpo tempflow_grpo chunk_grpo",
    "catalogue.masked_models": "diffu_grpo coupled_grpo gdpo_dlm dmpo_dlm cj_grpo",
    "catalogue.picture_tokens": "ar_grpo",
    "catalogue.diffusion": "ddpo loop_diffusion dance_grpo mix_grpo hicogen awm dgpo_diffusion diffusion_nft "
    "spo_diffusion vgpo dppo",
    "catalogue.selfplay": "mars_turn search_self_play kairos mars2",
    "catalogue.coordination": "ippo maddpg hasac parco casec",
    "catalogue.worlds_and_banks": "wmpo training_free_grpo compass_latent",
    "catalogue.optimisers": "lion signsgd cautious_lion muon stosignsgd",
    "catalogue.offline_values": "saw dqc mbrcsl",
    "reconstructed.optimisers": "lion_k n_pg_igt",
    "reconstructed.offline_values": "ota dual_rl bcoder",
    "reconstructed.rewards": "sem np_engine ssl_sweet_spot rl_struct uniform_phantom genii rluf reagent_v hi_grpo "
    "multi_objective_grpo",
    "reconstructed.losses": "etr earl power_dl mpo_set",
    "reconstructed.worlds": "world4rl ctrl_world starwm mars_prompt compass_skills mra stepmix tscac veriguard "
    "primal_dual_marl",
    "reconstructed.teams": "mashost collab_ui lca",
    "reconstructed.coordination": "ai_economist conscientia local_opt_marl dpo_decentralised bayes_net_marl toa",
    "reconstructed.sampling": "portool mbma hi_agent erpo craft_gui videorl_select favchat_degrpo mixed_po veripo "
    "bfs_prover_v2 glore scope refcritic sentinel fate",
}


class Catalogue(Mapping[str, Definition]):
    """Mapping of names to definitions: gxpo's own methods, and those of the files in GXPO_METHODS."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._module_of = {name: module for module, names in modules.items() for name in names.split()}
        self._names = sorted(self._module_of)
        self._definition_by_name: dict[str, Definition] = {}
        self._user_definitions: dict[str, Definition] = {}  # by the file's absolute path

    def module_of(self, name: str) -> str:
        """Return the module of one of gxpo's own methods, below `gxpo.methods`: "catalogue.clips"."""
        return self._module_of[name]

    def modules(self) -> list[str]:
        """List the modules of gxpo's own methods, in the order in which they are written down."""
        return list(dict.fromkeys(self._module_of.values()))

    def _files(self) -> dict[str, str]:
        """Return the users' files: method -> absolute path. ConfigError for a file that can't be a method.

        Read from the environment at each call, so that a notebook can set GXPO_METHODS at any time.
        """
        files: dict[str, str] = {}
        for path in filter(None, os.environ.get("GXPO_METHODS", "").split(os.pathsep)):
            name, extension = os.path.splitext(os.path.basename(path))
            if extension != ".py":
                raise ConfigError(f"GXPO_METHODS: {path} is no .py file")
            if not os.path.isfile(path):
                raise ConfigError(f"GXPO_METHODS: there is no file {path} (looked in {os.getcwd()})")
            if name in self._module_of or name in files:
                owner = "of gxpo's own" if name in self._module_of else "of another file"
                raise ConfigError(f"GXPO_METHODS: {path} has the name of a method {owner}: rename file and method")
            files[name] = os.path.abspath(path)
        return files

    def _load_user_file(self, name: str, path: str) -> Definition:
        """Import a user's method from its file, once a path; ConfigError for a file without its Definition."""
        if path not in self._user_definitions:
            try:
                definition = object_at(f"{path}:{name}", always=True)
            except Unusable as error:
                raise ConfigError(f"GXPO_METHODS: {error}") from None
            if not isinstance(definition, Definition) or definition.name not in ("", name):
                raise ConfigError(f"GXPO_METHODS: {path}: {name!r} is no Definition named {name!r}")
            if isinstance(definition.cite, str) and definition.cite:
                raise ConfigError(f"GXPO_METHODS: {path}: cite={definition.cite!r} is a key: give Paper(title=...)")
            self._user_definitions[path] = dataclasses.replace(definition, name=name)
        return self._user_definitions[path]

    def __getitem__(self, name: str) -> Definition:
        files = self._files()
        if name in files:
            return self._load_user_file(name, files[name])
        if name not in self._definition_by_name:
            module = importlib.import_module(f"{__name__}.{self._module_of[name]}")
            definition: Definition = getattr(module, name)
            self._definition_by_name[name] = dataclasses.replace(
                definition, name=definition.name or name, papers=PAPERS
            )
        return self._definition_by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files() or name in self._module_of

    def __iter__(self) -> Iterator[str]:
        return iter([*self._names, *self._files()])

    def __len__(self) -> int:
        return len(self._names) + len(self._files())


class _Papers(Mapping[str, Paper]):
    """Entries of methods.bib by key; the file is read when the first entry is used, so not to compose a method."""

    def _entries(self) -> Mapping[str, Paper]:
        from gxpo.methods.bibliography import papers

        return papers()

    def __getitem__(self, key: str) -> Paper:
        return self._entries()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())


PAPERS = _Papers()
METHODS = Catalogue(_MODULES)

"""Moved to `gxpo_worlds.frozenlake`; this name resolves for one release."""

from gxpo.envs.moved import moved

moved(__name__)

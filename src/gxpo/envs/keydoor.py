"""Moved to `gxpo_worlds.keydoor`; this name resolves for one release."""

from gxpo.envs.moved import moved

moved(__name__)

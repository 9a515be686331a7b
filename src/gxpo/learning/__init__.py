"""Learners: hold the policy's parameters and optimise them. Import them from their files: `gxpo.learning.torch`."""

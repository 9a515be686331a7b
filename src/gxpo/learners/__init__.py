"""Who holds the policy's parameters and moves them. Learners are imported from their files: `gxpo.learners.torch`."""

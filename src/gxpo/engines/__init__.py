"""Inference engines: sample tokens. Import them from their files: `gxpo.engines.torch.TorchEngine`."""

"""The forward pass of the common decoder family, written for trees: unique tokens in a flat list, nothing padded.

Runs on the parameters of a transformers model, which stays as it is: `gxpo.decoder.forward.Decoder`.
"""

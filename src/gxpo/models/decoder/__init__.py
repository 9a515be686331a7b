"""Forward pass of Llama-like decoders for token trees: unique tokens in a flat list, no padding.

Runs on the parameters of a transformers model, which stays as it is: `gxpo.models.decoder.forward.Decoder`.
"""

"""The typed face: the servicers of `puna.v1.Inference`, keys of its calls, and what is recorded of them."""

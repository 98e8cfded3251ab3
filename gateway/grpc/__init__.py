"""The typed face: the servicer of `puna.v1.Inference`, and keys of its calls."""

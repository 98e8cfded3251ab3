"""Shared kernel: values that several services speak of, and the one codec that carries them between processes."""

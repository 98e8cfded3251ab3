"""One answer among many: its prompt, its slot, its samples, its text, its end. Pure."""

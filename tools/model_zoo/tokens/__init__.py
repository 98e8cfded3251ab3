"""The zoo's tokenizers: trained at build time from one small text, the same way every time."""

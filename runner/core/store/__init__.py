"""The model store, as values: names, digests, manifests and what is made of them."""

"""Official clients, unchanged, against a real cluster. One table of cases; tools/conformance runs all of it."""

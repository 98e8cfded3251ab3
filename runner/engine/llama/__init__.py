"""A model and a context of llama.cpp, behind checks."""

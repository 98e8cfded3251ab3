"""The demo model: a small llama that this project trains itself, so that a fresh clone can answer at once."""

"""Real clients against a whole cluster without a network; writes its part of docs/compatibility.md."""

"""`make bench-engine`: the runner's gRPC against llama-server's HTTP; see bench/METHODOLOGY.md."""

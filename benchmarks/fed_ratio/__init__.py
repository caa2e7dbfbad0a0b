"""How much of its own speed a training step keeps when a loader feeds it; see benchmarks/README.md."""

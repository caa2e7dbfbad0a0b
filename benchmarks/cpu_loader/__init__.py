"""wellfed's loader on the CPU beside the loaders people use; see benchmarks/README.md."""

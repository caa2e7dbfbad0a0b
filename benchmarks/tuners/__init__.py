"""wellfed's tuner beside what people do today to choose a loader and a batch size; see benchmarks/README.md."""

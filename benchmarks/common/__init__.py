"""What the benchmarks share: photos to work on, commands to run, memory of process trees, paired ratios."""

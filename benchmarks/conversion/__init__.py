"""How fast `wellfed convert` is beside tar, LMDB and the image libraries; see benchmarks/README.md."""

"""What benchmarks share: run folders, steady load, a trivial function, watches."""

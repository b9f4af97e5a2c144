"""What benchmarks share: a running pipeline, replays, steady load, watches, learnt policies, run folders, options,
tables, the last line."""

"""What benchmarks share: a running pipeline, replays, steady load, watches, run folders, options, tables, the last
line."""

"""Images of ``benchmarks.live_scaling`` that lack what is measured: workers that share nothing, or start from nothing.

Each module is an image's entry and calls the real worker; nothing outside the benchmark may use them.
"""

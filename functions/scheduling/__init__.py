"""Which instance prefills and which decodes a request: Arrow's scheduler and the simpler rules it is compared with.

Only computes: no clock, files or network. Times are given by the caller, in seconds of any one clock.
"""

"""Reads metrics: from a Prometheus server, or by scraping the targets directly. Both give the same readings.

Never here: judgement about scale, or changes of anything. Missing and old data is reported, not filled in.
"""

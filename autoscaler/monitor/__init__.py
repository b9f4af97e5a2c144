"""Reads metrics: from a Prometheus server, or by scraping the targets directly. No judgement about scale."""

"""Serving a function: HTTP server, host of a pipeline's nodes, settings, weights, readiness, drain, metrics."""

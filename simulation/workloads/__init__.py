"""Workloads: a pipeline with its prices, its SLO, its call times and its routing; the paper's and custom ones."""

"""Placement of experts by Janus and Prism next to EPLB and optima."""

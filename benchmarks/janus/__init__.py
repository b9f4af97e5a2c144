"""Janus next to whole-model scaling."""

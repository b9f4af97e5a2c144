"""Measuring a pipeline's functions under real limits, through the protocol in ``target``."""

"""Attacks on a gateway on loopback; see ``__main__``."""

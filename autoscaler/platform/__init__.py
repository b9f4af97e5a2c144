"""Platforms: the only code that changes functions. Which change, is not decided here."""

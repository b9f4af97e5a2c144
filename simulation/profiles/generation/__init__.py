"""Profiles of decoders: what prompts and decodes take a running instance, measured by its clients."""

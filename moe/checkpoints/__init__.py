"""Reading source checkpoints: Hugging Face folders and seeded weights, as the tensors of our nodes.

Each family has a reader that proves the configuration (what it cannot honour it refuses with a sentence,
never ignores) and hands out one node's tensors at a time under this project's names. Nothing here computes a
model.
"""

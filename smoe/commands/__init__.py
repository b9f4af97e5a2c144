"""Sub-commands of ``smoe`` that belong to no single room. No logic of their own beyond joining rooms."""

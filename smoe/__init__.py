"""The entry room: the ``smoe`` command line, which joins all other rooms.

It holds no model mathematics, no scaling logic and no server; nothing imports it except tests and benchmarks.
"""

__version__ = "0.2.0"

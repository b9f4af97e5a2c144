"""Readers of trace formats, one module a format; :mod:`traces.loading` is the door to all of them.

A reader turns a published file, as it was published (packed or not), into requests in bounded memory and names
what is wrong with a damaged one by file, line and rule. It must never repair, guess or reorder silently, draw
random numbers except where its docstring states that the format leaves times open, or know patterns, splits or
commands.
"""

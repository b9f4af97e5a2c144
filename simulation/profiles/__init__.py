"""Profiles: what a pipeline's functions cost on a machine, measured, and a latency model fitted to that.

``run`` measures real replicas under real limits through a gateway, ``storage`` keeps the measurement as a small parquet
file, ``fit`` makes a model of it, ``surface`` draws it. This room must never invent a number: a point that could not be
measured is a row that states so, and a profile of another pipeline or machine is refused. It knows the gateway only
through the protocol in ``target``; ``smoe lab profile`` joins the two.
"""

"""The application of an expert function: its nodes' programs behind one host. Which ones: ``smoe_nodes``."""

from __future__ import annotations

from functions.serving.nodes import node_application as application

__all__ = ["application"]

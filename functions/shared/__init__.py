"""What every function needs: wire format, HTTP server, client, dispatch, instruments.

Knows nothing of scaling policies, and of model mathematics only that a node is a program from tensors to tensors.
"""

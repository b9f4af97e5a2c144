"""The gateway's backend and the controller's platform against an API server.

Always run against the double; with ``SMOE_TEST_KUBECONFIG=FILE`` against that cluster too, in a namespace of its own
that is made and removed. Pods need no containers: kubelets may be faked, so nothing here calls a function.
"""

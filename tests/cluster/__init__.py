"""The gateway's backend and the controller's platform against an API server, seen in the objects that it keeps.

Always run against the double, with kubelets and without; with ``SMOE_TEST_KUBECONFIG=FILE`` against that cluster too,
as the contract suites are, in namespaces of their own that are made and removed. Pods need no containers: kubelets may
be faked or absent, so nothing here calls a function. ``SMOE_TEST_IMAGE=IMAGE`` names what they run where they do: an
image that the cluster has, which answers ``/`` and ``/_/health`` on 8080 with 200 and logs a line with ``/`` for each
call (of-watchdog with ``fprocess=cat`` does).
"""

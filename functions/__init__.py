"""What runs inside a function: ingress, segment, expert.

The same handlers serve in a container (Flask behind the of-watchdog) and as a local worker of the process backend.
This room may use ``moe``; it never imports the gateway, the controller or learning code.
"""

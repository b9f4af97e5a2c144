"""Secrets as files that only a function's own workers read: stored with mode 0600, mounted where OpenFaaS has them.

Values must never appear in a log, in an error or in an environment.
"""

"""Errors of profiles.

ProfileError
├── ProfileMismatchError   the profile is of another pipeline or machine
└── MeasurementError       the platform did not do what a measurement needs
"""

from __future__ import annotations


class ProfileError(Exception):
    """Base; the command line prints the sentence."""


class ProfileMismatchError(ProfileError):
    """A profile of something else than what it is wanted for; the sentence names the difference."""


class MeasurementError(ProfileError):
    """A replica did not start, vanished, or answered with an error."""

"""The gateway's backends and the controller's platforms on a double of the API server."""

from __future__ import annotations

from functools import cache

from kubernetes_validate import utils

from tests.doubles.kubernetes.fixtures import backends as backends
from tests.doubles.kubernetes.fixtures import double as double
from tests.doubles.kubernetes.fixtures import platforms as platforms

utils.schema_contents = cache(utils.schema_contents)  # otherwise megabytes are parsed for every object
utils.all_versions = cache(utils.all_versions)

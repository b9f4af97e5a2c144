#!/bin/sh
# In the place of of-watchdog, where it is not given: the function itself on the container's port.
export smoe_host=0.0.0.0 smoe_upstream_port=8080
exec $fprocess

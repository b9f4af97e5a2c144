"""The double as a program of its own: ``python -m tests.doubles.kubernetes FILE``.

Serves an empty cluster and writes a kubeconfig for it to FILE. Ends when its standard input does, so with its parent.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.kubeconfig import write_kubeconfig
from tests.doubles.kubernetes.running import running


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--kubelet/--no-kubelet", default=True, help="Whether pods become ready by themselves, or never do.")
def main(file: Path, kubelet: bool) -> None:
    """Serve a cluster until standard input ends; FILE becomes its kubeconfig."""
    cluster = Cluster()
    cluster.hold_starts = not kubelet
    with running(lambda: cluster) as double:
        write_kubeconfig(file, double.url)
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""Run the notebooks headless: ``python -m notebooks.execute`` writes their outputs, ``--check`` compares them.

They share a kernel that forgets everything between two of them, as starting one takes longer than most notebooks. What
hangs on the machine is left out of what is stored (times, versions), so running again changes nothing. A check compares
text exactly and pictures by their pixels, as libraries of other machines may round a pixel otherwise.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import nbformat as untyped
import numpy as np
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

nbformat: Any = untyped
HERE = Path(__file__).parent
LIMIT_S = 120
PIXEL = 2.0 / 255
"""Mean difference of two pictures that counts as none."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
PNG = "image/png"
FORGET = """
import sys
import matplotlib.pyplot
matplotlib.pyplot.close("all")
matplotlib.rcdefaults()
for module in ("drawing", "stored"):
    sys.modules.pop(module, None)
get_ipython().reset(new_session=True)
"""
"""What the kernel executes before a notebook: nothing is left of the last one, and cells count from 1."""


def run(path: Path, manager: KernelManager) -> Any:
    """The notebook with the outputs of a fresh run on :func:`kernel`. Raises nbclient's CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FORGET))
    client = NotebookClient(
        notebook, km=manager, timeout=LIMIT_S, record_timing=False, resources={"metadata": {"path": str(HERE)}}
    )
    try:
        client.execute(cleanup_kc=False)
    finally:
        client.kc.stop_channels()
    notebook.cells.pop(0)
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def differences(stored: Any, fresh: Any) -> list[str]:
    """What a reader of the stored notebook would see otherwise than in the fresh one."""
    changes = []
    for number, (one, other) in enumerate(zip(stored.cells, fresh.cells, strict=True)):
        if one.cell_type != "code":
            continue
        if [_without_picture(output) for output in one.outputs] != [
            _without_picture(output) for output in other.outputs
        ]:
            changes.append(f"the text below cell {number}")
        elif not all(map(_same_picture, _pictures(one), _pictures(other))):
            changes.append(f"the picture below cell {number}")
    return changes


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """A kernel for :func:`run`: sockets in a folder of its own instead of the network, nobody's settings."""
    import matplotlib.font_manager  # noqa: F401  (makes its cache, whose making would be an output of the first one)

    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        connection = Path(folder) / "k"
        manager = KernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(connection), ip=str(connection)
        )
        given = {"IPYTHONDIR": folder, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield manager
        finally:
            if manager.has_kernel:
                manager.shutdown_kernel(now=True)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _without_picture(output: Any) -> dict[str, Any]:
    """An output without its picture's bytes."""
    plain = dict(output)
    if "data" in plain:
        plain["data"] = {kind: "" if kind == PNG else text for kind, text in plain["data"].items()}
    return plain


def _pictures(cell: Any) -> list[str]:
    return [output.data[PNG] for output in cell.outputs if PNG in output.get("data", {})]


def _same_picture(one: str, other: str) -> bool:
    if one == other:
        return True
    from matplotlib.image import imread

    pixels = [imread(io.BytesIO(base64.b64decode(text))) for text in (one, other)]
    return pixels[0].shape == pixels[1].shape and float(np.abs(pixels[0] - pixels[1]).mean()) <= PIXEL


@click.command()
@click.argument("names", nargs=-1)
@click.option("--check", is_flag=True, help="Compare with what is stored, and write nothing.")
def main(names: Sequence[str], check: bool) -> None:
    """Run NAMES (figure-07, notebooks/figure-07.ipynb, …), or all notebooks of this folder."""
    stored_names = sorted(path.stem for path in HERE.glob("*.ipynb"))
    chosen = [Path(name).name.removesuffix(".ipynb") for name in names] or stored_names
    if unknown := [name for name in chosen if name not in stored_names]:
        raise click.UsageError(f"{unknown[0]} is no notebook of {HERE}; there are {', '.join(stored_names)}")
    stale = False
    with kernel() as manager:
        for path in [HERE / f"{name}.ipynb" for name in chosen]:
            stored, fresh = nbformat.read(path, as_version=4), run(path, manager)
            changes = differences(stored, fresh)
            stale |= bool(changes)
            click.echo(f"{path.name}: {', '.join(changes) or 'as stored'}")
            if not check:
                nbformat.write(fresh, path)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()

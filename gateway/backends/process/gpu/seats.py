"""Tenths of this machine's GPUs: who has reserved which, who holds which now, and how a replica is bound to its own.

A function with n tenths has a seat of n tenths on one GPU for each desired replica. Two sums never exceed ten on a
GPU: that of the seats promised (so what does not fit is refused when it is asked for), and that of the seats held by
processes (so a new replica waits, or takes the place of an old one, while those that leave still compute). A seat whose
replica goes away for good is *leaving*: promised to nobody any more, and held until that process is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.contract import ConflictError
from platform_words.resources import GPU_TENTHS, MPS_MEMORY, MPS_PERCENTAGE


@dataclass(frozen=True)
class Gpu:
    """A GPU that functions may share. ``memory_mib`` counts MiB."""

    uuid: str
    name: str
    memory_mib: int


@dataclass(eq=False)
class _Seat:
    function: str
    gpu: int
    tenths: int
    holder: str = ""
    """Id of the replica that holds it; empty while none does."""
    leaving: bool = False


class Seats:
    """The book of all seats. Pure: no process, no device. Methods are called on the event loop."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        self._seats: list[_Seat] = []
        self._desired: dict[str, int] = {}
        self._waiting: dict[str, Callable[[], None]] = {}

    def reserve(self, function: str, tenths: int, replicas: int, *, replace_all: bool = False) -> None:
        """Seats for ``replicas`` of ``tenths`` each (0: none). ``replace_all``: none of the present ones stays.

        A seat goes where a process can have it at once, and of those GPUs where the least is left over (best fit).
        Raises ConflictError, and nothing has changed then.
        """
        held = [seat for seat in self._seats if seat.function == function and not seat.leaving]
        kept = [] if replace_all else [seat for seat in held if seat.tenths == tenths]
        free = [seat for seat in kept if not seat.holder]
        surplus = free[: max(0, len(kept) - replicas)]
        kept = [seat for seat in kept if seat not in surplus]
        missing = max(0, replicas - len(kept)) if tenths else 0
        going = [seat for seat in held if seat not in kept]
        # Before anything changes: it raises where the seats do not fit.
        added = self._fitted(function, tenths, missing, replicas, going)
        for seat in going:
            seat.leaving = True
        self._seats = [seat for seat in self._seats if seat.holder or not seat.leaving] + added
        self._desired[function] = replicas if tenths else 0
        self._waiting.pop(function, None)
        self._wake()

    def hold(self, function: str, replica: str, again: Callable[[], None]) -> Gpu | None:
        """Give ``replica`` a promised seat whose tenths are free now; else None, and ``again`` is called later."""
        for seat in self._seats:
            promised = seat.function == function and not seat.holder and not seat.leaving
            if promised and self._held(seat.gpu) + seat.tenths <= GPU_TENTHS:
                seat.holder = replica
                self._waiting.pop(function, None)
                return self.gpus[seat.gpu]
        self._waiting[function] = again
        return None

    def drains(self, replica: str) -> None:
        """``replica`` is on its way out by order; its seat is needed no more once it is gone."""
        for seat in self._seats:
            if seat.holder == replica and not seat.leaving:
                seat.leaving = self._promised(seat.function) > self._desired.get(seat.function, 0)

    def gone(self, replica: str) -> None:
        """The process of ``replica`` has ended. A seat that its function still needs is free for another of its."""
        for seat in [seat for seat in self._seats if seat.holder == replica]:
            seat.holder = ""
            if seat.leaving or self._promised(seat.function) > self._desired.get(seat.function, 0):
                self._seats.remove(seat)
        self._wake()

    def forget(self, function: str) -> None:
        """The function is deleted; what its replicas hold is free when they are gone."""
        self.reserve(function, 0, 0)
        del self._desired[function]

    def promised(self, gpu: Gpu) -> int:
        """Tenths of ``gpu`` that are promised."""
        return self._sum(self.gpus.index(gpu), ())

    def held(self, gpu: Gpu) -> int:
        """Tenths of ``gpu`` that processes hold now."""
        return self._held(self.gpus.index(gpu))

    def _fitted(self, function: str, tenths: int, missing: int, replicas: int, going: Sequence[_Seat]) -> list[_Seat]:
        # Promised and held are counted apart: a seat that is leaving is promised to nobody, but its process holds it.
        left = [GPU_TENTHS - self._sum(gpu, going) for gpu in range(len(self.gpus))]
        before = tuple(left)
        now = [GPU_TENTHS - self._held(gpu) for gpu in range(len(self.gpus))]
        added = []
        for _ in range(missing):
            fits = [gpu for gpu, room in enumerate(left) if room >= tenths]
            if not fits:
                raise ConflictError(
                    f"{function} would need {tenths} tenths of a GPU for each of {replicas} replicas, {missing} more "
                    f"than now; each replica's share lies on one GPU, and left over are "
                    + (", ".join(f"{room} tenths of {gpu.uuid}" for gpu, room in zip(self.gpus, before, strict=True)))
                )
            # First a GPU whose tenths are free now: elsewhere the new process would wait until an old one has ended.
            best = min(fits, key=lambda gpu: (now[gpu] < tenths, left[gpu]))
            left[best] -= tenths
            now[best] -= tenths
            added.append(_Seat(function, best, tenths))
        return added

    def _sum(self, gpu: int, without: Sequence[_Seat]) -> int:
        """Tenths promised on one GPU, some seats left out."""
        return sum(seat.tenths for seat in self._seats if seat.gpu == gpu and not seat.leaving and seat not in without)

    def _held(self, gpu: int) -> int:
        return sum(seat.tenths for seat in self._seats if seat.gpu == gpu and seat.holder)

    def _promised(self, function: str) -> int:
        return sum(seat.function == function and not seat.leaving for seat in self._seats)

    def _wake(self) -> None:
        """Something may have become free: those that waited look again."""
        waiting, self._waiting = self._waiting, {}
        for again in waiting.values():
            again()


def binding(gpu: Gpu, tenths: int) -> Mapping[str, str]:
    """Variables that bind a process to its tenths of ``gpu``, read by CUDA when the process first uses it.

    MPS: a percentage of the threads, and that part of the memory. With one GPU visible, by its UUID, it is the
    process's device 0.
    """
    return {
        "smoe_device": "cuda",
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        MPS_PERCENTAGE: str(100 * tenths // GPU_TENTHS),
        MPS_MEMORY: f"0={gpu.memory_mib * tenths // GPU_TENTHS}M",
    }

"""Keys and values of texts under way, in pages: what lets a decoder's segment compute only a text's new tokens.

A page holds ``PAGE_TOKENS`` tokens of one text for every attention of the segment, so a text of n tokens takes
ceil(n / PAGE_TOKENS) pages in every segment. The pages are bounded in bytes, and nothing is evicted: a call that
does not find enough is refused whole, before anything is computed. Which shapes an attention keeps is found by running
the program once, so families know nothing of the cache.

A call states how many tokens of a text the segment has seen. Fewer than it has: the rest is dropped and computed again,
so a call that was interrupted may simply be repeated. More than it has: the text is not here, :class:`CacheMissError`.

A new text may begin with the whole pages of another one that is here, its parent: both hold them, and neither writes
them again. They are free once nobody holds them; on the host the memory of pages that stay free can be released.

Whole pages can be read, and written as a new text's at another worker's segment: how a text moves between instances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf, prod
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from threading import Lock

import torch
from torch import Tensor

from moe import kv_bytes
from moe.errors import CacheFullError, CacheMissError
from moe.families.attention import attend, attend_causally
from moe.families.packing import HOST, Packing

PAGE_TOKENS = kv_bytes.PAGE_TOKENS


@dataclass(frozen=True)
class KvShape:
    """What one attention keeps for a token: ``[kv_heads, head_dim]`` of keys and of values; None: they are the keys."""

    key: tuple[int, ...]
    value: tuple[int, ...] | None
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return (prod(self.key) + (0 if self.value is None else prod(self.value))) * self.dtype.itemsize


@dataclass(slots=True)
class _Text:
    """One text's pages in order, how many tokens they hold, and when they were used last."""

    pages: list[int] = field(default_factory=list)
    tokens: int = 0
    used_s: float = 0.0


class PageCache:
    """The pages of one segment. Bookkeeping may be called from any thread; one computation runs at a time."""

    def __init__(
        self,
        shapes: Sequence[KvShape],
        limit_bytes: int,
        device: torch.device = HOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit_bytes`` bounds keys and values together; memory is touched when a page is first used."""
        self.bytes_per_token = sum(shape.bytes_per_token for shape in shapes)
        self.pages = limit_bytes // (self.bytes_per_token * PAGE_TOKENS) if shapes else 0
        self._free = list(range(self.pages - 1, -1, -1))
        self._holders = [0] * self.pages
        self._texts: dict[int, _Text] = {}
        self._lock = Lock()
        self._clock = clock
        self._freed_s = [inf] * self.pages
        """Since when a page is free; infinite where its memory is untouched or released."""
        self._memory: list[tuple[mmap, int]] = []
        """What tensors on the host lie in, and a page's bytes there."""
        self._layers: list[tuple[Tensor, Tensor]] = []
        for shape in shapes:
            keys = self._room(shape.key, shape.dtype, device)
            self._layers.append((keys, keys if shape.value is None else self._room(shape.value, shape.dtype, device)))

    @property
    def used_pages(self) -> int:
        return self.pages - len(self._free)

    @property
    def texts(self) -> int:
        """How many texts have pages."""
        return len(self._texts)

    def begin(
        self, sequences: Sequence[int], starts: Sequence[int], lengths: Sequence[int], parents: Sequence[int]
    ) -> PagedPast:
        """Take the pages that ``lengths`` more tokens need, for all texts or for none. ``parents``: whose pages a text
        that is new here begins with, -1: nobody's. Raises CacheMissError, CacheFullError."""
        if not self._layers:  # no pages, but a worker has to know that texts go on here
            with self._lock:
                for sequence in sequences:
                    self._texts.setdefault(sequence, _Text()).used_s = self._clock()
            return PagedPast((), starts, lengths, [])
        with self._lock:
            held = [self._held(*one) for one in zip(sequences, starts, parents, strict=True)]
            if None in held:
                raise CacheMissError(f"{held.count(None)} of {len(held)} texts have no keys and values here.")
            wanted = [-(-(start + length) // PAGE_TOKENS) for start, length in zip(starts, lengths, strict=True)]
            short = sum(wanted) - sum(pages for pages in held if pages is not None)
            if short > len(self._free):
                raise CacheFullError(f"{short} more pages are needed, {len(self._free)} of {self.pages} are free.")
            texts = [self._text(*one) for one in zip(sequences, starts, parents, strict=True)]
            for text, count in sorted(zip(texts, wanted, strict=True), key=lambda pair: pair[1] - len(pair[0].pages)):
                self._resize(text, count)  # those that give pages back come first
            for text, start, length in zip(texts, starts, lengths, strict=True):
                text.tokens, text.used_s = start + length, self._clock()
            return PagedPast(self._layers, starts, lengths, [list(text.pages) for text in texts])

    def free(self, sequences: Sequence[int]) -> int:
        """Give the pages of these texts back; returns how many of the texts were here."""
        with self._lock:
            freed = [text for s in sequences if (text := self._texts.pop(s, None)) is not None]
            for text in freed:
                self._resize(text, 0)
        return len(freed)

    def free_unused(self, idle_s: float) -> int:
        """Free texts that no call was for in ``idle_s``: whoever asked for them is gone. Returns how many."""
        before_s = self._clock() - idle_s
        with self._lock:
            idle = [sequence for sequence, text in self._texts.items() if text.used_s < before_s]
        return self.free(idle)

    def release(self, idle_s: float, most_bytes: int) -> int:
        """Give the memory of pages back to the system that have been free for ``idle_s``, about ``most_bytes`` of it at
        once, as that takes time; returns of how many pages. Memory of other devices stays."""
        if not self._memory:
            return 0
        before_s = self._clock() - idle_s
        most = max(1, most_bytes // (self.bytes_per_token * PAGE_TOKENS))
        with self._lock:
            idle = sorted(page for page in self._free if self._freed_s[page] <= before_s)[:most]
            for page in idle:
                self._freed_s[page] = inf
            for first, end in _runs(idle):
                for memory, page_bytes in self._memory:
                    begin = -(-first * page_bytes // PAGESIZE) * PAGESIZE
                    size = end * page_bytes // PAGESIZE * PAGESIZE - begin
                    if size > 0:
                        memory.madvise(MADV_DONTNEED, begin, size)
        return len(idle)

    def read(self, sequence: int, first: int, count: int) -> Tensor:
        """Pages ``first … first + count`` of a text, ``[count, page_bytes / 4] int32``: of each attention all keys,
        then all values. Raises CacheMissError where it has fewer."""
        with self._lock:
            text = self._texts.get(sequence)
            if text is None or not 0 <= first < first + count <= len(text.pages):
                raise CacheMissError(f"pages {first} to {first + count} of a text are not here.")
            text.used_s = self._clock()
            pages = torch.tensor(text.pages[first : first + count])
        parts = [_by_page(kept)[pages].view(count, -1).view(torch.int32) for kept in self._tensors()]
        return torch.cat(parts, 1).cpu() if parts else torch.empty(count, 0, dtype=torch.int32)

    def write(self, sequence: int, first: int, tokens: int, data: Tensor) -> None:
        """Append pages ``[count, page_bytes / 4]`` that ``read`` gave elsewhere to a text that has ``first`` pages,
        none where it is new here. ``tokens``: how many the text has with them.

        Raises CacheMissError where it has another number of pages, CacheFullError, and ValueError for ``data`` of
        another shape."""
        count, kept = data.shape[0], self._tensors()
        sizes = [PAGE_TOKENS * one[0].numel() * one.dtype.itemsize // 4 for one in kept]
        if data.shape[1] != sum(sizes) or -(-tokens // PAGE_TOKENS) != first + count:
            raise ValueError(f"{tokens} tokens after page {first} are no pages of shape {list(data.shape)}.")
        if not kept:
            return
        with self._lock:
            text = self._texts.get(sequence)
            if first != (0 if text is None else len(text.pages)):
                raise CacheMissError(f"a text has not the {first} pages here that others are to follow.")
            if count > len(self._free):
                raise CacheFullError(f"{count} more pages are needed, {len(self._free)} of {self.pages} are free.")
            if text is None:
                text = self._texts[sequence] = _Text()
            self._resize(text, first + count)
            text.tokens, text.used_s = tokens, self._clock()
            pages = torch.tensor(text.pages[first:])
        for one, part in zip(kept, data.split_with_sizes(sizes, 1), strict=True):
            slots = _by_page(one)
            slots[pages] = part.contiguous().view(one.dtype).view(count, *slots.shape[1:]).to(one.device)

    def _room(self, row: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """``[slots, …]``, whose memory is the system's until it is written."""
        shape = (self.pages * PAGE_TOKENS, *row)
        if device != HOST or not prod(shape):
            return torch.empty(shape, dtype=dtype, device=device)
        memory = mmap(-1, prod(shape) * dtype.itemsize, MAP_PRIVATE | MAP_ANONYMOUS)
        self._memory.append((memory, PAGE_TOKENS * prod(row) * dtype.itemsize))
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def _tensors(self) -> list[Tensor]:
        """Keys and values ``[slots, …]`` of every attention, once where both are the same."""
        return [one for keys, values in self._layers for one in ((keys,) if values is keys else (keys, values))]

    def _held(self, sequence: int, start: int, parent: int) -> int | None:
        """Pages that a text has once it goes on from ``start``; None where it cannot."""
        text = self._texts.get(sequence)
        if text is not None:
            shared = start < text.tokens and self._holders[text.pages[start // PAGE_TOKENS]] > 1
            return None if start > text.tokens or shared else len(text.pages)
        if not start:
            return 0
        donor = self._texts.get(parent)
        if donor is None or start > donor.tokens or start % PAGE_TOKENS:
            return None
        return start // PAGE_TOKENS

    def _text(self, sequence: int, start: int, parent: int) -> _Text:
        """A text that ``_held`` has passed."""
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text()
            if start:
                donor = self._texts[parent]
                donor.used_s = self._clock()
                text.pages = donor.pages[: start // PAGE_TOKENS]
                for page in text.pages:
                    self._holders[page] += 1
        return text

    def _resize(self, text: _Text, count: int) -> None:
        while len(text.pages) < count:
            page = self._free.pop()
            self._holders[page] = 1
            text.pages.append(page)
        if len(text.pages) > count:
            for page in text.pages[count:]:
                self._holders[page] -= 1
                if not self._holders[page]:
                    self._free.append(page)
                    self._freed_s[page] = self._clock()
            self._free.sort(reverse=True)  # low numbers first, so that a text's pages tend to lie side by side
            del text.pages[count:]


class PagedPast:
    """The past of one call's texts (:class:`moe.families.packing.Past`)."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> None:
        """``tables``: each text's pages in order."""
        self.starts = starts
        self._lengths = lengths
        self._layers = iter(layers)
        if not layers:
            return
        device = layers[0][0].device
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        places = [_places(table, end) for table, end in zip(tables, ends, strict=True)]
        new = [one[start:] for one, start in zip(places, starts, strict=True)]
        self._new = _index(new[0] if len(new) == 1 else torch.cat([_tensor(one) for one in new]), device)
        """[T]: where the new tokens' keys and values go."""
        self._all = [_index(one, device) for one in places]
        """[B]: where those of all of a text's tokens are."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None, sinks: Tensor | None
    ) -> Tensor:
        """As :meth:`moe.families.packing.Past.attend`, ``[T, heads * head_dim]``."""
        keys, values = next(self._layers)  # [slots, Hk, D] each
        keys[self._new] = k
        if values is not keys:
            values[self._new] = v
        if len(self._all) == 1:
            slots = self._all[0]
            return attend_causally(
                q[None], keys[slots][None], values[slots][None], self.starts[0], scale, window, sinks
            ).reshape(q.shape[0], -1)
        parts = []
        texts = zip(q.split_with_sizes(list(self._lengths)), self.starts, self._all, strict=True)
        for one_q, start, slots in texts:
            y = attend_causally(
                one_q[None], keys[slots][None], values[slots][None], start, scale, window, sinks
            )  # [1, t, H, D]
            parts.append(y.reshape(one_q.shape[0], -1))
        return torch.cat(parts)  # [T, H*D]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and end of each run of consecutive numbers, which are in order."""
    for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0]):
        members = [number for _, number in run]
        yield members[0], members[-1] + 1


def _by_page(kept: Tensor) -> Tensor:
    """A view ``[pages, PAGE_TOKENS, …]`` of ``[slots, …]``."""
    return kept.view(-1, PAGE_TOKENS, *kept.shape[1:])


def _places(table: Sequence[int], count: int) -> range | Tensor:
    """Where the first ``count`` tokens of a text with these pages lie, ``[count]``; a range where they are in a row."""
    first = table[0]
    if list(table) == list(range(first, first + len(table))):
        return range(first * PAGE_TOKENS, first * PAGE_TOKENS + count)
    return (torch.tensor(table)[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).view(-1)[:count]


def _tensor(places: range | Tensor) -> Tensor:
    return torch.arange(places.start, places.stop) if isinstance(places, range) else places


def _index(places: range | Tensor, device: torch.device) -> slice | Tensor:
    """An index of the first axis; a slice, and so a view in place of a copy, where the places are in a row."""
    return slice(places.start, places.stop) if isinstance(places, range) else places.to(device)


class ShapeRecorder:
    """A past that keeps nothing and notes what each attention would keep."""

    def __init__(self) -> None:
        self.starts: Sequence[int] = (0,)
        self.shapes: list[KvShape] = []

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None, sinks: Tensor | None
    ) -> Tensor:
        """As :meth:`moe.families.packing.Past.attend`, of one text without a past: ``[T, heads * head_dim]``."""
        self.shapes.append(KvShape(tuple(k.shape[1:]), None if v is k else tuple(v.shape[1:]), k.dtype))
        packing = Packing([q.shape[0]], q.device)
        return attend(q, k, v, packing, packing, causal=True, scale=scale, window=window, sinks=sinks)

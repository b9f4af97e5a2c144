"""Finished texts whose pages stay for texts that begin like them: system prompts, and conversations that go on.

A page is known by a hash of all tokens up to its end, so equal hashes mean equal keys and values. Only whole pages are
shared. Kept texts go oldest first when pages are wanted, or after ``KEEP_S``; never one whose pages a text under way or
another kept one has.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from functions.generation.texts import Text

KEEP_S = 90.0
"""Less than the time after which a worker frees a text that no call was for."""


@dataclass(slots=True)
class _Kept:
    """A finished text: the pages that are its alone, whose it began with, and how many began with its own."""

    pages: int
    parent: int
    hashes: list[bytes]
    used_s: float
    dependents: int = 0


class Prefixes:
    """What one instance keeps."""

    def __init__(self, page_tokens: int) -> None:
        self.pages = 0
        """Pages held for nobody who is under way."""
        self._page_tokens = page_tokens
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._page: dict[bytes, tuple[int, int]] = {}
        """Hash → the text that has this page, and how many pages it has up to its end."""

    def find(self, tokens: Sequence[int], now_s: float) -> tuple[int, int]:
        """The kept text that shares most pages with ``tokens``, and how many; at least one token is left over. (-1, 0)
        where none does."""
        best = (-1, 0)
        for value in self._hashes(tokens, (len(tokens) - 1) // self._page_tokens):
            if value not in self._page:
                break
            if now_s - self._kept[self._page[value][0]].used_s < KEEP_S:
                best = self._page[value]
        return best

    def use(self, text: Text, parent: int, pages: int) -> None:
        """Have a new text begin with so many pages of a kept one. To segments it counts as used again with the
        text's first pass (``renew``)."""
        kept = self._kept[parent]
        text.parent, text.shared_pages, text.kept = parent, pages, pages * self._page_tokens
        text.passed_s = kept.used_s
        kept.dependents += 1

    def renew(self, text: Text) -> None:
        """A text's pass began at ``passed_s``: segments keep what it began with from then on."""
        kept = self._kept.get(text.parent)
        if kept is not None and text.kept == text.shared_pages * self._page_tokens:
            kept.used_s = text.passed_s
            self._kept.move_to_end(text.parent)

    def pinned(self, parents: Iterable[int]) -> int:
        """Pages that stay as long as texts that began with those of ``parents`` do."""
        texts: set[int] = set()
        for parent in parents:
            while parent in self._kept and parent not in texts:
                texts.add(parent)
                parent = self._kept[parent].parent
        return sum(self._kept[text].pages for text in texts)

    def leave(self, text: Text) -> None:
        """A text under way goes without being kept."""
        self._let_go(text.parent)

    def keep(self, text: Text) -> bool:
        """Keep a text that is not under way any more, unless others have all its whole pages. Whether it is kept; else
        ``leave`` was done."""
        whole = text.kept // self._page_tokens
        hashes = list(self._hashes(text.tokens, whole))
        new = [value for value in hashes if value not in self._page]
        if not new:
            self.leave(text)
            return False
        own_pages = -(-text.kept // self._page_tokens) - text.shared_pages
        self._kept[text.kv_id] = _Kept(own_pages, text.parent, new, text.passed_s)
        self.pages += own_pages
        for place, value in enumerate(hashes, 1):
            self._page.setdefault(value, (text.kv_id, place))
        return True

    def oldest(self, before_s: float = float("inf")) -> int | None:
        """Give the text up that was used longest ago, before ``before_s``: its id, to be freed. None: there is none."""
        for kv_id, kept in self._kept.items():
            if not kept.dependents and kept.used_s < before_s:
                del self._kept[kv_id]
                self.pages -= kept.pages
                for value in kept.hashes:
                    del self._page[value]
                self._let_go(kept.parent)
                return kv_id
        return None

    def all_ids(self) -> list[int]:
        """Every kept text."""
        return list(self._kept)

    def _let_go(self, parent: int) -> None:
        if parent in self._kept:
            self._kept[parent].dependents -= 1

    def _hashes(self, tokens: Sequence[int], pages: int) -> list[bytes]:
        values, before = [], b""
        for page in range(pages):
            part = array("q", tokens[page * self._page_tokens : (page + 1) * self._page_tokens])
            before = blake2b(before + part.tobytes(), digest_size=16).digest()
            values.append(before)
        return values

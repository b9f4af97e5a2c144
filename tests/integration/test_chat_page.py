"""The page at ``/ui/chat`` in Chromium, in front of a real gateway and pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.client.state import read_gateway_address
from moe.manifest import load
from moe.reference import WholeModel
from tests.doubles.generation import generate
from tests.integration.test_generation import state, used_pages  # noqa: F401
from tests.unit.gateway.browser import CHROMIUM, Tab, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
]
STOPPED = "document.getElementById('stop').disabled"


async def enter(tab: Tab, state: Path) -> None:  # noqa: F811
    """Through the login form to the page."""
    password = (state / "secrets" / "basic-auth-password").read_text().strip()
    await tab.open(f"{read_gateway_address(state)}/ui/chat")
    await tab.until("location.pathname === '/ui/login' && document.querySelector('[name=password]') !== null")
    await tab.script(f"document.querySelector('[name=password]').value = {password!r}; document.forms[0].submit()")
    await tab.until("location.pathname === '/ui/'")
    await tab.open(f"{read_gateway_address(state)}/ui/chat")
    await tab.until("document.getElementById('state')?.textContent === 'ready'")


async def say(tab: Tab, words: str, most: int) -> None:
    await tab.script(
        f"document.getElementById('temperature').value = 0; document.getElementById('most').value = {most};"
        f"document.getElementById('prompt').value = {words!r}; document.getElementById('composer').requestSubmit()"
    )


async def shown(tab: Tab, selector: str) -> Any:
    return await tab.script(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


async def test_an_answer_streams_with_the_experts_of_each_token_and_can_be_stopped(
    state: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = state / "pipelines" / "tiny"
    manifest = load(folder)
    experts = [len(manifest.experts(layer)) for layer in range(manifest.layers)]
    async with browser(tmp_path / "profile") as tab:
        await enter(tab, state)
        assert await shown(tab, "#model option") == ["tiny"]
        await tab.until(f"document.querySelectorAll('.spot').length === {sum(experts)}")
        await say(tab, "hello", 12)
        await tab.until(f"{STOPPED} && document.querySelector('.message.assistant .end')")
        wanted = generate(WholeModel(folder), ["user: hello\nassistant:"], 12)[0].text
        words = "[...document.querySelectorAll('.message.assistant .token')].map((one) => one.textContent).join('')"
        assert await tab.script(words) == wanted
        assert (await shown(tab, "#count"))[0].strip() == "12"
        assert len(await shown(tab, ".spot.chosen")) == manifest.layers * manifest.router.top_k
        count = "Number(one.title.match(/: (\\d+)/)[1])"
        counted = f"[...document.querySelectorAll('.spot')].reduce((sum, one) => sum + {count}, 0)"
        assert await tab.script(counted) == 12 * manifest.layers * manifest.router.top_k
        kept = used_pages(state)
        await say(tab, "and on", 3000)
        await tab.until("Number(document.getElementById('count').textContent) > 20")
        assert "tokens/s" in (await shown(tab, "#speed"))[0]
        await tab.script("document.querySelector('.row').click()")  # coloured by the first layer's expert
        assert await tab.script("document.querySelector('.token').style.backgroundColor") != ""
        await tab.script("document.getElementById('stop').click()")
        await tab.until(STOPPED)
        assert (await shown(tab, ".message.assistant:last-child .end")) == ["stopped"]
        await tab.script("document.getElementById('clear').click()")
        assert await shown(tab, ".message") == []
        assert tab.exceptions == []
    while used_pages(state) > kept + 20:  # the stopped text's pages are freed; those of finished ones are kept
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "cleared",
    ["document.getElementById('clear').click()", "document.getElementById('model').dispatchEvent(new Event('change'))"],
    ids=["clear", "another-model"],
)
async def test_clearing_within_an_answer_stops_it_and_the_next_one_is_whole(
    state: Path,  # noqa: F811
    tmp_path: Path,
    cleared: str,
) -> None:
    async with browser(tmp_path / "profile") as tab:
        await enter(tab, state)
        await say(tab, "and on", 3000)
        await tab.until("Number(document.getElementById('count').textContent) > 5")
        await tab.script(cleared)
        assert await shown(tab, ".message") == []
        assert await tab.script(STOPPED)
        await say(tab, "hello", 4)
        await tab.until(f"{STOPPED} && document.querySelector('.message.assistant .end')")
        assert (await shown(tab, "#count"))[0].strip() == "4"
        assert len(await shown(tab, ".message")) == 2
        assert tab.exceptions == []


async def test_a_failure_is_shown_as_the_sentence_that_it_is(state: Path, tmp_path: Path) -> None:  # noqa: F811
    async with browser(tmp_path / "profile") as tab:
        await enter(tab, state)
        await say(tab, "hello", 99_999)
        await tab.until("document.querySelector('.message.assistant .end.bad')")
        (words,) = await shown(tab, ".message.assistant .end")
    assert "maximum context length is 4096 tokens" in words

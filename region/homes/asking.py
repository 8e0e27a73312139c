"""One region asked about many streams: in pages that every frame can carry, and with an answer for each stream.

Rule 1: a page is bounded by its bytes, both ways, before it is sent: a table has up to a thousand epochs, and what is
        over the limit of a frame would end the link, again and again.
Rule 2: whatever goes wrong with a page is the answer of its streams: a GeorelayError, to be asked about again or told.
        Nothing of it ends the task that asks.
Rule 3: once a page was not answered, those that were not sent yet are not sent: a region that is silent costs one wait.
        A region of which every broker answered that it can say nothing about the streams of a page is not silent.
Rule 4: what a broker could not answer is asked once more without the rest: of a question of which it can answer nothing
        it says so (region.homes.agent), and the next broker of its region is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from georelay.errors import GeorelayError, NotLeader, TooLarge, Unavailable
from georelay.fields import FieldError
from georelay.ids import RegionNumber, StreamKey
from georelay.limits import MIB
from mesh.replication.frames import REQUEST_BODY_BYTES_MAX, FrameError
from region.homes.home_requests import (
    ANSWER_ROW_BYTES_MAX,
    ASKED_ROW_BYTES_MAX,
    WAVE_STREAMS_MAX,
    Asked,
    Told,
    asked_json,
    is_for_another_broker,
    read_answers,
)
from region.homes.ports import AskRegion

PAGE_BYTES_MAX: Final = MIB // 2  # of a question: reading it must not hold a broker's loop for long
PAGES_AT_ONCE: Final = 4  # to one region
ASK_TIMEOUT_S: Final = 5.0
_MS_PER_S: Final = 1_000
_ENVELOPE_BYTES: Final = 1_000
assert ASKED_ROW_BYTES_MAX + _ENVELOPE_BYTES <= PAGE_BYTES_MAX <= REQUEST_BODY_BYTES_MAX
assert WAVE_STREAMS_MAX * ANSWER_ROW_BYTES_MAX + _ENVELOPE_BYTES <= REQUEST_BODY_BYTES_MAX


def pages(asked: Iterable[Asked]) -> Iterator[list[Asked]]:
    """Cut a question into pages of at most WAVE_STREAMS_MAX streams and PAGE_BYTES_MAX bytes of JSON."""
    page: list[Asked] = []
    left = PAGE_BYTES_MAX - _ENVELOPE_BYTES
    for row in asked:
        if page and (row.bytes_max > left or len(page) == WAVE_STREAMS_MAX):
            yield page
            page, left = [], PAGE_BYTES_MAX - _ENVELOPE_BYTES
        page.append(row)
        left -= row.bytes_max
    if page:
        yield page


class RegionAsker:
    """Asks one region, for one round: what it did not answer is asked anew in the next one.

    Args:
        timeout_s: of one page; `wait_ms` of the question comes on top.
    """

    def __init__(self, region: RegionNumber, ask: AskRegion, *, timeout_s: float = ASK_TIMEOUT_S) -> None:
        self._region = region
        self._ask = ask
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(PAGES_AT_ONCE)
        self._silence: GeorelayError | None = None  # what a page was answered as a whole

    async def about(self, method: str, asked: Sequence[Asked], *, wait_ms: int = 0) -> dict[StreamKey, Told]:
        """Return an answer or a fault for every stream."""
        told: dict[StreamKey, Told] = {}
        answers = (self.page(method, page, wait_ms=wait_ms) for page in pages(asked))
        for answered in await asyncio.gather(*answers):
            told.update(answered)
        return told

    async def page(self, method: str, page: Sequence[Asked], *, wait_ms: int = 0) -> dict[StreamKey, Told]:
        """Return an answer or a fault for every stream of one page."""
        async with self._slots:
            told = await self._page(method, page, wait_ms=wait_ms)
            left = [row for row in page if is_for_another_broker(told[row.key])]
            if len(left) < len(page) and left:
                told |= await self._page(method, left, wait_ms=0)
        return told

    async def _page(self, method: str, asked: Sequence[Asked], *, wait_ms: int) -> dict[StreamKey, Told]:
        keys = [row.key for row in asked]
        if self._silence is not None:
            return dict.fromkeys(keys, self._silence)
        fault: GeorelayError
        try:
            timeout_s = self._timeout_s + wait_ms / _MS_PER_S
            raw = await self._ask(self._region, method, asked_json(asked, wait_ms=wait_ms), timeout_s=timeout_s)
            answers = read_answers(method, raw, asked=keys)
        except (NotLeader, Unavailable) as error:
            return dict.fromkeys(keys, error)
        except GeorelayError as error:
            fault = error
        except FrameError as error:
            fault = TooLarge(f"{method} to region {self._region}: {error}")
        except FieldError as error:
            fault = Unavailable(f"region {self._region} answered {method} oddly: {error}")
        else:
            missing = Unavailable(f"region {self._region} left the stream out of its answer to {method}")
            return {key: answers.get(key, missing) for key in keys}
        self._silence = fault
        return dict.fromkeys(keys, fault)

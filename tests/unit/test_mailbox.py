"""The mailbox: what workers that die, run out of memory or answer late may do to a job."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from isoloss.run.mailbox import MOST_DELIVERIES, STOP, Mailbox

JOB, NEXT_JOB = {"key": "a"}, {"key": "b"}


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 10))


def test_a_job_is_delivered_and_finished() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.next(5))
        await mailbox.put(JOB)
        assert await waiting == JOB
        await mailbox.points("a", [{"step": 0}])
        assert (await mailbox.news(0.01)).points == [{"step": 0}]
        assert (await mailbox.news(0.01)).points == []
        await mailbox.finished("a")
        assert (await mailbox.news(5)).state == "finished"
        assert await mailbox.next(0.01) is None

    run(story())


def test_an_idle_worker_hears_nothing_and_then_stop() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        assert await mailbox.next(0.01) is None
        waiting = asyncio.create_task(mailbox.next(5))
        await mailbox.stop()
        assert await waiting == STOP

    run(story())


def test_workers_that_die_get_the_job_again_and_then_it_is_lost() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        for _ in range(MOST_DELIVERIES):
            assert await mailbox.next(1) == JOB
        await mailbox.failed("a", "lost", "RuntimeError: broken")
        assert (await mailbox.news(0.01)).state is None
        assert await mailbox.next(1) is None
        news = await mailbox.news(1)
        assert news.state == "lost"
        assert "RuntimeError: broken" in news.reason
        await mailbox.put(NEXT_JOB)
        assert await mailbox.next(1) == NEXT_JOB

    run(story())


def test_out_of_memory_ends_the_job_at_once() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        await mailbox.next(1)
        await mailbox.failed("a", "out_of_memory", "16 GB")
        assert (await mailbox.news(1)).state == "out_of_memory"
        assert await mailbox.next(0.01) is None

    run(story())


def test_news_of_an_earlier_job_do_not_touch_the_next() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        await mailbox.next(1)
        await mailbox.finished("a")
        await mailbox.put(NEXT_JOB)
        await mailbox.finished("a")
        await mailbox.failed("a", "out_of_memory", "late")
        await mailbox.points("a", [{"step": 9}])
        news = await mailbox.news(0.01)
        assert news.state is None
        assert news.points == []

    run(story())

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
        assert await mailbox.next(0.01) == STOP

    run(story())


def test_idle_workers_leave_after_a_while_or_when_told() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        assert await mailbox.next(0.01) == STOP
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


def test_a_trial_that_gets_farther_each_time_is_not_given_up() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        for step in range(10):  # a machine is lost at each step
            assert await mailbox.next(1) == JOB
            await mailbox.points("a", [{"step": step}])
        for _ in range(MOST_DELIVERIES):  # it always dies in the same place
            assert await mailbox.next(1) == JOB
            await mailbox.points("a", [{"step": 5}, {"step": 9}])
        assert await mailbox.next(1) is None
        assert (await mailbox.news(1)).state == "lost"

    run(story())


def test_out_of_memory_ends_the_job_at_once() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        await mailbox.next(1)
        await mailbox.failed("a", "out_of_memory", "16 GB")
        assert (await mailbox.news(1)).state == "out_of_memory"
        assert await mailbox.next(0.01) == STOP

    run(story())


def test_a_pause_ends_a_job_once_its_workers_have_saved_it() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        assert await mailbox.next(1) == JOB
        asked = asyncio.create_task(mailbox.pausing())
        assert (await mailbox.news(0.01)).state is None
        assert not asked.done()
        await mailbox.pause()
        assert await asked
        assert (await mailbox.news(0.01)).state is None, "the workers have not saved it yet"
        await mailbox.points("a", [{"step": 9}])
        await mailbox.paused("a")
        news = await mailbox.news(1)
        assert (news.state, news.points) == ("paused", [{"step": 9}])
        assert await mailbox.next(1) == STOP

    run(story())


def test_a_pause_does_not_wait_for_workers_that_never_came_or_came_again() -> None:
    async def story() -> None:
        waiting = Mailbox()
        await waiting.put(JOB)
        await waiting.pause()
        assert (await waiting.news(1)).state == "paused"
        restarted = Mailbox()
        await restarted.put(JOB)
        assert await restarted.next(1) == JOB
        await restarted.pause()
        assert await restarted.next(1) == STOP
        assert (await restarted.news(1)).state == "paused"
        await restarted.put(NEXT_JOB)
        assert (await restarted.news(1)).state == "paused"

    run(story())


def test_a_job_that_finishes_although_a_pause_was_asked_for_is_finished() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put(JOB)
        await mailbox.next(1)
        await mailbox.pause()
        await mailbox.finished("a")
        assert (await mailbox.news(1)).state == "finished"

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

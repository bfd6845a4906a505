"""How a boundary search went, in words: how much of the space may be wrong, and why the search stopped."""

from __future__ import annotations

from isoloss.config.search import Boundary
from isoloss.search.boundary.course import Course

MOST_CHECKS = 10


def share(value: float) -> str:
    """Return a volume or a probability with two significant digits."""
    return f"{value:.2g}"


def volume_in_words(course: Course, search: Boundary) -> str:
    """Return how the share of the space that the map is expected to have wrong fell, at the last checks."""
    if not course.checks:
        return f"not known yet; aims at {search.tolerance:g}"
    falls = ", ".join(f"{share(check.error_volume)} at {check.trials}" for check in course.checks[-MOST_CHECKS:])
    of = "" if course.reason is not None else f" of at most {course.most}"
    return f"{falls}{of} trials; aims at {search.tolerance:g}"


def why_stopped(course: Course, search: Boundary) -> str:
    """Return why a search stopped, or that it has not."""
    if course.reason == "known":
        return (
            f"the map is known: at three checks in a row, the share expected to be wrong was at most "
            f"{search.tolerance:g} and the median width of the ends' intervals at most {search.width:g}"
        )
    if course.reason == "limited by noise":
        return (
            "limited by noise: at three checks in a row, twice as many trials as before had not lowered what is still "
            "too high (the share expected to be wrong, else the width of the ends' intervals) by a fifth"
        )
    if course.reason == "spent":
        return f"the budget of {course.most} trials is spent"
    return f"not decided yet: {course.finished} of at most {course.most} trials are finished"

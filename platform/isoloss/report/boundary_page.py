"""What stands below a boundary's figure: what is measured and what inferred, and the bands in words."""

from __future__ import annotations

import html

from isoloss.config.search import Boundary
from isoloss.report import boundary_words, words
from isoloss.report.bodies import notes, states_legend
from isoloss.report.boundary_drawing import Drawing


def boundary_body(drawn: Drawing) -> str:
    """Return what stands below a boundary's figure: what its marks, lines and colours mean, and the bands in words."""
    study, found = drawn.study, drawn.found
    search = study.search
    assert isinstance(search, Boundary)
    names = words.axis_names(study)
    finished = found.course.finished
    said = [
        boundary_words.summary(found, search),
        "Measured: each dot is one finished trial, one seed of one cell; its symbol is its outcome. Inferred from "
        f"these {finished} trials by two Gaussian processes: colours, lines and bands. A colour is the probability "
        "that a trial there with another seed converges.",
    ]
    if found.table is not None:
        said.append(
            "The solid line is where half of the seeds converge (the median seed), the dashed one where "
            f"{boundary_words.MOST_SEEDS} do. Their 90% intervals are the band around the one and the bars across the "
            "other in the map, and the bars beside it. An open triangle is an end that is only a bound: the band runs "
            "into the end of the range. A grey column is a place where the band is closed, with that probability."
        )
    seeds = " Seeds of one cell lie beside each other." if study.replicates > 1 and not drawn.down.free else ""
    said.append(
        f"The order of the trials tells their even start (diamonds, the first {found.start}) from what the search "
        f"placed (circles).{seeds} The last part is the share of the space that the map of so many trials was expected "
        f"to have on the wrong side of the boundary; the search aims at {search.tolerance:g}."
    )
    if drawn.held:
        held = words.combination(names, drawn.held)
        said.append(f"Colours and lines are those at {held}; dots also differ in these axes; point at one to see.")
    if drawn.every > len(drawn.panels):
        said.append(f"The first {len(drawn.panels)} of {drawn.every} panels are drawn; boundary.parquet holds more.")
    body = states_legend(study, (dot["state"] for dot in drawn.dots)) + notes(said)
    if found.table is None:
        return body
    lines = boundary_words.band_lines(study, found.table)
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'{body}<h2>Bands</h2><ul class="bands">{items}</ul>{notes([boundary_words.how_read()])}'


def boundary_in_words(drawn: Drawing) -> str:
    """Return a boundary's figure in words."""
    study, found = drawn.study, drawn.found
    assert isinstance(study.search, Boundary)
    lines = [] if found.table is None else boundary_words.band_lines(study, found.table)
    over = " and ".join(words.axis_names(study)[path] for path in study.axes)
    start = f"Probability that another seed converges, over {over}: {boundary_words.summary(found, study.search)}"
    return " ".join([start, *lines])

"""The section of a boundary search: its figure, what is measured and what inferred, and the bands in words."""

from __future__ import annotations

from isoloss.config.search import Boundary
from isoloss.report import boundary_words, words
from isoloss.report.bodies import notes, said_list, states_legend
from isoloss.report.boundary_drawing import Drawing
from isoloss.report.boundary_figure import boundary_figure
from isoloss.report.page import Drawing as Figure
from isoloss.report.page import Section
from isoloss.report.tables import measure_table

IN_TABLE = (
    "Level is the share of seeds that converge; closed, islands and bound are probabilities: that no learning rate "
    "has that share, that more than one stretch has, and that the band runs into that end of the range. Fringe is in "
    "decades where the axis is logarithmic. Intervals are at 90 %."
)


def boundary_section(drawn: Drawing) -> Section:
    """Return a boundary's figure, what its marks, lines and colours mean, and the bands in words."""
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
    figure = Figure(boundary_figure(drawn).to_plotly_json(), boundary_in_words(drawn))
    parts: list[str | Figure] = [figure, states_legend(study, (dot["state"] for dot in drawn.dots)), notes(said)]
    if found.table is not None:
        lines = boundary_words.band_lines(study, found.table)
        listed = measure_table(study, found.table, "Bands of learning rates that converge", "boundary.parquet")
        parts += [
            "<h3>Bands</h3>",
            said_list(lines),
            notes([boundary_words.how_read()]),
            f"<details><summary>The bands as a table</summary>{listed}{notes([IN_TABLE])}</details>",
        ]
    return Section("Boundary of convergence", parts)


def boundary_in_words(drawn: Drawing) -> str:
    """Return a boundary's figure in words."""
    study, found = drawn.study, drawn.found
    assert isinstance(study.search, Boundary)
    lines = [] if found.table is None else boundary_words.band_lines(study, found.table)
    over = " and ".join(words.axis_names(study)[path] for path in study.axes)
    start = f"Probability that another seed converges, over {over}: {boundary_words.summary(found, study.search)}"
    return " ".join([start, *lines])

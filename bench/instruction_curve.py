"""Draws the kept figures of `run_instructions` over the commits: `python -m bench.instruction_curve FILE`.

FILE may end with .svg or .png. One picture for each role, one line for each number of clients; compiled
figures are dashed. Groups are the usual ones, so that only the code differs from point to point.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.instruction_figures import CLIENTS, ROLES, Figure, at_usual_groups, read


def draw(figures: Sequence[Figure], file: Path) -> None:
    """The curve of these figures, oldest first."""
    # Loaded here: the other benchmarks run without it.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    commits = list(dict.fromkeys(figure.commit for figure in figures))
    picture, axes = pyplot.subplots(1, len(ROLES), figsize=(12, 5), layout="constrained")
    for role, ax in zip(ROLES, axes, strict=True):
        for kind in sorted({figure.kind for figure in figures}):
            same = [figure for figure in figures if figure.kind == kind]
            usual = [at_usual_groups(figure.cells, role) for figure in same]
            for number, clients in enumerate(CLIENTS):
                shown = [
                    (commits.index(figure.commit), values[clients])
                    for figure, values in zip(same, usual, strict=True)
                    if clients in values
                ]
                ax.plot(
                    [at for at, _ in shown],
                    [value for _, value in shown],
                    marker="o",
                    color=f"C{number}",
                    linestyle="-" if kind[0] == "pure" else "--",
                    label=f"{clients} clients ({', '.join(kind)})",
                )
        ax.set_title(f"{role}: thousand instructions per record")
        ax.set_yscale("log")
        ax.set_xticks(range(len(commits)), commits, rotation=60)
        ax.grid(visible=True, alpha=0.3)
        ax.legend(fontsize="small")
    picture.savefig(file)
    pyplot.close(picture)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    figures = read()
    if not figures:
        raise SystemExit("no figures yet: python -m bench.run_instructions --keep")
    draw(figures, args.file)


if __name__ == "__main__":
    main()

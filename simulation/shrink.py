"""From a failing run to a smaller one that violates the same property: fewer faults, fewer events.

Leaving a fault out changes what happens after it, so a smaller run may fail where a larger one does
not: nothing here is sure to find the smallest, and what it finds does fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simulation.options import Options
from simulation.plan import Planned
from simulation.runner import Run, Task, run_one

ROUNDS_MAX = 4
"""Fewer events may need fewer faults, and the other way round."""


class Shrinker:
    """Holds the smallest failing run that is known so far, also while `shrink` goes on."""

    def __init__(self, run: Run, task: Task) -> None:
        assert run.failure is not None
        self.seed = run.seed
        self.wanted = run.failure.violated
        self.run = run
        self.task = task
        self.tries = 0
        self._show: Callable[[], None] = lambda: None

    def shrink(self, show: Callable[[], None] = lambda: None) -> None:
        """Make it smaller until nothing more can be left out; `show` is called after each try.

        Raises nothing but KeyboardInterrupt.
        """
        self._show = show
        self._try_faults(self.run.begun)
        for _ in range(ROUNDS_MAX):
            before = self.task
            self._drop_kinds()
            self._drop_faults()
            self._cut_events()
            if self.task == before:
                return

    def _drop_kinds(self) -> None:
        for name in sorted({planned.name for planned in self.run.begun}):
            self._try_faults([p for p in self.run.begun if p.name != name])

    def _drop_faults(self) -> None:
        """Delta debugging: leave out ever smaller parts (Zeller and Hildebrandt, 2002)."""
        size = len(self.run.begun)
        while size >= 1:
            # From the end, so that what is left happens early.
            end = len(self.run.begun)
            while end > 0:
                begun, begin = self.run.begun, max(0, end - size)
                self._try_faults([*begun[:begin], *begun[end:]])
                end = begin
            size = min(size, len(self.run.begun) + 1) // 2

    def _cut_events(self) -> None:
        """End the faults as early as can be; bisected as if more events never failed less."""
        options = self.task.options
        too_few, enough = -1, self.run.steps
        if options.steps is not None:
            enough = min(enough, options.steps)
        self._try(replace(options, steps=enough))
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self._try(replace(options, steps=middle), steps_max=self.run.steps):
                enough = middle
            else:
                too_few = middle

    def _try_faults(self, kept: Sequence[Planned]) -> bool:
        numbers = tuple(planned.number for planned in kept)
        if numbers == self.task.options.numbers:
            return False
        return self._try(replace(self.task.options, numbers=numbers))

    def _try(self, options: Options, steps_max: int | None = None) -> bool:
        """Keep these options if a run with them fails alike, and after so many events at most.

        A run whose faults end early may fail all the same but much later: that is no smaller one.
        """
        task = replace(self.task, options=options)
        run = run_one(self.seed, task)
        self.tries += 1
        fails = run.failure is not None and run.failure.violated == self.wanted
        if steps_max is not None and run.steps > steps_max:
            fails = False
        if fails:
            self.task, self.run = task, run
        self._show()
        return fails

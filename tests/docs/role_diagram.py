"""The diagram of the roles in docs/architecture.md, made from the transition table.

`python -m tests.docs.role_diagram --write` puts it into the document; without `--write` it is printed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from quorumd.raft.roles import Role
from quorumd.raft.transitions import TRANSITIONS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
BEGIN = "<!-- roles: made by python -m tests.docs.role_diagram --write -->\n"
END = "<!-- end of roles -->\n"
SHARED_FROM = 4
"""A trigger that leads so many roles to the same one is a sentence, not an arrow from each of them."""


def diagram() -> str:
    """A Mermaid state diagram, and a list of the transitions that most roles share."""
    roles_of = defaultdict(list)
    for (role, trigger), target in TRANSITIONS.items():
        roles_of[trigger, target].append(role)
    shared = {key: roles for key, roles in roles_of.items() if len(roles) >= SHARED_FROM}
    arrows = defaultdict(list)
    for (trigger, target), roles in roles_of.items():
        for role in roles:
            if (trigger, target) not in shared:
                arrows[role, target].append(trigger)
    lines = [
        *("```mermaid", "stateDiagram-v2", "    direction LR"),
        *(
            f"    {role} --> {target}: {' / '.join(triggers)}"
            for (role, target), triggers in arrows.items()
        ),
        *("```", ""),
        *(
            f"* {_names(roles)} → **{target}**: {trigger}"
            for (trigger, target), roles in shared.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _names(roles: list[Role]) -> str:
    others = [role for role in Role if role not in roles]
    if len(others) == 1:
        return f"every role but {others[0]}"
    return ", ".join(roles)


def parts_of(text: str) -> tuple[str, str, str]:
    """What stands before the diagram, the diagram, and what stands after it."""
    before, _, rest = text.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found, after


def _write() -> None:
    before, _, after = parts_of(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(f"{before}{BEGIN}{diagram()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        _write()
    else:
        sys.stdout.write(diagram())

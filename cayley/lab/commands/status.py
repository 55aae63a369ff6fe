"""The command ``cayley status``."""

import json
from argparse import Namespace
from collections import Counter

from cayley.lab.errors import RunError
from cayley.lab.wording import counted

__all__ = ["status"]


def status(options: Namespace) -> int:
    """Show which runs below a folder are done, running, stopped, failed or damaged.

    Stopped runs continue with cayley resume; failed ones would fail again.
    """
    from cayley.lab.runs import find_runs, find_state

    states = [find_state(folder) for folder in find_runs(options.folder)]
    if not states:
        raise RunError(
            f"expected runs below {options.folder}, got none: make some with cayley train"
        )
    for one in states:
        name = one.folder.relative_to(options.folder).as_posix()
        if options.json:
            facts = {"state": one.state, "step": one.step, "steps": one.steps}
            print(json.dumps({"run": name, **facts, "message": one.message}))
        else:
            share = f"{one.step}/{one.steps}" if one.steps else ""
            message = "" if one.message == one.state else one.message
            print(f"{one.state:<8} {share:>15}  {name}{message and f'  ({message})'}")
    if not options.json:
        counts = Counter(one.state for one in states)
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        print(f"{counted(len(states), 'run')}: {words}")
    return 0

"""The script of a Slurm array: a run at each index; submitted again, it resumes them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

__all__ = ["array_script"]

# before the time of a job is over: long enough for a step and a checkpoint
STOP_SECONDS = 120


def array_script(
    commands: Sequence[Sequence[str]],
    logs: Path,
    *,
    at_a_time: int = 0,
    gpus: int = 0,
    cpus: int = 1,
) -> str:
    """What ``sbatch`` takes to run commands, one at each index of an array.

    References:
        The manual of sbatch, on ``--array``, ``--gres`` and ``--signal``.

    Arguments:
        commands: Command lines that do nothing when they are done already.
        logs: An existing folder for what each of them prints.
        at_a_time: How many may run at a time; 0 for as many as Slurm allows.
        gpus: How many each has.
        cpus: How many processors each has.

    Example:
        >>> script = array_script([["echo", "a b"], ["echo", "c"]], Path("/logs"), at_a_time=1)
        >>> print(script)
        #!/bin/bash
        #SBATCH --job-name=cayley
        #SBATCH --array=0-1%1
        #SBATCH --cpus-per-task=1
        #SBATCH --output=/logs/slurm-%a.log
        #SBATCH --open-mode=append
        #SBATCH --signal=B:TERM@120
        # Submit it again to continue: finished runs are skipped, stopped ones resume from their
        # checkpoint. sbatch takes more options before its name: sbatch --time=4:00:00 FILE.
        set -euo pipefail
        case "$SLURM_ARRAY_TASK_ID" in
        0) set -- echo 'a b' ;;
        1) set -- echo c ;;
        *) echo "expected an index from 0 to 1, got $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
        esac
        # in place of the shell: Slurm's SIGTERM is for the run, which writes its checkpoint
        exec "$@"
        <BLANKLINE>
    """
    last = len(commands) - 1
    limit = f"%{at_a_time}" if at_a_time else ""
    # sbatch splits its lines as a shell does, and replaces what follows a single %
    log = f"{logs}".replace("%", "%%") + "/slurm-%a.log"
    lines = [
        "#!/bin/bash",
        "#SBATCH --job-name=cayley",
        f"#SBATCH --array=0-{last}{limit}",
        f"#SBATCH --cpus-per-task={cpus}",
        *([f"#SBATCH --gres=gpu:{gpus}"] if gpus else []),
        f"#SBATCH {shlex.quote(f'--output={log}')}",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{STOP_SECONDS}",
        "# Submit it again to continue: finished runs are skipped, stopped ones resume from their",
        "# checkpoint. sbatch takes more options before its name: sbatch --time=4:00:00 FILE.",
        "set -euo pipefail",
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{index}) set -- {shlex.join(words)} ;;" for index, words in enumerate(commands)),
        f'*) echo "expected an index from 0 to {last}, got $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;',
        "esac",
        "# in place of the shell: Slurm's SIGTERM is for the run, which writes its checkpoint",
        'exec "$@"',
    ]
    return "\n".join((*lines, ""))

"""Runs: the folder that a run writes, reading it, and the machine that it runs on.

=============== ============================================================
``folders``     a folder, held by the process that writes it
``description`` ``run.json``: what was started, on what
``result``      ``result.json``: the numbers
``code``        the source of the user's own modules
``seals``       checksums, and which run a file belongs to
``reading``     folders read, with errors that name the file
``state``       done, running, stopped or failed
``connecting``  the connection of several processes
``sharing``     the folder of a run that several processes train
``machine``     device, precision, threads; facts about them; ``cpu`` its name
``precision``   its names
``engine``      models on a device, in a precision, in several processes
``archive``     runs as they are kept for good
``weights``     trained weights, and ``weights.safetensors`` of an archive
``studies``     ``study.json``: the numbers of a study
``sweeps``      ``sweep.json``: what a sweep searches
``interrupts``  Ctrl-C, SIGTERM and SIGHUP, noted until a loop can stop
=============== ============================================================
"""

from cayley.lab.runs.archive import archive_run, check_archive, thin
from cayley.lab.runs.code import code_words, compare_code, find_code, own_classes
from cayley.lab.runs.description import (
    FORMAT,
    DataPlace,
    MetricInfo,
    RecipeChange,
    RunDescription,
    TrialInfo,
)
from cayley.lab.runs.folders import Mark, Record, RunFolder
from cayley.lab.runs.interrupts import Interrupts
from cayley.lab.runs.machine import (
    GitState,
    Machine,
    MachineFacts,
    describe_machine,
    find_git_state,
    find_versions,
)
from cayley.lab.runs.precision import Precision
from cayley.lab.runs.reading import (
    CRASHED,
    NOT_FINITE,
    THINNED,
    check_format,
    check_metrics,
    explain_damage,
    find_runs,
    is_diverged,
    load_tensors,
    metrics_content,
    parse_json,
    read_edited_run,
    read_metrics,
    read_result,
    read_run,
)
from cayley.lab.runs.result import BestValue, RunResult, SelectedScores
from cayley.lab.runs.seals import Seal
from cayley.lab.runs.sharing import SharedFolder, open_folder
from cayley.lab.runs.state import RunState, State, find_state, is_running
from cayley.lab.runs.studies import (
    STUDY_FILE,
    STUDY_FORMAT,
    STUDY_PICTURE,
    SeedRecord,
    StudyRecord,
    find_studies,
    read_study,
)
from cayley.lab.runs.sweeps import (
    SWEEP_FILE,
    SearchedKey,
    SweepRecord,
    find_optimism,
    find_sweeps,
    read_sweep,
)
from cayley.lab.runs.weights import WEIGHTS_FILE, Weights, pack_weights, read_weights, write_card

__all__ = [
    "CRASHED",
    "FORMAT",
    "NOT_FINITE",
    "STUDY_FILE",
    "STUDY_FORMAT",
    "STUDY_PICTURE",
    "SWEEP_FILE",
    "THINNED",
    "WEIGHTS_FILE",
    "BestValue",
    "DataPlace",
    "GitState",
    "Interrupts",
    "Machine",
    "MachineFacts",
    "Mark",
    "MetricInfo",
    "Precision",
    "RecipeChange",
    "Record",
    "RunDescription",
    "RunFolder",
    "RunResult",
    "RunState",
    "Seal",
    "SearchedKey",
    "SeedRecord",
    "SelectedScores",
    "SharedFolder",
    "State",
    "StudyRecord",
    "SweepRecord",
    "TrialInfo",
    "Weights",
    "archive_run",
    "check_archive",
    "check_format",
    "check_metrics",
    "code_words",
    "compare_code",
    "describe_machine",
    "explain_damage",
    "find_code",
    "find_git_state",
    "find_optimism",
    "find_runs",
    "find_state",
    "find_studies",
    "find_sweeps",
    "find_versions",
    "is_diverged",
    "is_running",
    "load_tensors",
    "metrics_content",
    "open_folder",
    "own_classes",
    "pack_weights",
    "parse_json",
    "read_edited_run",
    "read_metrics",
    "read_result",
    "read_run",
    "read_study",
    "read_sweep",
    "read_weights",
    "thin",
    "write_card",
]

"""Training: from a recipe to a finished run.

=============== =====================================================================
``entry``       train, resume and evaluate runs: what the commands call
``setup``       what a run is made of: task, model, description
``restoring``   a run with its weights; ``samples`` text or sound from its network
``naming``      the names of run folders
``loop``        when to evaluate, record, save and stop; ``timetable`` says when
``learner``     a step: forward, backward, preconditioner, optimizer
``graphs``      steps as CUDA graphs
``shares``      the part of each process in a step; ``agreement`` when they save and stop
``together``    several runs in one process; ``ensemble`` one step of all their networks
``changes``     a run that is extended, or whose recipe was edited after its start
``optimizers``  optimizers, schedules and BNP from the settings of a recipe
``uncompiled``  optimizers that start without the compiler of torch
``evaluation``  scores of a model, and which of them decides
``selection``   which evaluation gives the numbers of a run
``progress``    how far a run is, for the checkpoint
``reporters``   show the progress of a run; ``clock`` the rate and the time left
``tensorboard`` the same for TensorBoard, with diagnostics of the network
``sizing``      the size of a network with a given number of parameters
``estimate``    how long runs will take, measured on a few steps of some of them
=============== =====================================================================
"""

from cayley.lab.training.entry import evaluate, resume, score_run, train
from cayley.lab.training.estimate import Estimate, estimate_run, estimate_runs
from cayley.lab.training.naming import run_folder
from cayley.lab.training.reporters import Quiet, Reporter, choose_reporter, choose_reporters, title
from cayley.lab.training.restoring import RestoredRun, load_model, restore_run
from cayley.lab.training.samples import has_samples, write_samples
from cayley.lab.training.setup import (
    RunSettings,
    build_task,
    initial_model,
    reads_files,
    restore_settings,
)
from cayley.lab.training.shares import check_batch
from cayley.lab.training.sizing import fit_hidden
from cayley.lab.training.tensorboard import TensorBoard, check_tensorboard
from cayley.lab.training.together import Member, train_together

__all__ = [
    "Estimate",
    "Member",
    "Quiet",
    "Reporter",
    "RestoredRun",
    "RunSettings",
    "TensorBoard",
    "build_task",
    "check_batch",
    "check_tensorboard",
    "choose_reporter",
    "choose_reporters",
    "estimate_run",
    "estimate_runs",
    "evaluate",
    "fit_hidden",
    "has_samples",
    "initial_model",
    "load_model",
    "reads_files",
    "restore_run",
    "restore_settings",
    "resume",
    "run_folder",
    "score_run",
    "title",
    "train",
    "train_together",
    "write_samples",
]

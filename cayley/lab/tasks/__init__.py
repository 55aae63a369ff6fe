"""Tasks: what networks are trained on, with batches, loss, metrics and a naive baseline.

==================== =======================================================================
``synthetic``        problems that are generated: adding, copying, denoising
``images``           MNIST, CIFAR-10
``text``             characters and words
``speech``           frames of speech, and scores of sound
``graph``            nodes of a graph
``catalogue``        all of them by name
``batch``, ``task``  the base of all tasks; ``examples``: sets of independent examples
``draws``            random numbers of examples
``prefetching``      batches made ahead of time
``metrics``          scores of batches; ``scoring`` of whole splits
``sources``          data files: found, checked, downloaded
==================== =======================================================================

The packages of tasks import the modules beside them, but not each other.
"""

from cayley.lab.tasks.batch import SPLITS, Batch, Graph, Position, Split
from cayley.lab.tasks.catalogue import TASKS, make_task, task_class
from cayley.lab.tasks.draws import Draws
from cayley.lab.tasks.examples import ExampleTask, chunk_length
from cayley.lab.tasks.metrics import Metric
from cayley.lab.tasks.prefetching import Prefetcher
from cayley.lab.tasks.scoring import score_split
from cayley.lab.tasks.sources import Resource, Source
from cayley.lab.tasks.synthetic import DrawnTask
from cayley.lab.tasks.task import Task

__all__ = [
    "SPLITS",
    "TASKS",
    "Batch",
    "DrawnTask",
    "Draws",
    "ExampleTask",
    "Graph",
    "Metric",
    "Position",
    "Prefetcher",
    "Resource",
    "Source",
    "Split",
    "Task",
    "chunk_length",
    "make_task",
    "score_split",
    "task_class",
]

"""Problems that are generated: adding, copying and denoising."""

from cayley.lab.tasks.synthetic.adding import Adding
from cayley.lab.tasks.synthetic.copying import Copying
from cayley.lab.tasks.synthetic.denoise import Denoise
from cayley.lab.tasks.synthetic.drawn import DrawnTask
from cayley.lab.tasks.synthetic.generated import GeneratedTask

__all__ = ["TASKS", "Adding", "Copying", "Denoise", "DrawnTask", "GeneratedTask"]

# class and settings of each name
TASKS = {"adding": (Adding, {}), "copying": (Copying, {}), "denoise": (Denoise, {})}

"""Speech: predicting frames, and scores of the resulting sound."""

from cayley.lab.tasks.speech.perception import PACKAGES, RATES
from cayley.lab.tasks.speech.speech import Speech

__all__ = ["PACKAGES", "RATES", "TASKS", "Speech"]

# class and settings of each name
TASKS = {"speech": (Speech, {})}

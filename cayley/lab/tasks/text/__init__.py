"""Texts, by characters or by words: the next one is to be predicted."""

from cayley.lab.tasks.text.text import Text

__all__ = ["TASKS", "Text"]

# class and settings of each name
TASKS = {
    "characters": (Text, {"level": "characters"}),
    "words": (Text, {"level": "words"}),
}

"""Texts: predict the next character or word."""

from cayley.lab.tasks.text.text import Text

__all__ = ["TASKS", "Text"]

# class and settings of each name
TASKS = {
    "characters": (Text, {"level": "characters"}),
    "words": (Text, {"level": "words"}),
}

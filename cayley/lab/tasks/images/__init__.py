"""Images of ten classes: MNIST pixel by pixel, CIFAR-10 as rows."""

from cayley.lab.tasks.images.cifar10 import CIFAR10
from cayley.lab.tasks.images.images import Images
from cayley.lab.tasks.images.mnist import MNIST

__all__ = ["CIFAR10", "MNIST", "TASKS", "Images"]

# class and settings of each name
TASKS = {"mnist": (MNIST, {}), "cifar10": (CIFAR10, {})}

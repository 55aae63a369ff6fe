"""Every network of the registry, in every variant that the contract is checked for."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import cayley
from cayley.layers.recurrent import Recurrent

Make = Callable[..., Recurrent]

# further arguments, under the network's name and what is special; each network is there without
# any, too
VARIANTS: dict[str, Mapping[str, Any]] = {
    "RNN-modrelu": {"nonlinearity": "modrelu"},
    "RNN-cayley-relu": {"recurrent": "cayley", "nonlinearity": "relu"},
    "RNN-cayley-layer": {"recurrent": "cayley", "norm": "layer", "affine": False},
    "RNN-atn": {
        "norm": "atn",
        "window": 3,
        "nonlinearity": "modrelu",
        "nonpositive_bias": True,
    },
    "ScoRNN-banded": {"bandwidth": 2, "init": "uniform"},
    "EURNN-fft": {"layers": "fft"},
    "ENRNN-uncoupled": {"coupled": False, "eps": 0.1, "nonlinearity": "relu"},
    "NCGRU-exact-candidate": {"orthogonal": ("candidate",), "order": None},
    "NCGRU-all-tanh": {
        "orthogonal": ("reset", "update", "candidate"),
        "nonlinearity": "tanh",
        "order": 1,
        "refresh_every": 2,
        "refine": False,
    },
    "NCGRU-free": {"orthogonal": ()},
    "LSTM-layer": {"norm": "layer"},
    "LSTM-atn": {"norm": "atn", "window": 3},
    "LSTM-atn-outside": {
        "norm": "atn",
        "window": 9,
        "affine": False,
        "norm_cell": False,
        "bias_inside": False,
    },
    "LSTM-batch": {"norm": "batch"},
    "LSTM-atn-batch": {"norm": "atn", "window": 3, "over": "batch"},
}


def lstm(*sizes: Any, **options: Any) -> Recurrent:
    """LSTMs; those over the batch in evaluation, where examples do not depend on one another."""
    layer = cayley.LSTM(*sizes, **options)
    layer.train("batch" not in (options.get("norm"), options.get("over")))
    with torch.no_grad():  # over the batch γ starts at 0.1, which leaves little to compare
        for name, parameter in layer.named_parameters():
            if name.startswith("gamma"):
                parameter.fill_(1.0)
    return layer


# hidden sizes are 8 throughout, which every pattern can serve
def enrnn(input_size: int, hidden_size: int, *rest: Any, **options: Any) -> Recurrent:
    """ENRNN with as many long-term as short-term units, if there is more than one."""
    short = hidden_size // 2 if isinstance(hidden_size, int) and hidden_size > 1 else 0
    return cayley.ENRNN(input_size, hidden_size - short, short, *rest, **options)


# those that are not made of an input size, a hidden size and a number of layers alone
MAKERS: dict[str, Make] = {"ENRNN": enrnn, "LSTM": lstm}


def maker(name: str) -> Make:
    kind = name.partition("-")[0]
    return partial(MAKERS.get(kind, cayley.layers.NETWORKS[kind]), **VARIANTS.get(name, {}))


NETWORKS = {name: maker(name) for name in (*cayley.layers.NETWORKS, *VARIANTS)}

"""Every network, in every variant that the contract is checked for."""

from collections.abc import Callable

import torch

import cayley
from cayley.layers.recurrent import Recurrent

Make = Callable[..., Recurrent]


def lstm(*, evaluate: bool = False, **own: object) -> Make:
    """LSTMs; those over the batch in evaluation, where examples do not depend on one another."""

    def make(*sizes: int, **options: object) -> Recurrent:
        layer = cayley.LSTM(*sizes, **own, **options).train(not evaluate)
        with torch.no_grad():  # over the batch γ starts at 0.1, which leaves little to compare
            for name, parameter in layer.named_parameters():
                if name.startswith("gamma"):
                    parameter.fill_(1.0)
        return layer

    return make


# hidden sizes are 8 throughout, which every pattern can serve
def enrnn(input_size: int, hidden_size: int, *rest: int, **options: object) -> Recurrent:
    """ENRNN with as many long-term as short-term units, if there is more than one."""
    short = hidden_size // 2 if isinstance(hidden_size, int) and hidden_size > 1 else 0
    return cayley.ENRNN(input_size, hidden_size - short, short, *rest, **options)


NETWORKS: dict[str, Make] = {
    "RNN-tanh": cayley.RNN,
    "RNN-modrelu": lambda *sizes, **options: cayley.RNN(*sizes, nonlinearity="modrelu", **options),
    "RNN-cayley-relu": lambda *sizes, **options: cayley.RNN(
        *sizes, recurrent="cayley", nonlinearity="relu", **options
    ),
    "ScoRNN": cayley.ScoRNN,
    "ScoRNN-banded": lambda *sizes, **options: cayley.ScoRNN(*sizes, bandwidth=2, **options),
    "ScuRNN": cayley.ScuRNN,
    "URNN": cayley.URNN,
    "FullURNN": cayley.FullURNN,
    "EURNN": cayley.EURNN,
    "EURNN-fft": lambda *sizes, **options: cayley.EURNN(*sizes, layers="fft", **options),
    "ORNN": cayley.ORNN,
    "ExpRNN": cayley.ExpRNN,
    "SpectralRNN": cayley.SpectralRNN,
    "ENRNN": enrnn,
    "ENRNN-uncoupled": lambda *sizes, **options: enrnn(
        *sizes, coupled=False, eps=0.1, nonlinearity="relu", **options
    ),
    "NCGRU": cayley.NCGRU,
    "NCGRU-exact-candidate": lambda *sizes, **options: cayley.NCGRU(
        *sizes, orthogonal=("candidate",), order=None, **options
    ),
    "NCGRU-tanh": lambda *sizes, **options: cayley.NCGRU(
        *sizes, order=1, refresh_every=2, nonlinearity="tanh", **options
    ),
    "NCGRU-free": lambda *sizes, **options: cayley.NCGRU(*sizes, orthogonal=(), **options),
    "LSTM": cayley.LSTM,
    "LSTM-layer": lstm(norm="layer"),
    "LSTM-atn": lstm(norm="atn", window=3),
    "LSTM-atn-outside": lstm(norm="atn", window=9, norm_cell=False, bias_inside=False),
    "LSTM-batch": lstm(norm="batch", evaluate=True),
    "LSTM-atn-batch": lstm(norm="atn", window=3, over="batch", evaluate=True),
}

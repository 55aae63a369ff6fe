"""Every network, in every variant that the contract is checked for."""

from collections.abc import Callable

import cayley
from cayley.layers.recurrent import Recurrent

Make = Callable[..., Recurrent]

# hidden sizes are 8 throughout, which every pattern can serve
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
    "NCGRU": cayley.NCGRU,
    "NCGRU-exact-candidate": lambda *sizes, **options: cayley.NCGRU(
        *sizes, orthogonal=("candidate",), order=None, **options
    ),
    "NCGRU-tanh": lambda *sizes, **options: cayley.NCGRU(
        *sizes, order=1, refresh_every=2, nonlinearity="tanh", **options
    ),
    "NCGRU-free": lambda *sizes, **options: cayley.NCGRU(*sizes, orthogonal=(), **options),
}

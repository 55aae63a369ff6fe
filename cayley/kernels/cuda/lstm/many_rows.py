"""An LSTM without normalisations of more rows than a GPU has multiprocessors.

A block computes two rows, or eight by tensor cores, and a single input is multiplied there: that
takes less than to read what another kernel has made of it.
"""

from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmStates
from cayley.kernels.cuda.lstm.kernels import launch, lstm_kernels
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.memory import readable

__all__ = ["inputs_of", "many_rows_lstm"]


def inputs_of(U: Tensor | None) -> int:
    """1 if the kernels read the input themselves, which is a single number; 0 if they do not.

    Example:
        >>> import torch
        >>> inputs_of(torch.zeros(8, 1)), inputs_of(torch.zeros(8, 2)), inputs_of(None)
        (1, 0, 0)
    """
    return int(U is not None and U.shape[-1] == 1)


def many_rows_lstm(
    call: LstmCall, c: Tensor | None = None, out: LstmStates | None = None
) -> LstmStates | None:
    """The states of a call by blocks of several rows; None if they cannot, or not faster.

    Arguments:
        call: A call that the kernels of :mod:`~cayley.kernels.cuda.lstm.recurrence` do not refuse,
            of one network or of several.
        c: A bias that is added to U x.
        out: Where to write the states; None for new tensors.
    """
    if call.batch_sizes is not None or any(site is not None for site in call.sites()):
        return None
    *networks, B, H = call.h0.shape
    U, inputs, device = call.U, inputs_of(call.U), call.h0.device.index
    kernels = lstm_kernels(H, 1, (False,) * 3, False, call.eps, device, bool(networks))
    found = kernels.many_rows(B, sum(networks), "forward", inputs)
    if found is None:
        return None
    x = call.x if inputs else project_on_cuda(call.x, U, c)
    T = x.shape[-3]
    if out is None:
        shapes = ((T, B, H), (T, B, H), (T, B, 4 * H), *((0,),) * 3)
        out = LstmStates(*(x.new_empty(*networks, *shape) for shape in shapes))
    given = (x, call.h0, call.c0, call.W, call.b, U if inputs else None, c if inputs else None)
    read = given if networks else [readable(tensor) for tensor in given]
    launch(found.kernel, found.blocks, networks, read, (out.h, out.c, out.kept), T, B)
    return out

"""Which utterances of a speech corpus train, validate and test."""

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import SPLITS, Split

__all__ = ["Corpus", "assign_splits"]

Corpus = Literal["timit", "nltk", "fsdd", "own"]

CORE_TEST = frozenset(
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0 "  # noqa: SIM905
    "mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0".split()
)
DEVELOPMENT = frozenset(
    "faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 "  # noqa: SIM905
    "fedw0 mgjf0 mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 "
    "mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 "
    "mteb0 mjfc0 mrjr0 fmml0 mrws1".split()
)
TIMIT = re.compile(r"(?:^|/)(train|test)/dr\d/(\w+)/(\w+)\.wav$")
NLTK = re.compile(r"(?:^|/)(dr\d-\w+)/(\w+)\.wav$")
FSDD = re.compile(r"(?:^|/)\d_\w+_(\d+)\.wav$")


def assign_splits(names: Iterable[str], corpus: Corpus) -> dict[Split, list[str]]:
    """Divide the recordings of a corpus into splits; some may belong to none.

    - ``"timit"``: all training speakers for training, 50 speakers of the test set for validation,
      and the 24 core speakers for testing, without the SA sentences, which every speaker reads:
      3696, 400 and 192 recordings.
    - ``"nltk"``, the sample of TIMIT: an eighth of the speakers for validation and an eighth for
      testing.
    - ``"fsdd"``: the official test set, recordings 0 to 4, and recordings 5 to 9 for validation.
    - ``"own"``: the folders ``train``, ``valid`` and ``test`` if they exist; otherwise an eighth of
      the folders each, or of the files if they are in fewer than three folders.

    Note:
        The published code left out every path that contains "sa", and with it seven speakers.

    Arguments:
        names: Paths with ``/``.
        corpus: The corpus.

    Returns:
        The names of each split, in order.

    Example:
        >>> names = [f"{digit}_ann_{take}.wav" for digit in "01" for take in (3, 7, 9, 21)]
        >>> parts = assign_splits(names, "fsdd")
        >>> parts["test"], parts["train"]
        (['0_ann_3.wav', '1_ann_3.wav'], ['0_ann_21.wav', '1_ann_21.wav'])
    """
    chosen = {"timit": _timit, "nltk": _nltk, "fsdd": _fsdd, "own": _own}[corpus]
    parts: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for name, split in chosen(sorted(names)).items():
        parts[split].append(name)
    return parts


def _timit(names: list[str]) -> dict[str, Split]:
    splits: dict[str, Split] = {}
    for name in names:
        match = TIMIT.search(name.lower())
        if match is None or match[3].startswith("sa"):
            continue
        if match[1] == "train":
            splits[name] = "train"
        elif match[2] in DEVELOPMENT:
            splits[name] = "valid"
        elif match[2] in CORE_TEST:
            splits[name] = "test"
    return splits


def _nltk(names: list[str]) -> dict[str, Split]:
    matches = {name: NLTK.search(name) for name in names}
    return _by_group(
        {name: match[1] for name, match in matches.items() if match and match[2][:2] != "sa"}
    )


def _fsdd(names: list[str]) -> dict[str, Split]:
    takes = {name: int(match[1]) for name in names if (match := FSDD.search(name))}
    return {
        name: "test" if take < 5 else "valid" if take < 10 else "train"
        for name, take in takes.items()
    }


def _own(names: list[str]) -> dict[str, Split]:
    tops = {name: name.partition("/")[0] for name in names}
    named = {name: split for name, top in tops.items() for split in SPLITS if top == split}
    if set(named.values()) == set(SPLITS):
        return named
    folders = {name: name.rpartition("/")[0] for name in names}
    return _by_group(folders if len(set(folders.values())) >= 3 else {name: name for name in names})


def _by_group(groups: dict[str, str]) -> dict[str, Split]:
    # by digest: as good as random, and the same on every machine
    order = sorted(set(groups.values()), key=lambda g: hashlib.sha256(g.encode()).hexdigest())
    if not order:
        return {}
    share = max(1, len(order) // 8)
    if len(order) < 3:
        raise DataError(
            f"expected recordings in at least three groups, for training, validation and testing, "
            f"got {len(order)}: add some, or make folders train, valid and test"
        )
    test, valid = set(order[:share]), set(order[share : 2 * share])
    return {
        name: "test" if group in test else "valid" if group in valid else "train"
        for name, group in groups.items()
    }

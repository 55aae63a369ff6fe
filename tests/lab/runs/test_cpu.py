import pytest

from cayley.lab.runs import cpu
from cayley.lab.runs.cpu import find_cpu, name_of_cpu

ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (
            ("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) @ 2.20GHz\n",),
            "Intel(R) Xeon(R) @ 2.20GHz",
        ),
        (
            ("Architecture: aarch64\nModel name:   Neoverse-N1\n  Model: 1\n", "", ARM),
            "Neoverse-N1",
        ),
        (("Model name: -\n", "", ARM), "ARM implementer 0x41, part 0xd0c"),
        (("", "machdep.cpu.brand_string: Apple M2\n", ""), "Apple M2"),
        (("", "", ""), ""),
    ],
)
def test_every_kind_of_machine_has_a_name(texts: tuple[str, ...], name: str) -> None:
    assert name_of_cpu(*texts) == name


def test_this_machine_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cpu()
    monkeypatch.setattr(cpu, "COMMANDS", (("no-such-command-of-anybody",),))
    assert find_cpu()

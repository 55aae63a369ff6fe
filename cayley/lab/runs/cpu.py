"""The name of the processor, which each kind of machine reports in its own way."""

import platform
import subprocess
from pathlib import Path

__all__ = ["find_cpu", "name_of_cpu"]

CPUINFO = Path("/proc/cpuinfo")
# Linux on ARM reports numbers only, for which lscpu knows the names; the other is for macOS
COMMANDS = (("lscpu",), ("sysctl", "machdep.cpu.brand_string"))


def find_cpu() -> str:
    """The name of this machine's processor; its architecture if nothing names it."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    # commands are run only if that file has no name
    name = name_of_cpu(text) if "model name" in text else name_of_cpu(*map(_output, COMMANDS), text)
    return name or platform.processor() or platform.machine()


def name_of_cpu(*texts: str) -> str:
    r"""The first name of a processor in these texts; empty if there is none.

    Example:
        >>> name_of_cpu("processor : 0\nCPU part : 0xd0c", "Model name:  Neoverse-N1")
        'Neoverse-N1'
        >>> name_of_cpu("processor : 0\nCPU implementer : 0x41\nCPU part : 0xfff")
        'ARM implementer 0x41, part 0xfff'
    """
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    facts: dict[str, str] = {}
    for key, _, value in lines:
        facts.setdefault(key.strip().lower(), value.strip())
    for key in ("model name", "machdep.cpu.brand_string"):
        # lscpu writes - for a name that it does not know
        if facts.get(key, "-") != "-":
            return facts[key]
    if "cpu part" in facts:
        return f"ARM implementer {facts.get('cpu implementer', '?')}, part {facts['cpu part']}"
    return ""


def _output(command: tuple[str, ...]) -> str:
    """What a command prints; nothing if there is no such command."""
    try:
        # in English, whatever the user's language is
        environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError:
        return ""
    return done.stdout

"""The command ``cayley completion``."""

from argparse import Action, Namespace
from typing import Any

from cayley.lab.recipes import setting_keys, tables
from cayley.lab.recipes.views import views

__all__ = ["FILES", "RECIPES", "SETTINGS", "SPACES", "TABLES", "complete", "completion"]

# functions of the shell that complete an argument
RECIPES = {"bash": "_cayley_recipes", "zsh": "_cayley_recipes"}
TABLES = {"bash": "_cayley_tables", "zsh": "_cayley_tables"}
SETTINGS = {"bash": "_cayley_settings", "zsh": "_cayley_settings"}
SPACES = {"bash": "_cayley_spaces", "zsh": "_cayley_spaces"}
FILES = {"bash": "_cayley_files", "zsh": "_files"}
# recipes and spaces of one's own are files
TOML = {
    "bash": 'compgen -f -X \'!*.toml\' -- "$1"; compgen -d -- "$1"',
    "zsh": "_files -g '*.toml'",
}
# a setting is followed by its value: no space after it
NO_SPACE = """
_cayley() {
  _shtab_cayley
  [[ "${COMPREPLY[0]-}" == *= ]] && compopt -o nospace
  return 0
}
complete -o filenames -F _cayley cayley
"""


def complete(action: Action, how: dict[str, str]) -> None:
    """Say how a shell completes an argument; shtab looks for it here."""
    action.complete = how  # pyrefly: ignore[missing-attribute]


def completion(options: Namespace) -> int:
    """Print a script that completes commands, options, recipes, spaces and settings in a shell."""
    import shtab

    from cayley.lab.sweeps import spaces

    entries = [entry for table in tables().values() for entry in table.entries]
    recipes = " ".join(entry.name for entry in entries)
    names = " ".join(dict.fromkeys((*views(), *tables())))
    searches = " ".join(("best", "status", *spaces()))
    settings = " ".join(f"{key}=" for key in ("model.parameters", *setting_keys()))
    if options.shell == "bash":
        functions = (
            f'_cayley_recipes() {{ compgen -W "{recipes}" -- "$1"; {TOML["bash"]}; }}\n'
            f'_cayley_tables() {{ compgen -W "{names}" -- "$1"; }}\n'
            f'_cayley_spaces() {{ compgen -W "{searches}" -- "$1"; {TOML["bash"]}; }}\n'
            f'_cayley_settings() {{ compgen -W "{settings}" -- "$1"; }}\n'
            '_cayley_files() { compgen -f -- "$1"; }\n'
        )
    else:
        functions = (
            f"_cayley_recipes() {{ compadd {recipes}; {TOML['zsh']}; }}\n"
            f"_cayley_tables() {{ compadd {names}; }}\n"
            f"_cayley_spaces() {{ compadd {searches}; {TOML['zsh']}; }}\n"
            f"_cayley_settings() {{ compadd -S '' {settings}; }}\n"
        )
    preamble: Any = {options.shell: functions}
    print(shtab.complete(options.parser, options.shell, preamble=preamble))
    if options.shell == "bash":
        print(NO_SPACE)
    return 0

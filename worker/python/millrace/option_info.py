"""The description of an option: configs.py makes it, and the stub of configs.py names it."""

from typing import NamedTuple


class OptionInfo(NamedTuple):
    """One option: its name, its heading, its form ("NUMBER", "DURATION", "on|off" ...), its default's text, its help.

    alias  another name that is accepted: the flag's, as "servers" of option "shards".
    forms  of a TEXT: the texts that it takes, where the library lists them.
    whole  of a NUMBER: it has no fraction.
    """

    name: str
    group: str
    form: str
    default: str
    help: str
    alias: str
    forms: str
    least: float
    most: float
    whole: bool

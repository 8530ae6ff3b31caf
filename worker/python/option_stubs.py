#!/usr/bin/env python3
"""Writes millrace/configs.pyi: the type stub of JobConfig and WorkerConfig, of the options that the module lists.

    PYTHONPATH=build/dev/python worker/python/option_stubs.py           prints the stub
    PYTHONPATH=build/dev/python worker/python/option_stubs.py --write   writes it beside configs.py

A test compares the file with the module's list.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUB = HERE / "millrace" / "configs.pyi"
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != HERE]  # the sources lack the module

import millrace  # noqa: E402
from millrace import configs  # noqa: E402

KEPT = {"DURATION": "float", "RATE": "float", "on|off": "bool", "LIST": "List[str]"}

HEAD = '''# Written by option_stubs.py.
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

from . import _millrace
from .option_info import OptionInfo

def text_of(info: OptionInfo, value: Any) -> str: ...
def nearest_name(name: str, known: Iterable[str], otherwise: str = ...) -> str: ...
def value_of(info: OptionInfo, text: str) -> Union[str, bool, int, float, List[str]]: ...
def options() -> List[OptionInfo]: ...
'''

CLASS = '''
class {name}:
    _options: Dict[str, OptionInfo]
    _set: _millrace.{made}
    def __init__(
        self,
        *,
{parameters}
    ) -> None: ...
    def text(self, name: str) -> str: ...
    def changed(self) -> Dict[str, str]: ...
    def copy(self) -> "{name}": ...
{attributes}
'''


def kind_of(info):
    """Returns the type that reading the option gives."""
    if info.form == "NUMBER":
        return "int" if info.whole else "float"
    return KEPT.get(info.form, "str")


def given_of(info):
    """Returns the type that the constructor takes: texts of every option are taken as well."""
    kind = kind_of(info)
    if kind == "List[str]":
        return "Union[str, Sequence[str], None]"
    return "Optional[str]" if kind == "str" else f"Union[str, {kind}, None]"


def class_of(kind, made):
    infos = kind._options.values()
    names = [(name, info) for info in infos for name in dict.fromkeys((info.name, info.alias))]
    return CLASS.format(name=kind.__name__, made=made,
                        parameters="\n".join(f"        {name}: {given_of(info)} = ...," for name, info in names),
                        attributes="\n".join(f"    {name}: {kind_of(info)}" for name, info in names))


def stub():
    """Returns the text of the stub."""
    return HEAD + class_of(configs.JobConfig, "JobOptions") + class_of(configs.WorkerConfig, "WorkerOptions")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="write configs.pyi instead of printing it")
    arguments = parser.parse_args()
    if arguments.write:
        STUB.write_text(stub(), encoding="utf-8")
        print(f"{STUB}: {len(millrace.options())} options")
    else:
        sys.stdout.write(stub())
    return 0


if __name__ == "__main__":
    sys.exit(main())
